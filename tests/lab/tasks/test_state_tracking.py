"""State tracking: groups, products in order, longer sequences for validation, the loss without memory."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from evenflow import SequenceModel, create, fit
from evenflow.lab.tasks import Curriculum, make
from evenflow.lab.tasks.state_tracking import GROUPS, products

SIZES = {"parity": 2, "counter": 5, "a5": 60, "s5": 120}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("group", GROUPS)
def test_the_table_is_that_of_a_group(group):
    table = products(group, 5)
    n = len(table)
    assert n == SIZES[group]
    assert (table[0] == np.arange(n)).all()
    assert (table[:, 0] == np.arange(n)).all()
    assert all(sorted(row) == list(range(n)) for row in (*table, *table.T))  # every element has an inverse
    draw = np.random.RandomState(0)
    for a, b, c in draw.randint(0, n, (200, 3)):
        assert table[a, table[b, c]] == table[table[a, b], c]
    assert (group in ("parity", "counter")) == (table == table.T).all()


def test_the_permutations_are_composed():
    """Elements in the order of `itertools`: the product moves letters by the second factor first."""
    listed = list(itertools.permutations(range(5)))
    table = products("s5", 5)
    for g, h in np.random.RandomState(0).randint(0, 120, (50, 2)):
        assert listed[table[g, h]] == tuple(listed[g][listed[h][i]] for i in range(5))
    even = [p for p in listed if sum(p[i] > p[j] for i in range(5) for j in range(i + 1, 5)) % 2 == 0]
    a5 = products("a5", 5)
    for g, h in np.random.RandomState(1).randint(0, 60, (50, 2)):
        assert even[a5[g, h]] == tuple(even[g][even[h][i]] for i in range(5))


@pytest.mark.parametrize("length", [2, 7, 33])
@pytest.mark.parametrize("group", GROUPS)
def test_targets_are_the_products_so_far(group, length):
    task = make("state-tracking", group=group, length=length)
    inputs, targets, lengths = task.batch(3, generator())
    assert inputs.shape == (length, 3, SIZES[group])
    assert lengths is None
    table, state = products(group, 5), np.zeros(3, int)
    for element, target in zip(inputs.argmax(-1).numpy(), targets.numpy(), strict=True):
        state = table[element, state]
        assert (state == target).all()
    assert (inputs.sum(-1) == 1).all()


def test_validation_sequences_are_longer():
    task = make("state-tracking", length=10, factor=16)
    held_out = task.held_out()
    assert len(held_out.batch(2, generator()).inputs) == 160
    assert len(task.at_step(0, 10).batch(2, generator()).inputs) == 10
    assert held_out.held_out() == held_out != task
    assert make("state-tracking", **held_out.options()) == task


@pytest.mark.parametrize("group", ["parity", "counter", "a5"])
def test_the_loss_without_memory(group):
    """That of the shares of states for each input, over many sequences."""
    task = make("state-tracking", group=group, length=4)
    inputs, targets, _ = task.batch(100_000, generator())
    n = task.output_size
    pairs = torch.bincount((inputs.argmax(-1) * n + targets).flatten(), minlength=n * n).view(n, n).double()
    share = pairs / pairs.sum(1, keepdim=True)
    entropy = float((torch.special.entr(share).sum(1) * pairs.sum(1) / pairs.sum()).sum())
    assert task.baseline == pytest.approx(entropy, rel=3e-3)
    assert task.baseline < math.log(n)


def test_the_share_of_right_outputs():
    task = make("state-tracking", length=4)
    _, targets, _ = task.batch(5, generator())
    outputs = torch.nn.functional.one_hot(targets, 2).float()
    assert task.metric(outputs, targets) == 1
    assert task.metric(1 - outputs, targets) == 0
    assert task.solved(0.99)
    assert not task.solved(0.98)


def test_length_grows_in_a_curriculum():
    task = make("curriculum", task="state-tracking", length=20, group="a5")
    assert isinstance(task, Curriculum)
    assert len(task.at_step(0, 100).batch(2, generator()).inputs) < 20


def test_a_network_with_a_state_learns_parity_for_ever(tmp_path):
    """Trained on 8 steps, right on all 128."""
    torch.manual_seed(0)
    task = make("state-tracking", length=8)
    model = SequenceModel(create("lstm", 2, 16), 2, readout="every")
    options = {"lr": 1e-2, "batch_size": 64, "validate_every": 100, "device": "cpu", "progress": False}
    result = fit(model, task, steps=600, optimizer="adam", folder=str(tmp_path / "run"), **options)
    assert result.valid_metric > 0.99


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"group": "s4"}, "group must be one of parity, counter, a5, s5, got 's4'"),
        ({"modulus": 1}, "modulus must be a whole number of at least 2, got 1"),
        ({"length": 1}, "length must be a whole number of at least 2, got 1"),
        ({"factor": 0}, "factor must be a whole number of at least 1, got 0"),
    ],
)
def test_wrong_options(options, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        make("state-tracking", **options)
