"""What a finished run answered, beside the predictions of its bundle and beside numpy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics

import evenflow
from evenflow import SequenceModel
from evenflow.lab.tasks import Batch, DataSet, make
from evenflow.lab.tasks.classification import PADDING, NextSymbol
from evenflow.lab.training import Run, answer_log, fit, resume, train, train_population
from evenflow.lab.training.answer_log import AnswerLog
from evenflow.models import DataColumn, DataSchema

TRAINING = {"steps": 30, "batch_size": 8, "lr": 0.01, "validate_every": 10, "device": "cpu"}
GRU = {"name": "gru", "hidden_size": 6}
LABELS = ("climbing", "resting", "walking")


def write_motion(path: Path, readout: str, kind: str) -> Path:
    """Sequences of different lengths with two columns in units of hundreds, and a target of this kind."""
    draw, lines = np.random.RandomState(0), ["sequence,ax,ay,target"]
    for n in range(120):
        label, offset = draw.randint(3), draw.rand()
        for _ in range(draw.randint(4, 9)):
            label = draw.randint(3) if readout == "every" else label
            ax, ay = 300 + 100 * label + 250 * draw.randn(), 9.8 + draw.randn()
            number = 5 * ax if readout == "every" else 1000 + 300 * label + offset
            lines.append(f"s{n},{ax},{ay},{LABELS[label] if kind == 'classification' else number}")
    path.write_text("\n".join([*lines, ""]))
    return path


def trained(tmp_path: Path, readout: str, kind: str) -> tuple[Any, dict[str, np.ndarray], list[np.ndarray], list[Any]]:
    """A predictor, the answers in its folder, and the sequences in units and the targets of the validation part."""
    task = make(f"csv:{write_motion(tmp_path / 'motion.csv', readout, kind)}")
    train(
        {"task": {"name": "csv", **task.options()}, "system": GRU, "training": TRAINING},
        tmp_path / "run",
        progress=False,
    )
    part, predictor = task.held_out(), evenflow.load(tmp_path / "run")
    assert isinstance(part, DataSet)
    batch = part.take(torch.arange(part.count()))
    ends = batch.lengths.tolist() if batch.lengths is not None else [len(batch.inputs)] * part.count()
    mean, deviation = predictor.schema.input_scale
    inputs = [batch.inputs[:end, n].double().numpy() * deviation + mean for n, end in enumerate(ends)]
    if readout == "every":
        return (
            predictor,
            Run(tmp_path / "run").answers or {},
            inputs,
            [batch.targets[:e, n] for n, e in enumerate(ends)],
        )
    return predictor, Run(tmp_path / "run").answers or {}, inputs, list(batch.targets)


@pytest.mark.parametrize("readout", ["last", "every"])
def test_classes_are_those_of_the_bundle(readout: str, tmp_path: Path) -> None:
    predictor, answers, inputs, targets = trained(tmp_path, readout, "classification")
    found = [np.atleast_1d(each) for each in predictor.predict(inputs)]
    true = [np.array(LABELS)[np.atleast_1d(each)] for each in targets]
    expected = metrics.confusion_matrix(np.concatenate(true), np.concatenate(found), labels=LABELS)
    assert answers["confusion"].tolist() == expected.tolist()
    assert answers["labels"].tolist() == list(LABELS)
    assert (str(answers["part"]), int(answers["sequences"])) == ("validation", len(inputs))
    assert int(answers["answers"]) == sum(map(len, true))
    assert int(answers["step"]) == Run(tmp_path / "run").status["best_step"]
    # The mistakes, the surest first, one of each sequence.
    chances = [np.atleast_2d(each) for each in predictor.predict_proba(inputs)]
    wrong = [np.where(t != f, c.max(1), 0) for t, f, c in zip(true, found, chances, strict=True)]
    surest = np.array([each.max() for each in wrong])
    order = [n for n in np.argsort(-surest, kind="stable") if surest[n] > 0][:10]
    assert len(order) > 2
    assert answers["mistake_chance"] == pytest.approx(surest[order], rel=1e-4)
    assert answers["mistake_sequence"].tolist() == order
    ends = np.cumsum(answers["mistake_length"])
    for place, n in enumerate(order):
        step = int(wrong[n].argmax())
        assert answers["mistake_step"][place] == (step if readout == "every" else -1)
        assert LABELS[answers["mistake_true"][place]] == true[n][step]
        assert LABELS[answers["mistake_predicted"][place]] == found[n][step]
        assert answers["mistake_true_chance"][place] == pytest.approx(
            chances[n][step, LABELS.index(true[n][step])], rel=1e-4
        )
        shown = answers["mistake_inputs"][ends[place] - answers["mistake_length"][place] : ends[place]]
        np.testing.assert_allclose(shown, inputs[n], rtol=1e-4)
        # By its name the sequence is found in the file.
        name, _, file = answers["mistake_name"][place].partition(" in ")
        rows = [line.split(",") for line in (tmp_path / file).read_text().splitlines()]
        written = [[float(ax), float(ay)] for sequence, ax, ay, _ in rows[1:] if sequence == name]
        np.testing.assert_allclose(shown, written, rtol=1e-3)
    assert answers["inputs"].tolist() == ["ax", "ay"]


@pytest.mark.parametrize("readout", ["last", "every"])
def test_numbers_are_in_the_units_of_the_file(readout: str, tmp_path: Path) -> None:
    predictor, answers, inputs, targets = trained(tmp_path, readout, "regression")
    found = np.concatenate([np.atleast_1d(each) for each in predictor.predict(inputs)])
    scaled = np.concatenate([np.reshape(each, (-1, 1)) for each in targets])
    true = predictor.schema.in_units(torch.from_numpy(scaled)).numpy()[:, 0]
    assert abs(true).max() > 900
    (mae, rmse, r2) = answers["errors"][0]
    assert mae == pytest.approx(metrics.mean_absolute_error(true, found), rel=1e-4)
    assert rmse == pytest.approx(metrics.root_mean_squared_error(true, found), rel=1e-4)
    assert r2 == pytest.approx(metrics.r2_score(true, found), rel=1e-3)
    assert rmse == pytest.approx(
        Run(tmp_path / "run").status["best_metric"], rel=1e-4
    )  # the same weights, the same part
    np.testing.assert_allclose(answers["pairs"][:, 0, 0], true, rtol=1e-5)
    np.testing.assert_allclose(answers["pairs"][:, 1, 0], found, rtol=1e-3)
    assert answers["columns"].tolist() == ["target"]


def test_the_test_part_comes_first(tmp_path: Path) -> None:
    draw = np.random.RandomState(0)
    x, y = draw.randn(60, 5, 1), draw.randint(2, size=60)
    np.savez(tmp_path / "set.npz", x=x, y=y, x_test=x[:7], y_test=y[:7])
    config = {"task": {"name": f"npz:{tmp_path / 'set.npz'}"}, "system": GRU, "training": TRAINING}
    result = train(config, tmp_path / "run", progress=False)
    answers = Run(tmp_path / "run").answers
    assert answers is not None
    assert (str(answers["part"]), int(answers["answers"])) == ("test", 7)
    assert answers["confusion"].trace() / 7 == pytest.approx(result.test_metric)
    # A finished run that is resumed writes the same answers again; a run of an older version gains them so.
    before = (tmp_path / "run" / "answers.npz").read_bytes()
    (tmp_path / "run" / "answers.npz").unlink()
    resume(tmp_path / "run", progress=False)
    assert (tmp_path / "run" / "answers.npz").read_bytes() == before


def test_a_task_that_draws_its_sequences(tmp_path: Path) -> None:
    config = {"task": {"name": "adding", "length": 8}, "system": GRU, "training": TRAINING}
    result = train(config, tmp_path / "alone", progress=False)
    assert result.best_metric == pytest.approx(float(Run(tmp_path / "alone").answers["errors"][0, 1]) ** 2, rel=1e-4)  # type: ignore[index]
    train_population([config], [tmp_path / "together"], progress=False)
    for folder in ("alone", "together"):
        answers = Run(tmp_path / folder).answers
        assert answers is not None
        assert int(answers["sequences"]) == 10 * TRAINING["batch_size"]  # type: ignore[operator]


@dataclass(frozen=True)
class Letters(NextSymbol):
    """The same letter again."""

    name = "letters"
    vocabulary = 3
    input_size = 4
    metric_name = "loss"
    baseline = 1.0
    solved_limit = 0.0

    def batch(self, size: int, generator: torch.Generator, device: Any = None) -> Batch:
        letters = torch.randint(3, (1, size), generator=generator).expand(5, size)
        return Batch(letters, letters)

    def metric(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.loss(outputs, targets)


def test_running_text_has_no_confusion_matrix(tmp_path: Path) -> None:
    task = Letters()
    model = SequenceModel(evenflow.create("gru", 4, 4), 3, readout="every", vocabulary=3)
    fit(model, task, folder=tmp_path / "run", progress=False, **TRAINING)
    assert Run(tmp_path / "run").answers is None


@dataclass(frozen=True)
class Unnamed(Letters):
    """A task of one's own, with classes, that does not say so."""

    problem = "regression"
    vocabulary = None  # type: ignore[assignment]
    input_size = 1
    output_size = 3

    def batch(self, size: int, generator: torch.Generator, device: Any = None) -> Batch:
        inputs, targets, _ = super().batch(size, generator)
        return Batch(inputs[..., None].float(), targets)


