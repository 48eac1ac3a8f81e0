"""`import evenflow` is light: torch and numpy, and nothing heavier."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "lightning_fabric",
    "typer",
    "rich",
    "matplotlib",
    "jinja2",
    "pooch",
    "scipy",
    "sklearn",
    "pandas",
    "torch._inductor",
)


def test_import_loads_nothing_heavy_that_torch_does_not():
    code = "import sys, torch, numpy; before = set(sys.modules); import evenflow; print(*(set(sys.modules) - before))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "evenflow.systems" in output
    extra = {name.split(".")[0] for name in output} | set(output)
    assert not extra & set(HEAVY)


def test_lazy_rooms_are_there():
    code = "import evenflow; print(evenflow.tasks.__name__, evenflow.probes.__name__, callable(evenflow.fit))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["evenflow.lab.tasks", "evenflow.probes", "True"]
