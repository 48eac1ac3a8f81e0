"""The page as a browser lays it out and runs it, measured by a script added to a copy."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_runs import mistakes_of, write_classes, write_numbers, write_rows, write_run
from test_forecasts import forecasts
from test_page import TEXT_CONTRAST, contrast

from evenflow.lab.report import write_report
from evenflow.lab.report.numbers import number
from evenflow.lab.training import Run

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no browser found: none of chromium, chromium-browser, google-chrome is installed"
)

PHONE, WIDE = 390, 1400  # CSS pixels
SMALLEST_FIGURE = 200, 100  # width and height: smaller is not readable
SMALLEST_TEXT = 7.5  # pixels of figure labels on a phone
SMALLEST_TAB = 36  # pixels a finger can hit
ROUNDING = 1.0  # browsers round boxes to whole pixels
BLANK = 12  # colours that a heat map has at least
DIGITS = 4  # of a number that is read out
ATTEMPTS = 3  # a browser on a busy machine may end before it has measured; a page that is wrong is so every time
QUIET = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--enable-logging=stderr",
]  # fmt: skip
PARTS = ["learning", "gradients", "matrices", "bounds", "results", "settings"]

HELPERS = """
const box = (e) => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
const all = (s) => [...document.querySelectorAll(s)];
const shown = () => all("section").filter((s) => s.getClientRects().length).map((s) => s.id);
const colours = (image) => new Promise((done) => {
  const copy = new Image();
  copy.onload = () => {
    const canvas = document.createElement("canvas");
    canvas.width = copy.width; canvas.height = copy.height;
    const pen = canvas.getContext("2d");
    pen.drawImage(copy, 0, 0);
    done(new Set(new Uint32Array(pen.getImageData(0, 0, copy.width, copy.height).data.buffer)).size);
  };
  copy.src = image.getAttribute("href");
});
const key = (element, name) =>
  element.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
