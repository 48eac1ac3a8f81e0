from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
from synthetic_runs import write_run

from evenflow.lab.report.plotting import series_marker
from evenflow.lab.report.svg import SERIES, drawing, inline, series_colour


def sketch(key: str = "a", alt: str = "a line") -> str:
    with drawing() as figure:
        axes = figure.add_subplot()
        axes.plot([1, 2, 3], [1, 3, 2], color=series_colour(1), marker="o")
        axes.set_xlabel("update")
        return inline(figure, key, alt)


def test_the_same_drawing_gives_the_same_bytes() -> None:
    assert sketch() == sketch()


def test_colours_are_the_variables_of_the_page() -> None:
    svg = sketch()
    assert "var(--series-2)" in svg
    assert "var(--muted)" in svg
    # A colour written out would not follow the light and dark schemes.
    assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) == set()


def test_ids_are_unique_and_references_resolve() -> None:
    both = sketch("a") + sketch("b")
    ids = re.findall(r'\bid="([^"]*)"', both)
    assert len(ids) == len(set(ids))
    used = re.findall(r'href="#([^"]*)"', both) + re.findall(r"url\(#([^)]*)\)", both)
    assert used
    assert set(used) <= set(ids)


def test_the_element_is_well_formed_named_and_free_of_outside_addresses() -> None:
    svg = sketch(alt='loss <b> & "more"')
    root = ElementTree.fromstring(svg)
    assert root.attrib["aria-label"] == 'loss <b> & "more"'
    assert root.attrib["role"] == "img"
    assert "http" not in svg
    assert "<style" not in svg
    assert "font-family" not in svg


def test_settings_of_the_user_neither_leak_in_nor_out() -> None:
    plain = sketch()
    with mpl.rc_context({"font.size": 40, "axes.facecolor": "red", "lines.linewidth": 9, "svg.fonttype": "path"}):
        before = dict(mpl.rcParams)
        assert sketch() == plain
        assert dict(mpl.rcParams) == before


def test_a_whole_page_leaves_pyplot_alone(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    code = "import sys; from evenflow.lab.report import write_report; write_report([sys.argv[1]]); "
    code += "print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_fifty_six_runs_look_different() -> None:
    looks = {(series_colour(i), series_marker(i)) for i in range(56)}
    assert len(looks) == 56
    assert len({series_colour(i) for i in range(SERIES)}) == SERIES
