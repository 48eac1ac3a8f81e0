"""Converts the input forms of `torch.nn.RNN` to one form inside a layer, and results back to the caller's form.

`torch.nn.RNN` takes time first or batch first, one sequence without a batch dimension, and packed sequences of several
lengths. Inside a layer there is one form: ``(T, B, width)``, with the longest sequence first and `batch_sizes` where
lengths differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


@dataclass
class Sequences:
    """A batch as ``(T, B, width)``, and how to give results back in the caller's form.

    Attributes:
        batch_sizes: how many sequences still run at each step, or None where all have T steps.
        lengths: the steps of each sequence ``(B)``, longest first, for packed input.
        packed: the packed input.
        places: the index of each row of the packed data among the T B rows of `padded`.
        unbatched: the input is one sequence without a batch dimension.
    """

    padded: Tensor
    batch_first: bool
    batch_sizes: list[int] | None = None
    lengths: Tensor | None = None
    packed: PackedSequence | None = None
    places: Tensor | None = None
    unbatched: bool = False

    @classmethod
    def read(cls, x: Tensor | PackedSequence, width: int, batch_first: bool) -> Sequences:
        """Check an input of `width` numbers a step and convert it."""
        if isinstance(x, PackedSequence):
            if x.data.dim() != 2 or x.data.shape[-1] != width:
                raise ValueError(f"packed input must hold {width} numbers a step, got data of {tuple(x.data.shape)}")
            if not x.data.is_floating_point():
                raise ValueError(f"input must hold floating point numbers, got {x.data.dtype}")
            sizes, places = x.batch_sizes.tolist(), _places(x)
            lengths = (x.batch_sizes.unsqueeze(1) > torch.arange(sizes[0], device="cpu")).sum(0).to(x.data.device)
            ragged = sizes if sizes[-1] < sizes[0] else None
            return cls(_padded(x, places, len(sizes)), batch_first, ragged, lengths, x, places)
        if not isinstance(x, Tensor):
            raise ValueError(f"input must be a tensor or a PackedSequence, got {type(x).__name__}")
        if x.dim() not in (2, 3) or x.shape[-1] != width:
            form = "(B, T, I) or (T, I)" if batch_first else "(T, B, I) or (T, I)"
            raise ValueError(f"input must be {form} with I = {width}, got {tuple(x.shape)}")
        if not x.is_floating_point():
            raise ValueError(f"input must hold floating point numbers, got {x.dtype}")
        batched = x.unsqueeze(1 - batch_first) if x.dim() == 2 else x
        padded = batched.transpose(0, 1) if batch_first else batched
        if padded.shape[0] == 0:
            raise ValueError(f"input must have at least one time step, got {tuple(x.shape)}")
        return cls(padded, batch_first, unbatched=x.dim() == 2)

    def write(self, output: Tensor) -> Tensor | PackedSequence:
        """`output` ``(T, B, width)`` in the form of the input."""
        if self.packed is not None:
            assert self.places is not None
            data = output.flatten(0, 1).index_select(0, self.places)
            return PackedSequence(
                data, self.packed.batch_sizes, self.packed.sorted_indices, self.packed.unsorted_indices
            )
        if self.unbatched:
            return output.squeeze(1)
        return output.transpose(0, 1) if self.batch_first else output

    def read_states(
        self, hx: Tensor | tuple[Tensor, ...], names: list[str], members: int, widths: Sequence[int]
    ) -> list[Tensor]:
        """The caller's states, ``(members, B, width)`` each, with their rows in the order of `padded`."""
        listed = ", ".join(names)
        several = f"a {'pair' if len(names) == 2 else 'tuple'} ({listed})"
        expected = f"one tensor {listed}" if len(names) == 1 else several
        states = (hx,) if isinstance(hx, Tensor) else tuple(hx) if isinstance(hx, tuple | list) else ()
        if not all(isinstance(state, Tensor) for state in states) or not states:
            raise ValueError(f"the initial state must be {expected}, got {type(hx).__name__} {hx!r:.60}")
        if len(states) != len(names):
            raise ValueError(f"the initial state must be {expected}, got {len(states)} tensors")
        listed_states = zip(states, widths, names, strict=True)
        return [self._read_state(state, members, width, name) for state, width, name in listed_states]

    def _read_state(self, state: Tensor, members: int, width: int, name: str) -> Tensor:
        batch = self.padded.shape[1]
        expected = (members, width) if self.unbatched else (members, batch, width)
        if tuple(state.shape) != expected:
            raise ValueError(f"{name} must have shape {expected} for this input, got {tuple(state.shape)}")
        if not state.is_floating_point():
            raise ValueError(f"{name} must hold floating point numbers, got {state.dtype}")
        if state.device != self.padded.device:
            raise ValueError(f"{name} must be on {self.padded.device} as the input is, got {state.device}")
        if self.unbatched:
            return state.unsqueeze(1)
        if self.packed is not None and self.packed.sorted_indices is not None:
            return state.index_select(1, self.packed.sorted_indices)
        return state

    def read_resets(self, resets: Tensor | PackedSequence | None) -> Tensor | None:
        """The caller's mask of the steps before which a sequence restarts, ``(T, B)`` as `padded`."""
        if resets is None:
            return None
        mask = resets.data if isinstance(resets, PackedSequence) else resets
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            kind: object = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(f"resets must be a tensor of Booleans (torch.bool), got {kind}")
        return self._one_a_step("resets", "Boolean", resets)

    def read_gaps(self, dt: Tensor | PackedSequence | None) -> Tensor | None:
        """The caller's time gaps, ``(T, B)`` as `padded`."""
        if dt is None:
            return None
        gaps = dt.data if isinstance(dt, PackedSequence) else dt
        if not isinstance(gaps, Tensor) or not gaps.is_floating_point():
            kind: object = gaps.dtype if isinstance(gaps, Tensor) else type(gaps).__name__
            raise ValueError(f"dt must be a tensor of floating point numbers, got {kind}")
        return self._one_a_step("dt", "number", dt)

    def _one_a_step(self, name: str, kind: str, value: Tensor | PackedSequence) -> Tensor:
        """An argument that has one value for each step of the input, ``(T, B)`` as `padded`."""
        packed = value if isinstance(value, PackedSequence) else None
        values = value.data if isinstance(value, PackedSequence) else value
        if values.device != self.padded.device:
            raise ValueError(f"{name} must be on {self.padded.device} as the input is, got {values.device}")
        T, B = self.padded.shape[:2]
        if self.packed is not None:
            if packed is None or not _packed_alike(packed, self.packed):
                got = "a tensor" if packed is None else "other lengths or another order"
                raise ValueError(f"{name} must be a PackedSequence of a {kind} a step, packed as the input, got {got}")
            assert self.places is not None
            return _padded(packed, self.places, T)
        expected = (T,) if self.unbatched else (B, T) if self.batch_first else (T, B)
        if packed is not None or values.shape != expected:
            shape: object = tuple(values.shape) if packed is None else "a PackedSequence"
            raise ValueError(f"{name} must have shape {expected} for this input, got {shape}")
        return values.unsqueeze(1) if self.unbatched else values.transpose(0, 1) if self.batch_first else values

    def reverse_gaps(self, gaps: Tensor) -> Tensor:
        """The time gaps of `reverse`: the one before step t is now that after it; the first one stays the first."""
        return torch.cat([gaps[:1], self.reverse(gaps)[:-1]])

    def reverse_resets(self, resets: Tensor) -> Tensor:
        """The resets of `reverse`: the same pieces, each of which begins where it ended."""
        return self.reverse(torch.cat([resets[1:], torch.zeros_like(resets[:1])]))

    def write_state(self, state: Tensor) -> Tensor:
        """A final state ``(members, B, width)`` in the order of the caller's rows."""
        if self.unbatched:
            return state.squeeze(1)
        if self.packed is not None and self.packed.unsorted_indices is not None:
            return state.index_select(1, self.packed.unsorted_indices)
        return state

    def reverse(self, x: Tensor) -> Tensor:
        """Each sequence of ``(T, B, width)`` from its last step to its first; padding stays at the end."""
        if self.batch_sizes is None:
            return x.flip(0)
        assert self.lengths is not None
        t = torch.arange(len(x), device=x.device).unsqueeze(1)
        source = torch.where(t < self.lengths, self.lengths - 1 - t, t)
        return x[source, torch.arange(x.shape[1], device=x.device)]

    def last(self, x: Tensor) -> Tensor:
        """The last step of each sequence ``(B, width)``."""
        if self.batch_sizes is None:
            return x[-1]
        assert self.lengths is not None
        return x[self.lengths - 1, torch.arange(x.shape[1], device=x.device)]


