"""Tools of torch that rewrite models: `torch.fx` keeps layers whole, quantisation says that it leaves them alone."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.ao.quantization import quantize_dynamic

import evenflow
from evenflow.systems import NETWORKS, SYSTEMS

I, H = 3, 8


class Classifier(nn.Module):
    """A model of the kind that people trace: a layer, with carried state, and a readout."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.read = layer, nn.Linear(H, 2)

    def forward(self, x, state):
        output, state = self.layer(x, state)
        return self.read(torch.relu(output)), state


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_layer_is_one_operation_of_a_traced_model(name):
    model = Classifier(evenflow.create(name, I, H))
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["layer", "read"]
    x = torch.randn(5, 2, I)
    for given in (None, model.layer(x)[1]):
        torch.testing.assert_close(traced(x, given), model(x, given), rtol=0, atol=0)
    assert torch.equal(copy.deepcopy(traced)(x, None)[0], model(x, None)[0])


def test_a_cell_is_one_operation_of_a_traced_model():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.read = evenflow.LSTMCell(I, H), nn.Linear(H, 2)

        def forward(self, x, h, c):
            h, c = self.cell(x, (h, c))
            return self.read(h), c

    model, zeros = Two(), torch.zeros(2, H)
    traced, x = torch.fx.symbolic_trace(model), torch.randn(2, I)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["cell", "read"]
    torch.testing.assert_close(traced(x, zeros, zeros), model(x, zeros, zeros), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("make", "vocabulary"),
    [
        (lambda: evenflow.create("ugru", I, H), 5),
        (lambda: nn.GRU(I, H), None),
        (lambda: evenflow.RNN(I, H, map="rotations", activation="identity"), None),
    ],
)
def test_a_sequence_model_is_traced(make, vocabulary):
    model = evenflow.SequenceModel(make(), 2, vocabulary=vocabulary)
    traced = torch.fx.symbolic_trace(model, {"lengths": None})
    x = torch.randn(5, 2, I) if vocabulary is None else torch.randint(5, (5, 2))
    torch.testing.assert_close(traced(x), model(x))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_traced(name):
    network = NETWORKS[name].network(I, 2, width=H, depth=4)
    x = torch.randn(5, I)
    assert torch.equal(torch.fx.symbolic_trace(network)(x), network(x))


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            evenflow.GRU(I, H),
            "torch.fx keeps a layer as one operation of a model: trace a model that holds this GRU, such as "
            "torch.nn.Sequential(layer)",
        ),
        (
            evenflow.SequenceModel(evenflow.GRU(I, H), 2),
            'lengths must be left out where torch.fx records the model: symbolic_trace(model, {"lengths": None})',
        ),
    ],
)
def test_what_cannot_be_traced_says_so(model, sentence):
    with pytest.raises(ValueError) as error:
        torch.fx.symbolic_trace(model)
    assert str(error.value) == sentence


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", SYSTEMS)
def test_quantisation_says_that_it_leaves_a_layer_alone(name):
    model = Classifier(evenflow.create(name, I, H)).eval()
    kind = evenflow.systems()[name].layer.__name__
    with pytest.warns(UserWarning, match="evenflow") as caught:
        quantised = quantize_dynamic(model)
    (message,) = [str(each.message) for each in caught if "evenflow" in str(each.message)]
    assert message == (
        f"torch.ao.quantization leaves evenflow's {kind} in floating point: it knows layers of torch alone, to which "
        f"evenflow.to_torch converts a GRU or LSTM"
    )
    assert not isinstance(quantised.read, nn.Linear)
    x = torch.randn(5, 2, I)
    assert torch.equal(quantised.layer(x)[0], model.layer(x)[0])
    assert not hasattr(model.layer, "qconfig")


@pytest.mark.filterwarnings("ignore")
def test_a_converted_layer_is_quantised():
    layer = evenflow.GRU(I, H)
    model = Classifier(evenflow.to_torch(layer)).eval()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quantised = quantize_dynamic(model)
    assert not [each for each in caught if "evenflow" in str(each.message)]
    assert type(quantised.layer).__module__.startswith("torch.ao.nn.quantized")
    x = torch.randn(5, 2, I)
    assert torch.allclose(quantised(x, None)[0], model(x, None)[0], atol=0.1)  # eight bits