def test_a_task_that_calls_classes_numbers_has_no_answers(tmp_path: Path) -> None:
    model = SequenceModel(evenflow.create("gru", 1, 4), 3, readout="every")
    fit(model, Unnamed(), folder=tmp_path / "run", progress=False, **TRAINING)
    run = Run(tmp_path / "run")
    assert (run.status["state"], run.answers) == ("finished", None)


CLASSES = DataSchema(
    "classification", "every", tuple(DataColumn(f"x{i}") for i in range(70)),
    (DataColumn("target", "category", categories=("a", "b")),),
)  # fmt: skip
NUMBERS = DataSchema("regression", "last", (DataColumn("x"),), (DataColumn("y"), DataColumn("z")))


def test_long_and_wide_sequences_are_thinned_and_padding_is_no_mistake() -> None:
    log, inputs = AnswerLog(CLASSES), torch.randn(2500, 2, 70)
    targets = torch.zeros(2500, 2, dtype=torch.int64)
    targets[5:, 1] = PADDING
    outputs = torch.stack([torch.ones(2500, 2), torch.zeros(2500, 2)], -1)
    outputs[7, :, 1] = 9.0  # wrong in sequence 0, padding in sequence 1
    assert log.add(Batch(inputs, targets, torch.tensor([2500, 5])), outputs)
    answers = log.arrays()
    assert answers["confusion"].tolist() == [[2504, 1], [0, 0]]
    assert answers["mistake_sequence"].tolist() == [0]
    assert answers["mistake_step"].tolist() == [7]
    assert (answers["mistake_length"].tolist(), answers["mistake_stride"].tolist()) == ([2500], [3])
    np.testing.assert_array_equal(answers["mistake_inputs"], inputs[::3, 0, :64].numpy())
    assert len(answers["inputs"]) == 70


def test_targets_that_a_loss_ignores_are_no_answers() -> None:
    log = AnswerLog(CLASSES)
    batch = Batch(torch.zeros(4, 1, 70), torch.tensor([[0], [-1], [PADDING], [1]]))
    assert log.add(batch, torch.tensor([1.0, 0.0]).expand(4, 1, 2))
    assert log.arrays()["confusion"].tolist() == [[1, 0], [1, 0]]
    assert not log.add(batch._replace(targets=torch.full((4, 1), 2)), torch.zeros(4, 1, 2))


def test_pairs_are_thinned_evenly_and_errors_are_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_log, "POINTS", 50)
    log, rows = AnswerLog(NUMBERS), torch.arange(407.0)
    for part in rows.split(31):
        y = torch.stack([part, -part], -1)
        assert log.add(Batch(torch.zeros(3, len(part), 1), y), y + 1)
    answers = log.arrays()
    assert answers["pairs"][:, 0, 0].tolist() == list(range(0, 407, 16))
    assert (answers["pairs"][:, 1] == answers["pairs"][:, 0] + 1).all()
    assert answers["errors"][:, :2].tolist() == [[1.0, 1.0]] * 2
    assert int(answers["answers"]) == 407
