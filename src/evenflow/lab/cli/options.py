"""Options that several commands share, and the texts behind them as values."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from evenflow.lab.training.settings import Settings
from evenflow.lab.values import read_value

Folder = Annotated[Path, typer.Argument(help="A run folder.")]
DataFolder = Annotated[
    Path | None,
    typer.Option("--data", help="The data folder; $EVENFLOW_DATA, else one in the user's cache, if not given."),
]
TaskOptions = Annotated[
    list[str] | None,
    typer.Option("--task-option", "-t", metavar="KEY=VALUE", help="An option of the task, as length=200. Repeatable."),
]
SystemOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--system-option",
        "-s",
        metavar="KEY=VALUE",
        help="An option of the layer or the model, as map=exponential or readout_units=64. Repeatable.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="The data folder, for a task on real data; see `evenflow data list`."),
]
MovedData = Annotated[
    Path | None,
    typer.Option("--data", help="Where the data is now, if it has moved: the data folder, or a file of your own."),
]
Hidden = Annotated[int, typer.Option("--hidden", help="Hidden units.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]

# What has a place of its own on the command line, and would silently go over what stands there.
ELSEWHERE = {
    "--task-option": {"name": "the task's name stands first, as in `evenflow train copy lstm`"},
    "--system-option": {
        "name": "the system's name stands after the task's, as in `evenflow train copy lstm`",
        "hidden_size": "write --hidden",
        "width": "write --hidden",
        "device": "write --device",
        "dtype": "write --precision",
        "generator": "starting weights are drawn from --seed",
        "input_size": "the task has it",
    },
}


ALSO = {"batch_size": ("--batch",)}  # as other commands call it


def takes_settings(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option per field of `Settings`, in place of its ``**settings``."""

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        options = []
        for field in dataclasses.fields(Settings):
            if field.name in without:
                continue
            flag = "--" + field.name.replace("_", "-")
            kind = inspect.get_annotations(Settings, eval_str=True)[field.name]
            flags = (flag, *ALSO.get(field.name, ()))
            option = typer.Option(*flags, help=field.metadata["help"], rich_help_panel="Training")
            options.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=field.default,
                    annotation=Annotated[kind, option],
                )
            )
        kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        command.__signature__ = own.replace(parameters=kept + options)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in kept + options}
        return command

    return wrap


def task_table(name: str, options: Sequence[str] | None, data: Path | None) -> dict[str, Any]:
    """The task's table of a config, with the data folder among its options."""
    table = pairs("--task-option", options, names=_names(name, options))
    kind = name.partition(":")[0]
    if kind in ("csv", "npz"):
        if "file" in table:
            raise ValueError(f"--task-option must not hold file: write {kind}:FILE, got file={table['file']}")
        if data is not None or "data" in table:
            raise ValueError(f"--data must be left out for a file of your own: {kind}:FILE says where it is")
    if data is not None and "data" in table:
        raise ValueError(
            f"--data and --task-option data must not both be given, got {str(data)!r} and {table['data']!r}"
        )
    return {"name": name, **table} | ({} if data is None else {"data": str(data.absolute())})


def _names(task: str, options: Sequence[str] | None) -> set[str]:
    """The options of a task that are names: of columns, folders, choices."""
    from evenflow.lab.tasks import TASKS
    from evenflow.lab.tasks.task import option_fields

    inner = [text.partition("=")[2] for text in options or () if text.startswith("task=")]  # of a curriculum
    kinds = [TASKS[name] for name in (task.partition(":")[0], *inner) if name in TASKS]
    return {field.name for kind in kinds for field in option_fields(kind) if field.type in ("str", "str | None")}


def short(task: str) -> str:
    """A name for a folder: of csv:some/where/motion.csv it is motion."""
    return Path(task.partition(":")[2]).stem or task.rstrip(":")


def pairs(option: str, texts: Sequence[str] | None, names: Collection[str] = ()) -> dict[str, Any]:
    """``key=value`` texts as a table; what is among `names` stays text, as a column may be called 2024."""
    table: dict[str, Any] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"{option} must be KEY=VALUE, got {text!r}")
        if key in ELSEWHERE.get(option, {}):
            raise ValueError(f"{option} must not hold {key}: {ELSEWHERE[option][key]}, got {text!r}")
        if key in table:
            raise ValueError(f"{option} must name {key} once, got it again in {text!r}")
        table[key] = read_value(value)
        if key in names and not isinstance(table[key], str):
            table[key] = value
    return table


def numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} must be numbers with commas between them, got {text!r}") from None
