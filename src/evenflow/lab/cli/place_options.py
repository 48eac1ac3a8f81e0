"""The options that say where runs train: in this process, or on Ray."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from evenflow.checks import one_of
from evenflow.lab.launches import Here, LaunchPlace, OnRay
from evenflow.lab.terminal import say

HERE, RAY = "here", "ray"


def _option(*flags: str, help: str) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel="Where runs train")


def _place_options(
    on: Annotated[
        str, _option("--on", help="here, in this process, or ray: on all cores or GPUs, or on a cluster.")
    ] = HERE,
    address: Annotated[
        str | None, _option("--address", help="auto or HOST:PORT of a cluster of Ray. Default: Ray on this machine.")
    ] = None,
    gpus_each: Annotated[
        float | None, _option("--gpus-each", help="GPUs of a launch on Ray, such as 1 or 0.25. Default: 0.")
    ] = None,
    cores_each: Annotated[
        float | None, _option("--cores-each", help="Cores of a launch on Ray, and its threads. Default: 1.")
    ] = None,
    memory_each: Annotated[
        float | None, _option("--memory-each", help="Gigabytes that Ray sets aside for a launch. Default: none.")
    ] = None,
    storage: Annotated[
        str | None,
        _option(
            "--storage",
            help="Where workers of Ray keep runs: an address such as s3://bucket/runs, or driver, to send them here. "
            "Default: in the folder if they see it, else driver.",
        ),
    ] = None,
) -> None:
    """Its parameters are the options."""


def takes_place(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `place` of a command by the options of the place."""
    signature = inspect.signature(command, eval_str=True)
    options = inspect.signature(_place_options, eval_str=True).parameters

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        chosen = {name: arguments.pop(name) for name in options}
        with make_place(**chosen) as place:
            command(**arguments, place=place)

    kept = [parameter for name, parameter in signature.parameters.items() if name != "place"]
    as_keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*kept, *options.values())]
    run.__signature__ = signature.replace(parameters=as_keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in as_keywords}
    return run


def make_place(on: str, address: str | None, storage: str | None, **each: float | None) -> LaunchPlace:
    """The place that the options name."""
    one_of("--on", on, (HERE, RAY))
    if on == RAY:
        given = {name: value for name, value in each.items() if value is not None}
        return OnRay(address, storage=storage, announce=say, **given)
    for name, value in {"address": address, "storage": storage, **each}.items():
        if value is not None:
            raise ValueError(f"--{name.replace('_', '-')} goes with --on ray, got {value} without it")
    return Here()
