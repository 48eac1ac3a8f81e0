"""The repository's Markdown files as the site needs them: other links, and bars in the code of tables."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOT_PAGES = {
    "CONTRIBUTING.md": "contributing/index.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code_of_conduct.md",
}
CITATION = "CITATION.cff"
FENCED = re.compile(r"(^```.*?^```$)", flags=re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def source_of(name: str) -> str:
    """The path in the repository of the page `name` of the site."""
    of_root = {page: source for source, page in ROOT_PAGES.items()}
    return of_root.get(name, f"docs/{name}")


def page_of(source: str) -> str | None:
    """The name on the site of a file in the repository; None if the site does not have it."""
    if source in ROOT_PAGES:
        return ROOT_PAGES[source]
    if source == "README.md":  # the site has a home page of its own
        return "index.md"
    if source == CITATION:
        return CITATION
    shown = source.startswith("docs/") and source.endswith((".md", ".svg", ".ipynb"))
    return source.removeprefix("docs/") if shown else None


def for_the_site(markdown: str) -> str:
    """Return Markdown whose code in tables has plain bars: `\\|`, which repository hosts need there, would be shown."""
    return _outside_blocks(markdown, lambda text: CODE.sub(lambda code: code[0].replace("\\|", "|"), text))


def with_site_links(markdown: str, source: str, page: str | None = None) -> str:
    """Return text with links for the site; a link to a file outside it becomes its text.

    Args:
        markdown: the text.
        source: the file in the repository that it is from.
        page: the page of the site that shows the text; the page of `source` by default.
    """
    folder, page = posixpath.dirname(source), page or page_of(source)
    assert page is not None

    def rewrite(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        name, hash_sign, anchor = target.partition("#")
        if "://" in target or not name:
            return match[0]
        found = page_of(posixpath.normpath(posixpath.join(folder, name)))
        if found is None:
            return text if "`" in text or "/" not in text else f"`{text}`"
        if text.endswith(".md"):  # a path says little to readers of the site
            text = _title(ROOT / posixpath.normpath(posixpath.join(folder, name)))
        relative = posixpath.relpath(found, posixpath.dirname(page) or ".")
        return f"{picture}[{text}]({relative}{hash_sign}{anchor})"

    return _outside_blocks(markdown, lambda text: LINK.sub(rewrite, text))


def _title(source: Path) -> str:
    """The first heading of a Markdown file."""
    return source.read_text("utf-8").split("\n", 1)[0].removeprefix("# ")


def _outside_blocks(markdown: str, change: Callable[[str], str]) -> str:
    parts = FENCED.split(markdown)
    return "".join(part if part.startswith("```") else change(part) for part in parts)
