"""Models with Hugging Face's mixin: saved to a folder, with the arguments as JSON, and loaded from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import evenflow
from evenflow.systems import SYSTEMS

hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")


class Classifier(evenflow.SequenceModel, hub.PyTorchModelHubMixin):
    """A model whose arguments JSON can hold."""

    def __init__(self, system: str, hidden_size: int = 8, classes: int = 3) -> None:
        super().__init__(evenflow.create(system, 2, hidden_size, 2), classes, readout="every")


class Model(evenflow.SequenceModel, hub.PyTorchModelHubMixin):
    """A model over a layer, whose description JSON holds."""


class Layer(evenflow.LSTM, hub.PyTorchModelHubMixin):
    """A layer alone."""


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_comes_back_from_a_folder(name: str, tmp_path: Path):
    if name == "esn":
        pytest.skip("an echo state network has one layer")
    model = Classifier(name, hidden_size=12)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == {"system": name, "hidden_size": 12, "classes": 3}
    torch.manual_seed(1)
    again = Classifier.from_pretrained(tmp_path)
    x = torch.randn(6, 4, 2)
    assert torch.equal(again(x)[0], model.eval()(x)[0])
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in again.state_dict().items())


LAYERS = {
    "system": lambda: evenflow.create("ugru", 2, 8, 2, bidirectional=True),
    "map": lambda: evenflow.RNN(2, 8, map="cayley", activation="oplu"),
    "float64": lambda: evenflow.create("sgornn", 2, 8, dtype=torch.float64),
    "torch": lambda: torch.nn.LSTM(2, 8, 2),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS.keys())
def test_a_model_without_a_constructor_of_its_own_describes_its_layer(make, tmp_path: Path):
    model = Model(make(), 3, vocabulary=5, readout_units=4)
    model.save_pretrained(tmp_path / "first")
    config = json.loads((tmp_path / "first" / "config.json").read_text())
    assert (config["output_size"], config["vocabulary"], config["readout_units"]) == (3, 5, 4)
    words = torch.randint(5, (6, 4))
    wanted = model.eval()(words)[0]
    again = Model.from_pretrained(tmp_path / "first")
    assert torch.equal(again(words)[0], wanted)
    again.save_pretrained(tmp_path / "second")
    assert torch.equal(Model.from_pretrained(tmp_path / "second")(words)[0], wanted)
    evenflow.save(again, tmp_path / "bundle")
    assert torch.equal(evenflow.load(tmp_path / "bundle").model(words)[0], wanted)


def test_a_map_attached_to_the_layer_is_made_again(tmp_path: Path):
    layer = evenflow.create("rnn", 2, 8)
    model = Model(evenflow.attach(layer, "weight_ih_l0", evenflow.maps.LowRank(8, columns=2, rank=1)), 3)
    model.save_pretrained(tmp_path)
    again, x = Model.from_pretrained(tmp_path), torch.randn(6, 4, 2)
    assert torch.equal(again(x)[0], model.eval()(x)[0])


def test_a_layer_that_cannot_be_described_is_passed_again(tmp_path: Path):
    def layer():
        return torch.nn.utils.parametrizations.weight_norm(evenflow.create("rnn", 2, 8), "weight_ih_l0")

    model = Model(layer(), 3)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError) as error:
        Model.from_pretrained(tmp_path)
    assert str(error.value) == (
        "layer must be given: the saved one cannot be made again, it was made with a part that cannot be made again "
        "(weight_ih_l0 is parametrized by _WeightNorm, and only maps of `attach` are saved; "
        "torch.nn.utils.parametrize.remove_parametrizations leaves a plain weight)"
    )
    again, x = Model.from_pretrained(tmp_path, layer=layer()), torch.randn(6, 4, 2)
    assert torch.equal(again(x)[0], model.eval()(x)[0])


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"dtype": "int8"}, "dtype of the layer must be a floating-point type of torch, got 'int8'"),
        ({"call": "os:system"}, "the description of the model calls os:system, which is no model, layer or cell"),
        ({"arguments": [2, 1 << 30]}, f"argument 2 of evenflow:GRU is {1 << 30}, and no weight is larger than 1048576"),
    ],
)
def test_a_damaged_description(changed, sentence, tmp_path: Path):
    Model(evenflow.GRU(2, 8), 3).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["layer"] |= changed
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError) as error:
        Model.from_pretrained(tmp_path)
    assert str(error.value) == sentence


def test_a_layer_alone(tmp_path: Path):
    layer = Layer(2, 8, 2, bidirectional=True, proj_size=4)
    layer.save_pretrained(tmp_path)
    again = Layer.from_pretrained(tmp_path)
    x = torch.randn(6, 4, 2)
    assert torch.equal(again(x)[0], layer(x)[0])
