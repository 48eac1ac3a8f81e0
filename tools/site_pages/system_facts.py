"""What the repository knows of a system: parameters, speed in benchmarks/results, jobs and tables in docs/."""

from __future__ import annotations

import re
from functools import cache

import evenflow
from evenflow.lab.recipes import load, names
from evenflow.lab.recipes.configs import config_of
from measurements import Rows, measured
from site_pages.page_text import ROOT

INPUTS, UNITS = 2, 128
SIZES = (32, 64, 128, 256)
# Names of systems in the measurements of generated CUDA, which are of cells written as a user writes them.
OWN_CELLS = {name: name for name in ("cornn", "lem", "mgu", "ugrnn", "fastgrnn")} | {"gru-2014": "gru u(r h)"}


@cache
def parameters(name: str, units: int = UNITS) -> int:
    """The number of trained parameters of a system with `INPUTS` inputs."""
    layer = evenflow.create(name, INPUTS, units)
    return sum(parameter.numel() for parameter in layer.parameters() if parameter.requires_grad)


@cache
def best_jobs() -> dict[str, list[tuple[str, str, str]]]:
    """What docs/choosing.md recommends a system for: the job, the number, and the link to the record, by system."""
    text = (ROOT / "docs/choosing.md").read_text("utf-8")
    jobs: dict[str, list[tuple[str, str, str]]] = {}
    rows = re.findall(r"^\| ([^|]+) \| (`[^|]+) \| ([^|]+) \| ([^|]+) \|", text, flags=re.MULTILINE)
    for job, take, value, record in rows:
        if job.startswith("the same") or " - " in take:  # needs the row above it, or is a candidate of a sweep
            continue
        setting = "".join(f", {part}" for part in take.split(", ")[1:])
        for name in re.findall("`([^`]+)`", take):
            jobs.setdefault(name, []).append((job + setting, value, record))
    return jobs


@cache
def recipes_of() -> dict[str, list[str]]:
    """The recipes that train a system and have records in docs/results, by system."""
    found: dict[str, list[str]] = {}
    for address in names():
        recipe = load(address)
        if not (ROOT / f"docs/results/{address}.json").exists():
            continue
        for name in dict.fromkeys(config_of(recipe, row, "full")["system"].get("name", "") for row in recipe.rows):
            found.setdefault(name, []).append(address)
    return found


def speed(name: str) -> Rows:
    """The measurements of the speed of a system: what was measured, the time, and ratios to torch's layers."""
    rows = []
    layers = measured("systems-cpu")["layers"]
    if name in layers:
        of = layers[name]
        ratios = ", ".join(
            f"{of[other]:.2f} of `{other}`" for other in ("torch.nn.RNN", "torch.nn.GRU", "torch.nn.LSTM")
        )
        rows.append(["training pass, one CPU core, batch 50, 784 steps", f"{of['ms']:.0f} ms", ratios])
    rows += [
        [f"training pass, one CPU core, one sequence of {row['steps']:,} steps", f"{row['ms']:.0f} ms",
         f"{row['to_gru']:.2f} of `torch.nn.GRU`"]
        for row in measured("linear-scans-cpu")["rows"]
        if (row["case"], row["engine"], row["steps"]) == (name, "c", 16_000)
    ]  # fmt: skip
    rows += [
        ["training pass, H200, batch 50, 784 steps, generated CUDA", f"{row['ms']:.2f} ms",
         f"{row['ratio']:.2f} of cuDNN's GRU"]
        for row in measured("cells-cuda")["rows"]
        if row["part"] == "own" and row["of"]["name"] == OWN_CELLS.get(name)
    ]  # fmt: skip
    updates = measured("training-cuda")["mnist"]
    if name in updates:
        rows.append(
            ["update of `fit`, H200, batch 50, 784 steps, kernels written by hand", f"{updates[name]:.2f} ms",
             f"{updates[name] / updates['torch.nn.RNN']:.2f} of a script with `torch.nn.RNN`"]
        )  # fmt: skip
    return rows
