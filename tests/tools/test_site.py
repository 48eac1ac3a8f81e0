"""The site: its navigation lists every page, generated pages have every name, and it loads nothing from outside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import evenflow
from site_pages.page_text import CITATION, ROOT, ROOT_PAGES, for_the_site, with_site_links
from site_pages.reference_pages import MODULES, anchor, public_names, reference_pages
from site_pages.systems_page import best_jobs, snippet, systems_page

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
    generated = ["systems.md", *(f"reference/{name}.md" for name in reference_pages())]
    assert sorted(navigation) == sorted([*in_docs, *ROOT_PAGES.values(), *generated])


def test_every_system_has_a_section() -> None:
    page = systems_page()
    sections = dict(re.findall(r"^## ([\w-]+)\n(.*?)(?=^## )", page, flags=re.MULTILINE | re.DOTALL))
    assert sections.keys() == evenflow.systems().keys()
    for name, system in evenflow.systems().items():
        assert system.document in sections[name]
        assert snippet(name) in sections[name]
        written = re.sub(r"[\s,;]", "", system.equation)
        assert written in re.sub(r"[\s,;]", "", sections[name])
        assert f"| [`{name}`](#{name}) |" in page


def test_the_call_beside_a_system_makes_the_same_layer() -> None:
    calls = re.findall(r"^- \*\*The same as\*\*: `(.*)`$", systems_page(), flags=re.MULTILINE)
    for call, name in zip(calls, evenflow.systems(), strict=True):
        written, created = eval(call, {"evenflow": evenflow}), evenflow.create(name, 2, 128)
        assert repr(written) == repr(created)
        assert written.state_dict().keys() == created.state_dict().keys()


def test_the_jobs_of_the_page_on_choosing_name_systems() -> None:
    known = {*evenflow.systems(), "spectral-resnet", "spectral-mlp"}
    assert best_jobs().keys() <= known
    assert len(best_jobs()) >= 5


def test_the_snippets_run() -> None:
    for name in evenflow.systems():
        scope: dict[str, Any] = {"evenflow": evenflow, "torch": torch}
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
        ("README.md", "[a](docs/maps.md#b)", "[a](maps.md#b)"),
        ("README.md", "![a](docs/a.svg)", "![a](a.svg)"),
        ("CONTRIBUTING.md", "[docs/maps.md](docs/maps.md)", "[Maps](maps.md)"),
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


@pytest.mark.slow
@needs_mkdocs
def test_the_site_builds_and_loads_nothing_from_outside(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    outside = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=.?(?:https?:)?//"
        r"|<link\b[^>]*\brel=.?(?:stylesheet|icon|preconnect|preload)[^>]*\bhref=.?(?:https?:)?//"
        r"|<link\b[^>]*\bhref=.?(?:https?:)?//[^>]*\brel=.?(?:stylesheet|icon|preconnect|preload)"
        r"|(?:@import|url\()\s*[\"']?(?:https?:)?//"
    )
    files = [path for path in tmp_path.rglob("*") if path.suffix in (".html", ".css")]
    assert len(files) > 40
    assert [str(path) for path in files if outside.search(path.read_text("utf-8"))] == []
    assert "gradients" in (tmp_path / "search" / "search_index.js").read_text("utf-8")
