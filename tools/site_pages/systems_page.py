"""The page of systems: a table of all names that `evenflow.create` knows, and a section for each."""

from __future__ import annotations

import re

import evenflow
from evenflow.maps import MAPS
from evenflow.systems import NETWORKS, System
from site_pages.page_text import ROOT
from site_pages.reference_pages import anchor

INPUTS, UNITS = 2, 128
INTRODUCTION = f"""# Systems

A system is a layer with a map, an activation and options under one name, for `evenflow.create(name, input_size,
hidden_size)`. Options that are given override those of the system, and the layer is called like `torch.nn.RNN`. The
numbers of parameters are those of one layer with {INPUTS} inputs and {UNITS} units.

[Choosing a system](choosing.md) says which system did best at which job, [Performance](performance.md) how fast the
layers are.
"""


def systems_page() -> str:
    """The Markdown of the page, from the registry and from the table of docs/choosing.md."""
    systems = evenflow.systems()
    rows = [
        f"| [`{name}`](#{name}) | {_code(system.equation)} | {parameters(name):,} | {system.document} |"
        for name, system in systems.items()
    ]
    table = ["| system | step | parameters | from |", "|---|---|---|---|", *rows, ""]
    sections = [_section(name, system) for name, system in systems.items()]
    return "\n".join([INTRODUCTION, *table, *sections, _networks()])


def parameters(name: str) -> int:
    """The number of trained parameters of a system with `INPUTS` inputs and `UNITS` units."""
    layer = evenflow.create(name, INPUTS, UNITS)
    return sum(parameter.numel() for parameter in layer.parameters() if parameter.requires_grad)


def snippet(name: str) -> str:
    """A short example of the system; its last line depends on what the layer returns."""
    return f'layer = evenflow.create("{name}", {INPUTS}, {UNITS})\noutput, state = layer(torch.randn(100, 8, {INPUTS}))'


def best_jobs() -> dict[str, list[str]]:
    """What docs/choosing.md recommends a system for, with the measured number, by the name of the system."""
    text = (ROOT / "docs/choosing.md").read_text("utf-8")
    jobs: dict[str, list[str]] = {}
    for job, take, measured in re.findall(r"^\| ([^|]+) \| (`[^|]+) \| ([^|]+) \|", text, flags=re.MULTILINE):
        if job.startswith("the same") or " - " in take:  # needs the row above it, or is a candidate of a sweep
            continue
        setting = "".join(f"{part}, " for part in take.split(", ")[1:])
        for name in re.findall("`([^`]+)`", take):
            jobs.setdefault(name, []).append(f"{job} ({setting}{measured})")
    return jobs


def _section(name: str, system: System) -> str:
    layer = system.layer
    lines = [f"## {name}", "", "```text", *_lines(system.equation), "```", ""]
    lines += [f"- **Reference**: {system.document}", f"- **Layer**: [`{layer.__name__}`][{anchor(layer)}]"]
    if system.map is not None:
        lines.append(f"- **Map**: [`{system.map}`][{anchor(MAPS[system.map])}]")
    lines.append(f"- **The same as**: `{_call(system)}`")
    lines.append(f"- **Parameters**: {parameters(name):,}")
    if name in best_jobs():
        lines.append(f"- **Did best at**: {'; '.join(best_jobs()[name])}")
    return "\n".join([*lines, "", "```python", snippet(name), "```", ""])


def _call(system: System) -> str:
    """The call of the layer that `create` makes."""
    options = {} if system.map is None else {"map": system.map}
    options |= {**system.map_options, **system.options}
    given = "".join(f", {name}={value!r}" for name, value in options.items()).replace("'", '"')
    return f"evenflow.{system.layer.__name__}({INPUTS}, {UNITS}{given})"


def _networks() -> str:
    rows = [
        f"| [`{row.network.__name__}`][{anchor(row.network)}] | `{name}` | {_code(row.equation)} | {row.document} |"
        for name, row in NETWORKS.items()
    ]
    head = ["## Networks without time", "", "Deep networks for data without a time axis.", ""]
    return "\n".join([*head, "| class | name | step | from |", "|---|---|---|---|", *rows, ""])


def _code(equation: str) -> str:
    return "`" + equation.replace("|", "\\|") + "`"


def _lines(equation: str) -> list[str]:
    """The equation with one assignment a line."""
    return re.split(r"[,;] (?=[^,]* (?:=|<=|starts|skew|exponential|complex|not|U )|nothing)", equation)
