"""Run folders → one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import evenflow
from evenflow.lab.report import bands, curves, heatmap, settings, singular, views
from evenflow.lab.report.profiles import component_profile, profiles
from evenflow.lab.report.reading import read
from evenflow.lab.report.record import Record
from evenflow.lab.report.svg import Panel
from evenflow.lab.training import atomic


def write_report(
    folders: Sequence[Path],
    out: Path | None = None,
    title: str | None = None,
    intro: str | None = None,
    *,
    notes: Sequence[str] | None = None,
) -> Path:
    """Write the page of one run, or of several side by side, and return its path.

    The page needs nothing but itself: styles, plots, their numbers and one small script are inside; it loads nothing.

    Arguments:
        folders: run folders, as training writes them.
        out: the page; for a single run `report.html` in its folder if not given. Replaced in one move.
        title: the heading; by default systems and task.
        intro: text under the heading; an empty line starts a paragraph, a line that starts with "- " a list item.
        notes: one sentence per run for its card.

        >>> write_report([Path("runs/rnn"), Path("runs/sgornn")], Path("compare.html"))
        PosixPath('compare.html')
    """
    if isinstance(folders, (str, os.PathLike)):
        raise ValueError(f"folders must be a sequence of run folders, got the single path {str(folders)!r}")
    if out is None and len(folders) > 1:
        raise ValueError(f"out must say where to write the page of {len(folders)} runs, got None")
    if out is not None and Path(out).is_dir():
        raise ValueError(f"out must be a file, got the folder {str(out)!r}")
    runs = read(folders, notes)
    return _replace(Path(folders[0]) / "report.html" if out is None else Path(out), render(runs, title, intro))


def render(runs: Sequence[Record], title: str | None = None, intro: str | None = None) -> str:
    """The page as text."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    metrics = sorted({run.metric_name for run in runs})
    metric = metrics[0] if len(metrics) == 1 else "metric"
    groups = settings.table(runs)
    same = all(run.metric_is_loss for run in runs)
    tested = any(run.test is not None for run in runs)
    rows = [views.card(index, run, same, tested) for index, run in enumerate(runs)]
    learning = [curves.train_loss(runs), curves.valid_loss(runs)] + ([] if same else [curves.valid_metric(runs)])
    learning.append(curves.gradient_norm(runs))
    maps, layers, lines = heatmap.heat_maps(runs), heatmap.layer_maps(runs), profiles(runs)
    components = component_profile(runs)
    matrices = singular.singular_values(runs) if any(run.singular is not None for run in runs) else []
    theory = _alternating(bands.over_training(runs), bands.over_lags(runs)) if _any_jacobian(runs) else []
    panels = [*learning, *maps, *lines, *components, *(panel for _, panel in [*layers, *matrices, *theory])]
    script = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")
    return environment.get_template("page.html").render(
        title=title or views.title(runs),
        lede=views.lede(runs),
        intro=_blocks(intro or ""),
        runs=rows,
        parts=_parts(bool(matrices), bool(theory)),
        curves=learning,
        has_baseline=any(run.baseline is not None for run in runs),
        heat_maps=maps,
        layer_maps=layers,
        profiles=lines,
        components=components,
        singular=matrices,
        bands=theory,
        any_probes=any(run.probe_norm is not None for run in runs),
        reach_rows=[row for view, run in zip(rows, runs, strict=True) for row in views.reach_rows(view, run)],
        # Where the metric is the loss under another name, its columns and its plot would only repeat those of the loss.
        result_columns=["Parameters", "Final validation loss", "Best validation loss"]
        + ([] if same else [f"Final {metric}", f"Best {metric}"])
        + (["Test loss"] + ([] if same else [f"Test {metric}"]) if tested else [])
        + ["Updates", "Time"],
        settings=groups,
        settings_caption=settings.caption(groups, len(runs)),
        version=evenflow.__version__,
        sources=", ".join(run.folder.resolve().name for run in runs),
        plots=_plots(panels),
        script=Markup(script),
        # The one script that may run: text that found its way into the page never does.
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _parts(matrices: bool, theory: bool) -> list[tuple[str, str]]:
    """The ids and names of the tabs."""
    found = [
        ("learning", "Learning"),
        ("gradients", "Gradients"),
        ("matrices", "Singular values"),
        ("bounds", "Bounds"),
    ]
    found += [("results", "Results"), ("settings", "Settings")]
    absent = {"matrices": not matrices, "bounds": not theory}
    return [part for part in found if not absent.get(part[0], False)]


def _plots(panels: Sequence[Panel]) -> Markup:
    """What the script reads out, as JSON inside a page: a name that ends the element early must not."""
    table = {panel.key: panel.hover for panel in panels if panel.svg is not None and panel.hover is not None}
    return Markup(json.dumps(table, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))


def _alternating(first: Sequence[tuple[int, Panel]], second: Sequence[tuple[int, Panel]]) -> list[tuple[int, Panel]]:
    return [panel for pair in zip(first, second, strict=True) for panel in pair]


def _any_jacobian(runs: Sequence[Record]) -> bool:
    return any(run.jacobian is not None for run in runs)


def _blocks(text: str) -> list[str | list[str]]:
    """Paragraphs as strings, lists as lists of strings."""
    blocks: list[str | list[str]] = []
    for part in text.replace("\r\n", "\n").split("\n\n"):
        lines: list[str] = []
        items: list[str] = []
        for line in part.strip().splitlines():
            if line.lstrip().startswith("- "):
                items.append(line.strip()[2:])
            elif items:
                items[-1] += " " + line.strip()
            else:
                lines.append(line.strip())
        blocks += [" ".join(lines)] if lines else []
        blocks += [items] if items else []
    return blocks


def _replace(out: Path, page: str) -> Path:
    """Write the page in one move, so that a reader sees the old one or the new one, never a half."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(out, page.encode())
    except OSError as error:
        raise ValueError(f"out must be a file that can be written, got {str(out)!r} ({error.strerror})") from None
    return out
