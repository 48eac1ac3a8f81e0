"""Writes the page of the sweeps: for each sweep the ten best points of map × cell × activation and its settings."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from evenflow.lab.report.numbers import duration, number

from .document_page import plain
from .stored_sweep import StoredSweep

FILE = "sweeps.md"
BEST, NAMED = 10, 8  # points in a table, and models that a sentence lists
SHARES = ("accuracy", "precision")  # metrics that are shown in per cent
# Settings that the page shows elsewhere, or that change no weight.
HIDDEN = ("batch_size", "checkpoint_every", "log_every")
HEAD = """# Sweeps: the best points of map × cell × activation

Quote the test value, which belongs to the weights of the best validation. The validation value selected the point among
many, so it is slightly too optimistic. ± is the standard deviation over seeds; only points of the last round have
several seeds. A point with fewer updates was eliminated after them.

Written by `python tools/publish_results` from the records in this folder (`sweeps/NAME.json`, which hold every point);
see [all results](README.md), and [how a sweep works](../sweep.md)."""


def page(sweeps: Sequence[StoredSweep]) -> str:
    return "\n\n".join([HEAD, *map(section, sweeps)]) + "\n"


def section(sweep: StoredSweep) -> str:
    """A sweep's part of the page."""
    lines = [_provenance(sweep), _tried(sweep.request), *_diverged(sweep), *_omitted(sweep)]
    bullets = "\n".join(f"- {plain(line)}" for line in lines)
    return "\n\n".join(
        [f"## {sweep.name}: {plain(_task(sweep.request['task']))}", _budget(sweep), _best(sweep), bullets]
    )


def summary(sweeps: Sequence[StoredSweep]) -> str:
    """A line for each sweep: its best point, of how many, and the number to quote."""
    lines = ["| sweep | best point | of | measured |", "|---|---|---|---|"]
    for sweep in sweeps:
        best = sweep.points[0]
        part, values = ("test", best.test) if _tested(sweep) else ("validation", best.valid)
        measured = f"{part} {_metric(sweep)} {_shown(sweep, values)}"
        lines.append(f"| [{sweep.name}]({FILE}) | {plain(str(best))} | {len(sweep.points)} | {measured} |")
    return "\n".join(lines)


def _task(task: Mapping[str, Any]) -> str:
    return ", ".join([task["name"], *(f"{name} {value}" for name, value in task.items() if name != "name")])


def _budget(sweep: StoredSweep) -> str:
    request = sweep.request
    rounds = ", then ".join(f"{points} to {until:,}" for points, until in sweep.rounds)
    limit = request["parameters"]
    return (
        f"{_count(len(sweep.points), 'point')}, {sweep.updates:,} updates in all: {rounds} updates each. "
        f"{_count(request['seeds'], 'seed')} in the last round, {request['training']['batch_size']} sequences a batch, "
        f"{'no limit on the parameters' if limit is None else f'at most {limit:,} parameters'}."
    )


def _best(sweep: StoredSweep) -> str:
    several, tested = len({point.optimizer for point in sweep.points}) > 1, _tested(sweep)
    what = ["map", "cell", "activation", "hidden", "parameters", *["optimizer"] * several, "lr", "updates"]
    head = [*what, f"validation {_metric(sweep)}", *[f"test {_metric(sweep)}"] * tested]
    lines = [head, ["---"] * len(head)]
    for point in sweep.points[:BEST]:
        ended = _shown(sweep, point.test) if point.state == "finished" else "–"
        lines.append(
            [
                point.map,
                point.cell,
                point.activation,
                f"{point.hidden_size:,}",
                f"{point.parameters:,}",
                *[point.optimizer] * several,
                f"{point.lr:g}",
                f"{point.updates:,}",
                "diverged" if point.state == "diverged" else _shown(sweep, point.valid),
                *[ended] * tested,
            ]
        )
    return "\n".join("| " + " | ".join(plain(text) for text in line) + " |" for line in lines)


def _tested(sweep: StoredSweep) -> bool:
    return any(value is not None for point in sweep.points if point.state == "finished" for value in point.test)


def _metric(sweep: StoredSweep) -> str:
    return f"{sweep.judged_by} (%)" if sweep.judged_by in SHARES else sweep.judged_by


def _shown(sweep: StoredSweep, values: Sequence[float | None]) -> str:
    """The mean over seeds, and the standard deviation if there are several."""
    factor = 100 if sweep.judged_by in SHARES else 1
    numbers = [factor * value for value in values if value is not None]
    if not numbers:
        return "–"
    mean = number(statistics.fmean(numbers), 4)
    return f"{mean} ± {number(statistics.stdev(numbers), 2)}" if len(numbers) > 1 else mean


def _provenance(sweep: StoredSweep) -> str:
    provenance = f"{sweep.hardware}, evenflow {sweep.evenflow}, torch {sweep.torch}, {sweep.began[:10]}"
    without = "" if _tested(sweep) else " The task has no test part."
    return f"{provenance}: {duration(sweep.seconds)}.{without}"


def _tried(request: Mapping[str, Any]) -> str:
    """The axes, and the settings that are not the default."""
    axes = {name: request[name] for name in ("maps", "cells", "activations", "hidden", "optimizers", "lrs")}
    parts = [f"{name} {', '.join(map(str, values))}" for name, values in axes.items() if values]
    others = {k: v for k, v in request["training"].items() if k not in HIDDEN} | request["system"]
    parts += [f"{name} {value}" for name, value in others.items()]
    return f"Tried: {'; '.join(parts)}; in the last round a {request['finish']} rate."


def _diverged(sweep: StoredSweep) -> list[str]:
    diverged = [point for point in sweep.points if point.state == "diverged"]
    if not diverged:
        return []
    points = [f"{point} at {point.lr:g}" for point in diverged]
    return [f"Diverged, {len(diverged)} of {len(sweep.points)} points: {_some(points)}."]


def _omitted(sweep: StoredSweep) -> list[str]:
    """Models that were left out, grouped by reason."""
    groups: dict[str, list[str]] = {}
    for model in sweep.omitted:
        words = f"{model['map']} {model['cell']} {model['activation']}, {model['hidden_size']} units"
        if model["parameters"] is None:
            groups.setdefault(f" ({model['reason']})", []).append(words)
        else:
            groups.setdefault(" over the limit", []).append(f"{words} ({model['parameters']:,} parameters)")
    return [f"Left out, {_count(len(of), 'model')}{reason}: {_some(of)}." for reason, of in groups.items()]


def _some(names: Sequence[str]) -> str:
    more = f"; and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return "; ".join(names[:NAMED]) + more


def _count(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
