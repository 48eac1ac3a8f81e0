"""One time step of a layer without gradients, as fast as a cell of torch: what `Recurrent.step` keeps between calls.

`captured_step` has the steps on a GPU. On a CPU the matrices of the maps are computed once, and the compiled step holds
them in the order in which it reads them. Before every step the tensors that this was computed from are compared with
copies, so that no change to a weight is missed, not even one through ``p.data``.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from evenflow.cells import Cell
from evenflow.layers.captured_step import CapturedSteps, has_shapes_of_a_step, take_step
from evenflow.layers.layer_state import LayerState
from evenflow.runtime.torch_state import in_dispatch_mode, is_observed, plain_tensors
from evenflow.scan.kept_step import KeptStep, Watch, kept_step

if TYPE_CHECKING:
    from evenflow.layers.recurrent import Recurrent

State = Tensor | tuple[Tensor, ...]
MOST_ROWS = 32  # of a batch; more rows are faster by a scan, which has several threads


class OneStep:
    """The steps of one layer. A copy of a layer starts without any."""

    def __init__(self) -> None:
        self._plan: _Plan | CapturedSteps | None = None

    def __reduce__(self) -> Any:
        return OneStep, ()

    def __call__(self, layer: Recurrent, x: Tensor, hx: State) -> tuple[Tensor, State] | None:
        """The output and the new states, or None where `Recurrent.forward` has to take the step."""
        states = (hx,) if isinstance(hx, Tensor) else hx
        if type(x) is not Tensor or not isinstance(states, tuple) or not _is_plain(layer):
            return None
        if torch.is_grad_enabled():
            return _advance(layer, x, states) if x.is_cpu else None
        kind = CapturedSteps if x.is_cuda else _Plan
        plan = self._plan
        if type(plan) is not kind or not plan.is_current(layer):
            plan = self._plan = kind(layer)
        return plan.run(layer, x, states) if plan.possible else None


def _is_plain(layer: Recurrent) -> bool:
    """Return False where a step is more than the step of its cell, or others than autograd observe it."""
    if is_observed() or in_dispatch_mode() or layer.bidirectional:
        return False
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return False
    if layer._taps is not None or layer._records or layer.storage is not None or layer.engine != "auto":
        return False
    return not (layer.training and (layer.dropout or layer.cell.draws))


def _advance(layer: Recurrent, x: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, State] | None:
    """One step of a layer on a CPU, through which autograd finds the gradients.

    A scan would pack and save for all steps what a single one does not need.
    """
    if not layer.layers_run_in_turn or not plain_tensors(states) or not has_shapes_of_a_step(layer, x, states):
        return None
    weights = [layer.step_weights(index) for index in range(layer.num_layers)]
    if any(v.dtype != x.dtype or not v.is_cpu for v in (x, *states, *(w for each in weights for w in each.values()))):
        return None
    output, *final = take_step(layer.cell, weights, layer.takes_one_step, x, states)
    return output, final[0] if len(final) == 1 else tuple(final)


class _Plan:
    """The compiled steps of a layer for its weights as they are now.

    Attributes:
        steps: one for each layer of the stack, or one for all where a step runs through all of them; empty where the
            layer cannot be stepped in this way.
    """

    def __init__(self, layer: Recurrent) -> None:
        self.steps: list[KeptStep] = []
        self._forms: dict[torch.Size, Any] = {}  # see `_form`
        self._state = LayerState(layer)
        self._inputs, self._sizes, self._count = layer.input_size, layer.state_sizes, layer.num_layers
        self._together, self._single = not layer.layers_run_in_turn, layer.takes_one_step
        tensors, cell = self._state.tensors, layer.cell
        self._dtype = next(iter(layer.parameters()), tensors[0]).dtype
        suits = type(cell).project is Cell.project and all(t.device.type == "cpu" for t in tensors)
        if suits and plain_tensors(tensors):
            with torch.inference_mode(False), torch.no_grad():
                self._keep_steps(layer, cell)
        self.possible = bool(self.steps)

    def _keep_steps(self, layer: Recurrent, cell: Cell) -> None:
        parts, times = (1, self._count) if self._together else (self._count, 1)
        weights = [{name: w.detach() for name, w in layer.step_weights(index).items()} for index in range(parts)]
        self._products = [(w["weight_ih"], w.get("bias")) for w in weights]
        sizes = [size * times for size in self._sizes]
        steps = [kept_step(cell, len(w["weight_ih"]), sizes, w) for w in weights]
        kept = [step for step in steps if step is not None]
        if len(kept) < parts or any(w.dtype != self._dtype for w, _ in self._products):
            return
        self.steps = kept
        # The product with the input reads the weights themselves, unless `prepare` computes others of them.
        own = {t.data_ptr() for product in self._products for t in product if t is not None}
        first = layer.direction_weights(0)
        plain = not self._together and cell.prepare(first) is first
        self._watch = Watch([t for t in self._state.tensors if not (plain and t.data_ptr() in own)])

    def is_current(self, layer: Recurrent) -> bool:
        """Return True while neither the layer nor a weight has changed."""
        return self._state.is_current(layer) and not (self.steps and self._watch.changed())

    def run(self, layer: Recurrent, x: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, State] | None:
        """Take one step from x ``(B, I)`` or ``(I)``, and states in the form of the layer's `forward`."""
        form = self._forms.get(x.shape) or self._form(x.shape)
        if form is None or not x.is_cpu or x.dtype != self._dtype or len(states) != len(self._sizes):
            return None
        rows, shapes, shape, across = form
        for state, expected in zip(states, shapes):  # noqa: B905  (of equal length; `strict` takes time)
            if type(state) is not Tensor or state.shape != expected or state.dtype != self._dtype:
                return None
            if not state.is_contiguous() or not state.is_cpu:
                return None
        several = self._together and rows > 1
        if several:  # the layers of a row side by side
            states = tuple(state.transpose(0, 1).contiguous() for state in states)
        new = tuple([torch.empty_like(state) for state in states])
        before, after = [s.data_ptr() for s in states], [s.data_ptr() for s in new]
        for index, step in enumerate(self.steps):
            if index:
                x = new[0][index - 1]
                before = [at + bytes for at, bytes in zip(before, across, strict=True)]
                after = [at + bytes for at, bytes in zip(after, across, strict=True)]
            a = linear(x, *self._products[index])
            step(rows, a.data_ptr(), before, after)
        if several:
            new = tuple(state.transpose(0, 1).contiguous() for state in new)
        final: State = new[0] if len(new) == 1 else new
        if self._single:
            return new[0], final
        output = torch.empty(shape, dtype=self._dtype)
        if self._together:
            output.copy_(new[0][-1])
        else:  # a copy, so that writing to the output does not write to the state
            ctypes.memmove(output.data_ptr(), after[0], across[0])
        return output, final

    def _form(self, shape: torch.Size) -> tuple[int, list[tuple[int, ...]], tuple[int, ...], list[int]] | None:
        """For an input of this shape: rows, shapes of the states and the output, bytes of a state of one layer."""
        rows = shape[0] if len(shape) == 2 else 1
        if len(shape) not in (1, 2) or shape[-1] != self._inputs or not 0 < rows <= MOST_ROWS:
            return None
        lead, number = shape[:-1], self._dtype.itemsize
        front = () if self._single else (self._count,)
        shapes = [(*front, *lead, size) for size in self._sizes]
        form = rows, shapes, (*lead, self._sizes[0]), [rows * size * number for size in self._sizes]
        self._forms[shape] = form
        return form
