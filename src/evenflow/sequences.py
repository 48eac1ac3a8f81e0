"""The forms a batch of sequences comes in, brought to one and back.

`torch.nn.RNN` takes time first or batch first, one sequence without a batch dimension, and packed sequences of several
lengths. Inside a layer there is one form: ``(T, B, width)``, with the longest sequence first and `batch_sizes` where
lengths differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence


@dataclass
class Sequences:
    """A batch as ``(T, B, width)``, and how to give results back in the caller's form.

    Attributes:
        batch_sizes: how many sequences still run at each step, or None where all have T steps.
        lengths: the steps of each sequence ``(B)``, longest first, or None likewise.
    """

    padded: Tensor
    batch_first: bool
    batch_sizes: list[int] | None = None
    lengths: Tensor | None = None
    packed: PackedSequence | None = None
    unbatched: bool = False

    @classmethod
    def read(cls, x: Tensor | PackedSequence, width: int, batch_first: bool) -> Sequences:
        if isinstance(x, PackedSequence):
            if x.data.dim() != 2 or x.data.shape[-1] != width:
                raise ValueError(f"packed input must hold {width} numbers a step, got data of {tuple(x.data.shape)}")
            padded, lengths = pad_packed_sequence(PackedSequence(x.data, x.batch_sizes))
            sizes = None if int(lengths[-1]) == len(padded) else x.batch_sizes.tolist()
            return cls(padded, batch_first, sizes, lengths.to(padded.device), x)
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
        """`output` ``(T, B, width)`` in the form the input came in."""
        if self.packed is not None:
            assert self.lengths is not None
            data = pack_padded_sequence(output, self.lengths.cpu()).data
            return PackedSequence(
                data, self.packed.batch_sizes, self.packed.sorted_indices, self.packed.unsorted_indices
            )
        if self.unbatched:
            return output.squeeze(1)
        return output.transpose(0, 1) if self.batch_first else output

    def read_state(self, state: Tensor, members: int, width: int, name: str) -> Tensor:
        """A state ``(members, B, width)`` of the caller's in the order of the rows here."""
        batch = self.padded.shape[1]
        expected = (members, width) if self.unbatched else (members, batch, width)
        if tuple(state.shape) != expected:
            raise ValueError(f"{name} must have shape {expected} for this input, got {tuple(state.shape)}")
        if self.unbatched:
            return state.unsqueeze(1)
        if self.packed is not None and self.packed.sorted_indices is not None:
            return state.index_select(1, self.packed.sorted_indices)
        return state

    def write_state(self, state: Tensor) -> Tensor:
        """A final state ``(members, B, width)`` in the order of the caller's rows."""
        if self.unbatched:
            return state.squeeze(1)
        if self.packed is not None and self.packed.unsorted_indices is not None:
            return state.index_select(1, self.packed.unsorted_indices)
        return state

    def reverse(self, x: Tensor) -> Tensor:
        """Each sequence ``(T, B, width)`` back to front, its padding left at the end."""
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
