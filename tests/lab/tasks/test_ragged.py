from __future__ import annotations

import numpy as np
import pytest
import torch

from evenflow.lab.tasks import Position
from evenflow.lab.tasks.own_formats import NpzData
from evenflow.lab.tasks.ragged import Ragged, inside, one_of_few


@pytest.mark.parametrize("most", [1, 2, 5, 75, 300, 4273])
def test_lengths_are_rounded_up_to_one_of_a_few(most: int) -> None:
    found = [one_of_few(steps, most) for steps in range(1, most + 1)]
    assert all(steps <= got <= most for steps, got in enumerate(found, 1))
    # An eighth is padding at most in long batches, a quarter in others, but for what whole numbers add.
    assert all(steps > 7 * got / 8 - 1 for steps, got in enumerate(found, 1) if got > 0.6 * most + 4)
    assert all(got <= 7 or steps > 3 * got / 4 - 1 for steps, got in enumerate(found, 1))
    assert len(set(found)) <= 3 * np.log2(most + 1) + 3


def test_on_a_cpu_a_batch_is_as_long_as_its_longest() -> None:
    kept = Ragged.of([np.arange(n) for n in (2, 5, 9)], torch.device("cpu"))
    values, lengths = kept.padded(torch.tensor([1, 0]))
    assert lengths.tolist() == [5, 2]
    assert values.T.tolist() == [[0, 1, 2, 3, 4], [0, 1, 1, 1, 1]]
    assert inside(lengths, 5).sum(0).tolist() == [5, 2]


def test_how_long_a_batch_is_follows_from_the_host_alone(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks at the rows on their device waits for all that was asked of it before."""
    lengths = np.arange(3, 23)
    x = np.random.default_rng(0).normal(size=(20, 22, 2)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(20) % 2, lengths=lengths)
    task, asked, take = NpzData(str(tmp_path / "own.npz")), [], NpzData.take
    monkeypatch.setattr(NpzData, "take", lambda self, rows, longest=None: asked.append(longest) or take(self, rows))
    batches = [task.training_batch(4, Position(step, 8), torch.Generator()) for step in range(8)]
    batches += task.held_out().every_batch(2, Position(0, 1), torch.device("cpu"))
    assert asked == [int(batch.lengths.max()) for batch in batches]
    assert len(set(asked)) > 2
