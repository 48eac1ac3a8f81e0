"""Singular values and eigenvalues of every recurrent matrix of a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evenflow.cells import LSTM1997, Cell, GatedFeedback, GRUStep, LSTMStep
from evenflow.layers.recurrent import Recurrent
from evenflow.probes.model_layer import Layer, find_layers
from evenflow.probes.plotted import Plotted, draw_profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Spectrum(Plotted):
    """The spectrum of one recurrent matrix, or of one gate's block of it.

    Attributes:
        name: the name of the weight, such as ``layer.weight_hh_l0``, with ``[f]`` for the block of a gate.
        singular_values: in descending order, ``(n,)``.
        eigenvalues: the absolute values of the eigenvalues in descending order; empty for a block that is not square,
            or above `eigenvalues_up_to`.
        deviation: the largest entry of ``|WᵀW - I|``; 0 for an orthogonal or unitary matrix.

    >>> (matrix,) = spectrum(RNN(2, 16, map="cayley"))
    >>> matrix.name, round(matrix.min, 4), round(matrix.max, 4)
    ('weight_hh_l0', 1.0, 1.0)
    """

    name: str
    singular_values: NDArray[np.float64]
    eigenvalues: NDArray[np.float64]
    deviation: float

    @property
    def mean(self) -> float:
        """The mean singular value. `mean`, `std`, `min` and `max` are the curves of Vorontsov et al.'s figure 3."""
        return float(self.singular_values.mean())

    @property
    def std(self) -> float:
        return float(self.singular_values.std())

    @property
    def min(self) -> float:
        return float(self.singular_values.min())

    @property
    def max(self) -> float:
        return float(self.singular_values.max())

    @property
    def radius(self) -> float:
        """The spectral radius, the largest absolute eigenvalue; nan without eigenvalues."""
        return float(self.eigenvalues[0]) if len(self.eigenvalues) else float("nan")

    def draw(self, axes: Axes) -> None:
        """The singular values in descending order."""
        values = self.singular_values
        draw_profile(axes, range(1, len(values) + 1), values, self.name, "number", "singular value")

    def __str__(self) -> str:
        values = f"{self.min:.4g} to {self.max:.4g} (mean {self.mean:.4g}, deviation {self.std:.2g})"
        radius = f", radius {self.radius:.4g}" if len(self.eigenvalues) else ""
        return f"{self.name}: singular values {values}{radius}, |WᵀW - I| {self.deviation:.2g}"


class Spectra(list[Spectrum], Plotted):
    """The list of `spectrum`, with `plot`."""

    def draw(self, axes: Axes) -> None:
        """The singular values of every matrix."""
        for one in self:
            one.draw(axes)


def spectrum(model: nn.Module, *, eigenvalues_up_to: int | None = None) -> Spectra:
    """The spectra of all recurrent matrices of a model, gate by gate, of evenflow's layers and of torch's.

    Args:
        model: any module that contains recurrent layers.
        eigenvalues_up_to: size up to which eigenvalues are computed, which takes far longer than singular values;
            None computes all.

    >>> (matrix,) = spectrum(RNN(2, 64, map="svd", margin=0.1))
    >>> matrix.min >= 0.9, matrix.max <= 1.1
    (True, True)
    >>> [s.name for s in spectrum(nn.GRU(2, 64))]
    ['weight_hh_l0[r]', 'weight_hh_l0[z]', 'weight_hh_l0[n]']

    Reference: Vorontsov et al. 2017, figure 3.
    """
    layers = find_layers(model)
    if not layers:
        raise ValueError(f"model must hold a recurrent layer, of evenflow or torch's, got {type(model).__name__}")
    return Spectra(
        _spectrum(f"{layer_name}.{name}" if layer_name else name, block, eigenvalues_up_to)
        for layer_name, layer in layers.items()
        for name, block in _blocks(layer)
    )


@torch.no_grad()
def _spectrum(name: str, W: Tensor, eigenvalues_up_to: int | None) -> Spectrum:
    W = W.detach().cpu().to(torch.complex128 if W.is_complex() else torch.float64)
    if not torch.isfinite(torch.view_as_real(W) if W.is_complex() else W).all():
        raise ValueError(f"{name} must be finite to have a spectrum, got a matrix that is not")
    moduli = W.new_empty(0).real
    if W.shape[0] == W.shape[1] and (eigenvalues_up_to is None or len(W) <= eigenvalues_up_to):
        moduli = torch.linalg.eigvals(W).abs().sort(descending=True).values
    gram = W.mH @ W - torch.eye(W.shape[1], dtype=W.dtype)
    return Spectrum(name, torch.linalg.svdvals(W).numpy(), moduli.numpy(), float(gram.abs().max()))


def _blocks(layer: Layer) -> Iterator[tuple[str, Tensor]]:
    """Each gate's recurrent matrix with its name."""
    if isinstance(layer, Recurrent):
        matrices = layer.cell.matrices(layer.hidden_size)
        gates_of = {m.name + s: _gates(layer.cell.core, m.name, m.blocks) for s in layer.suffixes for m in matrices}
    else:
        gates = "rzn" if isinstance(layer, nn.GRU) else "ifgo" if isinstance(layer, nn.LSTM) else ""
        directions = ("", "_reverse") if layer.bidirectional else ("",)
        gates_of = {f"weight_hh_l{index}{way}": gates for index in range(layer.num_layers) for way in directions}
    for name, gates in gates_of.items():
        W = getattr(layer, name)
        if len(gates) < 2:
            yield name, W
        else:
            yield from ((f"{name}[{gate}]", block) for gate, block in zip(gates, W.chunk(len(gates)), strict=True))


def _gates(cell: Cell, name: str, blocks: int) -> str:
    """One letter for each gate stacked in a matrix; digits if the cell's gates have no letters."""
    if isinstance(cell, GatedFeedback):
        own = {2: "rz", 3: "ifo"}.get(blocks, "")
        return own if name == "weight_hh_own" else "".join(map(str, range(blocks)))
    if isinstance(cell, LSTMStep):
        return "ifgo"
    if isinstance(cell, LSTM1997):
        return "igo"
    if isinstance(cell, GRUStep):
        return "rz" if name == "weight_hh" else ""
    return "".join(map(str, range(blocks)))
