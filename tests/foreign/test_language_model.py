"""A word language model as people write it: carried state detached between batches, clipped gradients, generation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import evenflow

WORDS, WIDTH, STEPS, ROWS = 12, 16, 8, 4


class LanguageModel(nn.Module):
    """Embedding, recurrent layer, decoder with tied weights."""

    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.recurrent = recurrent
        self.decode = nn.Linear(WIDTH, WORDS)
        self.decode.weight = self.embed.weight

    def forward(self, words, state):
        output, state = self.recurrent(self.drop(self.embed(words)), state)
        return self.decode(output).flatten(0, 1), state


def detached(state):
    return None if state is None else state.detach() if isinstance(state, torch.Tensor) else tuple(map(detached, state))


def text() -> torch.Tensor:
    """Words that follow from the two before them, in `ROWS` columns."""
    words = [1, 2]
    while len(words) < 65 * ROWS:
        words.append((words[-1] + words[-2]) % WORDS)
    return torch.tensor(words[: 65 * ROWS]).view(ROWS, -1).mT.contiguous()


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru", "ugru", "sgornn", "fastrnn", "scrn"])
def test_training_with_carried_state_and_generation(name):
    torch.manual_seed(0)
    recurrent = evenflow.create(name, WIDTH, WIDTH, 2, dropout=0.1, generator=torch.Generator().manual_seed(1))
    model, words = LanguageModel(recurrent), text()
    loss_of, losses = nn.CrossEntropyLoss(), []
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(25):
        state, total = None, 0.0
        for start in range(0, 64, STEPS):
            state = detached(state)
            model.zero_grad()
            output, state = model(words[start : start + STEPS], state)
            loss = loss_of(output, words[start + 1 : start + STEPS + 1].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            total += loss.item()
        losses.append(total)
    assert losses[-1] < 0.8 * losses[0]

    model.eval()
    with torch.no_grad():
        word, state, said = words[:1, :1], None, []
        for _ in range(5):
            output, state = model(word, state)
            word = output[-1].argmax().view(1, 1)
            said.append(word.item())
    assert all(0 <= index < WORDS for index in said)


def test_the_module_of_another_script_is_replaced_by_its_name():
    """Scripts pick the class by its name, and pass sizes and the number of layers by position."""
    for kind in ("LSTM", "GRU"):
        layer = getattr(evenflow, kind)(WIDTH, WIDTH, 2, dropout=0.5)
        assert layer.num_layers == 2
    layer = evenflow.RNN(WIDTH, WIDTH, 2, nonlinearity="relu", dropout=0.5)
    assert layer(torch.zeros(3, 2, WIDTH))[0].shape == (3, 2, WIDTH)
