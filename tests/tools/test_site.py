"""The site: its navigation lists every page, generated pages have every name, and it loads nothing from outside."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import evenflow
from site_pages.page_text import CITATION, ROOT, ROOT_PAGES, for_the_site, with_site_links
from site_pages.reference_pages import MODULES, anchor, public_names, reference_pages
from site_pages.system_facts import SIZES, best_jobs, parameters, recipes_of, speed
from site_pages.system_families import FAMILIES
from site_pages.system_figures import drawn, gradient_over_time, make_layer
from site_pages.systems_pages import navigation as systems_navigation
from site_pages.systems_pages import overview, snippet, systems_pages, with_links

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ATTEMPTS = 3  # a browser on a busy machine may end before the search has answered
needs_mkdocs = pytest.mark.skipif(find_spec("mkdocs") is None, reason='mkdocs is not installed: pip install ".[docs]"')


@pytest.fixture(scope="module")
def navigation() -> list[str]:
    yaml = pytest.importorskip("yaml", reason="reading mkdocs.yml needs PyYAML, which is not installed")
    return list(entries(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]))


def entries(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from entries(entry)


def test_the_navigation_lists_every_page_once(navigation: list[str]) -> None:
    in_docs = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    generated = [f"reference/{name}.md" for name in reference_pages()]
    assert sorted(navigation) == sorted([*in_docs, *ROOT_PAGES.values(), *generated])
    systems = ["systems/index.md", *(f"systems/{name}.md" for name in evenflow.systems())]
    assert sorted(entries(systems_navigation())) == sorted(systems)


def test_every_system_is_in_one_family() -> None:
    assert sorted(name for family in FAMILIES for name in family.systems) == sorted(evenflow.systems())
    readme = (ROOT / "README.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| ([\w ]+) \| ((?:`[\w-]+` ?)+) \|", readme, flags=re.MULTILINE))
    for family in FAMILIES:
        assert re.findall("[^` ]+", rows[family.title]) == list(family.systems)


def test_every_system_has_a_page() -> None:
    pages, table = systems_pages(), with_links(overview())
    assert pages.keys() == evenflow.systems().keys()
    for name, system in evenflow.systems().items():
        assert system.document in pages[name]
        assert snippet(name) in pages[name]
        written = re.sub(r"[\s,;]", "", system.equation)
        assert written in re.sub(r"[\s,;]", "", pages[name])
        assert f"| [`{name}`]({name}.md) |" in table
        assert all(f" {parameters(name, units):,} |" in pages[name] for units in SIZES)
        for job, number, _ in best_jobs().get(name, []):
            assert f"| {job} | {number} |" in pages[name]
        assert all(f"`{address}`" in pages[name] for address in recipes_of().get(name, []))


def test_the_parameters_of_the_pages_are_counted() -> None:
    assert parameters("sgornn", 128) == 1282  # without the readout, 129 of the 1,411 of the document
    assert parameters("lstm", 32) == 4 * (32 * 32 + 32 * 2 + 32)


def test_the_speed_of_the_pages_is_measured() -> None:
    assert [name for name in evenflow.systems() if not speed(name)] == ["esn"]  # trains nothing
    layers = json.loads((ROOT / "benchmarks/results/systems-cpu.json").read_text("utf-8"))["layers"]
    assert speed("sgornn")[0][1] == f"{layers['sgornn']['ms']:.0f} ms"
    assert f"{layers['sgornn']['torch.nn.GRU']:.2f} of `torch.nn.GRU`" in speed("sgornn")[0][2]


def test_the_call_beside_a_system_makes_the_same_layer() -> None:
    for name, page in systems_pages().items():
        (call,) = re.findall(r"^\| the same as \| `(.*)` \|$", page, flags=re.MULTILINE)
        written, created = eval(call, {"evenflow": evenflow}), evenflow.create(name, 2, 128)
        assert repr(written) == repr(created)
        assert written.state_dict().keys() == created.state_dict().keys()


def test_the_figures_show_the_gradient() -> None:
    norms = {name: gradient_over_time(make_layer(name)) for name in ("urnn", "rnn", "lstm-1997")}
    assert abs(norms["urnn"] - 1).max() < 1e-3
    assert norms["rnn"][0] < 1e-12
    assert norms["rnn"][-1] == 1
    assert norms["lstm-1997"][-2] == 0  # its gradient by h is truncated
    assert "<svg" in drawn("urnn", norms["urnn"], norms["rnn"])


def test_the_jobs_of_the_page_on_choosing_name_systems() -> None:
    known = {*evenflow.systems(), "spectral-resnet", "spectral-mlp"}
    assert best_jobs().keys() <= known
    assert len(best_jobs()) >= 5


def test_the_snippets_run() -> None:
    for name in evenflow.systems():
        scope: dict[str, Any] = {}
        exec(snippet(name), scope)
        assert scope["output"].shape[:2] == (100, 8)


def test_the_reference_has_every_public_name() -> None:
    shown = {id(value) for _, module in MODULES.values() for value in public_names(module).values()}
    modules = {module.replace(".lab.", ".") for _, module in MODULES.values()}
    missing = [
        name
        for name in evenflow.__all__
        if id(getattr(evenflow, name)) not in shown and f"evenflow.{name}" not in modules
    ]
    assert missing == []
    pages = reference_pages()
    targets = {target for page in pages.values() for target in re.findall(r"\]\[([\w.]+)\]", page)}
    assert targets <= {target for page in pages.values() for target in re.findall(r"^::: ([\w.]+)$", page, flags=re.M)}
    assert f"::: {anchor(evenflow.attach)}\n" in pages["maps"]
    assert "heading: evenflow.attach\n" in pages["maps"]


@pytest.mark.parametrize(
    ("source", "link", "on_the_site"),
    [
        ("CONTRIBUTING.md", "[a](docs/maps.md#b)", "[a](../maps.md#b)"),
        ("CONTRIBUTING.md", "![a](docs/a.svg)", "![a](../a.svg)"),
        ("CONTRIBUTING.md", "[docs/maps.md](docs/maps.md)", "[Maps](../maps.md)"),
        ("docs/drop-in.md", "[a](../README.md#b)", "[a](index.md#b)"),
        ("docs/results/sweeps.md", "[a](README.md)", "[a](README.md)"),
        ("docs/results/sweeps.md", "[a](../sweep.md)", "[a](../sweep.md)"),
        ("docs/drop-in.md", "[tests/foreign](../tests/foreign)", "`tests/foreign`"),
        ("docs/drop-in.md", "[this record](../benchmarks/a.json)", "this record"),
        ("docs/maps.md", "[a](https://example.org/b.md)", "[a](https://example.org/b.md)"),
        ("docs/maps.md", "[a](#b)", "[a](#b)"),
        ("docs/maps.md", "```\n[a](../src/b.py)\n```", "```\n[a](../src/b.py)\n```"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(source: str, link: str, on_the_site: str) -> None:
    assert with_site_links(link, source) == on_the_site


def test_bars_in_the_code_of_tables() -> None:
    assert for_the_site("| `f = \\|x\\|` | \\|x\\| |") == "| `f = |x|` | \\|x\\| |"


def test_docstrings_become_markdown() -> None:
    pytest.importorskip("griffe", reason="griffe comes with mkdocstrings, which is not installed")
    from site_pages.docstrings import as_markdown

    text = "Line.\n\nArgs:\n    a, b: the two\n        numbers.\n\n>>> f(1)\n2\n\nMore."
    fenced = "```pycon\n>>> f(1)\n2\n```\n"
    assert as_markdown(text) == (
        f"Line.\n\nArgs:\n    a: the two\n        numbers.\n    b: the two\n        numbers.\n\n{fenced}\nMore."
    )


def test_the_citation_has_the_version_of_the_package() -> None:
    assert f"\nversion: {evenflow.__version__}\n" in (ROOT / CITATION).read_text("utf-8")


# What a newcomer types into the search, and the page with the answer.
QUESTIONS = {
    "replace nn.LSTM": "drop-in.html",
    "margin": "maps.html",
    "load my CSV": "data.html",
    "write a cell": "cells.html",
    "how fast is it": "performance.html",
    "what does solved mean": "tasks.html",
    "how to cite": "citing.html",
}
FIRST = 3  # results that one sees without scrolling


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.slow
@needs_mkdocs
def test_the_site_loads_nothing_from_outside(site: Path) -> None:
    outside = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=.?(?:https?:)?//"
        r"|<link\b[^>]*\brel=.?(?:stylesheet|icon|preconnect|preload)[^>]*\bhref=.?(?:https?:)?//"
        r"|<link\b[^>]*\bhref=.?(?:https?:)?//[^>]*\brel=.?(?:stylesheet|icon|preconnect|preload)"
        r"|(?:@import|url\()\s*[\"']?(?:https?:)?//"
    )
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert len(files) > 90
    assert [str(path) for path in files if outside.search(path.read_text("utf-8"))] == []


@pytest.mark.slow
@needs_mkdocs
@pytest.mark.skipif(BROWSER is None, reason="no browser found: chromium or google-chrome")
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_search_finds_the_answer_without_a_server(site: Path, question: str) -> None:
    address = f"{(site / 'index.html').as_uri()}?q={quote(question)}"
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    command += ["--virtual-time-budget=30000", "--dump-dom", address]
    for _ in range(ATTEMPTS):
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=False)
        results = done.stdout.split('<li class="md-search-result__item">')[1:]
        if results:
            break
    pages = [re.search(r'href="([^"?#]*)', result)[1].removeprefix(f"{site.as_uri()}/") for result in results]
    assert QUESTIONS[question] in pages[:FIRST]
