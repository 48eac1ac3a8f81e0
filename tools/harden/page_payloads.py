"""Names and texts that try to become elements of the report page: the page must have the same elements without them."""

from __future__ import annotations

import importlib
import random
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from evenflow.lab.report import write_report
from harden.trials import Attack, Trials

TESTS = Path(__file__).parents[2] / "tests" / "lab" / "report"
HARM = "document.documentElement.dataset.harmed=1"
ENDS = (
    "", '"', "'", ">", '">', "'>", "</text>", "</title>", "</style>", "</script>", "]]>", "-->", "*/", "</svg>", "</p>",
    "\\u003c", "\\", "&quot;>", "\u2028", "{{ 7*7 }}", "{% raw %}", "\0", "</textarea>", "`", "${",
)  # fmt: skip
HARMS = (
    f"<script>{HARM}</script>", f"<img src=x onerror={HARM}>", f"<svg onload={HARM}>", f"<svg/onload={HARM}//",
    f'<a href="javascript:{HARM}">x</a>', f'" onmouseover="{HARM}" x="', f"' autofocus onfocus='{HARM}' x='",
    f"<iframe srcdoc='<script>parent.{HARM}</script>'>", "<style>*{display:none}</style>", "<base href=//example.org>",
    "<meta http-equiv=refresh content=0;url=//example.org>", f"<details open ontoggle={HARM}>", "<!--", "<plaintext>",
    f"&lt;script&gt;{HARM}&lt;/script&gt;", f"\\u003cscript\\u003e{HARM}\\u003c/script\\u003e", f";{HARM};//",
    f"<math><mtext><script>{HARM}</script></mtext></math>", "<form action=//example.org><input name=x>",
)  # fmt: skip
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--virtual-time-budget=5000", "--dump-dom")
BROWSED = 0.1  # share of the pages that a browser opens too
SECONDS = 90


class Elements(HTMLParser):
    """The elements of a page with the names of their attributes, and the texts of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs)))
        for name, value in attrs:
            address = (value or "").strip().lower()
            assert not name.startswith("on"), f"<{tag}> has a handler {name}"
            outside = address.startswith(("javascript:", "http", "//")) and name in (
                "href",
                "src",
                "action",
                "xlink:href",
            )
            assert not outside, f"<{tag}> has {name}={address[:60]!r}"


def attack_pages(trials: Trials) -> None:
    """Put texts that try to break out into every place of a run that the page shows."""
    sys.path.append(str(TESTS))
    runs = importlib.import_module("synthetic_runs")
    if BROWSER is None:
        trials.notes.append("There is no browser, so the pages were parsed and not opened.")
    while trials.running:
        texts = [trials.chance.choice(ENDS) + trials.chance.choice(HARMS) for _ in range(12)]
        with trials.trial(" and ".join(texts[:2])):
            harmful = page_of(runs, trials.folder / "harmful", texts, trials.chance)
            # The same run with letters alone, so that a difference of the pages is in their elements.
            harmless = page_of(runs, trials.folder / "harmless", [re.sub(r"\W", "x", text) for text in texts])
            found, wanted = Elements(harmful).found, Elements(harmless).found
            assert found == wanted, f"elements {sorted(set(found) ^ set(wanted))[:3]} or their number differ"
            if BROWSER is not None and trials.chance.random() < BROWSED:
                browse(harmful, trials.folder)


def page_of(runs: Any, folder: Path, texts: list[str], chance: random.Random | None = None) -> str:
    """The page of a run in which every name and sentence is one of the texts."""
    shutil.rmtree(folder, ignore_errors=True)
    draw = np.random.default_rng(0)
    name, system, option, value, message, note, title, intro, *labels = texts
    one = runs.write_run(
        folder / "run",
        system,
        task={"name": name, option: value, "length": 20},
        training={"optimizer": message, "schedule": note},
        options={option: value, "activation": title},
        length=20,
        layers=2,
        status={"message": message, "data_note": note, "test_loss": 0.1, "test_metric": 0.1},
    )
    two = runs.write_run(folder / re.sub(r"[/\0]", "x", value), system, length=20, seed=1)
    mistakes = runs.mistakes_of(draw.standard_normal((2, 5, 2)), [name, note])
    runs.write_classes(one, labels, np.array([[5, 1, 0, 2], [1, 6, 1, 0], [0, 0, 9, 1], [3, 0, 0, 7]]), **mistakes)
    pairs = draw.standard_normal((30, 2, 2))
    runs.write_numbers(two, [option, message], np.full((2, 3), 0.5), pairs, 30)
    page = write_report([one, two], folder / "page.html", title, intro, notes=[note, message])
    return page.read_text(encoding="utf-8")


def browse(page: str, folder: Path) -> None:
    """Open a page without its policy for scripts: nothing of its texts may run."""
    assert BROWSER is not None
    bare, count = re.subn(r"<meta http-equiv=\"?Content-Security-Policy[^>]*>", "", page)
    assert count == 1, "the page has no policy"
    file, profile = folder / "bare.html", folder / "profile"
    file.write_text(bare, encoding="utf-8")
    command = [BROWSER, *QUIET, f"--user-data-dir={profile}", file.as_uri()]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=SECONDS)
    shown = re.match(r"(<!doctype[^>]*>)?\s*<html[^>]*>", done.stdout, flags=re.IGNORECASE)
    assert shown, f"the browser showed nothing: {done.stderr[-300:]}"
    assert "data-harmed" not in shown[0], "a text ran in the browser"


ATTACKS = (Attack("pages", "names and texts that try to become elements of the report page", attack_pages, 1),)
