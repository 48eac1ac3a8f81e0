"""The package as a whole: rooms import downwards alone, names are unique, and no room reads another's private names."""

from __future__ import annotations

import ast
import collections
import functools
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import evenflow

PACKAGE = Path(evenflow.__file__).parent

# A room may import those before it. `evenflow` itself, the names of the library, stands between library and lab.
ROOMS = (
    "version",
    "checks",
    "init",
    "activations",
    "runtime",
    "figures",
    "maps",
    "step",
    "cells",
    "scan",
    "layers",
    "feedforward",
    "reservoir",
    "models",
    "export",
    "system",
    "systems",
    "probes",
    "bounds",
    "optim",
    "penalties",
    "evenflow",
    "lab.data",
    "lab.tasks",
    "lab.training",
    "lab.launches",
    "lab.prediction",
    "lab.estimators",
    "lab.terminal",
    "lab.sweep",
    "lab.diagnosis",
    "lab.report",
    "lab.recipes",
    "lab.bench_cases",
    "lab.bench",
    "lab.demo",
    "lab.cli",
    "sklearn",
    "__main__",
)
# evenflow/__init__.py loads these names of the lab when they are first used.
PUBLIC = {"lab.tasks", "lab.training", "lab.diagnosis"}
GENERIC = {"__init__", "__main__"}


def modules() -> dict[str, Path]:
    """Every module of the package by its name below `evenflow`."""
    paths = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return paths


MODULES = modules()


def room(module: str) -> str:
    """The room that a module stands in: two words in the lab, one elsewhere."""
    parts = module.split(".")
    if parts[0] == "__init__" or module == "lab":
        return "evenflow"
    return ".".join(parts[: 2 if parts[0] == "lab" else 1])


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@functools.cache
def imports(module: str) -> tuple[tuple[str, str, int], ...]:
    """What a module imports of the package, inside functions and for types too: (module, name, line)."""
    return tuple(_imports(module))


def _imports(module: str) -> Iterator[tuple[str, str, int]]:
    path = MODULES[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom):
            target = node.module or ""
            if node.level:
                base = package[: len(package) - node.level + 1]
                target = ".".join([*base, *([node.module] if node.module else [])])
            elif target == "evenflow" or target.startswith("evenflow."):
                target = target.removeprefix("evenflow").lstrip(".")
            else:
                continue
            for alias in node.names:
                inner = f"{target}.{alias.name}".lstrip(".")
                yield (inner if inner in MODULES else target or "__init__"), alias.name, node.lineno
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "evenflow" or alias.name.startswith("evenflow."):
                    yield alias.name.removeprefix("evenflow").lstrip(".") or "__init__", "", node.lineno


@functools.cache
def type_lines(module: str) -> set[int]:
    """The lines of a module that only type checkers read."""
    blocks = [n for n in ast.walk(tree(module)) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    return {line for block in blocks for line in range(block.lineno, (block.end_lineno or block.lineno) + 1)}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_down(module: str) -> None:
    mine = ROOMS.index(room(module))
    for target, _, line in imports(module):
        theirs = room(target)
        if module == "__init__" and theirs in PUBLIC:
            continue
        assert ROOMS.index(theirs) <= mine, f"{MODULES[module]}:{line} imports {theirs} from {room(module)}"


def test_every_room_is_listed() -> None:
    assert {room(module) for module in MODULES} == set(ROOMS)


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {
        module: {target for target, _, line in imports(module) if line not in type_lines(module)} for module in MODULES
    }
    order = TopologicalSorter({module: (targets & MODULES.keys()) - {module} for module, targets in graph.items()})
    order.prepare()  # raises a CycleError that names the circle


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_private_name_of_another_room_is_imported(module: str) -> None:
    for target, name, line in imports(module):
        private = name.startswith("_") or any(
            part.startswith("_") and part not in ("__init__", "__main__") for part in target.split(".")
        )
        assert room(target) == room(module) or not private, f"{MODULES[module]}:{line} imports {name} of {target}"


def test_file_names_are_unique() -> None:
    named = collections.defaultdict(list)
    for module, path in MODULES.items():
        if path.stem not in GENERIC:
            named[path.stem].append(module)
    assert {name: where for name, where in named.items() if len(where) > 1} == {}


def test_class_names_are_unique() -> None:
    named = collections.defaultdict(list)
    for module in MODULES:
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.ClassDef):
                named[node.name.lstrip("_")].append(module)
    assert {name: where for name, where in named.items() if len(where) > 1} == {}
