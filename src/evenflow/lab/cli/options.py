"""Options that several commands share, and the functions that parse them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from evenflow.lab.terminal import read_value
from evenflow.lab.training.settings import Settings

Folder = Annotated[Path, typer.Argument(help="A run folder.")]
DataFolder = Annotated[
    Path | None,
    typer.Option("--data", help="The data folder. Default: $EVENFLOW_DATA, else a folder in the user's cache."),
]
TaskOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--task-option", "-t", metavar="KEY=VALUE", help="An option of the task, such as length=200. Repeatable."
    ),
]
SystemOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--system-option",
        "-s",
        metavar="KEY=VALUE",
        help="An option of the layer or the model, such as map=exponential or readout_units=64. Repeatable.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="The data folder, for a task on real data; see `evenflow data list`."),
]
MovedData = Annotated[
    Path | None,
    typer.Option("--data", help="The data folder, or your own file, if it has moved since the run started."),
]
Table = Annotated[
    str | None, typer.Option("--table", help="Also write the table beside the page: latex, csv or markdown.")
]
Figures = Annotated[
    str | None, typer.Option("--figures", help="Also write the plots beside the page, for print: pdf, png or svg.")
]
Hidden = Annotated[int, typer.Option("--hidden", help="Hidden units.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show a progress bar.")]

# Keys that have an argument or an option of their own, which a task or system option would silently override.
OWN_OPTION = {
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
FLAGS = {"start_from": "--from"}  # options that are not called like their setting
TEXT = ("str", "str | None", str, str | None)  # types of fields, which a module of the user's own may hold as they are
ALIASES = {"batch_size": ("--batch",)}  # the name of this option in `evenflow sweep` and `evenflow bench`


def takes_settings(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the ``**settings`` of a command by one option for each field of `Settings` that is not in `without`."""

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        types = inspect.get_annotations(Settings, eval_str=True)
        parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        for field in dataclasses.fields(Settings):
            if field.name in without:
                continue
            flags = (FLAGS.get(field.name, "--" + field.name.replace("_", "-")), *ALIASES.get(field.name, ()))
            option = typer.Option(*flags, help=field.metadata["help"], rich_help_panel="Training")
            kind = types[field.name]
            parameters.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=field.default,
                    annotation=Annotated[kind, option],
                )
            )
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return wrap


def task_table(name: str, options: Sequence[str] | None, data: Path | None) -> dict[str, Any]:
    """Return the table ``[task]`` of a config: the name, the parsed options and the data folder."""
    table = parse_options("--task-option", options, names=_text_options(name, options))
    kind = name.partition(":")[0]
    if kind in ("csv", "parquet", "npz"):
        if "file" in table:
            raise ValueError(f"--task-option must not hold file: write {kind}:FILE, got file={table['file']}")
        if data is not None or "data" in table:
            raise ValueError(f"--data must be left out for a file of your own: {kind}:FILE says where it is")
    if data is not None and "data" in table:
        raise ValueError(
            f"--data and --task-option data must not both be given, got {str(data)!r} and {table['data']!r}"
        )
    return {"name": name, **table} | ({} if data is None else {"data": str(data.absolute())})


def _text_options(task: str, options: Sequence[str] | None) -> set[str]:
    """The options of a task whose values are text: names of columns, folders, choices."""
    from evenflow.lab.tasks.registry import find_task, with_file
    from evenflow.lab.tasks.task import option_fields

    inner = [text.partition("=")[2] for text in options or () if text.startswith("task=")]  # of a curriculum
    fields: list[dataclasses.Field[Any]] = []
    for name in (task, *inner):
        with suppress(ValueError):  # an unknown task has an error of its own
            fields += option_fields(find_task(with_file(name, {})[0]))
    return {field.name for field in fields if field.type in TEXT}


def task_name(task: str) -> str:
    """A name for a folder: the task's name, or the end of csv:some/where/motion.csv ("motion") or of an import path."""
    return Path(task.partition(":")[2]).stem or task.rstrip(":")


def parse_options(option: str, texts: Sequence[str] | None, names: Collection[str] = ()) -> dict[str, Any]:
    """Parse ``key=value`` texts; values of keys in `names` stay text, since a column may be called 2024."""
    table: dict[str, Any] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"{option} must be KEY=VALUE, got {text!r}")
        if key in OWN_OPTION.get(option, {}):
            raise ValueError(f"{option} must not hold {key}: {OWN_OPTION[option][key]}, got {text!r}")
        if key in table:
            raise ValueError(f"{option} must name {key} once, got it again in {text!r}")
        table[key] = read_value(value)
        if key in names and not isinstance(table[key], str):
            table[key] = value
    return table


def parse_numbers(option: str, text: str, whole: bool = False) -> list[Any]:
    """Parse numbers with commas between them; whole numbers if `whole`."""
    try:
        return [(int if whole else float)(part) for part in text.split(",")]
    except ValueError:
        kind = "whole numbers" if whole else "numbers"
        raise ValueError(f"{option} must be {kind} with commas between them, got {text!r}") from None
