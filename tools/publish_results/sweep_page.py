"""The page of the sweeps: for each task the ten best points of map × cell × activation, and what found them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from evenflow.lab.report.numbers import duration, number

from .document_page import plain
from .stored_sweep import StoredSweep

FILE = "sweeps.md"
BEST, NAMED = 10, 8  # points in a table, and models that a sentence names
SHARES = ("accuracy", "precision")  # metrics that are shown in per cent
# Settings that are told elsewhere, or change no weight.
UNTOLD = ("batch_size", "checkpoint_every", "log_every")
HEAD = """# Sweeps: the best points of map × cell × activation

Quote the test, of the weights that validated best; validation is what chose, and the best of many is a little too good.
After ± stands the standard deviation over seeds, of which only the points of the last round have several. A point with
fewer updates went out after them.

Written by `python tools/publish_results` from the records in this folder (`sweeps/NAME.json`, which hold every point);
see [all results](README.md), and [how a sweep works](../sweep.md)."""


def page(found: Sequence[StoredSweep]) -> str:
    return "\n\n".join([HEAD, *map(section, found)]) + "\n"


def section(swept: StoredSweep) -> str:
    """A sweep's part of the page."""
    lines = [_made(swept), _tried(swept.request), *_lost(swept), *_omitted(swept)]
    bullets = "\n".join(f"- {plain(line)}" for line in lines)
    return "\n\n".join(
        [f"## {swept.name}: {plain(_task(swept.request['task']))}", _budget(swept), _best(swept), bullets]
    )


def summary(found: Sequence[StoredSweep]) -> str:
    """A line for each sweep: its best point, of how many, and the number to quote."""
    lines = ["| sweep | best point | of | measured |", "|---|---|---|---|"]
    for swept in found:
        best = swept.points[0]
        part, values = ("test", best.test) if _tested(swept) else ("validation", best.valid)
        told = f"{part} {_metric(swept)} {_shown(swept, values)}"
        lines.append(f"| [{swept.name}]({FILE}) | {plain(str(best))} | {len(swept.points)} | {told} |")
    return "\n".join(lines)


def _task(task: Mapping[str, Any]) -> str:
    return ", ".join([task["name"], *(f"{name} {value}" for name, value in task.items() if name != "name")])


def _budget(swept: StoredSweep) -> str:
    request = swept.request
    rounds = ", then ".join(f"{points} to {until:,}" for points, until in swept.rounds)
    limit = request["parameters"]
    return (
        f"{_count(len(swept.points), 'point')}, {swept.updates:,} updates in all: {rounds} updates each. "
        f"{_count(request['seeds'], 'seed')} in the last round, {request['training']['batch_size']} sequences a batch, "
        f"{'no limit on the parameters' if limit is None else f'at most {limit:,} parameters'}."
    )


def _best(swept: StoredSweep) -> str:
    several, tested = len({point.optimizer for point in swept.points}) > 1, _tested(swept)
    what = ["map", "cell", "activation", "hidden", "parameters", *["optimizer"] * several, "lr", "updates"]
    head = [*what, f"validation {_metric(swept)}", *[f"test {_metric(swept)}"] * tested]
    lines = [head, ["---"] * len(head)]
    for point in swept.points[:BEST]:
        ended = _shown(swept, point.test) if point.state == "finished" else "–"
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
                "diverged" if point.state == "diverged" else _shown(swept, point.valid),
                *[ended] * tested,
            ]
        )
    return "\n".join("| " + " | ".join(plain(text) for text in line) + " |" for line in lines)


def _tested(swept: StoredSweep) -> bool:
    return any(value is not None for point in swept.points if point.state == "finished" for value in point.test)


def _metric(swept: StoredSweep) -> str:
    return f"{swept.judged_by} (%)" if swept.judged_by in SHARES else swept.judged_by


def _shown(swept: StoredSweep, values: Sequence[float | None]) -> str:
    """The mean over seeds, and the spread where there are several."""
    factor = 100 if swept.judged_by in SHARES else 1
    known = [factor * value for value in values if value is not None]
    if not known:
        return "–"
    mean = number(statistics.fmean(known), 4)
    return f"{mean} ± {number(statistics.stdev(known), 2)}" if len(known) > 1 else mean


def _made(swept: StoredSweep) -> str:
    made = f"{swept.hardware}, evenflow {swept.evenflow}, torch {swept.torch}, {swept.began[:10]}"
    without = "" if _tested(swept) else " The task has no test part."
    return f"{made}: {duration(swept.seconds)}.{without}"


def _tried(request: Mapping[str, Any]) -> str:
    """The axes, and settings of all runs that are not the usual ones."""
    axes = {name: request[name] for name in ("maps", "cells", "activations", "hidden", "optimizers", "lrs")}
    told = [f"{name} {', '.join(map(str, values))}" for name, values in axes.items() if values]
    others = {k: v for k, v in request["training"].items() if k not in UNTOLD} | request["system"]
    told += [f"{name} {value}" for name, value in others.items()]
    return f"Tried: {'; '.join(told)}; in the last round a {request['finish']} rate."


def _lost(swept: StoredSweep) -> list[str]:
    diverged = [point for point in swept.points if point.state == "diverged"]
    if not diverged:
        return []
    named = [f"{point} at {point.lr:g}" for point in diverged]
    return [f"Diverged, {len(diverged)} of {len(swept.points)} points: {_some(named)}."]


def _omitted(swept: StoredSweep) -> list[str]:
    """What was left out, together where the reason is the same."""
    groups: dict[str, list[str]] = {}
    for model in swept.omitted:
        words = f"{model['map']} {model['cell']} {model['activation']}, {model['hidden_size']} units"
        if model["parameters"] is None:
            groups.setdefault(f" ({model['reason']})", []).append(words)
        else:
            groups.setdefault(" over the limit", []).append(f"{words} ({model['parameters']:,} parameters)")
    return [f"Left out, {_count(len(of), 'model')}{reason}: {_some(of)}." for reason, of in groups.items()]


def _some(named: Sequence[str]) -> str:
    more = f"; and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return "; ".join(named[:NAMED]) + more


def _count(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