/* At a place inside the axes of a figure: a share of their width and of their height, from the left bottom. */
const point = (id, x, y, type = "pointermove") => {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const svg = document.querySelector("#" + id + " svg[role=img]"), r = svg.getBoundingClientRect();
  const unit = r.width / svg.viewBox.baseVal.width, [x0, y0, x1, y1] = plots[id].box;
  svg.dispatchEvent(new PointerEvent(type, {
    clientX: r.left + (x0 + x * (x1 - x0)) * unit, clientY: r.top + (y1 - y * (y1 - y0)) * unit, bubbles: true,
  }));
  const tip = document.getElementById("tip");
  return { hidden: tip.hidden, lines: [...tip.children].map((p) => p.innerText.replace(/\\s+/g, " ")), box: box(tip),
    cursor: svg.querySelectorAll(".cursor > *").length };
};
"""

FIGURES = """
const found = [];
for (const part of all("[role=tab]").length ? all("[role=tab]") : [null]) {
  if (part) part.click();
  for (const svg of all("svg[role=img]").filter((s) => s.getClientRects().length)) {
    const image = svg.querySelector("g image, image");
    found.push({
      label: svg.getAttribute("aria-label"), box: box(svg),
      texts: [...svg.querySelectorAll("text")].map((t) => [t.textContent, ...box(t)]),
      size: Math.min(...[...svg.querySelectorAll("text")].map((t) => parseFloat(getComputedStyle(t).fontSize)))
        * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width,
      images: [...svg.querySelectorAll("image")].map(box),
      colours: image ? await colours(image) : 0,
      strokes: [...svg.querySelectorAll("path")].map((p) => getComputedStyle(p).stroke),
      longest: Math.max(...[...svg.querySelectorAll("path")].map((p) => p.getTotalLength())),
    });
  }
}
if (all("[role=tab]").length) all("[role=tab]")[0].click();
return {
  inner: innerWidth, scroll: document.documentElement.scrollWidth, figures: found,
  resources: performance.getEntriesByType("resource").map((e) => e.name).filter((name) => !name.startsWith("data:")),
  back: getComputedStyle(document.body).backgroundColor,
  cards: all(".card").map(box), tabs: all("[role=tab]").map(box),
};
"""


def visit(page: str, folder: Path, width: int, body: str, dark: bool = False) -> tuple[Any, list[str]]:
    """What the body of an async function returns on a page, and what the browser wrote to its console."""
    assert BROWSER is not None
    code = (
        HELPERS + 'addEventListener("load", async () => { const result = await (async () => {' + body + "})();"
        'const out = document.createElement("pre"); out.id = "measured"; out.textContent = JSON.stringify(result);'
        "parent.document.body.append(out); });"
    )
    allowed = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    copy = page.replace("script-src '", f"script-src 'sha256-{allowed}' '")
    inside = html.escape(copy.replace("</body>", f"<script>{code}</script></body>"))
    # In a frame, because a browser window does not get narrower than 500 pixels.
    frame = f'<iframe style="width: {width}px; height: 2000px; border: 0" srcdoc="{inside}"></iframe>'
    file = folder / f"{width}-{dark}.html"
    file.write_text(f'<!doctype html><html><body style="margin: 0">{frame}</body></html>')
    for attempt in range(ATTEMPTS):
        profile = folder / f"profile-{width}-{dark}-{attempt}"
        command = [BROWSER, *QUIET, f"--user-data-dir={profile}", "--window-size=1600,2000"]
        command += ["--virtual-time-budget=20000", f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
        command += ["--dump-dom", file.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        found = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout, flags=re.DOTALL)
        if found is not None:
            console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
            return json.loads(html.unescape(found[1])), console
    raise AssertionError(f"the browser measured nothing: {done.stderr[-2000:]}")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four runs, one of them with a very long name, one of two layers."""
    folder = tmp_path_factory.mktemp("runs")
    name = "a-system-with-" + "a-very-long-" * 8 + "name"
    return [
        write_run(folder / "a", "rnn", decay=0.75, end=0.165),
        write_run(folder / "b", name, decay=0.95, options={"path": "/" + "x" * 300}),
        write_run(folder / "c", "urnn", task={"name": "copy", "length": 50}, metric=lambda loss: 1 - loss),
        write_run(
            folder / "d", "sgornn", layers=2, status={"test_loss": 0.1, "test_metric": 0.1, "data_note": "x" * 99}
        ),
    ]


@pytest.fixture(scope="module")
def page(folders: list[Path]) -> str:
    return write_report(folders, folders[0].parent / "page.html", intro="w" * 300).read_text()


@pytest.mark.parametrize(
    ("width", "dark", "back"),
    [
        pytest.param(PHONE, False, "rgb(246, 247, 248)", id="phone, light"),
        pytest.param(WIDE, True, "rgb(18, 21, 26)", id="wide, dark"),
    ],
)
def test_the_page_in_a_browser(page: str, tmp_path: Path, width: int, dark: bool, back: str) -> None:
    measured, console = visit(page, tmp_path, width, FIGURES, dark)
    assert console == []
    assert measured["resources"] == []
    assert measured["inner"] == width
    assert measured["scroll"] <= width, "the page scrolls sideways"
    assert measured["back"] == back
    figures = measured["figures"]
    # Curves; heat maps, also of two layers, and lines; singular values; bands.
    assert len(figures) == 4 + (4 + 2 + 2) + 4 + 8
    assert sum(figure["colours"] >= BLANK for figure in figures) == 6, "a heat map is blank"
    for figure in figures:
        left, top, right, bottom = figure["box"]
        assert right - left >= SMALLEST_FIGURE[0], figure["label"]
        assert bottom - top >= SMALLEST_FIGURE[1], figure["label"]
        assert figure["size"] >= SMALLEST_TEXT, figure["label"]
        assert figure["longest"] >= SMALLEST_FIGURE[0], figure["label"]
        for name, x0, y0, x1, y1 in [*figure["texts"], *(("image", *image) for image in figure["images"])]:
            inside = (
                x0 >= left - ROUNDING and y0 >= top - ROUNDING and x1 <= right + ROUNDING and y1 <= bottom + ROUNDING
            )
            assert inside, f"{name!r} leaves the figure {figure['label']!r}"
            assert x1 > x0, name
            assert y1 > y0, name
        assert_apart(figure)
    series = "rgb(95, 180, 245)" if dark else "rgb(0, 103, 168)"
    assert series in figures[0]["strokes"]
    columns = {round(card[0]) for card in measured["cards"]}
    assert len(columns) == (1 if width == PHONE else 4)
    assert all(tab[3] - tab[1] >= SMALLEST_TAB for tab in measured["tabs"])


