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
    """A model over a layer, which JSON cannot hold."""


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


def test_a_model_without_a_constructor_of_its_own_is_loaded_with_its_layer(tmp_path: Path):
    model = Model(evenflow.create("ugru", 2, 8), 3, vocabulary=5, readout_units=4)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["output_size"], config["vocabulary"], config["readout_units"]) == (3, 5, 4)
    again = Model.from_pretrained(tmp_path, layer=evenflow.create("ugru", 2, 8))
    words = torch.randint(5, (6, 4))
    assert torch.equal(again(words)[0], model.eval()(words)[0])


def test_a_layer_alone(tmp_path: Path):
    layer = Layer(2, 8, 2, bidirectional=True, proj_size=4)
    layer.save_pretrained(tmp_path)
    again = Layer.from_pretrained(tmp_path)
    x = torch.randn(6, 4, 2)
    assert torch.equal(again(x)[0], layer(x)[0])
