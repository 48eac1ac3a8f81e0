"""Results of probes draw themselves: what is drawn is what was measured."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

from evenflow import RNN, SequenceModel
from evenflow.lab.tasks import make
from evenflow.probes import gradient_flow, jacobian_norms, memory_length, spectrum, temporal_components

ADDING = make("adding", length=12)


@pytest.fixture
def model() -> SequenceModel:
    torch.manual_seed(0)
    return SequenceModel(RNN(2, 8, num_layers=2), 1)


def lines(result) -> list[np.ndarray]:
    return [np.asarray(line.get_ydata()) for line in result.plot().axes[0].lines]


def test_gradient_flow_is_an_array_that_draws_itself(model: SequenceModel) -> None:
    batch = ADDING.batch(3, torch.Generator().manual_seed(0))
    flow = gradient_flow(model, batch.inputs, batch.targets, ADDING.loss)
    assert isinstance(flow, np.ndarray)
    np.testing.assert_array_equal(lines(flow)[0], flow)
    every = gradient_flow(model, batch.inputs, batch.targets, ADDING.loss, layers="all")
    np.testing.assert_array_equal(lines(every), every)
    assert [text.get_text() for text in every.plot().axes[0].get_legend().get_texts()] == ["layer 1", "layer 2"]
    assert "<svg" in flow._repr_svg_()


def test_the_other_probes(model: SequenceModel) -> None:
    x = torch.randn(12, 3, 2, generator=torch.Generator().manual_seed(0))
    norms = jacobian_norms(model.layer, x)
    np.testing.assert_allclose(lines(norms)[1], np.sqrt((norms.spectral**2).mean(1)))
    assert norms.plot().axes[0].lines[0].get_xdata().tolist() == list(range(11, -1, -1))
    memory = memory_length(model.layer, x)
    np.testing.assert_allclose(lines(memory)[0], memory.sensitivity)
    single = SequenceModel(RNN(2, 8), 1)
    batch = ADDING.batch(3, torch.Generator().manual_seed(0))
    components = temporal_components(single, batch.inputs, batch.targets, ADDING.loss)
    np.testing.assert_allclose(lines(components)[0], components.norms.detach().numpy())
    spectra = spectrum(nn.GRU(2, 8))
    assert isinstance(spectra, list)
    assert len(lines(spectra)) == 3
    np.testing.assert_allclose(lines(spectra[0])[0], spectra[0].singular_values)


def test_zeros_leave_gaps_and_large_ranges_are_logarithmic(model: SequenceModel) -> None:
    batch = ADDING.batch(3, torch.Generator().manual_seed(0))
    flow = gradient_flow(model, batch.inputs, batch.targets, ADDING.loss)
    flow[:] = np.geomspace(1e-6, 1, len(flow))
    flow[3] = 0
    assert np.isnan(lines(flow)[0][3])
    assert flow.plot().axes[0].get_yscale() == "log"


def test_without_matplotlib(model: SequenceModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "evenflow.figures", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)
    spectra = spectrum(model)
    with pytest.raises(ValueError, match=r"^plot needs matplotlib: pip install 'evenflow\[lab\]'$"):
        spectra.plot()
    assert spectra._repr_svg_() is None