def assert_apart(figure: dict[str, Any]) -> None:
    """No two labels of a figure lie on each other."""
    for i, (name, *a) in enumerate(figure["texts"]):
        for other, *b in figure["texts"][i + 1 :]:
            across, down = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
            assert across <= ROUNDING or down <= 2 * ROUNDING, f"{name!r} and {other!r} overlap in {figure['label']!r}"


def test_tabs_switch_by_click_and_by_keys(page: str, tmp_path: Path) -> None:
    body = """
    const seen = { start: shown(), scrolled: document.scrollingElement.scrollTop }, tabs = all("[role=tab]");
    seen.clicks = tabs.map((tab) => { tab.click(); return shown(); });
    tabs[0].click();
    seen.keys = ["ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "Home"].map((name) => {
      key(document.activeElement === document.body ? tabs[0] : document.activeElement, name);
      return [shown()[0], document.activeElement.id, document.activeElement.getAttribute("aria-selected")];
    });
    seen.reachable = tabs.filter((tab) => tab.tabIndex === 0).length;
    seen.roles = all("[role=tabpanel]").map((part) => [part.id, part.getAttribute("aria-labelledby")]);
    return seen;
    """
    seen, console = visit(page, tmp_path, WIDE, body)
    assert console == []
    assert seen["start"] == ["learning"]
    assert seen["scrolled"] == 0, "the page opens at its top"
    assert seen["clicks"] == [[part] for part in PARTS]
    expected = ["gradients", "matrices", "gradients", "settings", "learning", "learning"]
    assert seen["keys"] == [[part, f"tab-{part}", "true"] for part in expected]
    assert seen["reachable"] == 1, "the tab key enters the row of tabs once"
    assert [part for part, _ in seen["roles"]] == PARTS


