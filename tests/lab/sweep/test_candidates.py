"""The product that a sweep tries: every point once, within the limit, and what is left out with its reason."""

from __future__ import annotations

import pytest

from evenflow.lab.sweep.candidates import CELLS, LARGEST, OWN, STEP, Axes, candidates, read_map
from evenflow.lab.tasks import Adding
from evenflow.lab.training.config import build

TASK = Adding(length=6)
SMALL = {"maps": ["exponential", "rotations"], "activations": ["relu", "tanh"], "hidden": [4], "lrs": [0.1, 0.01]}


def count(point):
    return sum(p.numel() for p in build(TASK, point.system, 0).parameters() if p.requires_grad)


def test_every_combination_once_and_factors_a_cell_lacks_not_multiplied_out():
    points, omitted = candidates(TASK, Axes(**SMALL, cells=["elman", "gated", "gru", "lstm"]))
    assert not omitted
    by_cell = {cell: [p for p in points if p.cell == cell] for cell in ("elman", "gated", "gru", "lstm")}
    assert {cell: len(of) for cell, of in by_cell.items()} == {"elman": 8, "gated": 8, "gru": 4, "lstm": 2}
    assert {p.activation for p in by_cell["lstm"]} == {OWN}
    assert {p.map for p in by_cell["lstm"]} == {"free"}
    assert len({p.name for p in points}) == len(points)


@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_can_be_a_candidate_and_is_counted_whole(cell):
    points, _ = candidates(TASK, Axes(**SMALL | {"hidden": [8]}, cells=[cell]))
    for point in points:
        assert point.parameters == count(point)


def test_the_gates_of_a_free_matrix_are_free():
    points, _ = candidates(TASK, Axes(**SMALL | {"maps": ["free", "cayley"]}, cells=["gated"]))
    assert {p.system["name"] for p in points if p.map == "free"} == {"fastrnn"}
    assert {p.system["name"] for p in points if p.map == "cayley"} == {"sgornn"}


@pytest.mark.parametrize("limit", [2000, 137000])
def test_sizes_are_the_largest_that_fit(limit):
    axes = Axes(lrs=[0.1])
    points, omitted = candidates(TASK, axes, limit)
    assert not omitted
    for point in points:
        assert point.hidden_size % STEP == 0
        assert count(point) == point.parameters <= limit
        if point.hidden_size < LARGEST:
            assert (
                sum(
                    p.numel()
                    for p in build(TASK, dict(point.system) | {"hidden_size": point.hidden_size + STEP}, 0).parameters()
                )
                > limit
            )


def test_what_is_over_the_limit_is_left_out_and_counted():
    points, omitted = candidates(TASK, Axes(**SMALL | {"hidden": [4, 64]}, cells=["elman"]), 1000)
    assert {p.hidden_size for p in points if p.map == "exponential"} == {4}
    large = [each for each in omitted if each.map == "exponential"]
    assert [each.hidden_size for each in large] == [64, 64]
    assert large[0].reason == f"{large[0].parameters:,} parameters, and the limit is 1,000"


def test_what_cannot_be_made_is_left_out_with_its_reason():
    points, omitted = candidates(TASK, Axes(**SMALL | {"hidden": [5]}, cells=["elman"]))
    assert {p.map for p in points} == {"exponential"}
    assert {each.map for each in omitted} == {"rotations"}
    assert all(each.parameters is None and "even" in each.reason for each in omitted)


def test_options_of_maps_and_layers_reach_the_model():
    axes = Axes(
        **SMALL | {"maps": ["svd(reflectors=2, margin=0.25)", "svd"]},
        cells=["elman"],
        system={"initial_state": "learned"},
    )
    points, _ = candidates(TASK, axes)
    layer = build(TASK, points[0].system, 0).layer
    assert points[0].name == "svd-reflectors=2-margin=0.25-elman-relu-4-adam-0.1"
    assert points[0].system["margin"] == 0.25
    assert layer.initial_state == "learned"
    assert points[0].parameters < points[-1].parameters
    assert read_map("svd") == ("svd", {})
    assert read_map("svd(margin=.1)") == ("svd", {"margin": 0.1})


BAD = [
    ({"maps": ["exponentail"]}, "unknown map 'exponentail', did you mean exponential?"),
    ({"maps": ["svd(margn=1)"]}, "map svd has no option 'margn'"),
    ({"maps": []}, "maps must name at least one, got none"),
    ({"cells": ["gated", "lsmt"]}, "unknown cell 'lsmt', did you mean lstm?"),
    ({"activations": ["rellu"]}, "unknown activation 'rellu'"),
    ({"hidden": [0]}, "hidden must be a whole number of at least 1, got 0"),
    ({"optimizers": ["adamm"]}, "optimizers must be one of adam"),
    ({"system": {"activation": "abs"}}, "system must leave activation to the axes of the sweep, got 'abs'"),
    ({"system": {"name": "lstm"}}, "system must leave name to the axes of the sweep, got 'lstm'"),
    ({"lrs": []}, "lrs must name at least one, got none"),
    ({"maps": ["svd", "svd"]}, "candidates must differ from each other, got svd-elman-relu-4-adam-0.1 more than once"),
    ({"hidden": [64]}, "no candidate is left of 4; the first, exponential elman relu with 64 units: 2,"),
    (
        {"system": {"bidirectionl": True}},
        "no candidate is left of 4; the first, exponential elman relu with 4 units: it",
    ),
]


@pytest.mark.parametrize(("change", "words"), BAD, ids=[str(change) for change, _ in BAD])
def test_bad_input(change, words):
    with pytest.raises(ValueError) as caught:
        candidates(TASK, Axes(**{**SMALL, "cells": ["elman"], **change}), 100)
    assert words in str(caught.value)


def test_a_limit_must_be_a_count():
    with pytest.raises(ValueError, match="parameters must be a whole number of at least 1, got 0"):
        candidates(TASK, Axes(**SMALL), 0)
