"""The files for packagers and for continuous integration agree with the project file, the Makefile and the version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from jinja2 import Environment, StrictUndefined
from packaging.requirements import Requirement

import evenflow

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "packaging/conda/meta.yaml"
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def recipe() -> dict[str, Any]:
    """The recipe as conda-build renders it."""

    def load_file_regex(load_file: str, regex_pattern: str, from_recipe_dir: bool) -> re.Match[str] | None:
        assert from_recipe_dir
        return re.search(regex_pattern, (RECIPE.parent / load_file).read_text(encoding="utf-8"))

    template = Environment(undefined=StrictUndefined).from_string(RECIPE.read_text(encoding="utf-8"))
    return yaml.safe_load(template.render(load_file_regex=load_file_regex, PYTHON="python", environ=SimpleNamespace()))


def requirements(lines: list[str]) -> set[str]:
    """Requirements of the project file as conda writes them."""
    parsed = [Requirement(line) for line in lines]
    return {f"{CONDA_NAMES.get(each.name, each.name)} {each.specifier}" for each in parsed}


def test_the_version_stands_in_one_place() -> None:
    assert "version" in PROJECT["dynamic"]
    assert recipe()["package"]["version"] == evenflow.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == evenflow.__version__
    assert f"## [{evenflow.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_conda_asks_for_what_pip_asks_for() -> None:
    asked, python = recipe()["requirements"], f"python {PROJECT['requires-python']}"
    assert set(asked["run"]) == {python} | requirements(PROJECT["dependencies"])
    assert set(asked["run_constrained"]) == requirements(PROJECT["optional-dependencies"]["lab"])
    assert python in asked["host"]
    (script,) = recipe()["build"]["entry_points"]
    assert script == f"evenflow = {PROJECT['scripts']['evenflow']}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_exists(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    steps = [step for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values() for step in job["steps"]]
    commands = [step["run"].split() for step in steps if "run" in step]
    assert commands
    for program, *rest in commands:
        if program == "make":
            assert set(rest) <= targets, rest
        else:
            assert (ROOT / program).is_file(), program
            assert not rest


def test_the_workflow_tests_the_versions_of_python_that_the_project_names() -> None:
    (matrix,) = re.findall(r"python: \[(.*)\]", (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    prefix = "Programming Language :: Python :: 3."
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if line.startswith(prefix)]
    assert re.findall(r'"([\d.]+)"', matrix) == named
    assert PROJECT["requires-python"] == f">={named[0]}"
