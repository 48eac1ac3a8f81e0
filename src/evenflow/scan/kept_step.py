"""One time step of a cell by compiled code on a CPU, for callers that take one step after the other.

A scan over one step spends most of its time on what is the same in the next call: packing the matrices, memory, and
the arguments of the call. Here all of it is kept.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.cells import Cell, Weights
from evenflow.scan import cpu
from evenflow.scan.compiled_step import CompiledStep, compiled_step
from evenflow.scan.derived_parameters import with_derived
from evenflow.step import Untranslatable

LINE = 64  # bytes of a cache line


class KeptStep:
    """The step of a cell with given weights, which must not change.

    Args:
        step: the program.
        weights: the matrices and then the parameters of the program; contiguous, on a CPU, of one dtype.
        dtype: theirs, and that of the states.
    """

    def __init__(self, step: CompiledStep, weights: Sequence[Tensor | None], dtype: torch.dtype) -> None:
        self._step, self._weights, self._dtype = step, weights, dtype
        loaded = cpu.step_library(step, self._dtype)
        assert loaded is not None
        self._function = getattr(loaded, f"forward_{cpu.SUFFIXES[self._dtype]}")
        self._free: dict[int, list[_KeptCall]] = {}  # by rows: the calls that no thread is making at the moment

    def __call__(self, rows: int, a: int, states: Sequence[int], new: Sequence[int]) -> None:
        """Take one step from addresses to addresses: a ``(rows, size)``, states and new states ``(rows, H)`` each."""
        free = self._free.setdefault(rows, [])
        try:
            call = free.pop()
        except IndexError:
            call = self._new_call(rows)
        tensor, after = call.tensor, call.first_new
        tensor[0] = a
        for i, address in enumerate(states):
            tensor[i + 1] = address
            tensor[i + after] = new[i]
        if self._function(call.reference):
            raise MemoryError("a step found no memory")
        call.job.packed = 1
        free.append(call)

    def _new_call(self, rows: int) -> _KeptCall:
        call = _KeptCall(self._step, self._weights, rows, self._dtype)
        needed = ctypes.c_int64()
        call.job.bytes = ctypes.addressof(needed)
        self._function(call.reference)
        call.job.bytes = None
        call.use(torch.empty(needed.value + LINE, dtype=torch.uint8))
        return call


class _KeptCall:
    """The arguments of a call, which one thread uses at a time."""

    def __init__(self, step: CompiledStep, weights: Sequence[Tensor | None], rows: int, dtype: torch.dtype) -> None:
        states = len(step.state_sizes)
        self.first_new = 1 + states + len(weights)
        self.saved = [
            torch.empty(rows, step.kept_size, dtype=dtype),
            torch.empty(rows, step.marks_size, dtype=torch.int8),
        ]
        addresses = [w.data_ptr() if w is not None else None for w in weights]
        saved = [v.data_ptr() or None for v in self.saved]
        length = self.first_new + states + len(saved)
        self.tensor = (ctypes.c_void_p * length)(None, *[None] * states, *addresses, *[None] * states, *saved)
        self.job = cpu.StepCall(1, 1, rows, 1)
        self.numbers = step.number_array
        self.job.number, self.job.tensor = ctypes.addressof(self.numbers), ctypes.addressof(self.tensor)
        self.reference = ctypes.byref(self.job)

    def use(self, memory: Tensor) -> None:
        """Give the call its scratch memory."""
        self.memory = memory
        self.job.scratch = (memory.data_ptr() + LINE - 1) // LINE * LINE


def kept_step(cell: Cell, a_size: int, state_sizes: Sequence[int], weights: Weights) -> KeptStep | None:
    """The step of a cell, or None where there is no compiled code for it.

    Args:
        a_size, state_sizes: the numbers of the pre-activations and of each state.
        weights: as `Cell.prepare` gave them. The step holds them as they are now.
    """
    text = cell.program(a_size, state_sizes, weights)
    if isinstance(text, Untranslatable):
        return None
    matrices, parameters = cell.arguments(weights)
    with torch.inference_mode(False), torch.no_grad():
        present = [p.detach().contiguous() for p in with_derived(text, parameters)]
        listed = [*(m.detach().contiguous() for m in matrices), *present]
        step = compiled_step(text)
        like = listed[0] if listed else next(iter(weights.values()))
        if not cpu.runs(step, like, *listed):
            return None
        left = iter(present)
        read = [next(left) if nodes else None for nodes in step.program.parameters]
        return KeptStep(step, [*listed[: len(matrices)], *read], like.dtype)


class Watch:
    """Copies of tensors on a CPU, to be compared with the tensors as they are later."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = [t for t in tensors if t.numel()]
        self._copies = [t.detach().clone(memory_format=torch.contiguous_format) for t in self._tensors]
        count = len(self._tensors)
        pointers, sizes = ctypes.c_void_p * count, ctypes.c_int64 * count
        self._now = pointers(*(t.data_ptr() for t in self._tensors))
        self._then = pointers(*(t.data_ptr() for t in self._copies))
        self._bytes = sizes(*(t.numel() * t.element_size() for t in self._tensors))
        products = cpu.library()
        assert products is not None
        self._differ = products.differ
        self._arguments = (ctypes.c_int64(count), self._now, self._then, self._bytes)

    def changed(self) -> bool:
        """Return True if a tensor holds other bits than at first."""
        return bool(self._differ(*self._arguments))
