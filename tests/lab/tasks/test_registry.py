from __future__ import annotations

import dataclasses
import importlib.util
import tomllib

import pytest
import tomli_w
import torch
from made_data import small_options

from evenflow import SequenceModel, create, fit
from evenflow.lab.tasks import TASKS, make
from evenflow.lab.tasks.task import option_fields
from evenflow.models.sequence_model import READOUTS

NEEDS = {"digits": "sklearn"}


@pytest.fixture(params=TASKS)
def task(request, small_data):
    """Every task of the table as it is made without options, those on files with small made ones."""
    if importlib.util.find_spec(NEEDS.get(request.param, "torch")) is None:
        pytest.skip(f"{request.param} needs {NEEDS[request.param]}")
    return make(request.param, **small_options(request.param, small_data))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_table():
    synthetic = ["adding", "multiplication", "xor", "temporal-order", "copy", "recall-first", "kth-largest"]
    synthetic += ["state-tracking", "mackey-glass", "lorenz"]
    images = ["digits", "mnist", "fashion-mnist", "cifar", "noisy-cifar"]
    real = [*images, "ptb-words", "ptb-characters", "har", "har-rebuilt", "har-subset", "ucr", "music"]
    assert list(TASKS) == [*synthetic, *real, "multilabel", "csv", "parquet", "npz", "curriculum"]
    assert all(task.name == name for name, task in TASKS.items())


def test_every_task_keeps_the_contract(task):
    assert TASKS[task.name] is type(task)
    assert str(task) == task.name
    assert task.readout in READOUTS
    assert task.baseline > 0
    assert isinstance(task.higher_is_better, bool)
    assert all(field.metadata["help"] for field in option_fields(type(task)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.name = "other"
    batch = task.batch(3, generator(), device="cpu")
    if task.vocabulary is None:
        assert batch.inputs.shape[1:] == (3, task.input_size)
        assert batch.inputs.dtype == torch.float32
    else:
        assert batch.inputs.shape[1:] == (3,)
        assert batch.inputs.dtype == torch.int64
        assert 0 <= batch.inputs.min() <= batch.inputs.max() < task.vocabulary
    if batch.lengths is not None:
        assert batch.lengths.shape == (3,)
        assert batch.lengths.max() <= len(batch.inputs)
    shape = (3, task.output_size) if task.readout == "last" else (len(batch.inputs), 3, task.output_size)
    outputs = torch.zeros(shape, requires_grad=True)
    loss = task.loss(outputs, batch.targets)
    loss.backward()
    assert loss.shape == task.metric(outputs, batch.targets).shape == ()
    assert outputs.grad.abs().sum() > 0


def test_the_criterion_says_what_counts_as_solved(task):
    limit = task.solved_limit
    better = limit * (1 + 1e-6 if task.higher_is_better else 1 - 1e-6)
    assert task.solved(better)
    assert not task.solved(2 * limit - better)
    assert not task.solved(float("nan"))
    bound = ("of at least" if task.higher_is_better else "of at most") if task.solved(limit) else None
    bound = bound or ("above" if task.higher_is_better else "below")
    assert task.criterion == f"Solved means a validation {task.metric_name} {bound} {limit:.4g}."


def test_options_come_back_from_a_config_file(task):
    table = tomllib.loads(tomli_w.dumps({"name": task.name, **task.options()}))
    assert make(table.pop("name"), **table) == task


@pytest.mark.parametrize("part", ["trained on", "held out", "at the first update"])
def test_same_seed_same_bytes_and_no_other_draw(task, part):
    task = {"trained on": task, "held out": task.held_out(), "at the first update": task.at_step(0, 100)}[part]
    before = torch.get_rng_state()
    first, again, other = (task.batch(4, generator(seed)) for seed in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        assert (a is None and b is None) or a.numpy().tobytes() == b.numpy().tobytes()
    assert not torch.equal(first.inputs, other.inputs)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_batches_are_drawn_there_and_repeat(task):
    first, again = (task.batch(4, torch.Generator("cuda").manual_seed(1)) for _ in range(2))
    for a, b in zip(first, again, strict=True):
        assert (a is None and b is None) or (a.device.type == "cuda" and torch.equal(a, b))
    moved = task.batch(4, torch.Generator("cuda").manual_seed(1), device="cpu")
    assert torch.equal(moved.inputs, first.inputs.cpu())


def test_what_is_judged_is_the_task_trained_for(task):
    """Held-out and early tasks have the same sizes, loss and metric, and are held out and final themselves."""
    for other in (task.held_out(), task.at_step(0, 10), task.at_step(9, 10)):
        for name in ("readout", "vocabulary", "input_size", "output_size", "metric_name", "higher_is_better"):
            assert getattr(other, name) == getattr(task, name)
        assert other.at_step(0, 10) == other
    assert task.held_out().held_out() == task.held_out()
    assert task.at_step(9, 10).options().items() <= task.options().items()
    assert task.held_out().baseline == task.baseline


@pytest.mark.parametrize("size", [0, -1, 2.0, True])
def test_a_batch_of_no_whole_size_is_refused(task, size):
    with pytest.raises(ValueError, match=rf"^size must be a whole number of at least 1, got {size}$"):
        task.batch(size, generator())


def test_every_task_trains(task):
    draw = generator()
    layer = create("sgornn", task.input_size, 8, generator=draw)
    model = SequenceModel(layer, task.output_size, readout=task.readout, vocabulary=task.vocabulary, generator=draw)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    options = {"batch_size": 4, "validate_every": 3, "validation_batches": 1, "device": "cpu", "progress": False}
    result = fit(model, task, steps=3, probe_every=3, **options)
    assert torch.tensor([result.loss, result.valid_loss, result.valid_metric]).isfinite().all()
    # In a sequence of one step the recurrent matrix and the gate of the state before meet zero alone.
    idle = ("weight_hh", "gate_beta") if len(task.batch(1, generator()).inputs) == 1 else ()
    still = [name for name, p in model.named_parameters() if torch.equal(p, before[name])]
    assert not [name for name in still if not any(part in name for part in idle)]
    assert (result.probes["gradient_norm"].sum(1) > 0).all()


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("coppy", {}, r"unknown task 'coppy', did you mean copy\?"),
        (
            "zzz",
            {},
            f"unknown task 'zzz', known are {', '.join(sorted(TASKS))}",
        ),
        ("motion.csv", {}, "unknown task 'motion.csv'; for a file of your own write csv:motion.csv"),
        ("a/motion.npz", {}, "unknown task 'a/motion.npz'; for a file of your own write npz:a/motion.npz"),
        ("copy", {"lenght": 3}, r"unknown option of task copy 'lenght', did you mean length\?"),
        ("adding", {"k": 3}, "unknown option of task adding 'k', known are length, variant"),
    ],
    ids=["near name", "far name", "a CSV file", "an npz file", "near option", "far option"],
)
def test_unknown_names(name, options, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        make(name, **options)
