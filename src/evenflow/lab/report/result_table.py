"""The table of results: one row for each run, or for the seeds of one, as text, Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from evenflow.checks import one_of
from evenflow.lab.report.numbers import duration, minus, number
from evenflow.lab.report.run_record import RunRecord
from evenflow.lab.report.run_verdict import judge
from evenflow.lab.report.significance import LEVEL, against_best, standard_error

METRIC_DIGITS = 4  # near 1, shares of right answers differ in the fourth digit
MARK = "*"
TABLES = {"latex": "tex", "csv": "csv", "markdown": "md"}  # formats, and the ends of their files' names
RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹−", "-0123456789-")
SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
}


@dataclass(frozen=True)
class ResultCell:
    """One cell.

    Attributes:
        text: what readers see, without the mark.
        values: the number of each seed; empty for a text.
        best: whether the mean is the best of its column.
        p: against the best of the column, corrected; nan if it was not tested.
        compared: whether rows are compared by this column.
    """

    text: str
    values: tuple[float, ...] = ()
    best: bool = False
    p: float = math.nan
    compared: bool = False

    @property
    def marked(self) -> bool:
        """Whether the mean differs from the best by more than chance."""
        return self.p < LEVEL

    def __str__(self) -> str:
        return self.text + MARK * self.marked


@dataclass(frozen=True)
class ResultTable:
    """A table: headings, the first of which stands over the names of the rows; rows; and sentences below."""

    headings: tuple[str, ...]
    rows: tuple[tuple[ResultCell, ...], ...]
    notes: tuple[str, ...] = ()

    def to_text(self, kind: str) -> str:
        """The table as latex (for the package booktabs), csv (with all digits) or markdown."""
        one_of("table", kind, TABLES)
        return {"latex": self._latex, "csv": self._csv, "markdown": self._markdown}[kind]()

    def _markdown(self) -> str:
        numeric = self._numeric()
        lines = [self.headings, tuple("---:" if right else "---" for right in numeric)]
        lines += [tuple(str(cell).replace("|", r"\|").replace(MARK, rf"\{MARK}") for cell in row) for row in self.rows]
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        return "\n\n".join([table, *(note.replace(MARK, rf"\{MARK}") for note in self.notes)]) + "\n"

    def _csv(self) -> str:
        errors = [any(len(row[i].values) > 1 and row[i].compared for row in self.rows) for i in range(self._width)]
        tests = [any(not math.isnan(row[i].p) for row in self.rows) for i in range(self._width)]
        sheet = io.StringIO()
        writer = csv.writer(sheet, lineterminator="\n")
        header: list[str] = []
        for name, error, test in zip(self.headings, errors, tests, strict=True):
            header += [name, *[f"{name} standard error"] * error, *[f"{name} p"] * test]
        writer.writerow(header)
        for row in self.rows:
            fields: list[str] = []
            for cell, error, test in zip(row, errors, tests, strict=True):
                fields.append(_digits(fmean(cell.values)) if cell.values else cell.text)
                fields += [_digits(standard_error(cell.values))] * error + [_digits(cell.p)] * test
            writer.writerow(fields)
        return sheet.getvalue()

    def _latex(self) -> str:
        columns = "".join("r" if right else "l" for right in self._numeric())
        lines = [r"% needs \usepackage{booktabs}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
        lines += [" & ".join(tex(name) for name in self.headings) + r" \\", r"\midrule"]
        lines += [" & ".join(_tex_cell(cell) for cell in row) + r" \\" for row in self.rows]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in self.notes)]) + "\n"

    @property
    def _width(self) -> int:
        return len(self.headings)

    def _numeric(self) -> list[bool]:
        return [any(row[i].values for row in self.rows) for i in range(self._width)]


def tex(text: str) -> str:
    """A text with LaTeX's special characters escaped, and its mathematical signs in its notation."""
    text = "".join(SPECIAL.get(c, c) for c in text)
    text = re.sub("[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda raised: f"$^{{{raised[0].translate(RAISED)}}}$", text)
    for sign, command in (("±", r"\pm"), ("×", r"\times"), ("≥", r"\ge"), ("≤", r"\le"), ("−", "-")):
        text = text.replace(sign, f"${command}$")
    return text.replace("–", "--")


def _tex_cell(cell: ResultCell) -> str:
    text = tex(cell.text)
    text = rf"\textbf{{{text}}}" if cell.best and cell.values else text
    return text + "$^{*}$" * cell.marked


def _digits(value: float) -> str:
    """All digits of a number, for a program; empty if there is none."""
    return "" if math.isnan(value) else str(int(value)) if value.is_integer() else repr(value)


@dataclass(frozen=True)
class ResultColumn:
    """A number of each run: its heading, how it is read and shown, and, if rows are compared by it, what is better.

    Only numbers by which rows are compared are shown with a standard error.
    """

    name: str
    read: Callable[[RunRecord], float | None]
    show: Callable[[float], str] = number
    higher_is_better: bool | None = None

    def cells(self, runs: Sequence[RunRecord]) -> list[ResultCell]:
        """The cells of all rows."""
        groups = [[v for one in run.seeds if (v := self.read(one)) is not None] for run in runs]
        finite = [[v for v in values if math.isfinite(v)] for values in groups]
        if self.higher_is_better is None:
            best, p = None, [math.nan] * len(runs)
        else:
            best, p = against_best(finite, self.higher_is_better)
        return [
            ResultCell(
                self._text(run, groups[i], finite[i]),
                tuple(finite[i]),
                i == best,
                p[i],
                self.higher_is_better is not None,
            )
            for i, run in enumerate(runs)
        ]

    def _text(self, run: RunRecord, values: Sequence[float], finite: Sequence[float]) -> str:
        if not finite:
            return self.show(values[0]) if values else "–"
        count = f" ({len(finite)} of {len(run.seeds)} seeds)" if len(finite) < len(run.seeds) else ""
        mean, error = fmean(finite), standard_error(finite)
        if self.higher_is_better is None or not error > 0:
            return self.show(mean) + count
        return with_error(mean, error) + count


def with_error(mean: float, error: float) -> str:
    """A mean and its standard error with as many digits as the error allows.

    >>> with_error(0.10274, 0.0163), with_error(0.768, 0.00894), with_error(1234.5, 12.3)
    ('0.103 ± 0.016', '0.7680 ± 0.0089', '1,234 ± 12')
    """
    places = 1 - math.floor(math.log10(error))
    if places > 6 or abs(mean) >= 1e6:
        return f"{number(mean, METRIC_DIGITS)} ± {number(error, 2)}"
    return minus(f"{mean:,.{max(0, places)}f}") + f" ± {error:,.{max(0, places)}f}"


def result_columns(runs: Sequence[RunRecord]) -> list[ResultColumn]:
    """The numbers of the page's table.

    If the metric equals the loss, columns for the metric would repeat those for the loss, and are left out.
    """
    metric, same = metric_of(runs), all(run.metric_is_loss for run in runs)
    higher = any(run.task is not None and run.task.higher_is_better for run in runs)
    columns = [
        ResultColumn("Parameters", lambda run: run.parameters, lambda value: f"{value:,.0f}"),
        ResultColumn("Final validation loss", lambda run: run.final("valid_loss")),
        ResultColumn("Lowest validation loss", lambda run: run.best_value("valid_loss"), number, False),
    ]
    if not same:
        columns += [
            ResultColumn(f"Final {metric}", lambda run: run.final("valid_metric"), _metric),
            ResultColumn(f"Best {metric}", lambda run: run.best_value("valid_metric"), _metric, higher),
        ]
    if any(run.test is not None for run in runs):
        columns.append(ResultColumn("Test loss", lambda run: run.test and run.test[0], number, False))
        if not same:
            columns.append(ResultColumn(f"Test {metric}", lambda run: run.test and run.test[1], _metric, higher))
    return [
        *columns,
        ResultColumn("Updates", lambda run: float(run.updates), lambda value: f"{value:,.0f}"),
        ResultColumn("Time", lambda run: run.final("seconds"), duration),
    ]


def result_table(runs: Sequence[RunRecord], rates: bool = False) -> ResultTable:
    """The table of runs for the terminal or a paper: without final values, which the page has.

    Args:
        runs: a row each.
        rates: show the learning rates even if they are the same.
    """
    columns = [c for c in result_columns(runs) if not c.name.startswith("Final") and c.name != "Updates"]
    used = [run.settings.get("training", {}).get("lr") for run in runs]
    if (rates or len(set(used)) > 1) and None not in used:
        columns.insert(1, ResultColumn("lr", lambda run: run.settings["training"]["lr"], lambda value: f"{value:g}"))
    names = [ResultCell(run.label) for run in runs]
    verdicts = [ResultCell(judge(run).word.lower()) for run in runs]
    seeds = [[ResultCell(str(len(run.seeds)), (float(len(run.seeds)),)) for run in runs]]
    seeds = seeds if any(len(run.seeds) > 1 for run in runs) else []
    cells = [column.cells(runs) for column in columns]
    headings = ["System", *(["Seeds"] if seeds else []), *(column.name for column in columns[:-1]), "Verdict", "Time"]
    rows = zip(names, *seeds, *cells[:-1], verdicts, cells[-1], strict=True)
    return ResultTable(tuple(headings), tuple(rows), tuple(table_notes(runs, cells)))


def table_notes(runs: Sequence[RunRecord], columns: Sequence[Sequence[ResultCell]]) -> list[str]:
    """What the signs of a table mean."""
    counts = sorted({len(run.seeds) for run in runs})
    if counts[-1] == 1:
        return []
    notes = [f"± is the standard error of the mean over {' to '.join(map(str, {counts[0]: 0, counts[-1]: 0}))} seeds."]
    if any(not math.isnan(cell.p) for cells in columns for cell in cells):
        notes.append(
            f"{MARK} differs from the best mean of its column by more than chance: Welch's t-test, two-sided, p < "
            f"{LEVEL:g} after Holm's correction for the number of rows."
        )
    return notes


def metric_of(runs: Sequence[RunRecord]) -> str:
    """The name of the metric, if all runs have the same."""
    metrics = {run.metric_name for run in runs}
    return metrics.pop() if len(metrics) == 1 else "metric"


def _metric(value: float) -> str:
    return number(value, METRIC_DIGITS)
