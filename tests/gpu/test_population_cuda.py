"""Populations whose updates are captured as CUDA graphs; `make test-gpu` runs these."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("lightning_fabric")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

from evenflow.lab.training import train_population  # noqa: E402

STEPS = 30


def configs(system: str, count: int, **training: Any) -> list[dict[str, Any]]:
    common = {"steps": STEPS, "device": "cuda", "batch_size": 10} | training
    return [
        {
            "task": {"name": "adding", "length": 20},
            "system": {"name": system, "hidden_size": 16},
            "training": common | {"seed": seed, "lr": 1e-3 * (1 + seed)},
        }
        for seed in range(count)
    ]


@pytest.mark.parametrize("system", ["rnn", "sgornn", "urnn", "gru", "ugru", "factorized", "full-urnn"])
def test_a_population_trains_as_its_models_alone(system: str, captures: list[Any]) -> None:
    together = train_population(configs(system, 3), progress=False)
    assert [entry is not None for entry in captures] == [True]
    for one, config in zip(together, configs(system, 3), strict=True):
        (alone,) = train_population([config], progress=False)
        assert one.valid_loss == pytest.approx(alone.valid_loss, rel=1e-3)


def test_hidden_units_of_the_readout_train_as_alone(captures: list[Any]) -> None:
    given = configs("vprnn", 3)
    for config in given:
        config["system"]["readout_units"] = 12
    together = train_population(given, progress=False)
    assert [entry is not None for entry in captures] == [True]
    for config, found in zip(given, together, strict=True):
        (alone,) = train_population([config], progress=False)
        assert found.valid_loss == pytest.approx(alone.valid_loss, rel=1e-3)


def test_margins_side_by_side_train_as_alone(captures: list[Any]) -> None:
    """One map makes all matrices, a short series moves the bases, and their rounding is taken back between updates."""
    settings = {"bases_lr": 1e-3, "optimizer": "rmsprop", "penalty": "weight_decay(1e-3)", "clip_norm": 1.0}
    given = configs("factorized", 3, steps=70, **settings)
    for config, margin in zip(given, (0.01, 0.5, "none"), strict=True):
        config["system"]["margin"] = margin
    together = train_population(given, progress=False)
    assert [entry is not None for entry in captures] == [True]
    for config, found in zip(given, together, strict=True):
        (alone,) = train_population([config], progress=False)
        assert found.valid_loss == pytest.approx(alone.valid_loss, rel=1e-3)


def test_sequences_of_different_lengths_are_captured_by_the_longest(tmp_path: Path, captures: list[Any]) -> None:
    """Seeds draw batches of their own, whose lengths mix in many ways."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(10, 100, 200)
    x = draw.normal(size=(200, 100, 2)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=x[..., 0].cumsum(1) > 0, lengths=lengths)
    given = configs("rnn", 3, steps=60)
    for config in given:
        config["task"] = {"name": "npz", "file": str(tmp_path / "own.npz"), "kind": "classification"}
    together = train_population(given, progress=False)
    assert 0 < len(captures) <= 3  # of ten rows the longest has at least seven eighths of the most, nearly always
    assert None not in captures
    for one, config in zip(together, given, strict=True):
        (alone,) = train_population([config], progress=False)
        assert one.valid_loss == pytest.approx(alone.valid_loss, rel=1e-3)


def test_captured_updates_draw_dropout_by_seed(captures: list[Any]) -> None:
    """Two runs of one seed draw the same masks at every replay, and a replay others than the one before."""
    given = configs("gru", 3)
    for config, seed in zip(given, (1, 2, 1), strict=True):
        config["system"] |= {"output_dropout": 0.5, "num_layers": 2, "dropout": 0.3}
        config["training"] |= {"seed": seed, "lr": 1e-3, "log_every": 1}
    one, other, same = train_population(given, progress=False)
    assert [entry is not None for entry in captures] == [True]
    assert one.loss == pytest.approx(same.loss, rel=1e-4)
    assert one.loss != pytest.approx(other.loss, rel=1e-4)
    still = copy.deepcopy(given[:2])
    for config in still:
        config["training"] |= {"lr": 1e-12, "optimizer": "sgd"}
    (alone,) = train_population(still[:1], progress=False)
    assert len(set(alone.history["loss"].tolist())) == STEPS
