"""Options that several commands share, and the texts behind them as values."""

from __future__ import annotations

import dataclasses
import inspect
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from evenflow.training.settings import Settings

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
        "--system-option", "-s", metavar="KEY=VALUE", help="An option of the layer, as map=exponential. Repeatable."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="The data folder, for a task on real data; see `evenflow data list`."),
]
Hidden = Annotated[int, typer.Option("--hidden", help="Hidden units.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


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
            option = typer.Option(flag, help=field.metadata["help"], rich_help_panel="Training")
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
    return {"name": name, **pairs("--task-option", options)} | ({} if data is None else {"data": str(data.absolute())})


def short(task: str) -> str:
    """A name for a folder: of csv:some/where/motion.csv it is motion."""
    return Path(task.partition(":")[2]).stem or task.rstrip(":")


def pairs(option: str, texts: Sequence[str] | None) -> dict[str, Any]:
    """``key=value`` texts as a table; a value is read as TOML where it is that, and else as plain text."""
    table: dict[str, Any] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"{option} must be KEY=VALUE, got {text!r}")
        try:
            table[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            table[key] = value
    return table


def numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} must be numbers with commas between them, got {text!r}") from None
