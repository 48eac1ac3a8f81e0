"""The pages of systems: the tables of docs/systems/index.md, and a page for each name that `evenflow.create` knows."""

from __future__ import annotations

import re

import evenflow
from evenflow.lab.recipes import load
from evenflow.maps import MAPS
from evenflow.systems import NETWORKS, System
from measurements import Rows, measured
from site_pages.page_text import with_site_links
from site_pages.reference_pages import anchor
from site_pages.system_facts import INPUTS, SIZES, UNITS, best_jobs, parameters, recipes_of, speed
from site_pages.system_families import FAMILIES, family_of

PICTURE = """
![Norm of the gradient of {name} over time, beside that of torch.nn.RNN]({name}.svg)

The gradient before training: ‖∂L/∂h_t‖ relative to the last step, for a loss of the last output, 64 units and random
inputs. A flat line means that the first steps can be learned from; training changes the line."""


def systems_pages() -> dict[str, str]:
    """The Markdown of the page of each system by its name, from the registry and from committed results."""
    return {name: _page(name, system) for name, system in evenflow.systems().items()}


def navigation() -> list[str | dict[str, list[str]]]:
    """The entries of the pages in the navigation of the site."""
    families = [{family.title: [f"systems/{name}.md" for name in family.systems]} for family in FAMILIES]
    return ["systems/index.md", *families]


def snippet(name: str) -> str:
    """A short example of the system; its last line depends on what the layer returns."""
    return (
        f'import torch\n\nimport evenflow\n\nlayer = evenflow.create("{name}", {INPUTS}, {UNITS})\n'
        f"output, state = layer(torch.randn(100, 8, {INPUTS}))"
    )


def overview() -> str:
    """The table of each family, for docs/systems/index.md."""
    systems = evenflow.systems()
    lines = []
    for family in FAMILIES:
        rows = [["system", "step", "parameters", "time", "from"]]
        for name in family.systems:
            ratio = measured("systems-cpu")["layers"].get(name, {}).get("torch.nn.GRU")
            time = "" if ratio is None else f"{ratio:.2f}"
            system = systems[name]
            rows.append([f"`{name}`", _code(system.equation), f"{parameters(name):,}", time, system.document])
        lines += [f"## {family.title}", "", family.about, "", _table(rows), ""]
    return "\n".join([*lines, _networks()])


def with_links(page: str) -> str:
    """docs/systems/index.md for the site, where each system has a page."""
    pages = "|".join(map(re.escape, evenflow.systems()))
    return re.sub(rf"^\| `({pages})` \|", r"| [`\1`](\1.md) |", page, flags=re.MULTILINE)


def _page(name: str, system: System) -> str:
    layer, family = system.layer, family_of(name)
    facts = [
        ["system", f"`{name}`"],
        ["from", system.document],
        ["family", f"[{family.title}](index.md#{_slug(family.title)})"],
    ]
    facts.append(["layer", f"[`{layer.__name__}`][{anchor(layer)}]"])
    if system.map is not None:
        facts.append(["map", f"[`{system.map}`][{anchor(MAPS[system.map])}]"])
    facts.append(["the same as", f"`{_call(system)}`"])
    counts = [["units", *map(str, SIZES)], ["parameters", *(f"{parameters(name, units):,}" for units in SIZES)]]
    lines = [f"# {name}", "", family.about, "", "```text", *_lines(system.equation), "```", ""]
    lines += ["```python", snippet(name), "```", PICTURE.format(name=name), "", _table(facts), ""]
    lines += ["## Parameters", "", f"Trained numbers of one layer with {INPUTS} inputs:", "", _table(counts), ""]
    return "\n".join([*lines, *_speed(name), *_results(name)])


def _speed(name: str) -> list[str]:
    rows = speed(name)
    if not rows:
        return ["## Speed", "", "Nothing is trained inside the layer, so there is no training pass to measure.", ""]
    head = ["measured", "time", "beside torch"]
    return [
        "## Speed",
        "",
        f"{UNITS} units, float32; [how it was measured](../performance.md).",
        "",
        _table([head, *rows]),
        "",
    ]


def _results(name: str) -> list[str]:
    lines = ["## Where it did best", ""]
    jobs = best_jobs().get(name, [])
    if jobs:
        rows = [["job", "measured", "record"], *(list(job) for job in jobs)]
        lines += [with_site_links(_table(rows), "docs/choosing.md", f"systems/{name}.md"), ""]
    else:
        lines += ["In no job of [the comparison](../choosing.md) so far.", ""]
    recipes = recipes_of().get(name, [])
    if recipes:
        titles = [
            f"[`{address}`](../results/{address.partition('/')[0]}.md), {load(address).title}" for address in recipes
        ]
        lines += ["Trained in these published tables and figures:", "", *(f"- {title}" for title in titles), ""]
    else:
        lines += [
            "It is in none of the published tables that were trained again, and no result of it is committed.",
            "",
        ]
    return lines


def _call(system: System) -> str:
    """The call of the layer that `create` makes."""
    options = {} if system.map is None else {"map": system.map}
    options |= {**system.map_options, **system.options}
    given = "".join(f", {name}={value!r}" for name, value in options.items()).replace("'", '"')
    return f"evenflow.{system.layer.__name__}({INPUTS}, {UNITS}{given})"


def _networks() -> str:
    rows = [["class", "name", "step", "from"]]
    rows += [
        [f"`evenflow.{row.network.__name__}`", f"`{name}`", _code(row.equation), row.document]
        for name, row in NETWORKS.items()
    ]
    return "\n".join(["## Without time", "", "Deep networks for data without a time axis.", "", _table(rows), ""])


def _table(rows: Rows) -> str:
    head, *others = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *others])


def _code(equation: str) -> str:
    return "`" + equation.replace("|", "\\|") + "`"


def _slug(title: str) -> str:
    return title.lower().replace(" ", "-")


def _lines(equation: str) -> list[str]:
    """The equation with one assignment a line."""
    return re.split(r"[,;] (?=[^,]* (?:=|<=|starts|skew|exponential|complex|not|U )|nothing)", equation)
