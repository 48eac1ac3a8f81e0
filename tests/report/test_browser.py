"""The page as a browser lays it out. Measured by a script added to a copy; the page itself holds none."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import write_run

from evenflow.report import write_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no browser found: none of chromium, chromium-browser, google-chrome is installed"
)

PHONE, WIDE = 390, 1400  # CSS pixels
SMALLEST_FIGURE = 200, 100  # width and height: smaller is not readable
SMALLEST_TEXT = 7.5  # pixels of figure labels on a phone
ROUNDING = 1.0  # browsers round boxes to whole pixels
QUIET = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--enable-logging=stderr",
]  # fmt: skip

MEASURE = """
<script>
addEventListener("load", () => {
  const box = (e) => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
  const figures = [...document.querySelectorAll("svg[role=img]")].map((svg) => ({
    label: svg.getAttribute("aria-label"), box: box(svg),
    texts: [...svg.querySelectorAll("text")].map((t) => [t.textContent, ...box(t)]),
    size: Math.min(...[...svg.querySelectorAll("text")].map((t) => parseFloat(getComputedStyle(t).fontSize)))
      * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width,
    images: [...svg.querySelectorAll("image")].map(box),
    strokes: [...svg.querySelectorAll("path")].map((p) => getComputedStyle(p).stroke),
  }));
  const out = document.createElement("pre");
  out.id = "measured";
  out.textContent = JSON.stringify({
    inner: innerWidth, scroll: document.documentElement.scrollWidth, figures,
    resources: performance.getEntriesByType("resource").map((e) => e.name),
    back: getComputedStyle(document.body).backgroundColor,
    cards: [...document.querySelectorAll(".card")].map(box),
  });
  parent.document.body.append(out);
});
</script>
"""


def visit(page: str, folder: Path, width: int, dark: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Measurements of a page and what the browser wrote to its console."""
    assert BROWSER is not None
    copy = page.replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
    inside = html.escape(copy.replace("</body>", MEASURE + "</body>"))
    # In a frame, because a browser window does not get narrower than 500 pixels.
    frame = f'<iframe style="width: {width}px; height: 2000px; border: 0" srcdoc="{inside}"></iframe>'
    file = folder / f"{width}-{dark}.html"
    file.write_text(f'<!doctype html><html><body style="margin: 0">{frame}</body></html>')
    profile = folder / f"profile-{width}-{dark}"
    command = [BROWSER, *QUIET, f"--user-data-dir={profile}", "--window-size=1600,2000"]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    return json.loads(html.unescape(found[1])), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four runs, one of them with a very long name."""
    folder = tmp_path_factory.mktemp("runs")
    name = "a-system-with-" + "a-very-long-" * 8 + "name"
    folders = [
        write_run(folder / "a", "rnn", decay=0.75, end=0.165),
        write_run(folder / "b", name, decay=0.95, options={"path": "/" + "x" * 300}),
        write_run(folder / "c", "urnn", task={"name": "copy", "length": 50}, metric=lambda loss: 1 - loss),
        write_run(folder / "d", "sgornn"),
    ]
    return write_report(folders, folder / "page.html", intro="w" * 300).read_text()


@pytest.mark.parametrize(
    ("width", "dark", "back"),
    [
        pytest.param(PHONE, False, "rgb(246, 247, 248)", id="phone, light"),
        pytest.param(WIDE, True, "rgb(18, 21, 26)", id="wide, dark"),
    ],
)
def test_the_page_in_a_browser(page: str, tmp_path: Path, width: int, dark: bool, back: str) -> None:
    measured, console = visit(page, tmp_path, width, dark)
    assert console == []
    assert measured["resources"] == []
    assert measured["inner"] == width
    assert measured["scroll"] <= width, "the page scrolls sideways"
    assert measured["back"] == back
    assert len(measured["figures"]) == 3 + 4 + 2
    assert sum(len(figure["images"]) for figure in measured["figures"]) >= 4
    for figure in measured["figures"]:
        left, top, right, bottom = figure["box"]
        assert right - left >= SMALLEST_FIGURE[0], figure["label"]
        assert bottom - top >= SMALLEST_FIGURE[1], figure["label"]
        assert figure["size"] >= SMALLEST_TEXT, figure["label"]
        for name, x0, y0, x1, y1 in [*figure["texts"], *(("image", *image) for image in figure["images"])]:
            inside = (
                x0 >= left - ROUNDING and y0 >= top - ROUNDING and x1 <= right + ROUNDING and y1 <= bottom + ROUNDING
            )
            assert inside, f"{name!r} leaves the figure {figure['label']!r}"
            assert x1 > x0, name
            assert y1 > y0, name
    series = "rgb(95, 180, 245)" if dark else "rgb(0, 103, 168)"
    assert series in measured["figures"][0]["strokes"]
    columns = {round(card[0]) for card in measured["cards"]}
    assert len(columns) == (1 if width == PHONE else 4)


def test_the_checks_above_can_fail(tmp_path: Path) -> None:
    bad = """<!doctype html><html><head></head><body style="margin: 0">
    <img src="http://127.0.0.1:9/missing.png" alt="">
    <div style="width: 900px">wide</div><script>undefinedName()</script></body></html>"""
    measured, console = visit(bad, tmp_path, PHONE)
    assert measured["scroll"] == 900
    assert any(name.endswith("missing.png") for name in measured["resources"])
    assert any("undefinedName" in line for line in console)
