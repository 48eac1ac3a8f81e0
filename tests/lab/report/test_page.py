from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import write_probes, write_rows, write_run

from evenflow.lab.report import write_report
from evenflow.lab.report.page import render
from evenflow.lab.report.run_record import read_runs
from evenflow.lab.report.svg import SERIES
from evenflow.lab.training.metrics import HEADER

LARGEST_PAGE = 2_000_000  # bytes for four runs, so that a page can be mailed
RUNS, POINTS, LARGEST_WHOLE = 20, 100_000, 5_000_000  # runs, rows of each, bytes of their page
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


def scripts(page: str) -> list[str]:
    """What the script elements of a page hold."""
    return re.findall(r"<script[^>]*>(.*?)</script>", page, flags=re.DOTALL)


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
    # Two losses and the gradient norm, four heat maps, two profiles, singular values and two bands for each run.
    assert len(figures) == 3 + 4 + 2 + 4 + 8
    assert json.loads(scripts(page)[0]).keys() == {a["id"] for a in outline.of("figure")}
    assert all(a["aria-label"] and len(a["aria-label"]) > 40 for a in figures)
    assert all(a.get("scope") for a in outline.of("th"))
    ids = [a["id"] for _, a in outline.tags if a.get("id")]
    assert len(ids) == len(set(ids))
    assert page.count('class="differs"') == 4  # name, map, alpha, seed


def test_only_the_pages_own_script_may_run(tmp_path: Path) -> None:
    page = write_report([write_run(tmp_path / "a")]).read_text()
    allowed = re.search(r"script-src '(sha256-[^']*)'", page)
    assert allowed is not None
    digest = hashlib.sha256(scripts(page)[1].encode()).digest()
    assert allowed[1] == "sha256-" + base64.b64encode(digest).decode()


def test_every_tab_has_its_part_and_all_show_without_a_script(four: list[Path], tmp_path: Path) -> None:
    outline = Outline(write_report(four[:1], tmp_path / "page.html").read_text())
    tabs = [a["aria-controls"] for a in outline.of("button")]
    assert tabs == ["learning", "gradients", "matrices", "bounds", "results", "settings"]
    assert [a["id"] for a in outline.of("section")] == tabs
    assert not any("hidden" in a for a in outline.of("section"))
    assert next(a for a in outline.of("div") if a.get("role") == "tablist").keys() >= {"hidden"}


def test_a_run_with_gradients_alone_has_no_empty_tabs(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    write_probes(folder, np.arange(3), np.ones((3, 7)))
    outline = Outline(write_report([folder]).read_text())
    assert [a["aria-controls"] for a in outline.of("button")] == ["learning", "gradients", "results", "settings"]


def test_layers_have_maps_of_their_own(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / "a", "lstm", layers=2),
        write_run(tmp_path / "b", "rnn", layers=2, options={"bidirectional": True}),
        write_run(tmp_path / "c", "urnn"),
    ]
    text = words(write_report(folders, tmp_path / "page.html").read_text())
    for name in ("lstm, layer 1", "lstm, layer 2", "rnn, layer 1, forward", "rnn, layer 1, backward"):
        assert name in text
    assert "urnn, layer" not in text


def test_the_test_result_and_what_to_know_about_the_data_stand_together(tmp_path: Path) -> None:
    status = {"test_loss": 0.4321, "test_metric": 0.9934, "best_step": 900, "data_note": "rebuilt from raw recordings"}
    har = {"name": "from-the-future"}
    folders = [
        write_run(tmp_path / "a", "urnn", task=har, metric=lambda loss: 1 - loss, status=status),
        write_run(tmp_path / "b", "rnn", task=har, metric=lambda loss: 1 - loss),
    ]
    page = write_report(folders, tmp_path / "page.html").read_text()
    text = words(page)
    assert "Test metric 0.9934, loss 0.432, with the weights of update 900. Data: rebuilt from raw recordings." in text
    assert "Data of urnn: rebuilt from raw recordings." in text  # under the heading, where the verdicts are
    table = page[page.index('id="results"') : page.index('id="settings"')]
    assert table.count("Data: rebuilt from raw recordings.") == 1
    assert re.findall(r'<td class="number">([^<]*)</td>', table)[5:7] == ["0.432", "0.9934"]