def test_reading_out_gives_the_numbers_of_the_run_folders(page: str, folders: list[Path], tmp_path: Path) -> None:
    body = """
    const tabs = all("[role=tab]"), open = (part) => tabs.find((t) => t.id === "tab-" + part).click();
    const seen = {};
    seen.valid = point("valid-loss", 0.99, 0.5);
    seen.away = point("valid-loss", -0.2, 0.5).hidden;
    const svg = document.querySelector("#valid-loss svg[role=img]");
    svg.focus();
    key(svg, "ArrowLeft");
    seen.keyboard = document.getElementById("tip").hidden;
    key(svg, "Escape");
    seen.escaped = document.getElementById("tip").hidden;
    open("gradients");
    seen.map = point("heat-3", 0.5025 - 0.0025 + 0.001, 0.999);
    seen.corner = point("heat-0", 0.0, 0.0, "pointerdown");
    open("matrices");
    seen.singular = point("singular-3-0", 0.999, 0.5);
    open("bounds");
    seen.band = point("lags-3", 0.999, 0.5);
    return seen;
    """
    seen, console = visit(page, tmp_path, WIDE, body)
    assert console == []
    runs = [Run(folder) for folder in folders]
    lines = seen["valid"]["lines"]
    assert lines[0] == "update 1,200"
    for line, run in zip(lines[1:], runs, strict=True):
        assert line.endswith(" " + number(run.metrics["valid_loss"][-1], DIGITS)), line
    assert seen["valid"]["cursor"] == 1 + len(runs)
    assert (seen["away"], seen["keyboard"], seen["escaped"]) == (True, False, True)
    last, first = runs[3].probes, runs[0].probes
    assert last is not None
    assert first is not None
    assert seen["map"]["lines"] == [
        "step 101, update 1,200", "gradient norm " + number(last["gradient_norm"][-1, 100], DIGITS)
    ]  # fmt: skip
    assert seen["corner"]["lines"] == [
        "step 1, update 0", "gradient norm " + number(first["gradient_norm"][0, 0], DIGITS)
    ]  # fmt: skip
    mean, deviation, least, most = (number(v, DIGITS) for v in last["singular_values"][-1, 0])
    assert seen["singular"]["lines"] == [
        "update 1,200", f"largest {most}", f"mean {mean}", f"deviation {deviation}", f"smallest {least}"
    ]  # fmt: skip
    lag = last["jacobian_norm"].shape[1] - 1
    lower, upper = (number(8 * rate**lag, DIGITS) for rate in last["band"][-1])
    measured = number(float(last["jacobian_norm"][-1, lag]), DIGITS)
    assert seen["band"]["lines"] == [f"lag {lag}", f"at most {upper}", f"measured {measured}", f"at least {lower}"]
    for found in (seen["valid"], seen["map"], seen["band"]):
        assert found["box"][0] >= 0
        assert found["box"][2] <= WIDE


def test_numbers_are_written_as_on_the_rest_of_the_page(page: str, tmp_path: Path) -> None:
    values = [0.0, 1.0, -1.5, 0.04213, 0.0001, 0.00012345, 999.96, 1234.4, 123456.0, 1e9, 3.2e-9, 1e-20, -7.77e-31]
    written, _ = visit(page, tmp_path, WIDE, f"return {json.dumps(values)}.map((value) => number(value, 3));")
    assert written == [number(value) for value in values]


def test_results_on_the_page_are_those_of_the_folders(page: str, folders: list[Path], tmp_path: Path) -> None:
    body = """
    all("[role=tab]").find((t) => t.id === "tab-results").click();
    return all("#results tbody tr").map((row) => [...row.children].map((cell) => cell.innerText.trim()));
    """
    rows, _ = visit(page, tmp_path, WIDE, body)
    for row, folder in zip(rows, folders, strict=True):
        run = Run(folder)
        valid = {name: run.metrics[name][~np.isnan(run.metrics[name])] for name in ("valid_loss", "valid_metric")}
        higher = folder.name == "c"
        best = valid["valid_metric"].max() if higher else valid["valid_metric"].min()
        tested = (
            [number(run.status["test_loss"]), number(run.status["test_metric"], 4)] if folder.name == "d" else ["–"] * 2
        )
        assert row[2:9] == [
            f"{run.status['parameters']:,}", number(valid["valid_loss"][-1]), number(valid["valid_loss"].min()),
            number(valid["valid_metric"][-1], 4), number(best, 4), *tested,
        ]  # fmt: skip
    assert "Data: " + "x" * 99 in rows[3][0]


def test_a_tip_for_many_runs_names_those_nearest(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / f"{i}", training={"lr": 0.1 + i}) for i in range(10)]
    for i, folder in enumerate(folders):
        write_rows(folder, {"step": 10, "loss": 1 + i}, {"step": 20, "loss": 1 + i})
        (folder / "probes.npz").unlink()
    page = write_report(folders, tmp_path / "page.html").read_text()
    seen, console = visit(page, tmp_path, PHONE, 'return point("train-loss", 0.5, 0.999);')
    assert console == []
    assert seen["lines"][1].endswith(" 10")  # the top line
    assert len(seen["lines"]) == 1 + 8
    assert seen["box"][0] >= 0
    assert seen["box"][2] <= PHONE


