"""Hooks of mkdocs.yml: pages from the root of the repository, pages generated from the library, and their links."""

from __future__ import annotations

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

from site_pages.page_text import CITATION, ROOT, ROOT_PAGES, for_the_site, source_of, with_site_links
from site_pages.reference_pages import reference_pages
from site_pages.system_figures import gradient_figures
from site_pages.systems_pages import navigation, systems_pages, with_links
from site_pages.tutorials import tutorial_files, tutorials

# Readers who search want a guide first (2), then an explanation, then a docstring, then a record.
SEARCH_BOOSTS = {"concepts": 1.5, "contributing": 1, "systems": 1, "reference": 1, "results": 0.1, "changelog.md": 0.1}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings the anchors of repository hosts, so that one link serves both, and list the pages of systems."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    for entry in config.nav or []:
        if "Systems" in entry:
            entry["Systems"] = navigation()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/, run the tutorials, and leave out the scripts and the data of the figures."""
    pages = {name: (ROOT / source).read_text("utf-8") for source, name in ROOT_PAGES.items()}
    pages |= {f"systems/{name}.md": text for name, text in systems_pages().items()}
    pages |= {f"systems/{name}.svg": drawing for name, drawing in gradient_figures().items()}
    pages |= {f"reference/{name}.md": text for name, text in reference_pages().items()}
    pages[CITATION] = (ROOT / CITATION).read_text("utf-8")
    pages |= tutorial_files(tutorials())
    for name, text in pages.items():
        if written := files.get_file_from_path(name):  # the source of a tutorial
            files.remove(written)
        files.append(File.generated(config, name, content=text))
    for file in list(files):
        if file.src_uri.endswith((".py", ".toml", ".json")):
            files.remove(file)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change what holds in the repository into what holds on the site."""
    if page.parent is None:  # a tab of one page, whose navigation would be a column with its own name
        page.meta["hide"] = ["navigation"]
    page.meta["search"] = {"boost": SEARCH_BOOSTS.get(page.file.src_uri.partition("/")[0], 2)}
    if page.file.src_uri == "systems/index.md":
        markdown = with_links(markdown)
    source = source_of(page.file.src_uri)
    return for_the_site(with_site_links(markdown, source) if (ROOT / source).exists() else markdown)