@pytest.mark.slow
def test_a_long_run_of_every_kind_stays_small_and_keeps_its_spike(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    folder = write_run(tmp_path / "a", "lstm")
    loss = np.exp(random.standard_normal(POINTS) / 4)
    loss[61_803] = 77.0
    columns = np.arange(1, POINTS + 1), loss, 3 * loss, random.random(POINTS)
    lines = (f"{s},{a:.9g},{b:.9g},0.01,{c:.9g},{c:.9g},1" for s, a, b, c in zip(*columns, strict=True))
    (folder / "metrics.csv").write_text("\n".join([HEADER, *lines, ""]))
    K, T = 500, 1000
    norm = np.exp(random.standard_normal((K, 2, T)))
    np.savez(
        folder / "probes.npz", step=np.arange(K) * 200, gradient_norm=norm[:, 1], layer_norm=norm,
        jacobian_norm=norm[:, 0], band=np.tile([0.9, 1.1], (K, 1)), singular_values=random.random((K, 1, 4)),
        matrix=np.array(["weight_hh_l0"]),
    )  # fmt: skip
    runs = read_runs([folder] * RUNS)
    for i, run in enumerate(runs):
        run.label = f"run {i}"
        if i > 1:
            run.layer_norm = None  # because drawing takes time
    page = render(runs)
    assert len(page.encode()) < LARGEST_WHOLE
    series = json.loads(scripts(page)[0])["train-loss"]["series"]
    step = np.frombuffer(base64.b64decode(series[7]["x"]), "<u4")
    value = np.frombuffer(base64.b64decode(series[7]["y"]), "<f4")
    assert 10 ** value[step == 61_804] == pytest.approx(77)
    assert (step[0], step[-1]) == (1, POINTS)
    np.testing.assert_allclose(10.0**value, loss[step - 1], rtol=1e-5)  # every point shown was logged
    assert f"{K} probes by {T:,} steps are drawn as" in page


def test_a_metric_other_than_the_loss_gets_its_own_plot_and_columns(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", task={"name": "copy", "length": 50}, metric=lambda loss: 1 - loss)
    text = words(write_report([folder]).read_text())
    assert "Validation accuracy" in text
    assert "Best accuracy" in text


def test_temporal_components_are_drawn_where_runs_have_them(four: list[Path], tmp_path: Path) -> None:
    plain = write_report(four[:2], tmp_path / "plain.html").read_text()
    assert "Temporal components before training" not in plain
    path = four[0] / "probes.npz"
    arrays = dict(np.load(path))
    falling = np.geomspace(1e-6, 2.5, arrays["gradient_norm"].shape[1]).astype(np.float32)
    np.savez(path, **arrays, component_norm=falling)
    page = write_report(four[:2], tmp_path / "page.html").read_text()
    assert "Temporal components before training" in page
    series = json.loads(scripts(page)[0])["components"]["series"]
    assert len(series) == 1
    shown = 10.0 ** np.frombuffer(base64.b64decode(series[0]["y"]), "<f4")
    np.testing.assert_allclose([shown[0], shown[-1]], [1e-6, 2.5], rtol=1e-4)
    np.savez(path, **arrays, component_norm=falling[:-1])  # of another length: left out
    assert "Temporal components" not in write_report(four[:2], tmp_path / "page.html").read_text()


def test_nothing_outside_is_named(four: list[Path], tmp_path: Path) -> None:
    page = write_report(four[:2], tmp_path / "page.html").read_text()
    plots, code = scripts(page)
    assert "//" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", page.replace(plots, ""))
    assert "@import" not in page
    outline = Outline(page)
    assert not outline.of("link")
    assert all("src" not in attributes for attributes in outline.of("script"))
    for word in ("fetch", "XMLHttpRequest", "import", "eval", "innerHTML"):
        assert word not in code
    addresses = [v for _, a in outline.tags for k, v in a.items() if k in ("href", "src", "xlink:href")]
    assert all(v and v.startswith(("#", "data:image/png;base64,")) for v in addresses)


def test_the_same_runs_give_the_same_page(four: list[Path], tmp_path: Path) -> None:
    first, second = (write_report(four[:2], tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert first == second


def test_everything_given_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'&$x_1$ #010101"
    folder = write_run(
        tmp_path / "<img src=x>", evil, task={"name": evil}, options={"<b>": evil}, training={"optimizer": evil}
    )
    out = write_report([folder], title=evil, intro=f"{evil}\n\n- {evil}", notes=[evil])
    page = out.read_text()
    outline = Outline(page)
    assert len(outline.of("script")) == 2
    assert json.loads(scripts(page)[0])["train-loss"]["series"][0]["name"] == evil
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
    assert page.count('class="gap"') == 4  # two losses, the gradient norm and the heat map
    assert "The run is not finished yet." in page


def test_ten_runs_of_different_lengths(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / f"{i}", seed=i, length=20 + 30 * i) for i in range(10)]
    for folder in folders[3:]:
        (folder / "probes.npz").unlink()  # drawing takes time
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
        write_report(four[:1], tmp_path / "file" / "page.html")
    with pytest.raises(ValueError, match=r"^folders must be a sequence of run folders, got the single path '.*'$"):
        write_report(four[0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^folders must name at least one run folder, got none$"):
        write_report([])


def test_a_run_that_was_trained(tmp_path: Path) -> None:
    from evenflow.lab.training import train
    from evenflow.probes import spectrum

    config = {
        "task": {"name": "adding", "length": 12},
        "system": {"name": "urnn", "hidden_size": 8},
        "training": {"steps": 20, "batch_size": 4, "validate_every": 10, "log_every": 5, "probe_every": 5},
    }
    result = train(config, tmp_path / "run", progress=False)
    page = write_report([tmp_path / "run"]).read_text()
    text = words(page)
    assert "urnn on adding" in text
    plots = json.loads(scripts(page)[0])
    assert {"heat-0", "singular-0-0", "band-0", "lags-0"} <= plots.keys()
    (found,) = spectrum(result.model)
    mean = next(line for line in plots["singular-0-0"]["series"] if line["name"] == "mean")
    assert np.frombuffer(base64.b64decode(mean["y"]), "<f4")[-1] == pytest.approx(found.mean, rel=1e-5)
    parameters = sum(p.numel() for p in result.model.parameters() if p.requires_grad)
    assert f"{parameters:,}" in text
    assert "update 20" in text
    assert "11 steps" in text


def schemes() -> dict[str, dict[str, str]]:
    """The CSS variables of the page in its light and its dark scheme."""
    style = files("evenflow.lab.report").joinpath("colours.css").read_text()
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
    pairs += [("good", "good-back"), ("bad", "bad-back"), ("bad", "card"), ("ink", "calm-back")]
    for front, back in pairs:
        assert contrast(colours[front], colours[back]) >= TEXT_CONTRAST, (front, back)
    for index in range(SERIES):
        assert contrast(colours[f"series-{index + 1}"], colours["card"]) >= GRAPHIC_CONTRAST, index
