"""Probes of a run: gradients over time and matrices, recorded every `probe_every` updates for probes.npz."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from evenflow.bounds.band import gradient_band
from evenflow.lab.tasks import Batch
from evenflow.probes.gradient_flow import gradient_flow
from evenflow.probes.matrix_spectra import spectrum
from evenflow.probes.model_layer import eval_mode, find_stack, layers_of, tap_states
from evenflow.probes.temporal_components import temporal_components

if TYPE_CHECKING:
    from evenflow.layers.recurrent import Recurrent

SEQUENCES = 32  # of the batch, for the Jacobian: each has a random vector of its own
ONCE = ("matrix", "component_norm")  # arrays without a row for each probe
STATISTICS = ("mean", "deviation", "smallest", "largest")  # the last dimension of singular_values

Arrays = dict[str, np.ndarray]


class Probing:
    """The probes of a run so far: K rows, one for each probe.

    Arrays:
        step: ``(K)``, the updates made before the probe.
        gradient_norm: ``(K, T)``, ‖∂L/∂h_t‖ of the last layer, forward direction; see `probes.gradient_flow`.
        layer_norm: ``(K, L, T)``, the same for every layer and direction, if there is more than one.
        jacobian_norm: ``(K, T)``, ‖∂h_T/∂h_{T-lag}‖ in the Frobenius norm, by lag from 0, of the last layer.
        singular_values: ``(K, N, 4)``, mean, standard deviation, smallest and largest singular value of every recurrent
            matrix and of every gate's block of it.
        matrix: ``(N)``, the names of these matrices and blocks.
        band: ``(K, 2)``, the smallest and largest factor of one step on a Jacobian's norm; see `bounds.gradient_band`.
            Plain and scalar-gated layers have one: ``√h band^lag`` encloses `jacobian_norm`.
        component_norm: ``(T)``, the norms of the gradient's shares in time before the first update, for layers that
            have them; see `probes.temporal_components`. Measured once, because it takes as long as several gradients.

    The Jacobian's norm is an estimate: for random v with entries ±1, ``E ‖Jᵀv‖² = ‖J‖_F²``, and one backward pass
    through the layer gives Jᵀv for all lags. Each of up to 32 sequences has its own v, the same at every probe, and the
    root mean square over them is recorded. As ‖v‖ = √h, the estimate can never leave the band.

    Args:
        seed: the seed of the vectors v.

    >>> probing = Probing(seed=0)
    >>> probing.look(0, model, batch, task.loss)
    >>> probing.arrays()["singular_values"].shape
    (1, 1, 4)
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rows: list[Arrays] = []
        self._matrices: list[str] = []
        self._components: np.ndarray | None = None

    def look(self, step: int, model: nn.Module, batch: Batch, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Add a row, unless a weight is not finite; the loop then raises an error before it saves anything."""
        parameters = list(model.parameters())
        if not all(bool(torch.isfinite(p).all()) for p in parameters):
            return
        inputs, targets = (t.to(parameters[0].dtype) if t.is_floating_point() else t for t in batch[:2])
        *below, layer = layers_of(find_stack(model))
        flows = gradient_flow(model, inputs, targets, loss, batch.lengths, layers="all")
        top = len(flows) - (2 if layer.bidirectional else 1)
        row: Arrays = {"step": np.array(step, dtype=np.int64), "gradient_norm": flows[top]}
        if len(flows) > 1:
            row["layer_norm"] = flows.astype(np.float32)
        row["jacobian_norm"] = _jacobian(model, layer, inputs, batch.lengths, self._seed)  # type: ignore[arg-type]
        spectra = spectrum(model if below else layer, eigenvalues_up_to=0)
        self._matrices = [matrix.name for matrix in spectra]
        row["singular_values"] = np.array([(s.mean, s.std, s.min, s.max) for s in spectra])
        try:
            band = gradient_band(layer, 1, norm="spectral")
        except ValueError:  # no theorem covers this cell
            pass
        else:
            row["band"] = np.array((band.lower_rate, band.upper_rate))
        if step == 0:
            self._components = _components(model, batch._replace(inputs=inputs, targets=targets), loss)
        self._rows.append(row)

    def arrays(self) -> Arrays | None:
        """The arrays of all rows; None if there are none."""
        if not self._rows:
            return None
        names = [name for name in self._rows[-1] if all(name in row for row in self._rows)]
        arrays = {name: np.stack([row[name] for row in self._rows]) for name in names}
        once = {} if self._components is None else {"component_norm": self._components}
        return arrays | {"matrix": np.array(self._matrices)} | once

    def restore(self, arrays: Mapping[str, np.ndarray], until: int) -> None:
        """Go back to the rows up to step `until` of the arrays that `arrays` returned."""
        self._matrices = arrays["matrix"].tolist() if "matrix" in arrays else []
        kept = np.flatnonzero(arrays["step"] <= until)
        self._components = arrays.get("component_norm") if len(kept) else None
        self._rows = [{name: array[i] for name, array in arrays.items() if name not in ONCE} for i in kept]


def _components(model: nn.Module, batch: Batch, loss: Callable[[Tensor, Tensor], Tensor]) -> np.ndarray | None:
    """The norms of the temporal components, or None for a layer that has none."""
    try:
        with eval_mode(model):
            components = temporal_components(model, batch.inputs, batch.targets, loss, batch.lengths)  # type: ignore[arg-type]
    except ValueError:  # two state vectors, two directions, or a model of another kind
        return None
    return components.norms.detach().float().cpu().numpy()


def _jacobian(model: nn.Module, layer: Recurrent, inputs: Tensor, lengths: Tensor | None, seed: int) -> np.ndarray:
    """The root mean square of ``‖Jᵀv‖`` by lag, ``(T)``; nan at lags longer than all sequences."""
    inputs, lengths = inputs[:, :SEQUENCES], None if lengths is None else lengths[:SEQUENCES]
    directions = 2 if layer.bidirectional else 1
    members = layer.num_layers * directions
    finals: list[Tensor] = []

    def keep(_: nn.Module, __: object, answer: tuple[object, Tensor | tuple[Tensor, ...]]) -> None:
        finals.append(answer[1] if isinstance(answer[1], Tensor) else answer[1][0])

    hook = layer.register_forward_hook(keep)
    try:
        with eval_mode(model), tap_states(layer) as taps:
            model(inputs) if lengths is None else model(inputs, lengths=lengths)
            h = finals[-1][members - directions]
            generator = torch.Generator().manual_seed(seed)
            v = torch.randint(0, 2, h.shape, generator=generator).mul(2).sub(1).to(h)
            last_layer = [tap for index, tap in enumerate(taps) if index % members == members - directions]
            flows = torch.autograd.grad((h * v).sum(), last_layer)
    finally:
        hook.remove()
    squares = torch.linalg.vector_norm(torch.cat(flows).double(), dim=-1).square().cpu().numpy()
    T, B = squares.shape
    # Packed rows are sorted, the longest first.
    ends = np.full(B, T) if lengths is None else np.sort(lengths.cpu().numpy())[::-1]
    at = ends - 1 - np.arange(T)[:, None]  # by lag, the step so far before each sequence's end
    exists = at >= 0
    back = np.where(exists, np.take_along_axis(squares, np.maximum(at, 0), 0), 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sqrt(back.sum(1) / exists.sum(1)).astype(np.float32)
