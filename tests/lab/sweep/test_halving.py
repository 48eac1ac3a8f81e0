"""The rounds of a sweep stay within their budget and use it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.lab.sweep.halving import Round, Rules, first_round, next_round, plan


def cost(rounds, seeds):
    made, reached = 0, 0
    for each in rounds:
        runs = each.points * (seeds if each.last else 1)
        made += each.points * (each.until - reached) + (runs - each.points) * each.until
        reached = each.until
    return made


def test_a_plan_by_hand():
    rounds = plan(48, Rules(updates=100_000))
    assert rounds == [Round(48, 500), Round(16, 1500), Round(5, 4500), Round(3, 19_500, last=True)]


def test_a_last_round_has_fewer_points_rather_than_short_ones():
    assert plan(16, Rules(600, 20, seeds=2, finalists=2))[-1] == Round(2, 80, last=True)
    assert plan(16, Rules(600, 20, seeds=2, finalists=4))[-1] == Round(4, 45, last=True)
    assert plan(16, Rules(400, 20, seeds=2, finalists=4))[-1] == Round(3, 23, last=True)


def test_further_seeds_begin_anew():
    rounds = plan(48, Rules(updates=100_000, seeds=3))
    assert rounds[-1].last
    assert rounds[-1].until > rounds[-2].until
    assert 100_000 - 9 < cost(rounds, 3) <= 100_000


@given(
    points=st.integers(1, 300),
    more=st.integers(0, 500_000),
    first=st.integers(1, 1000),
    keep=st.floats(0.05, 0.95),
    finalists=st.integers(1, 5),
)
def test_rounds_shrink_grow_and_spend_the_budget(points, more, first, keep, finalists):
    rules = Rules(points * first + more, first, keep, finalists=finalists)
    rounds = plan(points, rules)
    assert rounds[0] == Round(points, first)
    assert all(a.until < b.until and a.points >= b.points for a, b in itertools.pairwise(rounds))
    assert all(each.until % first == 0 for each in rounds if not each.last)
    assert not any(each.last for each in rounds[:-1])
    # What is left over is less than one update for each point of the last round.
    assert 0 <= rules.updates - cost(rounds, 1) < (rounds[-1].points if rounds[-1].last else 1)


@given(points=st.integers(1, 50), seeds=st.integers(2, 5), more=st.integers(0, 50_000))
def test_seeds_stay_within_the_budget_or_are_refused(points, seeds, more):
    rules = Rules(points * 100 + more, 100, seeds=seeds)
    try:
        rounds = plan(points, rules)
    except ValueError as error:
        least = int(str(error).split()[5])
        assert least > rules.updates
        assert plan(points, Rules(least, 100, seeds=seeds))[-1].last
    else:
        assert rounds[-1].last
        assert cost(rounds, seeds) <= rules.updates


def test_points_that_diverged_leave_their_updates_to_the_others():
    rules = Rules(10_000, 100)
    planned = next_round(Round(30, 100), 30, 7000, rules)
    assert planned == Round(10, 300)
    assert next_round(Round(30, 100), 2, 7000, rules) == Round(2, 3600, last=True)
    assert next_round(Round(3, 3000, last=True), 3, 7000, rules) is None


BAD = [
    ({"keep": 0}, "keep must be a number above 0 and below 1, got 0"),
    ({"keep": 1.0}, "keep must be a number above 0 and below 1, got 1.0"),
    ({"keep": "half"}, "keep must be a number above 0 and below 1, got 'half'"),
    ({"first": 0}, "first must be a whole number of at least 1, got 0"),
    ({"seeds": 0}, "seeds must be a whole number of at least 1, got 0"),
    ({"finalists": 0}, "finalists must be a whole number of at least 1, got 0"),
    ({"updates": 2.5}, "updates must be a whole number of at least 1, got 2.5"),
    ({"finish": "cosine"}, "finish must be one of linear, constant, got 'cosine'"),
]


@pytest.mark.parametrize(("change", "words"), BAD, ids=[str(change) for change, _ in BAD])
def test_bad_rules(change, words):
    with pytest.raises(ValueError) as caught:
        Rules(**{"updates": 1000, **change})
    assert str(caught.value) == words


def test_a_budget_that_is_too_small_says_what_it_needs():
    with pytest.raises(ValueError, match="updates must be at least 5000 for a first round of 10 candidates at 500"):
        first_round(10, Rules(4999))
