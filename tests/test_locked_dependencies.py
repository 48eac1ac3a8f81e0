"""The files of continuous integration: every package is pinned in one version, by its hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]


def locked() -> dict[str, list[str]]:
    """The blocks of .ci/requirements.txt by package."""
    text = (ROOT / ".ci/requirements.txt").read_text(encoding="utf-8")
    blocks = re.split(r"\n(?=\S)", text)
    found: dict[str, list[str]] = {}
    for block in (each for each in blocks if not each.startswith("#")):
        name = canonicalize_name(Requirement(block.split("\\")[0].split("    --hash")[0]).name)
        found.setdefault(name, []).append(block)
    return found


def test_every_package_has_one_version_and_hashes():
    for name, blocks in locked().items():
        for block in blocks:
            assert re.match(r"[\w.\-\[\]]+==[\w.]+", block), name
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), name


def test_the_versions_are_those_that_the_tests_run_with():
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if "==" in line
    )
    packages = locked()
    for name, version in pins.items():
        for block in packages.get(canonicalize_name(name), []):
            assert f"=={version} " in block, f"{name}=={version} is not in .ci/requirements.txt: run make lock"


def test_all_that_the_tests_need_is_locked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras, packages = project["optional-dependencies"], locked()
    needed = [*project["dependencies"], *extras["test"], *extras["lab"], *extras["sklearn"], "setuptools", "wheel"]
    names = {canonicalize_name(Requirement(each).name) for each in needed} - {"evenflow", "torch"}
    assert names <= packages.keys(), names - packages.keys()
