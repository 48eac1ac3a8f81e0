"""A user's own sequences, as tasks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evenflow.lab.tasks import CsvData, NpzData, make
from evenflow.lab.training import Run, resume, train

# Scaled to mean zero and deviation one in float64, stored in float32.
ROUNDING = 1e-5


def whole(task):
    return task.take(torch.arange(task.count()))


@pytest.fixture
def motion(tmp_path):
    """Twenty sequences of two classes and different lengths; their second column never changes."""
    lines = ["id,ax,still,class"]
    draw = np.random.RandomState(0)
    for number in range(20):
        name = ("rest", "walk")[number % 2]
        lines += [f"{number},{draw.randn() + 5 * (number % 2)},7,{name}" for _ in range(3 + number % 4)]
    path = tmp_path / "motion.csv"
    path.write_text("\n".join(lines))
    return path


def test_classes_after_the_last_step(motion):
    task = make(f"csv:{motion}", sequence="id", target="class")
    assert isinstance(task, CsvData)
    assert (task.readout, task.input_size, task.output_size, task.metric_name) == ("last", 2, 2, "accuracy")
    assert (task.count(), task.held_out().count(), task.test()) == (18, 2, None)
    batch = whole(task)
    assert batch.inputs.shape == (6, 18, 2)
    assert sorted(set(batch.lengths.tolist())) == [3, 4, 5, 6]
    running = torch.arange(6)[:, None] < batch.lengths
    values = batch.inputs[running]
    torch.testing.assert_close(values.mean(0), torch.zeros(2), atol=ROUNDING, rtol=0)
    torch.testing.assert_close(values.std(0, correction=0), torch.tensor([1.0, 0.0]), atol=ROUNDING, rtol=0)
    assert (batch.inputs[~running] == 0).all()
    share = batch.targets.float().mean().item()
    assert task.baseline == pytest.approx(-(share * np.log(share) + (1 - share) * np.log(1 - share)), abs=ROUNDING)


def test_numbers_at_every_step(tmp_path):
    draw = np.random.RandomState(0)
    x, y = draw.randn(12, 5, 2), 3 + 10 * draw.randn(12, 5, 3)
    np.savez(tmp_path / "a.npz", x=x, y=y, lengths=[5] * 11 + [2], x_test=x[:4], y_test=y[:4])
    task = make(f"npz:{tmp_path / 'a.npz'}")
    assert isinstance(task, NpzData)
    assert (task.readout, task.output_size, task.metric_name, task.baseline) == ("every", 3, "rmse", 1.0)
    assert task.test().count() == 4
    batch = whole(task)
    assert batch.targets.shape == (5, 11, 3)
    valid = batch.targets[~batch.targets.isnan()]
    assert int(task.weight(batch)) == int(batch.lengths.sum()) == valid.numel() // 3
    zero = torch.zeros_like(batch.targets)
    assert task.loss(zero, batch.targets).item() == pytest.approx(task.baseline, abs=ROUNDING)
    outputs = zero.requires_grad_()
    task.loss(outputs, batch.targets).backward()
    assert outputs.grad.isfinite().all()
    assert (outputs.grad[batch.targets.isnan()] == 0).all()


def test_the_next_step_of_one_long_series(tmp_path):
    series = np.sin(np.arange(205) / 3)
    (tmp_path / "wave.csv").write_text("level\n" + "\n".join(map(str, series)))
    task = make(f"csv:{tmp_path / 'wave.csv'}", length=20)
    assert (task.readout, task.input_size, task.output_size) == ("every", 1, 1)
    assert (task.count(), task.held_out().count()) == (10, 1)
    batch = whole(task)
    assert batch.inputs.shape == (19, 10, 1)
    pieces = (series[: 10 * 20] - series[: 10 * 20].mean()) / series[: 10 * 20].std()
    torch.testing.assert_close(
        batch.inputs[..., 0], torch.tensor(pieces.reshape(10, 20)[:, :-1].T, dtype=torch.float32), atol=1e-4, rtol=0
    )
    asked = ~batch.targets.isnan()
    assert torch.equal(batch.targets[:-1][asked[:-1]], batch.inputs[1:][asked[:-1]])


def test_equal_lengths_need_no_padding(small_data):
    assert make(f"npz:{small_data / 'own.npz'}").batch(4, torch.Generator()).lengths is None
    assert make(f"csv:{small_data / 'own.csv'}").batch(4, torch.Generator()).lengths is not None


def test_a_changed_file_is_read_anew(motion):
    task = make(f"csv:{motion}", sequence="id", target="class")
    assert task.count() == 18
    motion.write_text("\n".join(motion.read_text().split("\n")[:40]))
    assert task.count() < 18


def test_a_run_remembers_the_file_in_full(motion, tmp_path, monkeypatch):
    monkeypatch.chdir(motion.parent)
    config = {
        "task": {"name": "csv:motion.csv", "sequence": "id", "target": "class"},
        "system": {"name": "sgornn", "hidden_size": 8},
        "training": {"steps": 150, "batch_size": 9, "lr": 0.02, "validate_every": 50, "device": "cpu"},
    }
    result = train(config, tmp_path / "run", progress=False)
    assert result.valid_metric == 1.0
    assert Run(tmp_path / "run").config["task"] == {
        "name": "csv",
        "file": str(motion),
        "share": 0.1,
        "split_seed": 1,
        "sequence": "id",
        "target": "class",
        "time": "time",
        "gap": False,
    }
    monkeypatch.chdir(tmp_path.parent)
    assert resume(tmp_path / "run", progress=False).valid_metric == 1.0


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("csv", {}, r"task csv needs a file, as in `evenflow train csv:FILE sgornn`"),
        ("csv:", {}, r"csv: must be followed by a file, as in csv:motion.csv"),
        ("csv:nowhere.csv", {}, r"cannot read '.*nowhere.csv': .*"),
        ("csv", {"kind": "guess"}, r"kind must be one of classification, regression, next, got 'guess'"),
        ("npz", {"read": "often"}, r"readout must be one of last, every, got 'often'"),
        ("csv", {"target": 5}, r"target must be the name of a column, as text, got 5"),
        ("csv", {"sequence": 1}, r"sequence must be the name of a column, as text, got 1"),
        ("npz", {"file": 5}, r"file must be a path as text, got 5"),
        ("npz", {"data": 5}, r"data must be a path as text, got 5"),
        ("csv", {"length": 1}, r"length must be a whole number of at least 2, got 1"),
        *(
            (name, {}, f"unknown task '{name}', a file of your own is csv:FILE, parquet:FILE or npz:FILE")
            for name in ("tsv:file", "parket:file", "xlsx:data/table.xlsx", "CSV:motion.csv")
        ),
    ],
)
def test_wrong_options(name, options, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        make(name, **options).batch(2, torch.Generator())


def test_a_series_shorter_than_a_piece(tmp_path):
    (tmp_path / "wave.csv").write_text("level\n" + "\n".join(map(str, range(50))))
    sentence = r"^'.*wave.csv' holds one sequence of 50 steps, too short for pieces of length 100: make length smaller$"
    with pytest.raises(ValueError, match=sentence):
        make(f"csv:{tmp_path / 'wave.csv'}").batch(2, torch.Generator())


def test_errors_are_in_the_units_of_the_file(tmp_path):
    draw = np.random.RandomState(0)
    x, y = draw.randn(40, 6, 1), 500 + 300 * draw.randn(40)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    task = make(f"npz:{tmp_path / 'a.npz'}")
    batch = whole(task)
    truth = batch.targets.numpy()[:, 0] * task.schema().targets[0].deviation + task.schema().targets[0].mean
    assert np.abs(truth[:, None] - y).min(1).max() < 1e-3
    zero = torch.zeros_like(batch.targets)  # the mean of the training part
    assert task.summary(task.metric(zero, batch.targets).item()) == pytest.approx(truth.std(), rel=1e-5)
    assert task.loss_unit * task.loss(zero, batch.targets).item() == pytest.approx(truth.var(), rel=1e-5)
    assert task.baseline == pytest.approx(truth.var(), rel=1e-5)
    assert task.solved(0.2 * truth.std())
    assert not task.solved(0.3 * truth.std())


def test_the_schema_describes_the_file(motion, tmp_path):
    schema = make(f"csv:{motion}", sequence="id", target="class").schema()
    assert [column.name for column in schema.inputs] == ["ax", "still"]
    assert (schema.inputs[1].mean, schema.inputs[1].deviation) == (7.0, 1.0)
    assert (schema.kind, schema.readout, schema.labels, schema.sequence, schema.length) == (
        "classification",
        "last",
        ("rest", "walk"),
        "id",
        None,
    )
    assert schema.targets[0].name == "class"
    (tmp_path / "wave.csv").write_text("level,a,b\n" + "\n".join(f"{i},{i / 2},{i}.5" for i in range(200)))
    schema = make(f"csv:{tmp_path / 'wave.csv'}", target="b,a", length=20).schema()
    assert [column.name for column in schema.targets] == ["b", "a"]
    assert schema.length == 20


@pytest.fixture
def load(tmp_path):
    """Six series of 9 steps: load, rain, and the kind of the day."""
    draw = np.random.RandomState(0)
    x = np.stack([50 + 10 * draw.randn(6, 9), 2 + 4 * draw.randn(6, 9), draw.randint(0, 2, (6, 9))], 2).round(3)
    rows = [
        f"s{n},{load},{rain},{('sunday', 'weekday')[int(day)]}"
        for n, each in enumerate(x)
        for load, rain, day in each.tolist()
    ]
    (tmp_path / "load.csv").write_text("\n".join(["sequence,load,rain,day", *rows]))
    return f"csv:{tmp_path / 'load.csv'}", x.astype(np.float32)


@pytest.mark.parametrize("horizon", [1, 3])
def test_the_next_steps_and_what_is_known_of_them(horizon, load):
    name, x = load
    task = make(name, known="rain,day", horizon=horizon, share=0.5, split="time")
    schema, batch = task.schema(), whole(task)
    assert [column.name for column in schema.known] == ["rain", "day"]
    assert (task.input_size, task.output_size) == (1 + 3 * horizon, horizon)
    assert batch.inputs.shape == (8, 3, task.input_size)
    load_column, rain_column = schema.inputs[:2]
    for row, each in enumerate(x[:3]):
        for step in range(8):
            read, wanted = batch.inputs[step, row].tolist(), batch.targets[step, row].tolist()
            assert read[0] == pytest.approx((each[step, 0] - load_column.mean) / load_column.deviation, abs=ROUNDING)
            for ahead in range(horizon):
                place, there = step + ahead + 1, step + ahead + 1 < len(each)
                rain = (each[place, 1] - rain_column.mean) / rain_column.deviation if there else 0
                assert read[1 + ahead] == pytest.approx(rain, abs=ROUNDING)
                day = [float(there and each[place, 2] == kind) for kind in (0, 1)]
                assert read[1 + horizon + 2 * ahead :][:2] == day
                y = (each[place, 0] - load_column.mean) / load_column.deviation if there else np.nan
                assert wanted[ahead] == pytest.approx(y, abs=ROUNDING, nan_ok=True)
    there = ~batch.targets.isnan()
    assert task.loss(batch.targets.nan_to_num() + 1, batch.targets) == pytest.approx(1)
    assert int(task.weight(batch)) == int(there.sum())
    assert task.loss_unit == pytest.approx(load_column.deviation**2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"known": "snow"}, "known must name inputs of .*, load, rain, day, got 'snow'"),
        ({"known": "load,rain"}, "known must leave a column of numbers to predict, got load, rain"),
        ({"horizon": 9}, "horizon must be below 9, the steps of a sequence, got 9"),
        ({"horizon": 4, "length": 4}, "horizon must be below 4"),
        ({"known": "rain", "target": "load"}, "horizon and known go with kind next, .* are for regression"),
    ],
)
def test_what_cannot_be_known_or_predicted(options, message, load):
    with pytest.raises(ValueError, match=message):
        make(load[0], **options).schema()


def in_units(task, part):
    """The sequences of a part in the units of the file, and their names."""
    part = task.in_part(part)
    mean, deviation = part.schema().input_scale
    return [(part.sequence_name(n), x * deviation + mean) for n, x in enumerate(part.sequences())]


@pytest.mark.parametrize("split", ["random", "time"])
@pytest.mark.parametrize("length", [None, 4])
def test_sequences_are_named_as_in_the_file(split, length, tmp_path):
    """The first column counts the rows of the file, so it tells where a sequence is from."""
    lengths, rows = [5, 9, 3, 12, 7, 4, 8, 6], ["walk,row,target"]
    first = np.cumsum([0, *lengths])
    for n, steps in enumerate(lengths):
        rows += [f"w{n},{first[n] + step},{n % 2}" for step in range(steps)]
    (tmp_path / "walks.csv").write_text("\n".join(rows))
    task = make(
        f"csv:{tmp_path / 'walks.csv'}", sequence="walk", split=split, share=0.3, length=length, stride=length and 2
    )
    for part in ("training", "validation"):
        for name, x in in_units(task, part):
            place, where = name.split(" in ")
            walk, _, steps = place.partition(", ")
            begin = first[int(walk[1:])] + (int(steps.split()[1]) - 1 if length else 0)
            assert where == "walks.csv"
            np.testing.assert_allclose(x[:, 0], begin + np.arange(len(x)), atol=1e-3)
            assert steps == (f"steps {x[0, 0] - first[int(walk[1:])] + 1:.0f} to " if length else "") + (
                f"{x[-1, 0] - first[int(walk[1:])] + 1:.0f}" if length else ""
            )


def test_windows_of_a_series_and_rows_of_arrays_are_named(tmp_path):
    (tmp_path / "series.csv").write_text("\n".join(["row,target", *(f"{n},{n % 2}" for n in range(1300))]))
    task = make(f"csv:{tmp_path / 'series.csv'}", length=100)
    named = in_units(task, "training") + in_units(task, "validation")
    assert [name for name, _ in named][-2:] == [
        "steps 1,101 to 1,200 of series.csv",
        "steps 1,201 to 1,300 of series.csv",
    ]
    for n, (_, x) in enumerate(named):
        np.testing.assert_allclose(x[:, 0], 100 * n + np.arange(100), atol=1e-2)
    x = np.arange(60.0).reshape(10, 3, 2)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(10) % 2, x_valid=x[:4], y_valid=np.arange(4) % 2)
    task = make(f"npz:{tmp_path / 'a.npz'}")
    assert in_units(task, "training")[7][0] == "row 7 of 'x' in a.npz"
    assert in_units(task, "validation")[3][0] == "row 3 of 'x_valid' in a.npz"
    np.savez(tmp_path / "b.npz", x=x[5:], y=np.arange(5) % 2)
    alone = make(f"npz:{tmp_path / 'a.npz'}", validation=str(tmp_path / "b.npz"))
    assert in_units(alone, "validation")[2][0] == "row 2 of 'x' in b.npz"
    np.testing.assert_allclose(in_units(alone, "validation")[2][1], x[7], atol=1e-4)
