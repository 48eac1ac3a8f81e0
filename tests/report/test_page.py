from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import write_probes, write_rows, write_run

from evenflow.report import write_report
from evenflow.report.svg import SERIES

LARGEST_PAGE = 2_000_000  # bytes for four runs, so that a page can be mailed
TEXT_CONTRAST, GRAPHIC_CONTRAST = 4.5, 3.0  # WCAG 2.1 AA for text and for lines
FIGURE = 'role="img" aria-label='
VOID = {"meta", "br", "path", "use", "image", "rect", "circle"}


class Outline(HTMLParser):
    """Tags and text of a page; refuses tags that are not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def words(page: str) -> str:
    return " ".join(" ".join(Outline(page).text).split())


def test_a_single_run_is_reported_in_its_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    assert write_report([folder]) == folder / "report.html"
    text = words((folder / "report.html").read_text())
    for part in (
        "sgornn on adding",
        "The run solved its task.",
        "Gradient reaches back all 199 steps.",
        "4,417",
        "24 s",
    ):
        assert part in text


def test_four_runs_side_by_side(four: list[Path], tmp_path: Path) -> None:
    intro, notes = "Same budget.\n\n- one rule\n- another", ["first note", "", "", ""]
    out = write_report(four, tmp_path / "new" / "page.html", intro=intro, notes=notes)
    assert out.stat().st_size < LARGEST_PAGE
    page = out.read_text()
    text = words(page)
    assert "2 of 4 runs solved the task: urnn, sgornn. Not solved: rnn, lstm." in text
    assert "first note" in text
    assert "<li>one rule</li><li>another</li>" in page
    outline = Outline(page)
    figures = [a for a in outline.of("svg") if a.get("role") == "img"]
    assert len(figures) == 2 + 4 + 2  # two losses, four heat maps, two profiles
    assert all(a["aria-label"] and len(a["aria-label"]) > 40 for a in figures)
    assert all(a.get("scope") for a in outline.of("th"))
    ids = [a["id"] for _, a in outline.tags if a.get("id")]
    assert len(ids) == len(set(ids))
    assert page.count('class="differs"') == 4  # name, map, alpha, seed


def test_a_metric_other_than_the_loss_gets_its_own_plot_and_columns(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", task={"name": "copy", "length": 50}, metric=lambda loss: 1 - loss)
    text = words(write_report([folder]).read_text())
    assert "Validation accuracy" in text
    assert "Best accuracy" in text


def test_nothing_outside_is_named(four: list[Path], tmp_path: Path) -> None:
    page = write_report(four, tmp_path / "page.html").read_text()
    assert "//" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", page)
    assert "@import" not in page
    outline = Outline(page)
    assert not outline.of("script")
    assert not outline.of("link")
    addresses = [v for _, a in outline.tags for k, v in a.items() if k in ("href", "src", "xlink:href")]
    assert all(v and v.startswith(("#", "data:image/png;base64,")) for v in addresses)


def test_the_same_runs_give_the_same_page(four: list[Path], tmp_path: Path) -> None:
    first, second = (write_report(four, tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert first == second


def test_everything_given_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'&$x_1$ #010101"
    folder = write_run(
        tmp_path / "<img src=x>", evil, task={"name": evil}, options={"<b>": evil}, training={"optimizer": evil}
    )
    out = write_report([folder], title=evil, intro=f"{evil}\n\n- {evil}", notes=[evil])
    page = out.read_text()
    outline = Outline(page)
    assert not outline.of("script")
    assert not outline.of("img")
    assert evil in "".join(outline.text)
    assert any(evil in (a.get("aria-label") or "") for a in outline.of("svg"))


@pytest.mark.parametrize(
    ("rows", "value", "probes"),
    [
        pytest.param(0, 0.3, "none", id="nothing at all"),
        pytest.param(1, 0.3, "one", id="a single row"),
        pytest.param(2, 0.0, "zero", id="zeros"),
        pytest.param(2, np.nan, "nan", id="nan"),
        pytest.param(1, np.inf, "none", id="inf"),
        pytest.param(2, 1e300, "zero", id="huge"),
    ],
)
def test_missing_and_broken_pieces_never_stop_the_page(tmp_path: Path, rows: int, value: float, probes: str) -> None:
    folder = write_run(tmp_path / "a")
    write_rows(folder, *({"step": i + 1, "loss": value, "valid_loss": value} for i in range(rows)))
    if probes == "none":
        (folder / "probes.npz").unlink()
    else:
        write_probes(folder, np.array([0]), np.full((1, 7), {"zero": 0.0, "nan": np.nan, "one": 1.0}[probes]))
    page = write_report([folder, write_run(tmp_path / "b", "rnn")], tmp_path / "page.html").read_text()
    assert FIGURE in page
    text = words(page)
    assert ("sgornn has no training loss." in text) == (rows == 0)
    assert ("No gradient probes were recorded in this run." in text) == (probes == "none")
    assert ("100 % of the gradients are exactly zero" in text) == (probes == "zero")


def test_an_empty_run_alone_gives_sentences_in_place_of_figures(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    write_rows(folder)
    (folder / "probes.npz").unlink()
    (folder / "status.toml").unlink()
    page = write_report([folder]).read_text()
    assert FIGURE not in page
    assert page.count('class="gap"') == 3  # two losses and the heat map
    assert "The run is not finished yet." in page


def test_ten_runs_of_different_lengths(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / f"{i}", seed=i, length=20 + 30 * i) for i in range(10)]
    page = write_report(folders, tmp_path / "page.html").read_text()
    assert page.count('class="card"') == 10
    assert "sgornn, length 290, seed 9" in page


def test_the_page_is_replaced_in_one_move(four: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("old")
    os.link(out, tmp_path / "held")  # whoever holds the old file keeps the old page whole
    write_report(four[:1], out)
    assert (tmp_path / "held").read_text() == "old"
    assert out.read_text().endswith("</html>\n") or out.read_text().endswith("</html>")
    assert not list(tmp_path.glob(".writing*"))


def test_bad_input_is_refused_in_one_sentence(four: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^out must say where to write the page of 4 runs, got None$"):
        write_report(four)
    with pytest.raises(ValueError, match=r"^out must be a file, got the folder '.*'$"):
        write_report(four, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"^out must be a file that can be written, got '.*file/page.html' \(.*\)$"):
        write_report(four, tmp_path / "file" / "page.html")
    with pytest.raises(ValueError, match=r"^folders must be a sequence of run folders, got the single path '.*'$"):
        write_report(four[0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^folders must name at least one run folder, got none$"):
        write_report([])


def test_a_run_that_was_trained(tmp_path: Path) -> None:
    from evenflow.training import train

    config = {
        "task": {"name": "adding", "length": 12},
        "system": {"name": "urnn", "hidden_size": 8},
        "training": {"steps": 20, "batch_size": 4, "validate_every": 10, "log_every": 5, "probe_every": 5},
    }
    result = train(config, tmp_path / "run", progress=False)
    text = words(write_report([tmp_path / "run"]).read_text())
    assert "urnn on adding" in text
    parameters = sum(p.numel() for p in result.model.parameters() if p.requires_grad)
    assert f"{parameters:,}" in text
    assert "update 20" in text
    assert "11 steps" in text


def schemes() -> dict[str, dict[str, str]]:
    """The CSS variables of the page in its light and its dark scheme."""
    style = files("evenflow.report").joinpath("page.html").read_text()
    blocks = re.findall(r":root \{([^}]*)\}", style)
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in blocks[:2])
    return {"light": light, "dark": dark}


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(scheme: str) -> None:
    colours = schemes()[scheme]
    pairs = [("ink", "page"), ("ink", "card"), ("muted", "page"), ("muted", "card"), ("ink", "mark"), ("muted", "mark")]
    pairs += [("good", "good-back"), ("bad", "bad-back"), ("ink", "calm-back")]
    for front, back in pairs:
        assert contrast(colours[front], colours[back]) >= TEXT_CONTRAST, (front, back)
    for index in range(SERIES):
        assert contrast(colours[f"series-{index + 1}"], colours["card"]) >= GRAPHIC_CONTRAST, index
