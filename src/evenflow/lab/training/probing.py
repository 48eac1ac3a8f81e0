"""What a run records of its gradients and matrices every `probe_every` updates, for probes.npz."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from evenflow.lab.tasks import Batch

if TYPE_CHECKING:
    from evenflow.layers.recurrent import Recurrent

SEQUENCES = 32  # of the batch, for the Jacobian: each has a random vector of its own
ONCE = ("matrix", "component_norm")  # arrays without a row for each probe
STATISTICS = ("mean", "deviation", "smallest", "largest")  # the last dimension of singular_values

Arrays = dict[str, np.ndarray]


class Probing:
    """The probes of a run so far, one row each; K rows make the arrays.

    Arrays:
        step: ``(K)``, the updates made before.
        gradient_norm: ``(K, T)``, ‖∂L/∂h_t‖ of the last layer, forward direction; see `probes.gradient_flow`.
        layer_norm: ``(K, L, T)``, the same for every layer and direction, where there is more than one.
        jacobian_norm: ``(K, T)``, ‖∂h_T/∂h_{T-lag}‖ in the Frobenius norm, by lag from 0, of the last layer.
        singular_values: ``(K, N, 4)``, mean, deviation, smallest and largest of every recurrent matrix, and of every
            gate's block of it. Not all of them: matrices differ in size, and these four are what is drawn.
        matrix: ``(N)``, the names of those.
        band: ``(K, 2)``, what a step multiplies a Jacobian by at least and at most; `bounds.gradient_band`. Plain and
            scalar-gated layers have one, so ``√h band^lag`` is around `jacobian_norm`.
        component_norm: ``(T)``, the norms of the gradient's shares in time before the first update, where the layer has
            them; `probes.temporal_components`. Once, because they take as long as several gradients.

    Note on the Jacobian: with v of entries ±1, ``E ‖Jᵀv‖² = ‖J‖_F²``, and one backward pass through the layer's own
    scan gives Jᵀv for all lags. Each of up to 32 sequences has its own v, the same at every probe; their root mean
    square is kept. As ‖v‖ = √h, that estimate too can never leave the band.

    Args:
        seed: what the vectors v are drawn from.

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
        """Add a row. Weights that are not finite are passed over: the loop stops at them before it saves anything."""
        from evenflow.bounds.band import gradient_band
        from evenflow.probes.gradient_flow import gradient_flow
        from evenflow.probes.matrix_spectra import spectrum
        from evenflow.probes.model_layer import find_layer

        parameters = list(model.parameters())
        if not all(bool(torch.isfinite(p).all()) for p in parameters):
            return
        inputs, targets = (t.to(parameters[0].dtype) if t.is_floating_point() else t for t in batch[:2])
        layer = find_layer(model)
        flows = gradient_flow(model, inputs, targets, loss, batch.lengths, layers="all")
        top = len(flows) - (2 if layer.bidirectional else 1)
        row: Arrays = {"step": np.array(step, dtype=np.int64), "gradient_norm": flows[top]}
        if len(flows) > 1:
            row["layer_norm"] = flows.astype(np.float32)
        row["jacobian_norm"] = _jacobian(model, layer, inputs, batch.lengths, self._seed)  # type: ignore[arg-type]
        spectra = spectrum(layer, eigenvalues_up_to=0)
        self._matrices = [found.name for found in spectra]
        row["singular_values"] = np.array([(s.mean, s.std, s.min, s.max) for s in spectra])
        try:
            band = gradient_band(layer, 1, norm="spectral")
        except ValueError:  # a cell that no theorem covers
            pass
        else:
            row["band"] = np.array((band.lower_rate, band.upper_rate))
        if step == 0:
            self._components = _components(model, batch._replace(inputs=inputs, targets=targets), loss)
        self._rows.append(row)

    def arrays(self) -> Arrays | None:
        """All rows in one; None where there are none."""
        if not self._rows:
            return None
        everywhere = [name for name in self._rows[-1] if all(name in row for row in self._rows)]
        found = {name: np.stack([row[name] for row in self._rows]) for name in everywhere}
        once = {} if self._components is None else {"component_norm": self._components}
        return found | {"matrix": np.array(self._matrices)} | once

    def restore(self, arrays: Mapping[str, np.ndarray], until: int) -> None:
        """Go back to the rows up to a step, as `arrays` gave them."""
        self._matrices = arrays["matrix"].tolist() if "matrix" in arrays else []
        kept = np.flatnonzero(arrays["step"] <= until)
        self._components = arrays.get("component_norm") if len(kept) else None
        self._rows = [{name: array[i] for name, array in arrays.items() if name not in ONCE} for i in kept]


def _components(model: nn.Module, batch: Batch, loss: Callable[[Tensor, Tensor], Tensor]) -> np.ndarray | None:
    """The norms of the temporal components, or None for a layer that has none."""
    from evenflow.probes.model_layer import eval_mode
    from evenflow.probes.temporal_components import temporal_components

    try:
        with eval_mode(model):
            found = temporal_components(model, batch.inputs, batch.targets, loss, batch.lengths)  # type: ignore[arg-type]
    except ValueError:  # two state vectors, two directions, or a model of another kind
        return None
    return found.norms.detach().float().cpu().numpy()


def _jacobian(model: nn.Module, layer: Recurrent, inputs: Tensor, lengths: Tensor | None, seed: int) -> np.ndarray:
    """The root mean square of ``‖Jᵀv‖`` by lag, ``(T)``; nan at lags that no sequence has."""
    from evenflow.probes.model_layer import eval_mode, tap_states

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
            wanted = [tap for index, tap in enumerate(taps) if index % members == members - directions]
            flows = torch.autograd.grad((h * v).sum(), wanted)
    finally:
        hook.remove()
    squares = torch.linalg.vector_norm(torch.cat(flows).double(), dim=-1).square().cpu().numpy()
    T, B = squares.shape
    # Rows of packed input stand longest first.
    ends = np.full(B, T) if lengths is None else np.sort(lengths.cpu().numpy())[::-1]
    at = ends - 1 - np.arange(T)[:, None]  # the step that lies so far back from each sequence's end
    there = at >= 0
    back = np.where(there, np.take_along_axis(squares, np.maximum(at, 0), 0), 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sqrt(back.sum(1) / there.sum(1)).astype(np.float32)
