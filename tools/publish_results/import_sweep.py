"""Reads sweep.json files, as `evenflow sweep` writes them, for the stored sweeps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenflow.lab import tasks
from evenflow.lab.sweep.sweep_record import FORMAT
from evenflow.lab.training import Settings

from .stored_sweep import StoredPoint, StoredSweep

DIGITS = 6  # of a metric: more than a page shows
PLAIN = ("order", "set", "length", "file")  # options whose values need no name
OF_A_POINT = ("map", "cell", "activation", "hidden_size", "optimizer", "lr", "parameters", "state", "updates")
OF_A_SWEEP = ("evenflow", "torch", "hardware", "began", "seconds", "judged_by", "updates", "omitted")


def read_sweep(path: Path) -> StoredSweep | str:
    """The contents of a sweep.json, or a sentence if the sweep is left out because it has not finished."""
    try:
        table = json.loads(path.read_text("utf-8"))
        if not isinstance(table, dict) or "request" not in table:
            raise ValueError("it is no record of a sweep")
        if table.get("format") != FORMAT:
            raise ValueError(f"its format is {table.get('format')}, and {FORMAT} is known: sweep again")
        request = _request(table["request"])
        name = name_of(request["task"], request["parameters"], request["hidden"], request["system"])
        if table["state"] != "finished":
            return f"Left out, sweep {name} in {str(path.parent)!r}: {table['state']}, the same command goes on."
        if not table["points"]:
            raise ValueError("it has no points")
        return StoredSweep(
            name=name,
            request=request,
            rounds=[[each["points"], each["until"]] for each in table["rounds"]],
            points=[_point(point, table["rounds"]) for point in table["points"]],
            **{field: table[field] for field in OF_A_SWEEP},
        )
    except KeyError as error:
        raise ValueError(f"sweep {str(path)!r} cannot be read: it lacks {error}") from error
    except (ValueError, TypeError, AttributeError, OSError) as error:
        raise ValueError(f"sweep {str(path)!r} cannot be read: {error}") from error


def name_of(
    task: Mapping[str, Any],
    parameters: int | None,
    hidden: Sequence[int] | None = None,
    system: Mapping[str, Any] | None = None,
) -> str:
    """The name of a sweep: task, options that are not the default, limit on parameters, sizes and system options.

    A sweep with a limit always names the length too, so that the two numbers cannot be confused.

    >>> name_of({"name": "mnist", "order": "permuted", "width": 1}, 137000)
    'mnist-permuted-137000'
    >>> name_of({"name": "mnist"}, 137000, [256, 512], {"input_dropout": 0.1})
    'mnist-137000-units-256-512-input_dropout-0.1'
    >>> name_of({"name": "mnist"}, None, None, {"forget_bias": -1.0, "dropout": 0.5})
    'mnist-dropout-0.5-forget_bias-minus1.0'
    >>> name_of({"name": "har", "classes": 2}, None), name_of({"name": "har", "classes": 6}, None)
    ('har', 'har-classes-6')
    >>> name_of({"name": "copy", "length": 2000}, None), name_of({"name": "copy", "length": 100}, 2000)
    ('copy-2000', 'copy-100-2000')
    """
    inner = {"task": task["task"]} if "task" in task else {}  # of a curriculum
    usual = tasks.make(task["name"], **inner).options()
    words = [task["name"], *inner.values()]
    for option, value in task.items():
        named = option == "length" and parameters is not None
        if option not in ("name", "task") and (named or value != usual.get(option)):
            words += [str(value)] if option in PLAIN else [option, str(value)]
    words += [] if parameters is None else [str(parameters)]
    words += ["units", *map(str, hidden)] if hidden else []
    words += [str(word) for option in sorted((system or {}).items()) for word in option]
    return "-".join(re.sub(r"[^\w.]+", "-", re.sub(r"^-(?=\d)", "minus", word)).strip("-.") for word in words)


def _request(request: Mapping[str, Any]) -> dict[str, Any]:
    """The request without data folders; of the settings only the batch size and those that are not the default."""
    task = {name: value for name, value in request["task"].items() if name != "data"}
    if "file" in task:
        task["file"] = Path(task["file"]).name
    usual = Settings().to_dict()
    unusual = {name: value for name, value in request["training"].items() if value != usual.get(name)}
    training = {"batch_size": usual["batch_size"]} | unusual
    return {**request, "task": task, "training": training}


def _point(point: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> StoredPoint:
    """A point with its scores of the last round that it was in, one number for each seed."""
    scores = [each["scores"][point["name"]] for each in rounds if point["name"] in each["scores"]][-1:]
    if not scores:
        raise ValueError(f"point {point['name']} has no scores")
    names = {"valid": "valid_metric", "valid_loss": "valid_loss", "test": "test_metric"}
    numbers: dict[str, Any] = {name: [_digits(score[of]) for score in scores[0]] for name, of in names.items()}
    reason = str(point["reason"]) if point["state"] == "diverged" else ""
    return StoredPoint(**{name: point[name] for name in OF_A_POINT}, **numbers, reason=reason)


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
