"""docs/choosing.md says nothing that the results do not: every number of a row is on the page that the row links to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evenflow.recipes.results.remarks import check, numbers
from evenflow.systems import NETWORKS, systems

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "choosing.md"
LINK = re.compile(r"\[([\w./-]+)\]\(([\w/.-]+\.md)\)")


def rows() -> list[str]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return lines[1:]  # the first is the heading


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip())
def test_numbers_come_from_the_page_that_is_linked(row: str) -> None:
    ((name, target),) = LINK.findall(row)
    page = (DOCS / target).read_text()
    if "/" in name:
        document, recipe = name.split("/")
        assert target == f"results/{document}.md"
        page = page.partition(f"## {recipe}:")[2].partition("\n## ")[0]
        assert page, f"{name} has not been run"
    said = LINK.sub("", row)
    assert numbers(said)
    check(name, [said], [page])


def test_systems_are_called_by_their_names() -> None:
    named = {word for row in rows() for word in re.findall(r"`([\w-]+)`", row)}
    assert named <= {*systems(), *NETWORKS}