def test_the_checks_above_can_fail(tmp_path: Path) -> None:
    bad = """<!doctype html><html><head></head><body style="margin: 0">
    <img src="http://127.0.0.1:9/missing.png" alt="">
    <div style="width: 900px">wide</div><script>undefinedName()</script></body></html>"""
    measured, console = visit(bad, tmp_path, PHONE, FIGURES)
    assert measured["scroll"] == 900
    assert any(name.endswith("missing.png") for name in measured["resources"])
    assert any("undefinedName" in line for line in console)


def as_hex(colour: str) -> str:
    """A colour as browsers give it, rgb(1, 2, 3) or color(srgb 0.1 0.2 0.3), as #rrggbb."""
    scale = 255 if colour.startswith("color(srgb") else 1
    return "#" + "".join(f"{round(scale * float(part)):02x}" for part in re.findall(r"[\d.]+", colour)[:3])


@pytest.mark.parametrize(("width", "dark"), [(PHONE, False), (WIDE, True)], ids=["phone, light", "wide, dark"])
def test_predictions_in_a_browser(tmp_path: Path, width: int, dark: bool) -> None:
    labels = [f"a rather long name of class {i}" for i in range(30)]
    confusion = np.diag(np.arange(1, 31)) + np.random.RandomState(0).randint(3, size=(30, 30))
    inputs = np.random.RandomState(0).randn(4, 40, 3)
    classes = write_classes(write_run(tmp_path / "a"), labels, confusion, **mistakes_of(inputs, ["x", "y", "z"], 5))
    alone, pairs = write_report([classes]).read_text(), np.random.RandomState(0).randn(50, 2, 2) * [1e-3, 4e4]
    names = ["m" * 40, "amount"]
    numbers = write_numbers(write_run(tmp_path / "b"), names, np.ones((2, 3)), pairs, 50, "next", **forecasts())
    body = """
    all("[role=tab]").find((t) => t.id === "tab-predictions").click();
    const cell = (e) => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor];
    return { inner: innerWidth, scroll: document.documentElement.scrollWidth,
      regions: all("#predictions .scroll").map((e) => [e.tabIndex, e.clientWidth, ...box(e)]),
      cells: all(".confusion td").map(cell), first: all(".confusion tbody th").map(box),
      figures: all("#predictions svg[role=img]").map((svg) => ({ label: svg.getAttribute("aria-label"), box: box(svg),
        texts: [...svg.querySelectorAll("text")].map((t) => [t.textContent, ...box(t)]) })) };
    """
    for page, figures, regions in ((alone, 4, 2), (write_report([numbers]).read_text(), 6, 2)):
        seen, console = visit(page, tmp_path, width, body, dark)
        assert console == []
        assert seen["scroll"] <= seen["inner"] == width, "the page scrolls sideways"
        assert len(seen["figures"]) == figures
        assert len(seen["regions"]) == regions
        assert all(index == 0 and right <= width for index, _, _, _, right, _ in seen["regions"])
        for figure in seen["figures"]:
            left, top, right, bottom = figure["box"]
            assert right - left >= SMALLEST_FIGURE[0]
            for name, x0, y0, x1, y1 in figure["texts"]:
                assert x0 >= left - ROUNDING, name
                assert y0 >= top - ROUNDING, name
                assert x1 <= right + ROUNDING, name
                assert y1 <= bottom + ROUNDING, name
            assert_apart(figure)
        if page is alone:
            assert len(seen["cells"]) == 13 * 13
            assert len({back for _, back in seen["cells"]}) > 5, "shares have colours"
            for ink, back in seen["cells"]:
                assert contrast(as_hex(ink), as_hex(back)) >= TEXT_CONTRAST, (ink, back)
            assert all(x1 - x0 <= 0.45 * width for x0, _, x1, _ in seen["first"]), "names leave room for the counts"