def _packed_alike(resets: PackedSequence, packed: PackedSequence) -> bool:
    """Return True if one number for each step of `packed` is packed in the same order."""
    own, other = resets.sorted_indices, packed.sorted_indices
    same_order = own is other if own is None or other is None else torch.equal(own, other)
    same_steps = torch.equal(resets.batch_sizes, packed.batch_sizes)
    return same_order and same_steps and resets.data.shape == packed.data.shape[:1]


def unpacked(packed: PackedSequence, steps: int) -> Tensor:
    """Packed sequences as ``(steps, B, width)`` in the order before packing, with zeros after the end of each.

    torch's `pad_packed_sequence` writes step after step, and its gradient copies all steps at every step.
    """
    padded = _padded(packed, _places(packed), steps)
    return padded if packed.unsorted_indices is None else padded.index_select(1, packed.unsorted_indices)


def _padded(packed: PackedSequence, places: Tensor, steps: int) -> Tensor:
    batch, width = int(packed.batch_sizes[0]), packed.data.shape[1:]
    return packed.data.new_zeros(steps * batch, *width).index_copy(0, places, packed.data).view(steps, batch, *width)


def _places(packed: PackedSequence) -> Tensor:
    """The index of each row of packed data among T B rows."""
    sizes = packed.batch_sizes
    step = torch.repeat_interleave(torch.arange(len(sizes), device="cpu"), sizes)
    within = torch.arange(len(step), device="cpu") - (sizes.cumsum(0) - sizes)[step]
    return (step * sizes[0] + within).to(packed.data.device)
