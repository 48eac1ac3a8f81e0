"""Every public name of the reference has a session in its docstring, which runs and prints what it says."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import made_data
import numpy as np
import pytest
import torch

import evenflow
from evenflow import cells, maps, tasks
from evenflow.lab.tasks.data_set import FileData
from site_pages.reference_pages import MODULES, public_names

SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def sessions() -> Iterator[tuple[str, str, Any]]:
    """The module, the name and the object of every public class and function; tables and types have no docstring."""
    for _, module in MODULES.values():
        for name, value in public_names(module).items():
            if inspect.isclass(value) or inspect.isroutine(value):
                yield module, name, value


PUBLIC = list(sessions())


def scope(module: str) -> dict[str, Any]:
    """What a reader has: imports, a task with a batch, a model, a layer with an input, and windows to classify."""
    names = {key: getattr(evenflow, key) for key in evenflow.__all__}
    imported = {**names, **vars(maps), **vars(import_module(module)), "evenflow": evenflow, "cells": cells}
    torch.manual_seed(0)
    task = tasks.Adding(length=20)
    windows = np.random.default_rng(0).normal(size=(30, 20, 2))
    return imported | {
        "torch": torch,
        "nn": torch.nn,
        "np": np,
        "task": task,
        "batch": task.batch(8, torch.Generator().manual_seed(0)),
        "generator": torch.Generator().manual_seed(0),
        "model": evenflow.SequenceModel(evenflow.RNN(2, 16), 1),
        "layer": evenflow.RNN(2, 16),
        "x": torch.randn(20, 8, 2),
        "series": torch.sin(torch.arange(0, 100, 0.1)).unsqueeze(-1),
        "windows": windows,
        "activities": np.where(windows[:, -1, 0] > 0, "walking", "resting"),
        "Adding": tasks.Adding,
        "ages": 40 + 10 * windows[:, -1, 0],
    }


@pytest.fixture(scope="module")
def made_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_data.write(tmp_path_factory.mktemp("data"))


class AnyOutput(doctest.OutputChecker):
    """Accepts what a session prints: with made-up data in place of the real ones the numbers are others."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return True


@pytest.mark.parametrize(
    ("module", "name", "value"), PUBLIC, ids=[f"{m}.{n}".removeprefix("evenflow.") for m, n, _ in PUBLIC]
)
def test_the_session_of_a_docstring(
    module: str, name: str, value: Any, made_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = doctest.DocTestParser().get_doctest(inspect.getdoc(value) or "", scope(module), name, None, 0)
    assert found.examples, f"{module}.{name} has no session: add one that starts with >>> to its docstring"
    monkeypatch.chdir(tmp_path)
    rows = [f"w{n},{step},1,2,{('resting', 'walking')[n % 2]}\n" for n in range(20) for step in range(3)]
    (tmp_path / "motion.csv").write_text("sequence,ax,ay,az,activity\n" + "".join(rows), "utf-8")
    reads_data = inspect.isclass(value) and issubclass(value, FileData)
    if reads_data:
        monkeypatch.setenv("EVENFLOW_DATA", str(made_folder))
    torch.manual_seed(0)
    said: list[str] = []
    runner = doctest.DocTestRunner(AnyOutput() if reads_data else None, optionflags=SHOWN)
    failed, _ = runner.run(found, out=said.append)
    assert failed == 0, "".join(said)


def test_every_page_of_the_reference_has_names() -> None:
    assert {module for module, _, _ in PUBLIC} == {module for _, module in MODULES.values()}
