"""The pages of the reference: for each public module a table of its names, then the docstring of each."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import evenflow

# The name of a page, its title and its module.
MODULES = {
    "systems": ("Systems", "evenflow.systems"),
    "layers": ("Layers", "evenflow.layers"),
    "maps": ("Maps", "evenflow.maps"),
    "cells": ("Cells", "evenflow.cells"),
    "activations": ("Activations", "evenflow.activations"),
    "init": ("Initial matrices", "evenflow.init"),
    "feedforward": ("Feed-forward networks", "evenflow.feedforward"),
    "reservoir": ("Reservoirs", "evenflow.reservoir"),
    "models": ("Models", "evenflow.models"),
    "export": ("Export", "evenflow.export"),
    "probes": ("Probes", "evenflow.probes"),
    "bounds": ("Bounds", "evenflow.bounds"),
    "optim": ("Optimisers", "evenflow.optim"),
    "penalties": ("Penalties", "evenflow.penalties"),
    "tasks": ("Tasks", "evenflow.lab.tasks"),
    "training": ("Training", "evenflow.lab.training"),
    "diagnosis": ("Diagnosis", "evenflow.lab.diagnosis"),
    "sklearn": ("scikit-learn", "evenflow.sklearn"),
}


def public_names(module: str) -> dict[str, Any]:
    """The public names of a module with their objects, in alphabetical order."""
    loaded = import_module(module)
    names = getattr(loaded, "__all__", None) or [
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module
    ]
    return {name: getattr(loaded, name) for name in sorted(names, key=str.lower)}


def written(module: str, name: str) -> str:
    """The shortest path by which users reach a name."""
    value = getattr(import_module(module), name)
    short = name in evenflow.__all__ and getattr(evenflow, name) is value
    return f"evenflow.{name}" if short else f"{module}.{name}".replace(".lab.tasks.", ".tasks.")


def anchor(value: Any) -> str:
    """The anchor of a class or function: where it is defined, which no module of the same name can hide."""
    return f"{value.__module__}.{value.__qualname__}"


def reference_pages() -> dict[str, str]:
    """The Markdown of every page of the reference, by the name of the page."""
    return {"index": _index()} | {page: _module_page(*entry) for page, entry in MODULES.items()}


def _first_line(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    return text.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _has_docstring(value: Any) -> bool:
    """Whether the value has a docstring of its own; tables and aliases have none."""
    return inspect.isclass(value) or inspect.isroutine(value)


def _index() -> str:
    rows = [
        f"| [{title}]({page}.md) | `{module}` | {_first_line(import_module(module))} |"
        for page, (title, module) in MODULES.items()
    ]
    lines = ["# Reference", "", "Every public name, from its docstring.", "", "| page | module | contents |"]
    return "\n".join([*lines, "|---|---|---|", *rows, ""])


def _module_page(title: str, module: str) -> str:
    names = public_names(module)
    lines = [f"# {title}", "", f"`{module}`: {_first_line(import_module(module))}", "", "| name | what it is |"]
    lines.append("|---|---|")
    for name, value in names.items():
        said = _first_line(value) if _has_docstring(value) else "A table." if isinstance(value, Mapping) else "A type."
        target = anchor(value) if _has_docstring(value) else f"{module}.{name}"
        lines.append(f"| [`{name}`](#{target}) | {said} |")
    for name, value in names.items():
        heading = written(module, name)
        if _has_docstring(value):
            lines += [
                "",
                f"::: {anchor(value)}",
                "    options:",
                f"      heading: {heading}",
                f"      toc_label: {name}",
            ]
            continue
        lines += ["", f'## {heading} {{ #{module}.{name} data-toc-label="{name}" }}', ""]
        if isinstance(value, Mapping):
            lines += ["| name | value |", "|---|---|"]
            lines += [f"| `{key}` | {_value(entry, names)} |" for key, entry in value.items()]
        else:
            lines += [f"`{value}`"]
    return "\n".join([*lines, ""])


def _value(entry: Any, names: Mapping[str, Any]) -> str:
    if hasattr(entry, "equation"):
        return f"`{entry.equation}`"
    if inspect.isclass(entry) and entry.__name__ in names:  # only public classes are on the page
        return f"[`{entry.__name__}`][{anchor(entry)}]"
    return f"`{getattr(entry, '__name__', repr(entry))}`"
