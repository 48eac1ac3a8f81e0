"""The tutorials: notebooks written in Markdown, executed, and turned into pages with their outputs and downloads.

docs/tutorials/NAME.md is in jupytext's Markdown format: its blocks of python and bash are the cells of a notebook, the
text between them is shown as it is. A block that draws a figure describes it, ```` ```python alt="..." ````.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import torch
from nbclient import NotebookClient

import evenflow
from site_pages.page_text import ROOT

FOLDER = ROOT / "docs" / "tutorials"
CACHE = ROOT / "build" / "tutorials"
CELL_SECONDS = 600
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
BASH = "%%bash\n"
COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*m")


def tutorials() -> list[Path]:
    """The sources of all tutorials."""
    return sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")


def as_notebook(text: str) -> Any:
    """The notebook of a source, not executed."""
    notebook = jupytext.reads(text, fmt="md")
    notebook.metadata = nbformat.from_dict(KERNEL)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # otherwise random
    return notebook


def execute(notebook: Any) -> Any:
    """Run all cells in a new folder, which is deleted, and return the notebook; a cell that fails raises its error.

    One thread, so that several tutorials run side by side; evenflow and its command are those of this process.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    source = str(Path(evenflow.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": source, "PATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        client = NotebookClient(
            notebook,
            timeout=CELL_SECONDS,
            startup_timeout=CELL_SECONDS,
            resources=place,
            coalesce_streams=True,
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
        )
        client.execute(env=environment)
    return notebook


def executed(source: Path, cache: Path = CACHE) -> Any:
    """The notebook of a source with its outputs, which are kept in `cache` until its code or a version changes."""
    notebook = as_notebook(source.read_text("utf-8"))
    code = [cell.source for cell in _code(notebook)]
    state = [*code, evenflow.__version__, torch.__version__, platform.python_version()]
    key = hashlib.sha256(json.dumps(state).encode()).hexdigest()
    kept = cache / f"{source.stem}.ipynb"
    earlier = nbformat.read(kept, as_version=4) if kept.exists() else None
    if earlier is not None and earlier.metadata.get("evenflow") == key:
        for cell, ran in zip(_code(notebook), _code(earlier), strict=True):
            cell.update(outputs=ran.outputs, execution_count=ran.execution_count)
        return notebook
    execute(notebook)
    notebook.metadata["evenflow"] = key
    cache.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(".partial")
    nbformat.write(notebook, partial)
    partial.replace(kept)
    return notebook


def _code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tutorial_files(sources: Iterable[Path]) -> dict[str, str]:
    """The pages, figures and notebooks of these tutorials, by their names on the site; runs those that are not kept."""
    sources = list(sources)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        notebooks = list(pool.map(executed, sources))
    files: dict[str, str] = {}
    for source, notebook in zip(sources, notebooks, strict=True):
        page, figures = as_page(source.stem, notebook)
        files |= {f"tutorials/{source.name}": page, f"tutorials/{source.stem}.ipynb": nbformat.writes(notebook)}
        files |= {f"tutorials/{name}": figure for name, figure in figures.items()}
    return files


def as_page(name: str, notebook: Any) -> tuple[str, dict[str, str]]:
    """The Markdown of an executed notebook, with a link to the notebook under its heading, and its figures by name."""
    parts: list[str] = []
    figures: dict[str, str] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        language = "bash" if cell.source.startswith(BASH) else "python"
        parts.append(f"```{language}\n{cell.source.removeprefix(BASH)}\n```")
        for output in cell.outputs:
            data = _data(output)
            if "image/svg+xml" in data:
                if "alt" not in cell.metadata:
                    raise ValueError(f'the block of {name}.md that draws a figure needs alt="...":\n{cell.source}')
                figure = f"{name}-{len(figures) + 1}.svg"
                figures[figure] = data["image/svg+xml"]
                parts.append(f"![{cell.metadata['alt']}]({figure})")
            elif "text/markdown" in data:
                parts.append(data["text/markdown"])
            elif "text/html" in data:  # empty where a progress bar was
                parts += [data["text/html"]] if data["text/html"] else []
            elif data.get("text/plain", "").strip():
                text = COLOUR_CODES.sub("", data["text/plain"]).strip("\n")
                parts.append(f"``` {{ .text .output .no-copy }}\n{text}\n```")
    heading, rest = "\n\n".join(parts).split("\n", 1)
    return f"{heading}\n\n[Download this page as a notebook]({name}.ipynb)\n{rest}\n", figures


def _data(output: Any) -> Mapping[str, str]:
    """The contents of an output by their kind; none of what is printed to stderr, such as a progress bar."""
    if output.output_type == "stream":
        return {"text/plain": output.text} if output.name == "stdout" else {}
    return output.data
