"""The predictions of runs on their page: its numbers beside those computed here, and pages without them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics
from synthetic_runs import mistakes_of, write_classes, write_numbers, write_run
from test_page import Outline, scripts, words

from evenflow.lab.report import write_report
from evenflow.lab.report.confusion import MOST_ROWS, SHOWN, class_table, confusion_table
from evenflow.lab.report.numbers import number
from evenflow.lab.report.run_answers import DAMAGED, MISSING, read_answers
from evenflow.lab.training import Run

LABELS = ["climbing", "resting", "running", "walking"]
EVIL = "</td><script>alert(1)</script>\"'&$x_1$"


def answered(seed: int = 0, size: int = 4, count: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """True and predicted positions of labels; the last label is never predicted."""
    draw = np.random.RandomState(seed)
    true = draw.randint(size, size=count)
    return true, np.where(draw.rand(count) < 0.7, np.minimum(true, size - 2), draw.randint(size - 1, size=count))


def table(page: str, label: str) -> list[list[str]]:
    """The cells of the table in the region of this name."""
    start = page.index(f'aria-label="{label}"')
    rows = re.findall(r"<tr>(.*?)</tr>", page[start : page.index("</table>", start)], flags=re.DOTALL)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, flags=re.DOTALL) for row in rows]


def test_counts_and_shares_are_those_of_scikit_learn(tmp_path: Path) -> None:
    true, found = answered()
    confusion = metrics.confusion_matrix(true, found, labels=range(4))
    page = write_report([write_classes(write_run(tmp_path / "a"), LABELS, confusion)]).read_text()
    assert table(page, "Confusion matrix") == [
        ["True class", *LABELS],
        *([label, *map(str, row)] for label, row in zip(LABELS, confusion.tolist(), strict=True)),
    ]
    measured = metrics.precision_recall_fscore_support(true, found, labels=range(4), zero_division=np.nan)
    expected = [
        [label, *("–" if np.isnan(value) else number(value) for value in shares[:3]), str(int(shares[3]))]
        for label, shares in zip(LABELS, np.array(measured, float).T, strict=True)
    ]
    assert table(page, "Classes")[1:] == expected
    assert expected[-1][1] == "–"
    text = words(page)
    assert f"The test part: 300 sequences, with the weights of update 900. {confusion.trace()} are right" in text
    assert number(metrics.accuracy_score(true, found), 4) in text
    wrong = confusion - np.diag(np.diag(confusion))
    i, j = divmod(int(wrong.argmax()), 4)
    assert f"Most frequent mistakes: {LABELS[i]} taken for {LABELS[j]} ({wrong.max()})" in text


def test_errors_and_points_are_those_of_the_folder(tmp_path: Path) -> None:
    draw = np.random.RandomState(0)
    true = np.stack([1000 * draw.rand(400), 290 + draw.rand(400)], 1)
    found = true + [30, 0.2] * draw.randn(400, 2)
    errors = np.array([[np.mean(abs(e)), np.sqrt(np.mean(e**2)), 0.91234] for e in (true - found).T])
    folder = write_numbers(write_run(tmp_path / "a"), ["watt", "kelvin"], errors, np.stack([true, found], 1), 3200)
    page = write_report([folder]).read_text()
    rows = table(page, "Errors")[1:]
    assert rows == [
        [column, number(mae), number(rmse), "0.9123"]
        for column, (mae, rmse, _) in zip(["watt", "kelvin"], errors, strict=True)
    ]
    outline = Outline(page)
    figures = [a["aria-label"] or "" for a in outline.of("svg") if a.get("role") == "img"]
    residual = (true - found)[:, 0]
    assert any(
        f"400 points. Mean {number(residual.mean())}, from {number(residual.min())} to {number(residual.max())}"
        in label
        for label in figures
    )
    assert sum("Predicted against true" in label for label in figures) == 2
    assert "400 of 3,200 predictions, evenly spaced, are drawn." in words(page)
    circles = re.findall(
        r"<use [^>]*>", page[page.index('id="answers-0-true-0"') : page.index('id="answers-0-residual-0"')]
    )
    assert len(circles) >= 400
    assert "Confusion" not in page


def test_many_classes_stay_readable() -> None:
    true, found = answered(size=200, count=4000)
    labels, confusion = [f"word {i}" for i in range(200)], metrics.confusion_matrix(true, found, labels=range(200))
    shown = confusion_table(labels, confusion)
    assert len(shown.labels) == len(shown.rows) == SHOWN + 1
    assert shown.labels[-1] == "188 others"
    counts = np.array([[int(count.replace(",", "")) for count, _, _ in row] for row in shown.rows])
    assert counts.sum() == 4000
    wrong = confusion - np.diag(np.diag(confusion))
    chosen = [labels.index(label) for label in shown.labels[:-1]]
    mistakes = wrong.sum(0) + wrong.sum(1)
    assert sorted(mistakes[chosen])[0] >= max(np.delete(mistakes, chosen))
    assert (counts[:-1].sum(1) == confusion[chosen].sum(1)).all()
    assert (counts[:, :-1].sum(0) == confusion[:, chosen].sum(0)).all()
    rows = class_table(labels, confusion)
    assert (len(rows.rows), rows.left_out) == (MOST_ROWS, 200 - MOST_ROWS)


def test_the_page_says_that_classes_are_left_out(tmp_path: Path) -> None:
    true, found = answered(size=80, count=900)
    confusion = metrics.confusion_matrix(true, found, labels=range(80))
    folder = write_classes(write_run(tmp_path / "a"), [f"word {i}" for i in range(80)], confusion)
    text = words(write_report([folder]).read_text())
    assert "Shown are the 12 of 80 classes with the most mistakes" in text
    assert "The 60 of 80 classes with the most mistakes." in text


def draw(count: int, width: int, length: int = 30) -> np.ndarray:
    return np.random.RandomState(0).randn(count, length, width)


@pytest.mark.parametrize(
    ("width", "step"),
    [
        pytest.param(1, -1, id="one line"),
        pytest.param(3, 4, id="three lines, an answer at every step"),
        pytest.param(9, -1, id="rows of colours"),
        pytest.param(70, 4, id="some of many columns"),
    ],
)
def test_mistakes_are_drawn(width: int, step: int, tmp_path: Path) -> None:
    inputs, names = draw(10, min(width, 64)), [f"signal {i} $x$" for i in range(width)]
    more = mistakes_of(inputs, names, step)
    more["mistake_name"] = np.array(["", *(f"walk-{n} in a.csv" for n in range(1, 10))])
    folder = write_classes(write_run(tmp_path / "a"), ["walking", "running"], np.array([[20, 10], [0, 9]]), **more)
    page = write_report([folder]).read_text()
    outline, text = Outline(page), words(page)
    assert sum((a["id"] or "").startswith("mistake-0-") for a in outline.of("figure")) == 10
    at = f" at step {step + 1}" if step >= 0 else ""
    assert f"Sequence 8{at}: probability 0.99 for running, 0.01 for walking." in text
    assert f"walk-9 in a.csv{at}: probability 0.6 for running, 0.4 for walking." in text
    assert text.count("walking, taken for running") == 10
    assert ("The first 64 of 70 columns are drawn." in text) == (width > 64)
    plots = json.loads(scripts(page)[0])
    if width == 1:
        (series,) = plots["mistake-0-3"]["series"]
        assert series["name"] == names[0]
    assert len([a for a in outline.of("image") if a]) >= (10 if width > 6 else 0)
    # On the page of several runs they would hide what differs between the runs.
    both = write_report([folder, write_run(tmp_path / "b")], tmp_path / "both.html").read_text()
    assert 'id="mistake-' not in both
    assert "The page of this run alone also draws the sequences of its mistakes." in words(both)


@pytest.mark.parametrize("order", ["ordered", "permuted"])
def test_sequences_that_were_images_are_shown_as_images(order: str, tmp_path: Path) -> None:
    from evenflow.lab.tasks import Digits

    task = Digits(order=order)
    sequence = task.sequences()[0][5]
    np.testing.assert_array_equal(task.picture(sequence), Digits().sequences()[0][5].reshape(8, 8))
    folder = write_run(tmp_path / "a", task={"name": "digits", "order": order})
    more = mistakes_of(sequence[None].astype(float), ["x0"])
    page = write_report([write_classes(folder, ["0", "1"], np.array([[2, 1], [0, 4]]), **more)]).read_text()
    start = page.index('id="mistake-0-0"')
    assert "<image" in page[start : page.index("</figure>", start)]
    assert "time step" not in page[start : page.index("</figure>", start)]


def test_runs_side_by_side_and_an_old_one_without_predictions(tmp_path: Path) -> None:
    folders = [
        write_classes(write_run(tmp_path / "a", "rnn"), LABELS, np.diag([3, 4, 5, 6])),
        write_numbers(write_run(tmp_path / "b", "gru"), ["y"], np.array([[1.0, 2.0, np.nan]]), np.ones((5, 2, 1)), 5),
        write_run(tmp_path / "c", "lstm"),
    ]
    page = write_report(folders, tmp_path / "page.html").read_text()
    text = words(page)
    assert table(page, "Confusion matrix of rnn")[1] == ["climbing", "3", "0", "0", "0"]
    assert table(page, "Errors of gru")[1] == ["y", "1", "2", "–"]
    assert "Most frequent mistakes" not in text
    assert MISSING in text
    ids = [a["id"] for _, a in Outline(page).tags if a.get("id")]
    assert len(ids) == len(set(ids))
    old = Outline(write_report([folders[2]]).read_text())
    assert "predictions" not in [a["aria-controls"] for a in old.of("button")]


DAMAGE = {
    "no archive": None,
    "a missing array": {"part": "test"},
    "an unknown part": {"part": "practice"},
    "an unknown kind": {"kind": "multilabel"},
    "another kind": {"kind": "regression"},
    "another shape": {"confusion": np.ones((3, 3), int)},
    "other counts": {"answers": 4},
    "negative counts": {"confusion": np.array([[9, -1], [1, 1]])},
    "a count that is a fraction": {"confusion": np.array([[9.5, 0], [0, 0.5]])},
    "an unknown label": {"mistake_true": np.full(10, 5)},
    "a negative label": {"mistake_predicted": np.full(10, -1)},
    "steps that are missing": {"mistake_length": np.full(10, 31)},
    "a stride of nothing": {"mistake_stride": np.zeros(10, int)},
    "text for numbers": {"mistake_inputs": np.full((300, 2), "x")},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_predictions_give_a_sentence(damage: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("task = {}\n")
    write_classes(tmp_path, ["a", "b"], np.array([[8, 1], [0, 1]]), **mistakes_of(draw(10, 2), ["x", "y"]))
    path, changed = tmp_path / "answers.npz", DAMAGE[damage]
    whole, gap = read_answers(Run(tmp_path))
    assert (whole is not None, gap) == (True, "")
    arrays = dict(np.load(path))
    if changed is None:
        path.write_bytes(path.read_bytes()[:99])
    else:
        np.savez(path, **(changed if damage == "a missing array" else arrays | changed))  # type: ignore[arg-type]
    assert read_answers(Run(tmp_path)) == (None, DAMAGED)


def test_a_page_of_damaged_predictions(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    (folder / "answers.npz").write_bytes(b"PK")
    assert DAMAGED in words(write_report([folder]).read_text())


def test_predictions_of_the_next_step_are_called_so(tmp_path: Path) -> None:
    folder = write_numbers(write_run(tmp_path / "a"), ["level"], np.ones((1, 3)), np.ones((3, 2, 1)), 3, "next")
    text = words(write_report([folder]).read_text())
    assert "The validation part: 3 sequences, 3 predictions of the next step, with the weights of update 900." in text


def test_hostile_names_are_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    write_classes(folder, [EVIL, "b"], np.array([[3, 1], [1, 1]]), **mistakes_of(draw(4, 2), [EVIL, "$a"]))
    page = write_report([folder]).read_text()
    outline = Outline(page)
    assert len(outline.of("script")) == 2
    assert outline.text.count(EVIL) == 3  # a row and a column of the matrix, and the table of classes
    write_classes(folder, ["a", "b"], np.array([[3, 1], [1, 1]]), **mistakes_of(draw(4, 1), [EVIL]))
    page = write_report([folder]).read_text()
    assert json.loads(scripts(page)[0])["mistake-0-0"]["series"][0]["name"] == EVIL
    assert len(Outline(page).of("script")) == 2
    write_numbers(folder, [EVIL], np.ones((1, 3)), np.random.RandomState(0).randn(9, 2, 1), 9)
    outline = Outline(write_report([folder]).read_text())
    assert len(outline.of("script")) == 2
    assert any(EVIL in (a.get("aria-label") or "") for a in outline.of("svg"))


@pytest.mark.parametrize("value", [0.0, 5.0, np.nan, np.inf, 1e300])
def test_pairs_of_any_numbers_make_a_page(value: float, tmp_path: Path) -> None:
    folder = write_numbers(write_run(tmp_path / "a"), ["y"], np.full((1, 3), value), np.full((3, 2, 1), value), 3)
    assert ("There is nothing to draw." in words(write_report([folder]).read_text())) == (not np.isfinite(value))
