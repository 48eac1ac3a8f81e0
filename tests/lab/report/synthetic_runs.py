"""Run folders made of numbers with known shape: gradients that stay level, fall or grow by a given rate per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evenflow.lab.training.metrics import HEADER, to_line
from evenflow.lab.training.run_writer import RunWriter

STEPS, PROBES, LENGTH = 1200, 13, 200


def write_run(
    folder: Path,
    system: str = "sgornn",
    *,
    decay: float = 1.0,
    end: float = 0.0005,
    task: dict[str, Any] | None = None,
    metric: Callable[[float], float] | None = None,
    training: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    length: int = LENGTH,
    seed: int = 0,
    layers: int = 1,
    status: dict[str, Any] | None = None,
) -> Path:
    """A finished run: its loss falls to `end`, its gradient shrinks by `decay` with every step back.

    Its Jacobian shrinks by 0.99 `decay`, in a band of `decay` ± 0.02; its singular values spread around 1.
    """
    random = np.random.default_rng(seed)
    config = {
        "task": task or {"name": "adding", "length": length, "variant": "sgornn"},
        "system": {"name": system, "hidden_size": 64, **(options or {})},
        "training": {"steps": STEPS, "lr": 0.01, "optimizer": "rmsprop", "batch_size": 50, "seed": seed}
        | (training or {}),
    }
    writer = RunWriter.create(folder, config)
    step = np.arange(10, STEPS + 1, 10)
    level = 0.17 + (0.33 - 0.17) * np.exp(-step / 60)
    fall = 1 / (1 + np.exp((step - 500) / 90))
    clean = np.exp(np.log(level) * fall + np.log(end) * (1 - fall))
    for at, value in zip(step, clean, strict=True):
        loss = value * np.exp(0.15 * random.standard_normal())
        row = {"step": at, "loss": loss, "gradient_norm": 3 * loss, "lr": 0.01, "seconds": at * 0.02}
        if at % 100 == 0:
            row |= {"valid_loss": value, "valid_metric": metric(value) if metric else value}
        writer.append(to_line(row))
    probe = np.linspace(0, STEPS, PROBES).astype(int)
    back = np.arange(length)[::-1]
    scale = 0.3 * np.exp(-probe / 800)[:, None]
    rate = decay + (1 - decay) * 0.15 * np.sin(probe / 200)[:, None]
    noise = np.exp(0.08 * random.standard_normal((PROBES, length)))
    norm = scale * rate**back * noise
    arrays = {"step": probe, "gradient_norm": norm}
    if layers > 1:
        arrays["layer_norm"] = np.stack([norm * 10.0**-below for below in range(layers)][::-1], 1)
    spread = probe / STEPS
    arrays |= {
        "jacobian_norm": 8 * np.full((PROBES, 1), 0.99 * decay) ** np.arange(length),
        "band": np.tile([decay - 0.02, decay + 0.02], (PROBES, 1)),
        "singular_values": np.stack([1 + 0 * spread, 0.1 * spread, 1 - 0.3 * spread, 1 + 0.5 * spread], 1)[:, None],
        "matrix": np.array(["weight_hh_l0"]),
    }
    writer.probes(arrays)
    writer.status("finished", step=STEPS, parameters=4417, **(status or {}))
    writer.close()
    return folder


def write_probes(folder: Path, step: np.ndarray, norm: np.ndarray) -> None:
    """Replace the probes of a run by these."""
    np.savez(folder / "probes.npz", step=step, gradient_norm=norm)


def write_classes(folder: Path, labels: Sequence[str], confusion: np.ndarray, **more: Any) -> Path:
    """Give a run answers: this confusion matrix on its test part, and what `mistakes_of` returns."""
    answers = {
        "part": "test",
        "kind": "classification",
        "step": 900,
        "sequences": confusion.sum(),
        "answers": confusion.sum(),
    }
    np.savez(folder / "answers.npz", **answers, labels=np.array(labels), confusion=confusion, **more)
    return folder


def mistakes_of(inputs: np.ndarray, names: Sequence[str], step: int = -1) -> dict[str, np.ndarray]:
    """The arrays of mistakes for sequences ``(K, T, I)``: label 0 taken for label 1."""
    count, length = inputs.shape[:2]
    chances = np.linspace(0.99, 0.6, count)
    columns = {"sequence": 7 + np.arange(count), "step": np.full(count, step), "true": np.zeros(count, int)}
    columns |= {"predicted": np.ones(count, int), "chance": chances, "true_chance": 1 - chances}
    columns |= {"length": np.full(count, length), "stride": np.ones(count, int)}
    arrays = {f"mistake_{name}": values for name, values in columns.items()}
    return arrays | {"mistake_inputs": inputs.reshape(-1, inputs.shape[2]), "inputs": np.array(names)}


def write_numbers(
    folder: Path,
    columns: Sequence[str],
    errors: np.ndarray,
    pairs: np.ndarray,
    answers: int,
    kind: str = "regression",
    **more: Any,
) -> Path:
    """Give a run answers: these errors ``(O, 3)`` and pairs ``(P, 2, O)`` on its validation part, and more arrays."""
    about = {"part": "validation", "kind": kind, "step": 900, "sequences": answers, "answers": answers}
    np.savez(folder / "answers.npz", **about, columns=np.array(columns), errors=errors, pairs=pairs, **more)
    return folder


def write_rows(folder: Path, *rows: dict[str, float]) -> None:
    """Replace the metrics of a run by these rows."""
    (folder / "metrics.csv").write_text("".join(line + "\n" for line in (HEADER, *map(to_line, rows))))
