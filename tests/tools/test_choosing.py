"""Every number in docs/choosing.md and in the README's results is on the page of results that its row links to."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest
from made_sweeps import point, write

import publish_results as results
from evenflow import activations, maps
from evenflow.lab.sweep.candidates import CELLS
from evenflow.systems import NETWORKS, systems
from publish_results.remarks import check, numbers

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "choosing.md"
LINK = re.compile(r"\[([\w./-]+)\]\(([\w/.-]+\.md)\)")


def rows() -> list[str]:
    return [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ") and "| job |" not in line]


def linked_text(name: str, target: str, docs: Path) -> str:
    """The text that a link refers to: the section of a recipe or a sweep (`sweeps/NAME`), or the whole page."""
    page = (docs / target).read_text()
    if "/" not in name:
        return page
    document, part = name.split("/")
    assert target == f"results/{document}.md"
    section = page.partition(f"## {part}:")[2].partition("\n## ")[0]
    assert section, f"{name} has not been run"
    return section


def check_row(row: str, docs: Path = DOCS) -> None:
    """Raise if a number of the row is in none of the texts that it links to."""
    links = LINK.findall(row)
    assert links
    text = LINK.sub("", row)
    assert numbers(text)
    check(", ".join(name for name, _ in links), [text], [linked_text(name, target, docs) for name, target in links])


def test_every_cell_is_short() -> None:
    for row in rows():
        job, take, measured, record = (cell.strip() for cell in row.strip("|").split("|"))
        assert max(map(len, (job, take, measured))) <= 75, row
        assert LINK.fullmatch(record), row


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip())
def test_numbers_come_from_the_pages_that_are_linked(row: str) -> None:
    check_row(row)


def test_the_readme_quotes_the_results_and_the_best_of_the_sweeps() -> None:
    readme = (DOCS.parent / "README.md").read_text("utf-8")
    results_rows = [line for line in readme.splitlines() if line.startswith("| ") and "](docs/results/" in line]
    assert len(results_rows) >= 5
    for row in results_rows:
        text, _, target = row.partition("](docs/results/")
        page = (DOCS / "results" / target.partition(")")[0]).read_text("utf-8")
        check("the README", [re.sub(r"\[table \d", "", text)], [page])

    def best(**task: str) -> str:
        """The test accuracy of the best sweep of MNIST with these settings, in per cent."""
        records = [json.loads(path.read_text()) for path in sorted((DOCS / "results/sweeps").glob("mnist*.json"))]
        tasks = [{**r["request"]["task"], "hidden": "readout_units" in r["request"]["system"]} for r in records]
        matching = [record for record, other in zip(records, tasks, strict=True) if task.items() <= other.items()]
        return f"{100 * max(statistics.mean(record['points'][0]['test']) for record in matching):.4g} %"

    numbers_of_rows = " ".join(results_rows)
    for accuracy in (best(order="ordered"), best(order="permuted", hidden=True), best(order="permuted", hidden=False)):
        assert accuracy in numbers_of_rows


def test_a_row_may_quote_a_sweep_and_no_other_number(tmp_path: Path) -> None:
    write(tmp_path / "har", point(test=(0.951, 0.955)))
    write(tmp_path / "copy", point(test=(0.871, 0.875)), task={"name": "copy", "length": 2000})
    results.merge([tmp_path], tmp_path / "results")
    results.write(tmp_path / "results")
    row = "| sensors | `gated` | {} % of the test. [sweeps/har](results/sweeps.md) |"
    check_row(row.format("95.3 ± 0.3"), tmp_path)
    for wrong in ("95.4", "87.3"):  # of no sweep, and of the other one
        with pytest.raises(ValueError, match=wrong):
            check_row(row.format(wrong), tmp_path)
    with pytest.raises(AssertionError, match="sweeps/mnist has not been run"):
        check_row(row.format("95.3").replace("har]", "mnist]"), tmp_path)
    both = row.format("95.3, and of copying 87.3") + " [sweeps/copy-2000](results/sweeps.md) |"
    check_row(both, tmp_path)


def test_systems_are_called_by_their_names() -> None:
    factors = {*maps.MAPS, *CELLS, *activations.ACTIVATIONS}  # the parts of a sweep's candidates
    for row in rows():
        named = set(re.findall(r"`([\w-]+)`", row))
        assert named <= {*systems(), *NETWORKS} | (factors if "results/sweeps.md" in row else set())
