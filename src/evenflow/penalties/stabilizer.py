"""A penalty on states that grow or shrink."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.penalties.penalty import Penalty, Watched


class Stabilizer(Penalty):
    """``β mean_t (|h_t| - |h_{t-1}|)²``, over the steps, the sequences and the layers: states keep their norm.

    Args:
        strength: β; the paper has 50 to 500.

    Note on the first step: the paper's sum begins with |h_0|, and a zero h_0 would pull h_1 to zero. Here it begins
    with the first two states of the sequence.

    Reference: Krueger and Memisevic 2016.
    """

    name, equation, listens = "stabilizer", "β mean (|h_t| - |h_{t-1}|)²", True

    def __init__(self, strength: float = 50.0) -> None:
        super().__init__(strength)

    def value(self, watched: Watched, loss: Tensor) -> Tensor:
        if not watched.states:
            raise ValueError(f"{self.name} needs a model with a recurrent layer, got none that ran")
        return torch.stack([_mean_change(h, running) for h, running in watched.states]).mean()


def _mean_change(h: Tensor, running: Tensor | None) -> Tensor:
    if len(h) < 2:
        return h.sum() * 0
    squares = torch.linalg.vector_norm(h, dim=-1).diff(dim=0).square()
    if running is None:
        return squares.mean()
    both = running[1:]  # a sequence that runs at a step ran at the one before
    return torch.where(both, squares, torch.zeros_like(squares)).sum() / both.sum().clamp(min=1)
