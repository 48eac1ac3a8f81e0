"""The table of systems: every row works, and counts the parameters its document counts."""

from __future__ import annotations

import pytest
import torch

from evenflow import SequenceModel, create, systems
from evenflow.maps import residual

# The SGORNN document's tables 1 and 2: (system, hidden) with input width and one output; table 3: the layer alone.
ADDITION = {("vprnn", 128): 1409, ("sgornn", 128): 1411, ("fastrnn", 128): 16899, ("lstm", 128): 67201}
HAR2 = {("vprnn", 128): 2305, ("sgornn", 128): 2307, ("fastrnn", 128): 17795, ("lstm", 64): 19009}
PTB_LAYER = {("vprnn", 256): 67840, ("sgornn", 256): 67842, ("fastrnn", 256): 131330, ("lstm", 256): 525312}


@pytest.mark.parametrize("name", systems())
def test_every_system_trains(name):
    torch.manual_seed(0)
    model = SequenceModel(create(name, 3, 16), 2)
    x, y = torch.randn(12, 8, 3), torch.randn(8, 2)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(300):
        optimiser.zero_grad()
        loss = (model(x)[0] - y).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0], "8 random sequences must be learnt by heart"


@pytest.mark.parametrize("name", systems())
def test_finite_gradients_over_a_thousand_steps(name):
    layer = create(name, 2, 16)
    output, _ = layer(torch.randn(1000, 2, 2))
    output[-1].sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize(("table", "inputs"), [(ADDITION, 2), (HAR2, 9)], ids=["addition", "har-2"])
def test_parameter_counts_of_the_sgornn_document(table, inputs):
    for (name, hidden), count in table.items():
        model = SequenceModel(create(name, inputs, hidden), 1)
        assert model.parameter_counts()["total"] == count, name


def test_parameter_counts_of_the_sgornn_language_model():
    for (name, hidden), count in PTB_LAYER.items():
        assert sum(p.numel() for p in create(name, hidden, hidden).parameters()) == count, name


@pytest.mark.parametrize("name", ["urnn", "exprnn", "ornn", "vprnn", "sgornn"])
def test_orthogonal_systems_are_orthogonal(name):
    assert residual(create(name, 2, 24).weight_hh_l0) < 1e-5


def test_options_go_over_the_systems_own():
    layer = create("sgornn", 2, 8, map="exponential", activation="abs", num_layers=2, bidirectional=True)
    assert type(layer.parametrizations.weight_hh_l1_reverse[0]).__name__ == "Exponential"
    assert create("irnn", 2, 8, map="exponential").hidden_size == 8  # the free map's own options go with it


@pytest.mark.parametrize(
    ("name", "words"),
    [("sgorn", "did you mean sgornn"), ("SGORNN", "sgornn"), ("transformer", "known are exprnn, fastrnn")],
)
def test_unknown_names_get_the_nearest(name, words):
    with pytest.raises(ValueError) as error:
        create(name, 2, 8)
    assert words in str(error.value)


def test_unknown_option_is_named():
    with pytest.raises(ValueError, match="reflectorz"):
        create("ornn", 2, 8, reflectorz=3)


def test_systems_is_read_only():
    with pytest.raises(TypeError):
        systems()["mine"] = systems()["rnn"]  # type: ignore[index]
