"""Programs of `torch.export` that run in a process without evenflow."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import evenflow
from evenflow.systems import SYSTEMS

ELSEWHERE = """
import sys
sys.modules["evenflow"] = None  # importing it is an error
import torch
folder = sys.argv[1]
for name in sys.argv[2:]:
    model = torch.export.load(f"{folder}/{name}.pt2").module()
    for x, y in torch.load(f"{folder}/{name}.pt"):
        error = (model(x)[0] - y).abs().max() / y.abs().max().clamp(min=1)
        assert error < 1e-5, (name, error)
        print(name)
"""


QUICK = ("lstm",)


@pytest.mark.parametrize("names", [QUICK, pytest.param(tuple(SYSTEMS), marks=pytest.mark.slow)], ids=["some", "all"])
def test_systems_run_without_evenflow(names, tmp_path):
    steps, rows = torch.export.Dim("T", min=2, max=10_000), torch.export.Dim("B", min=2, max=10_000)
    for name in names:
        torch.manual_seed(0)
        model = evenflow.SequenceModel(evenflow.create(name, 3, 8), 2).eval()
        program = torch.export.export(model, (torch.randn(6, 4, 3),), dynamic_shapes=({0: steps, 1: rows},))
        program = program.run_decompositions(evenflow.export.decompositions())
        torch.export.save(program, tmp_path / f"{name}.pt2")
        with torch.no_grad():
            inputs = [torch.randn(t, b, 3) for t, b in ((6, 4), (50, 2))]
            torch.save([(x, model(x)[0]) for x in inputs], tmp_path / f"{name}.pt")
    script = tmp_path / "elsewhere.py"
    script.write_text(ELSEWHERE)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), *names], capture_output=True, encoding="utf-8", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [name for name in names for _ in range(2)]
