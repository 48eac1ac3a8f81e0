from __future__ import annotations

import numpy as np
import pytest
import torch

from evenflow.tasks.ragged import Ragged, inside, one_of_few


@pytest.mark.parametrize("most", [1, 2, 5, 75, 300, 4273])
def test_lengths_are_rounded_up_to_one_of_a_few(most: int) -> None:
    found = [one_of_few(steps, most) for steps in range(1, most + 1)]
    assert all(steps <= got <= most for steps, got in enumerate(found, 1))
    # A quarter is wasted at most, but for the one step that a whole number may add; three steps are the least.
    assert all(got <= 3 or steps > 3 * got / 4 - 1 for steps, got in enumerate(found, 1))
    assert len(set(found)) <= 3 * np.log2(most + 1) + 1


def test_on_a_cpu_a_batch_is_as_long_as_its_longest() -> None:
    kept = Ragged.of([np.arange(n) for n in (2, 5, 9)], torch.device("cpu"))
    values, lengths = kept.padded(torch.tensor([1, 0]))
    assert lengths.tolist() == [5, 2]
    assert values.T.tolist() == [[0, 1, 2, 3, 4], [0, 1, 1, 1, 1]]
    assert inside(lengths, 5).sum(0).tolist() == [5, 2]
