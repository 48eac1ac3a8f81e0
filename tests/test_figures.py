"""Figures for print: colours that colour-blind readers tell apart, fonts in the file, vectors, the same bytes again."""

from __future__ import annotations

import itertools
import re
from importlib.resources import files

import numpy as np
import pytest

from evenflow.figures import COLOURS, FORMATS, MARKERS, draw_line, html_table, print_figure, span
from evenflow.lab.report.plotting import MARKS

NOTICEABLE = 9.0  # distance in CIELAB; 2.3 is just noticeable side by side
# Machado, Oliveira and Fernandes 2009, full severity, on linear RGB.
BLINDNESS = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
WHITE = (0.9505, 1.0, 1.089)


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    x, y, z = np.cbrt(np.maximum(TO_XYZ @ np.clip(rgb, 0, 1) / np.array(WHITE), 0))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("kind", [None, *BLINDNESS])
def test_colours_differ_for_everybody(kind: str | None) -> None:
    """Two lines of nearly the same colour would differ in their markers, which no pair of the first seven shares."""
    seen = [lab(linear(c) if kind is None else np.array(BLINDNESS[kind]) @ linear(c)) for c in COLOURS]
    least = min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2))
    assert least >= NOTICEABLE, least


def test_pages_have_the_same_colours_and_markers() -> None:
    style = files("evenflow.lab.report").joinpath("colours.css").read_text(encoding="utf-8")
    light = re.findall(r"--series-\d: (#[0-9a-f]{6})", style.split("@media")[0])
    assert tuple(light) == COLOURS
    assert tuple(MARKS) == MARKERS


def drawn(kind: str) -> bytes:
    with print_figure(panels=2) as (figure, (left, right)):
        draw_line(left, 0, range(20), range(20), "rnn")
        draw_line(right, 1, range(20), range(20), "lstm")
        left.set_xlabel("update")
        left.legend()
    return figure.to_bytes(kind)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_same_numbers_give_the_same_file(kind: str) -> None:
    assert drawn(kind) == drawn(kind)


def test_files_hold_vectors_and_their_fonts() -> None:
    pdf = drawn("pdf")
    assert b"/FontFile2" in pdf  # a TrueType font, which journals ask for
    assert b"/Type3" not in pdf
    assert b"/Subtype /Image" not in pdf
    svg = drawn("svg").decode()
    assert "<text" not in svg
    assert "<image" not in svg
    assert COLOURS[0] in svg
    assert drawn("png").startswith(b"\x89PNG")


def test_a_notebook_shows_a_figure() -> None:
    with print_figure() as (figure, (axes,)):
        draw_line(axes, 0, [0, 1], [0, 1])
    assert "<svg" in figure._repr_svg_()
    with pytest.raises(ValueError, match=r"^kind must be one of pdf, png, svg, got 'jpg'$"):
        figure.to_bytes("jpg")


def test_small_parts() -> None:
    assert span([[1.0, 10.0], [0.0, np.nan, 1000.0]]) == 1000
    assert span([]) == span([[np.nan]]) == 1
    assert html_table([("a<", "&b")]).count("&lt;") == 1
