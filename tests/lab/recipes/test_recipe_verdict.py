"""Measured beside published: every verdict, and the ordering."""

from __future__ import annotations

import math

import pytest
from made_recipes import made

from evenflow.lab.recipes import verdict
from evenflow.lab.recipes.schema import Column, Row
from evenflow.lab.recipes.verdict import Cell


def cell(values=(), published=None, *, spread=None, gaps=(), **column) -> Cell:
    known = Column("c", **{"measure": "best_loss", **column})
    row = Row(
        "r", published={} if published is None else {"c": published}, spread={} if spread is None else {"c": spread}
    )
    return Cell(row, known, list(values), list(gaps))


def judged(found: Cell, scale: str = "full", **ordering: str) -> str:
    verdict.judge(found, scale, ordering)
    return found.verdict_text()


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (cell([1.0], 1.05, tolerance=0.1), "reproduced"),
        (cell([1.0], 1.2, tolerance=0.1), "better"),
        (cell([1.3], 1.2, tolerance=0.05), "worse"),
        (cell([1.3], 1.2, tolerance=0.05, better="higher"), "better"),
        (cell([1.3], 1.2, tolerance=0.05, better="same"), "different"),
        (cell([1.0, 1.2], 1.3, spread=0.1), "reproduced"),
        (cell([1.0], 1.2, incomparable="other hardware"), "not comparable: other hardware"),
        (cell([1.0], 1.0, incomparable="other outputs", better="same"), "reproduced"),
        (cell([1.0]), "no number printed"),
        (cell([], gaps=["diverged"]), "diverged"),
        (cell([], gaps=["nothing was measured"]), "–"),
        (cell([], 1.2, gaps=["diverged"]), "worse: diverged"),
        (cell([], 1.2, gaps=["no data: gone"]), "not comparable: no data: gone"),
        (cell([math.inf], "never", measure="updates_to_solve"), "reproduced"),
        (cell([300.0], "never", measure="updates_to_solve"), "better"),
        (cell([1.0], "yes", measure="convergence", better="higher"), "reproduced"),
        (cell([0.5], "no", measure="convergence", better="higher"), "better"),
        (cell([0.0], "partial", measure="convergence", better="higher"), "worse"),
        (cell(["some words"], "other words", measure="sentence"), "not comparable: the document gives words"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_verdict_at_full_scale(found, text):
    assert judged(found) == text


def test_quick_scale_compares_nothing_but_what_its_size_does_not_change():
    assert judged(cell([1.0], 1.0), "quick") == "too small to compare"
    assert judged(cell([1.0], 5.0), "quick", r=verdict.HOLDS) == "too small to compare; ordering holds"
    assert judged(cell([1.0], 1.0, any_scale=True), "quick") == "reproduced"
    assert judged(cell([9.0], 9, measure="parameters", better="same"), "quick") == "reproduced"
    assert judged(cell([8.0], 9, measure="parameters", better="same"), "quick") == "too small to compare"
    assert judged(cell([], 1.2, gaps=["no data: gone"]), "quick") == "not comparable: no data: gone"


def test_a_cell_shows_mean_and_spread():
    shown = cell([1.0, 1.2], 1.3, spread=0.1)
    assert (shown.measured_text(), shown.published_text()) == ("1.1 ± 0.14", "1.3 ± 0.1")
    assert cell([0.5], "yes", measure="convergence").measured_text() == "partial"
    assert cell([1411.0], 1411, measure="parameters").published_text() == "1,411"
    assert cell([math.inf], measure="updates_to_solve").measured_text() == "never"
    assert cell(gaps=["diverged", "diverged"]).measured_text() == "diverged"


def cells(**means: float | None) -> dict[tuple[str, str], Cell]:
    recipe = made()
    found = {}
    for label, mean in means.items():
        values, gaps = ([] if mean is None else [mean]), (["diverged"] if mean is None else [])
        found[label, "error"] = Cell(recipe.row(label), recipe.columns[0], values, gaps)
    return found


@pytest.mark.parametrize(
    ("means", "outcome"),
    [
        ({"plain": 0.2, "orthogonal": 0.1}, verdict.HOLDS),
        ({"plain": 0.1, "orthogonal": 0.2}, verdict.FAILS),
        ({"plain": 0.1, "orthogonal": 0.1}, verdict.UNDECIDED),
        ({"plain": None, "orthogonal": 0.1}, verdict.HOLDS),
        ({"plain": 0.1, "orthogonal": None}, verdict.FAILS),
        ({"plain": None, "orthogonal": None}, verdict.UNDECIDED),
    ],
    ids=["holds", "fails", "equal", "the other diverged", "the better diverged", "both diverged"],
)
def test_the_ordering_is_judged_by_the_first_column(means, outcome):
    (pair,) = verdict.order(made(), cells(**means))
    assert pair.outcome == outcome


def test_an_ordering_needs_both_rows_and_a_scale_that_can_tell():
    assert verdict.order(made(), cells(plain=0.2)) == []
    blind, own = made(quick={"ordering": False}), made(quick={"ordering": [["plain", "orthogonal"]]})
    (pair,) = verdict.order(blind, cells(plain=0.2, orthogonal=0.1), "quick")
    assert pair.outcome == verdict.UNDECIDED
    (pair,) = verdict.order(own, cells(plain=0.2, orthogonal=0.1), "quick")
    assert (pair.better, pair.outcome) == ("plain", verdict.FAILS)
    (pair,) = verdict.order(made(resolution=0.5), cells(plain=0.2, orthogonal=0.1))
    assert pair.outcome == verdict.UNDECIDED


@pytest.mark.parametrize(
    ("plain", "outcome"), [([0.30, 0.32], verdict.HOLDS), ([0.05, 0.35], verdict.UNDECIDED)], ids=["far", "within"]
)
def test_a_difference_within_the_spread_of_the_seeds_tells_nothing(plain, outcome):
    recipe = made()
    found = {
        (label, "error"): Cell(recipe.row(label), recipe.columns[0], values)
        for label, values in (("plain", plain), ("orthogonal", [0.10, 0.12]))
    }
    assert [pair.outcome for pair in verdict.order(recipe, found)] == [outcome]


@pytest.mark.parametrize(
    ("plain", "outcome"),
    [(330.0, verdict.UNDECIDED), (340.0, verdict.HOLDS), (math.inf, verdict.HOLDS), (250.0, verdict.FAILS)],
)
def test_updates_up_to_a_validation_are_told_apart_by_more_than_one(plain, outcome):
    recipe = made(
        columns=[{"name": "error", "measure": "updates_to_solve", "better": "lower"}],
        rows=[{"label": "plain"}, {"label": "orthogonal", "training": {"validate_every": 30}}],
    )
    found = {
        (label, "error"): Cell(recipe.row(label), recipe.columns[0], [value])
        for label, value in (("plain", plain), ("orthogonal", 300.0))
    }
    assert [pair.outcome for pair in verdict.order(recipe, found)] == [outcome]


def test_seeds_that_never_got_there_are_counted_and_not_averaged():
    shown = cell([300.0, math.inf, 320.0], measure="updates_to_solve")
    assert shown.measured_text() == "310 in 2 of 3 seeds, else never"


def test_a_chain_is_closed_over_rows_that_did_not_run():
    recipe = made(
        rows=[{"label": label} for label in ("a", "b", "c")], ordering=[["a", "b", "c"]], quick={"rows": ["a", "c"]}
    )
    column = recipe.columns[0]
    found = {(row, "error"): Cell(recipe.row(row), column, [value]) for row, value in (("a", 0.1), ("c", 0.3))}
    assert [(p.better, p.worse, p.outcome) for p in verdict.order(recipe, found)] == [("a", "c", verdict.HOLDS)]


def test_the_ordering_is_told_in_a_sentence():
    pairs = [verdict.Pair("a", "b", verdict.HOLDS), verdict.Pair("a", "c", verdict.FAILS)]
    assert verdict.summary(pairs) == (
        "The document's ordering holds in 1 of 2 pairs, does not hold in 1 (a is not better than c)."
    )
    assert verdict.by_row(pairs) == {"a": verdict.FAILS, "b": verdict.HOLDS, "c": verdict.FAILS}
    assert verdict.summary([]) == ""


@pytest.mark.parametrize(
    ("measure", "diverged", "why"),
    [
        ("test_metric", False, "no test part in the data"),
        ("test_metric", True, "diverged"),
        ("best_loss", False, "nothing was measured"),
    ],
)
def test_why_there_is_no_number(measure, diverged, why):
    assert verdict.missing(measure, diverged) == why
