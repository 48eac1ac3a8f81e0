"""Packed sequences laid out and taken up again, beside torch's own functions."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from evenflow.layers.sequences import Sequences, unpacked

LENGTHS = {"one": [4], "equal": [5, 5, 5], "sorted": [6, 4, 4, 1], "mixed": [2, 7, 1, 7, 3]}


@pytest.mark.parametrize("more", [0, 2], ids=["to the longest", "beyond it"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_unpacked_is_what_torch_gives(lengths, more):
    found = []
    for undo in (unpacked, lambda packed, steps: pad_packed_sequence(packed, total_length=steps)[0]):
        x = torch.arange(1.0, 1 + max(lengths) * len(lengths) * 3).view(max(lengths), len(lengths), 3).requires_grad_()
        padded = undo(pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False), max(lengths) + more)
        found.append((padded, *torch.autograd.grad((padded * torch.arange(3.0)).square().sum(), x)))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_read_and_written_nothing_has_changed(lengths):
    x = torch.randn(max(lengths), len(lengths), 3)
    packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    sequences = Sequences.read(packed, 3, batch_first=False)
    assert sequences.lengths.tolist() == sorted(lengths, reverse=True)
    assert (sequences.batch_sizes is None) == (len(set(lengths)) == 1)
    written = sequences.write(sequences.padded)
    assert all(torch.equal(one, other) for one, other in zip(written, packed, strict=True))
