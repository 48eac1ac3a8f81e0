"""Prediction of a wave, as a script does that loops over two cells and feeds its outputs back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import evenflow

H = 12


class Wave(nn.Module):
    """Two cells above each other, a readout of one number, and a free run after the series ends."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.second = getattr(evenflow, kind)(1, H), getattr(evenflow, kind)(H, H)
        self.read = nn.Linear(H, 1)
        self.pair = kind == "LSTMCell"

    def start(self, rows: int):
        zeros = torch.zeros(rows, H)
        return (zeros, zeros) if self.pair else zeros

    def forward(self, series: torch.Tensor, future: int = 0) -> torch.Tensor:
        one, two, outputs = self.start(len(series)), self.start(len(series)), []
        steps = series.shape[1]
        for t in range(steps + future):
            x = series[:, t : t + 1] if t < steps else outputs[-1]
            one = self.first(x, one)
            two = self.second(one[0] if self.pair else one, two)
            outputs.append(self.read(two[0] if self.pair else two))
        return torch.cat(outputs, 1)


@pytest.mark.parametrize("kind", ["RNNCell", "GRUCell", "LSTMCell"])
def test_a_wave_is_learned_and_continued(kind):
    torch.manual_seed(0)
    phases = torch.arange(40) * 0.4
    waves = (phases + torch.rand(6, 1) * 6).sin()
    model, loss_of = Wave(kind), nn.MSELoss()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=10)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model(waves[1:, :-1]), waves[1:, 1:])
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(4)]
    assert losses[-1] < 0.1 * losses[0]
    with torch.no_grad():
        outputs = model(waves[:1, :30], future=10)
    assert outputs.shape == (1, 40)
    assert loss_of(outputs[0, :29], waves[0, 1:30]).item() < 0.25  # half the variance of a wave
