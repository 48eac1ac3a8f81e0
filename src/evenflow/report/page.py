"""Run folders → one self-contained HTML page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import evenflow
from evenflow.report import curves, heatmap, reach, settings
from evenflow.report.numbers import duration, number
from evenflow.report.reading import read
from evenflow.report.record import Record
from evenflow.report.svg import MARKERS, SERIES
from evenflow.report.verdict import judge
from evenflow.training import atomic

# The markers of matplotlib, drawn for the legend: centre (16, 7).
MARKS = {
    "o": "M16 3.4a3.6 3.6 0 1 0 .01 0z",
    "s": "M12.6 3.6h6.8v6.8h-6.8z",
    "^": "M16 2.6l4.2 8h-8.4z",
    "D": "M16 2.2l4.8 4.8-4.8 4.8-4.8-4.8z",
    "v": "M16 11.4l4.2-8h-8.4z",
    "P": "M14.4 3h3.2v2.4H20v3.2h-2.4V11h-3.2V8.6H12V5.4h2.4z",
    "X": "M13.4 2.8L16 5.4l2.6-2.6 1.6 1.6L17.6 7l2.6 2.6-1.6 1.6L16 8.6l-2.6 2.6-1.6-1.6L14.4 7l-2.6-2.6z",
}


def write_report(
    folders: Sequence[Path],
    out: Path | None = None,
    title: str | None = None,
    intro: str | None = None,
    *,
    notes: Sequence[str] | None = None,
) -> Path:
    """Write the page of one run, or of several side by side, and return its path.

    The page needs nothing but itself: styles and plots are inside, it holds no script and loads nothing.

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
    rows = [_view(index, run, same) for index, run in enumerate(runs)]
    return environment.get_template("page.html").render(
        title=title or _title(runs),
        lede=_lede(runs),
        intro=_blocks(intro or ""),
        runs=rows,
        curves=[curves.train_loss(runs), curves.valid_loss(runs)] + ([] if same else [curves.valid_metric(runs)]),
        has_baseline=any(run.baseline is not None for run in runs),
        heat_maps=heatmap.heat_maps(runs),
        profiles=heatmap.profiles(runs),
        any_probes=any(run.probe_norm is not None for run in runs),
        reach_rows=[row for view, run in zip(rows, runs, strict=True) for row in _reach_rows(view, run)],
        # Where the metric is the loss under another name, its columns and its plot would only repeat those of the loss.
        result_columns=["Parameters", "Final validation loss", "Best validation loss"]
        + ([] if same else [f"Final {metric}", f"Best {metric}"])
        + ["Updates", "Time"],
        settings=groups,
        settings_caption=settings.caption(groups, len(runs)),
        version=evenflow.__version__,
        sources=", ".join(run.folder.resolve().name for run in runs),
    )


def _view(index: int, run: Record, same: bool) -> dict[str, Any]:
    metric, loss = run.best("valid_metric"), run.final("loss")
    shown = (metric, f"best validation {run.metric_name}") if metric is not None else (loss, "last training loss")
    last = None if run.probe_norm is None else reach.sentence(run.probe_norm[-1])
    found = None if run.probe_norm is None else reach.measure(run.probe_norm[-1])
    return {
        "label": run.label,
        "note": run.note,
        "colour": index % SERIES + 1,
        "mark": Markup('<path d="{}" fill="currentColor"/>').format(MARKS[MARKERS[index % len(MARKERS)]]),
        "verdict": judge(run),
        "headline": number(shown[0]),
        "headline_name": shown[1],
        "reach": found.brief() if found else run.probe_gap or f"The gradient {last}.",
        "reach_caption": "" if last is None else f"After training, the gradient {last}.",
        "cells": [
            "–" if run.parameters is None else f"{run.parameters:,}",
            number(run.final("valid_loss")),
            number(run.best("valid_loss")),
            *([] if same else [number(run.final("valid_metric")), number(metric)]),
            f"{run.updates:,}",
            duration(run.seconds),
        ],
    }


def _reach_rows(view: dict[str, Any], run: Record) -> list[dict[str, Any]]:
    if run.probe_norm is None or run.probe_step is None:
        return []
    rows = []
    for which in (0, -1) if len(run.probe_step) > 1 else (0,):
        found = reach.measure(run.probe_norm[which])
        rows.append(
            {
                "run": view,
                "probe": f"update {int(run.probe_step[which]):,}",
                "steps": "–" if found is None else f"{found.steps:,} of {found.length - 1:,} steps",
                "ratio": "–" if found is None else number(found.ratio),
                "word": "not measurable" if found is None else found.word,
            }
        )
    return rows


def _title(runs: Sequence[Record]) -> str:
    names = list(dict.fromkeys(run.system for run in runs))
    named = list(dict.fromkeys(run.task_name for run in runs))
    who = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{who} on {' and '.join(named)}"


def _lede(runs: Sequence[Record]) -> str:
    verdicts = [judge(run).word for run in runs]
    if len(runs) == 1:
        return {
            "Solved": "The run solved its task.",
            "Not solved": "The run did not solve its task.",
            "Diverged": "The run diverged.",
            "Failed": "The run failed.",
            "Unfinished": "The run is not finished yet.",
            "No verdict": "The run gives no verdict: nothing was validated against a task that evenflow knows.",
        }[verdicts[0]]
    groups = {word: [r.label for r, v in zip(runs, verdicts, strict=True) if v == word] for word in verdicts}
    solved = groups.pop("Solved", [])
    first = f"{len(solved)} of {len(runs)} runs solved the task: {', '.join(solved)}." if solved else ""
    rest = [f"{word}: {', '.join(labels)}." for word, labels in groups.items()]
    return " ".join([first or f"None of the {len(runs)} runs solved the task.", *rest])


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
