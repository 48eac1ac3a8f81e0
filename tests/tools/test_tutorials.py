"""The tutorials run and show what their text claims; the machinery keeps outputs and turns notebooks into pages."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

WITHOUT = "the notebooks need jupytext, nbclient and ipykernel: pip install '.[docs]'"
nbformat = pytest.importorskip("nbformat", reason=WITHOUT)
pytest.importorskip("ipykernel", reason=WITHOUT)
tutorials = pytest.importorskip("site_pages.tutorials", reason=WITHOUT)

# What the text of a tutorial says of its outputs, checked in a last cell.
CLAIMS = {
    "watch-a-gradient-vanish": """
        assert all(flows[name][0] < 1e-6 * flows[name][-1] for name in ("nn.RNN", "nn.LSTM"))
        assert flows["orthogonal, abs"][0] > 0.9 * flows["orthogonal, abs"][-1]
        losses = {name: [run.valid_loss for run in each] for name, each in runs.items()}
        assert max(losses["orthogonal, abs"]) < 0.5 * task.baseline
        assert min(losses["nn.RNN"] + losses["orthogonal, tanh"]) > 0.7 * task.baseline
    """,
    "from-sensor-data-to-c": """
        assert same == len(from_c) == 180 and abs(from_c - from_python).max() < 1e-5
        assert np.mean(from_c.argmax(1) == test.targets) > 0.75
    """,
    "your-own-cell": """
        assert furthest < 1e-4
        assert found.word == "vanishes"
        assert Path("order.c").exists()
    """,
    "reproduce-a-table": """
        assert len(list(folder.rglob("metrics.csv"))) == 4
    """,
    "forecast-a-chaotic-series": """
        at_84 = {name: max(curve[83] for curve in each) for name, each in curves.items()}
        assert at_84["echo state network"] < 0.2 * min(at_84["linear"], at_84["sgornn"])
    """,
    "why-does-it-not-learn": """
        assert found.word == "steady"
        assert loss.item() < 0.5 * task.baseline
    """,
    "many-seeds-one-figure": """
        assert wins > len(seeds) / 2
        assert "* differs from the best mean" in table.to_text("markdown")
    """,
    "scale-out-with-ray": """
        assert "A worker was lost" in said
        for other in ("runs/ray", "runs/lost"):
            assert len(here) == 4
            assert all(same_weights(folder, Path(other) / folder.relative_to("runs/here")) for folder in here)
    """,
}
sources = pytest.mark.parametrize("source", tutorials.tutorials(), ids=lambda source: source.stem)


def test_every_tutorial_is_in_the_table_and_has_claims() -> None:
    names = [source.stem for source in tutorials.tutorials()]
    assert sorted(CLAIMS) == names
    listed = re.findall(
        r"^\| \[[^]]+\]\(([\w-]+)\.md\)", (tutorials.FOLDER / "README.md").read_text("utf-8"), flags=re.MULTILINE
    )
    assert sorted(listed) == names


@sources
def test_a_tutorial_is_code_between_a_heading_and_what_to_try_next(source: Path) -> None:
    text = source.read_text("utf-8")
    assert text.startswith("# ")
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE)[-1] == "What to try next"
    cells = [cell for cell in tutorials.as_notebook(text).cells if cell.cell_type == "code"]
    assert len(cells) >= 4
    for cell in cells:
        if not cell.source.startswith("%%bash"):
            compile(cell.source, source.name, "exec")
        assert cell.source.endswith("\nfigure") == ("alt" in cell.metadata), cell.source


@pytest.mark.slow
@sources
def test_a_tutorial_runs_and_shows_what_it_says(source: Path) -> None:
    if "--on ray" in source.read_text("utf-8"):
        pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    notebook = tutorials.as_notebook(source.read_text("utf-8"))
    notebook.cells.append(nbformat.v4.new_code_cell(dedent(CLAIMS[source.stem])))
    figures = tutorials.as_page(source.stem, tutorials.execute(notebook))[1]
    assert len(figures) == sum("alt" in cell.metadata for cell in notebook.cells)


SMALL = """# Small

Before.

```python
print("one")
print("two")
```

```bash
echo three; echo unseen >&2
```

```python alt="Nothing"
from IPython.display import SVG

SVG("<svg xmlns='http://www.w3.org/2000/svg'/>")
```
"""


def test_outputs_stand_below_their_code() -> None:
    page, figures = tutorials.as_page("small", tutorials.execute(tutorials.as_notebook(SMALL)))
    assert page == (
        "# Small\n\n[Download this page as a notebook](small.ipynb)\n\nBefore.\n\n"
        '```python\nprint("one")\nprint("two")\n```\n\n``` { .text .output .no-copy }\none\ntwo\n```\n\n'
        "```bash\necho three; echo unseen >&2\n```\n\n``` { .text .output .no-copy }\nthree\n```\n\n"
        "```python\nfrom IPython.display import SVG\n\nSVG(\"<svg xmlns='http://www.w3.org/2000/svg'/>\")\n```\n\n"
        "![Nothing](small-1.svg)\n"
    )
    assert figures["small-1.svg"].startswith("<svg")


def test_a_cell_that_fails_stops_the_build() -> None:
    errors = pytest.importorskip("nbclient.exceptions")
    with pytest.raises(errors.CellExecutionError, match="ZeroDivisionError"):
        tutorials.execute(tutorials.as_notebook("# Small\n\n```python\n1 / 0\n```\n"))


def test_a_figure_needs_a_description() -> None:
    cell = nbformat.v4.new_code_cell(
        "figure", outputs=[nbformat.v4.new_output("display_data", {"image/svg+xml": "<svg/>"})]
    )
    with pytest.raises(ValueError, match=r'the block of small\.md that draws a figure needs alt="\.\.\.":\nfigure'):
        tutorials.as_page("small", nbformat.v4.new_notebook(cells=[cell]))


def test_a_tutorial_runs_again_only_when_its_code_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def execute(notebook: Any) -> None:
        runs.append(notebook.cells[1].source)
        notebook.cells[1].outputs = [nbformat.v4.new_output("stream", text=f"run {len(runs)}")]

    monkeypatch.setattr(tutorials, "execute", execute)

    def shown(heading: str, code: str) -> str:
        source = tmp_path / "small.md"
        source.write_text(f"# {heading}\n\n```python\n{code}\n```\n", encoding="utf-8")
        text, output = tutorials.executed(source, tmp_path / "kept").cells
        return f"{text.source}, {output.outputs[0].text}"

    assert shown("One", "1") == "# One, run 1"
    assert shown("Two", "1") == "# Two, run 1"
    assert shown("Two", "2") == "# Two, run 2"
    assert shown("Two", "2") == "# Two, run 2"
    monkeypatch.setattr(tutorials.torch, "__version__", "0")
    assert shown("Two", "2") == "# Two, run 3"
