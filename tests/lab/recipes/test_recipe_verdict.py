"""Measured beside published: every verdict, and the ordering."""

from __future__ import annotations

import math

import pytest
from made_recipes import made

from evenflow.lab.recipes import recipe_cell, recipe_ordering, recipe_verdict
from evenflow.lab.recipes.recipe_cell import TableCell
from evenflow.lab.recipes.recipe_ordering import (
    FAILS,
    HOLDS,
    MIXED,
    ONE_SEED_FAILS,
    ONE_SEED_HOLDS,
    UNDECIDED,
    Pair,
)
from evenflow.lab.recipes.schema import Column, RecipeRow


def cell(values=(), published=None, *, spread=None, gaps=(), **column) -> TableCell:
    known = Column("c", **{"measure": "best_loss", **column})
    row = RecipeRow(
        "r", published={} if published is None else {"c": published}, spread={} if spread is None else {"c": spread}
    )
    return TableCell(row, known, list(values), list(gaps))


def judged(found: TableCell, scale: str = "full", **ordering: str) -> str:
    recipe_verdict.judge(found, scale, ordering)
    return found.verdict_text()


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (cell([1.0], 1.05, tolerance=0.1), "one seed: agrees"),
        (cell([1.0], 1.2, tolerance=0.1), "one seed: better"),
        (cell([1.3], 1.2, tolerance=0.05), "one seed: worse"),
        (cell([1.3], 1.2, tolerance=0.05, better="higher"), "one seed: better"),
        (cell([1.3], 1.2, tolerance=0.05, better="same"), "different"),
        (cell([1.0, 1.1, 1.2], 1.13, tolerance=0.05), "reproduced"),
        (cell([1.0, 1.1, 1.2], 1.19, tolerance=0.05), "too noisy to tell"),
        (cell([1.0, 1.1, 1.2], 1.19, tolerance=0.1), "reproduced"),
        (cell([1.08, 1.09, 1.1], 1.19, tolerance=0.2), "better"),
        (cell([1.08, 1.09, 1.1], 1.19, tolerance=0.2, better="higher"), "worse"),
        (cell([1.29, 1.3, 1.31], 1.19, spread=0.1, tolerance=0.2), "reproduced"),
        (cell([1.29, 1.3, 1.31], 1.19, spread=0.1, tolerance=0.2, published_seeds=10), "worse"),
        (cell([1.1, 1.1], 1.2), "better"),
        (cell([1.199, 1.199], 1.2), "reproduced"),
        (cell([1.2, 1.2], 1.2, gaps=["diverged"]), "too noisy to tell: 1 of 3 seeds diverged"),
        (cell([1.0], 1.2, incomparable="other hardware"), "not comparable: other hardware"),
        (cell([1.0], 1.0, incomparable="other outputs", better="same"), "reproduced"),
        (cell([1.0]), "no number printed"),
        (cell([], gaps=["diverged"]), "diverged"),
        (cell([], gaps=["nothing was measured"]), "–"),
        (cell([], 1.2, gaps=["diverged"]), "worse: diverged"),
        (cell([], 1.2, gaps=["no data: gone"]), "not comparable: no data: gone"),
        (cell([math.inf], "never", measure="updates_to_solve"), "one seed: agrees"),
        (cell([math.inf, math.inf], "never", measure="updates_to_solve"), "reproduced"),
        (cell([300.0, 200.0], "never", measure="updates_to_solve"), "better"),
        (
            cell([300.0, math.inf], "never", measure="updates_to_solve"),
            "too noisy to tell: some seeds never get there",
        ),
        (cell([1.0, 1.0], "yes", measure="convergence", better="higher"), "reproduced"),
        (cell([1.0, 1.0, 0.0], "yes", measure="convergence", better="higher"), "too noisy to tell"),
        (cell([0.5], "no", measure="convergence", better="higher"), "one seed: better"),
        (cell([0.0, 0.0], "partial", measure="convergence", better="higher"), "worse"),
        (cell([1411.0], 1411, measure="parameters", better="same"), "reproduced"),
        (cell(["some words"], "other words", measure="sentence"), "not comparable: the document gives words"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_verdict_at_full_scale(found, text):
    assert judged(found) == text


def test_quick_scale_compares_nothing_but_what_its_size_does_not_change():
    assert judged(cell([1.0], 1.0), "quick") == "too small to compare"
    assert judged(cell([1.0], 5.0), "quick", r=HOLDS) == "too small to compare; ordering holds"
    assert judged(cell([1.0], 1.0, any_scale=True), "quick") == "one seed: agrees"
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


def test_more_noise_never_makes_a_verdict_kinder():
    """A mean that is off is worse, or too noisy to tell, however far the seeds lie apart."""
    for spread in (0.0, 0.01, 0.1, 1.0, 10.0):
        found = cell([1.5 - spread, 1.5, 1.5 + spread], 1.2, tolerance=0.1)
        assert judged(found) in ("worse", "too noisy to tell")


def test_values_published_as_not_comparable_in_a_row():
    row = RecipeRow("r", published={"c": 0.64}, incomparable="a share of the larger class")
    found = TableCell(row, Column("c", "test_metric", "higher"), [0.8, 0.81])
    assert judged(found) == "not comparable: a share of the larger class"


def cells(**means: float | None) -> dict[tuple[str, str], TableCell]:
    recipe = made()
    found = {}
    for label, mean in means.items():
        values, gaps = ([] if mean is None else [mean]), (["diverged"] if mean is None else [])
        found[label, "error"] = TableCell(recipe.row(label), recipe.columns[0], values, gaps)
    return found


@pytest.mark.parametrize(
    ("means", "outcome"),
    [
        ({"plain": 0.2, "orthogonal": 0.1}, ONE_SEED_HOLDS),
        ({"plain": 0.1, "orthogonal": 0.2}, ONE_SEED_FAILS),
        ({"plain": 0.1, "orthogonal": 0.1}, UNDECIDED),
        ({"plain": None, "orthogonal": 0.1}, ONE_SEED_HOLDS),
        ({"plain": 0.1, "orthogonal": None}, ONE_SEED_FAILS),
        ({"plain": None, "orthogonal": None}, UNDECIDED),
    ],
    ids=["holds", "fails", "equal", "the other diverged", "the better diverged", "both diverged"],
)
def test_the_ordering_is_judged_by_the_first_column(means, outcome):
    (pair,) = recipe_ordering.judge_ordering(made(), cells(**means))
    assert pair.outcome == outcome


def test_an_ordering_needs_both_rows_and_a_scale_that_can_tell():
    assert recipe_ordering.judge_ordering(made(), cells(plain=0.2)) == []
    blind, own = made(quick={"ordering": False}), made(quick={"ordering": [["plain", "orthogonal"]]})
    (pair,) = recipe_ordering.judge_ordering(blind, cells(plain=0.2, orthogonal=0.1), "quick")
    assert pair.outcome == UNDECIDED
    (pair,) = recipe_ordering.judge_ordering(own, cells(plain=0.2, orthogonal=0.1), "quick")
    assert (pair.better, pair.outcome) == ("plain", FAILS)
    (pair,) = recipe_ordering.judge_ordering(made(resolution=0.5), cells(plain=0.2, orthogonal=0.1))
    assert pair.outcome == UNDECIDED


@pytest.mark.parametrize(
    ("plain", "outcome"),
    [([0.30, 0.32], HOLDS), ([0.05, 0.35], UNDECIDED)],
    ids=["far", "within"],
)
def test_a_difference_within_the_spread_of_the_seeds_tells_nothing(plain, outcome):
    recipe = made()
    found = {
        (label, "error"): TableCell(recipe.row(label), recipe.columns[0], values)
        for label, values in (("plain", plain), ("orthogonal", [0.10, 0.12]))
    }
    assert [pair.outcome for pair in recipe_ordering.judge_ordering(recipe, found)] == [outcome]


def test_rows_of_different_settings_are_not_compared():
    found = cells(plain=0.2, orthogonal=0.1)
    found["plain", "error"].earlier = True
    assert [pair.outcome for pair in recipe_ordering.judge_ordering(made(), found)] == [MIXED]
    found["orthogonal", "error"].earlier = True
    assert [pair.outcome for pair in recipe_ordering.judge_ordering(made(), found)] == [ONE_SEED_HOLDS]


@pytest.mark.parametrize(
    ("plain", "outcome"),
    [
        (330.0, UNDECIDED),
        (340.0, ONE_SEED_HOLDS),
        (math.inf, ONE_SEED_HOLDS),
        (250.0, ONE_SEED_FAILS),
    ],
)
def test_updates_up_to_a_validation_are_told_apart_by_more_than_one(plain, outcome):
    recipe = made(
        columns=[{"name": "error", "measure": "updates_to_solve", "better": "lower"}],
        rows=[{"label": "plain"}, {"label": "orthogonal", "training": {"validate_every": 30}}],
    )
    found = {
        (label, "error"): TableCell(recipe.row(label), recipe.columns[0], [value])
        for label, value in (("plain", plain), ("orthogonal", 300.0))
    }
    assert [pair.outcome for pair in recipe_ordering.judge_ordering(recipe, found)] == [outcome]


def test_seeds_that_never_got_there_are_counted_and_not_averaged():
    shown = cell([300.0, math.inf, 320.0], measure="updates_to_solve")
    assert shown.measured_text() == "310 in 2 of 3 seeds, else never"


def test_a_chain_is_closed_over_rows_that_did_not_run():
    recipe = made(
        rows=[{"label": label} for label in ("a", "b", "c")], ordering=[["a", "b", "c"]], quick={"rows": ["a", "c"]}
    )
    column = recipe.columns[0]
    found = {(row, "error"): TableCell(recipe.row(row), column, [value]) for row, value in (("a", 0.1), ("c", 0.3))}
    assert [(p.better, p.worse, p.outcome) for p in recipe_ordering.judge_ordering(recipe, found)] == [
        ("a", "c", ONE_SEED_HOLDS)
    ]


def test_the_ordering_is_told_in_a_sentence():
    one = [Pair("a", "b", ONE_SEED_HOLDS), Pair("b", "c", ONE_SEED_FAILS)]
    assert recipe_ordering.summary(one) == (
        "The document's ordering holds in 0 of 2 pairs, holds with one seed in 1, does not hold with one seed in 1 "
        "(b is not better than c)."
    )
    pairs = [Pair("a", "b", HOLDS), Pair("a", "c", FAILS)]
    assert recipe_ordering.summary(pairs) == (
        "The document's ordering holds in 1 of 2 pairs, does not hold in 1 (a is not better than c)."
    )
    assert recipe_ordering.worst_by_row(pairs) == {
        "a": FAILS,
        "b": HOLDS,
        "c": FAILS,
    }
    assert recipe_ordering.summary([]) == ""


@pytest.mark.parametrize(
    ("measure", "diverged", "why"),
    [
        ("test_metric", False, "no test part in the data"),
        ("test_metric", True, "diverged"),
        ("best_loss", False, "nothing was measured"),
    ],
)
def test_why_there_is_no_number(measure, diverged, why):
    assert recipe_cell.missing_reason(measure, diverged) == why
