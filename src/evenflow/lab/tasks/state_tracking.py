"""State tracking: say at every step which element of a group the product of all inputs so far is."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .synthetic import SOLVED_ACCURACY, Draw, Synthetic
from .task import Batch, option

GROUPS = ("parity", "counter", "a5", "s5")
LETTERS = 5  # that the permutations of A5 and S5 move


@dataclass(frozen=True)
class StateTracking(Synthetic):
    """Output after every step the product of all elements of a group that came so far.

    Every input is an element g of the group, drawn uniformly; the target is ``s_t = g_t s_{t-1}`` with s_0 the neutral
    element. Training sequences have T steps, and validation sequences `factor` times as many: a network that tracks
    the state goes on for ever, one that has learnt by heart what T steps look like does not.

    - "parity": whether the number of ones is odd.
    - "counter": the sum modulo `modulus`.
    - "a5": the 60 even permutations of five letters. Products in A5 are complete for NC1, and so, as far as is known,
      out of the reach of a fixed number of linear recurrences with diagonal coefficients.
    - "s5": all 120 permutations of five letters.

    Loss: mean cross entropy over all steps. From the current input alone the state is known at the first step only, and
    the loss is the entropy of that mixture at T steps. Metric: the share of right outputs of all steps; 99 % counts as
    solved.

    Shapes:
        inputs ``(T, B, K)`` one-hot, K elements; targets ``(T, B)`` int64 below K.

    Args:
        length: T in training.
        group: "parity", "counter", "a5" or "s5".
        modulus: of the counter.
        factor: the length of sequences for validation over T.

        >>> task = StateTracking(length=8, group="parity")
        >>> inputs, targets, _ = task.batch(2, torch.Generator().manual_seed(0))
        >>> torch.equal(inputs.argmax(-1).cumsum(0) % 2, targets)
        True
        >>> len(task.held_out().batch(2, torch.Generator().manual_seed(0)).inputs)
        128

    References: Barrington 1989; Merrill, Petty and Sabharwal 2024; Grazzi et al. 2025.
    """

    length: int = option(40, "steps T of a training sequence", whole=2)
    group: str = option("parity", "parity, counter (modulo a number), or words of a5 or s5", choices=GROUPS)
    modulus: int = option(5, "the number of states of the counter", whole=2)
    factor: int = option(16, "validation sequences are this many times as long", whole=1)
    part: str = dataclasses.field(default="training", init=False, repr=False)

    name = "state-tracking"
    problem = "classification"
    readout = "every"
    metric_name = "accuracy"
    higher_is_better = True
    solved_limit = SOLVED_ACCURACY

    def held_out(self) -> Self:
        longer = copy.copy(self)
        object.__setattr__(longer, "part", "validation")
        return longer

    @property
    def steps(self) -> int:
        """Steps of a sequence of this part."""
        return self.length if self.part == "training" else self.length * self.factor

    @property
    def input_size(self) -> int:
        return len(products(self.group, self.modulus))

    @property
    def output_size(self) -> int:
        return self.input_size

    @property
    def baseline(self) -> float:
        """The state equals the input at the first step, and is independent of the input at all others."""
        other = (1 - 1 / self.length) / self.output_size
        same = 1 / self.length + other
        return -same * math.log(same) - (self.output_size - 1) * other * math.log(other)

    def draw(self, draw: Draw) -> Batch:
        elements = draw.below(self.input_size, self.steps)
        table = _table(self.group, self.modulus, elements.device)
        states, reach = elements, 1
        while reach < self.steps:  # the product of the last `reach` inputs becomes that of twice as many
            states = torch.cat([states[:reach], table[states[reach:], states[:-reach]]])
            reach *= 2
        return Batch(F.one_hot(elements, self.input_size).float(), states)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(-1) == targets).float().mean()


@lru_cache(maxsize=8)
def products(group: str, modulus: int) -> np.ndarray:
    """The product ``g h`` of all pairs of elements ``(K, K)``, as numbers of elements; element 0 is the neutral one."""
    if group in ("parity", "counter"):
        counts = np.arange(2 if group == "parity" else modulus)
        return (counts[:, None] + counts) % len(counts)
    permutations = np.array(list(itertools.permutations(range(LETTERS))))
    if group == "a5":
        above, below = np.triu_indices(LETTERS, 1)
        permutations = permutations[(permutations[:, above] > permutations[:, below]).sum(1) % 2 == 0]
    code = LETTERS ** np.arange(LETTERS)
    number = {key: i for i, key in enumerate((permutations @ code).tolist())}
    together = permutations[:, permutations]  # g after h: the letter i goes to g[h[i]]
    return np.vectorize(number.__getitem__)(together @ code)


@lru_cache(maxsize=8)
def _table(group: str, modulus: int, device: torch.device) -> Tensor:
    return torch.from_numpy(products(group, modulus)).to(device)
