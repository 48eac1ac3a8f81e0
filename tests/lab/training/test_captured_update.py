"""Every task and kind of network through the updates that a GPU records; here their work is done and not recorded."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from lightning_fabric import Fabric
from made_data import small_options
from torch import nn

from evenflow import SequenceModel, create
from evenflow.feedforward import NETWORKS
from evenflow.lab import tasks
from evenflow.lab.tasks import TASKS, Batch, ragged
from evenflow.lab.training import Settings, captured_update, evaluation, fit
from evenflow.lab.training.config import build
from evenflow.lab.training.method import GradientMethod
from evenflow.lab.training.special_methods import SimplexMethod
from evenflow.runtime import cuda_graphs

SYSTEMS = ("lstm", "urnn", "gated-feedback", "full-urnn")
CLOSE = 1e-5  # rates are float32 numbers on a GPU
NEVER = 10**9


def trained(task: str, system: str, data: Path) -> list[torch.Tensor]:
    made = tasks.make(task, **small_options(task, data))
    model = build(made, {"name": system, "hidden_size": 6}, 0)
    # Not Adam, which makes a step of the rounding of a gradient that is zero, as a vector's along itself is.
    options: dict[str, Any] = {"optimizer": "sgd", "lr": 0.01, "batch_size": 2, "validate_every": 2}
    fit(model, made, steps=4, device="cpu", progress=False, **options)
    return [p.detach().clone() for p in model.parameters()]


def same_recordable(task: str, system: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained(task, system, data)
    monkeypatch.setattr(captured_update, "WARM_UP", NEVER)  # nothing is captured
    monkeypatch.setattr(GradientMethod, "capturable", True)
    found = trained(task, system, data)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=CLOSE, rtol=0)


@pytest.mark.parametrize("task", TASKS)
def test_every_task(task: str, small_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same_recordable(task, "rnn", small_data, monkeypatch)


@pytest.mark.parametrize("task", ["multiplication", "music", "ptb-characters"])
def test_ragged_batches_that_run_padded(task: str, small_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, longer than their longest sequence."""
    expected = trained(task, "rnn", small_data)
    answer = evaluation.answer

    def padded(model: nn.Module, batch: Batch, state: Any = None, way: bool | None = None) -> tuple[torch.Tensor, Any]:
        assert batch.lengths is not None
        assert evaluation.runs_padded(model)
        return answer(model, batch, state, True)

    monkeypatch.setattr(evaluation, "answer", padded)
    monkeypatch.setattr(ragged.Ragged, "padded", longer(ragged.Ragged.padded))
    for one, other in zip(trained(task, "rnn", small_data), expected, strict=True):
        torch.testing.assert_close(one, other, atol=CLOSE, rtol=0)


def longer(pad: Any) -> Any:
    def padded(
        self: ragged.Ragged, rows: torch.Tensor, longest: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values, lengths = pad(self, rows)
        return torch.cat([values, values[-1:], values[-1:]]), lengths

    return padded


def test_models_that_run_padded() -> None:
    layer = create("rnn", 2, 3)
    plain = SequenceModel(layer, 1)

    assert evaluation.runs_padded(plain)
    assert evaluation.runs_padded(Fabric(accelerator="cpu").setup_module(plain))
    for other in (Own(layer, 1), SequenceModel(create("rnn", 2, 3, bidirectional=True), 1), nn.Linear(2, 1)):
        assert not evaluation.runs_padded(other)


@pytest.mark.parametrize("system", SYSTEMS)
def test_systems_with_other_states(system: str, small_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same_recordable("copy", system, small_data, monkeypatch)


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_without_time(network: str, small_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same_recordable("digits", network, small_data, monkeypatch)


@pytest.mark.parametrize("task", ["copy", "temporal-order"])
def test_mixtures_of_shares_in_time(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> list[torch.Tensor]:
        made = tasks.make(task, length=20)
        model = build(made, {"name": "rnn", "hidden_size": 6}, 0)
        result = fit(model, made, steps=4, device="cpu", progress=False, optimizer="temporal-simplex", batch_size=3)
        assert result.steps == 4
        return [p.detach().clone() for p in model.parameters()]

    expected = found()
    monkeypatch.setattr(captured_update, "WARM_UP", NEVER)
    monkeypatch.setattr(SimplexMethod, "capturable", True)
    for one, other in zip(found(), expected, strict=True):
        torch.testing.assert_close(one, other, atol=CLOSE, rtol=0)


class Own(SequenceModel):
    """A model with a way of its own, which knows nothing of padding."""

    def forward(self, inputs: torch.Tensor, state: Any = None, lengths: Any = None) -> Any:  # type: ignore[override]
        return super().forward(inputs, state, lengths)


@pytest.mark.parametrize("optimizer", ["adam", "temporal-simplex"])
def test_ragged_batches_of_a_model_of_ones_own_are_packed(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> list[torch.Tensor]:
        torch.manual_seed(0)
        task = tasks.make("multiplication", length=20)
        model = Own(create("rnn", task.input_size, 6), task.output_size)
        fit(model, task, steps=3, device="cpu", progress=False, optimizer=optimizer, batch_size=3)
        return [p.detach().clone() for p in model.parameters()]

    expected = found()
    monkeypatch.setattr(captured_update, "WARM_UP", NEVER)
    for method in (GradientMethod, SimplexMethod):
        monkeypatch.setattr(method, "capturable", True)
    for one, other in zip(found(), expected, strict=True):
        torch.testing.assert_close(one, other, atol=CLOSE, rtol=0)


def test_a_failed_capture_leaves_no_gradients(monkeypatch: pytest.MonkeyPatch, small_data: Path) -> None:
    expected = trained("copy", "rnn", small_data)

    def fails(function: Any, leaves: Any, **_: Any) -> None:
        """Leaves gradients that a backward pass has made and no step has used."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GradientMethod, "apply", lambda self, loss, state: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                function(*leaves)
        raise RuntimeError("not captured")

    monkeypatch.setattr(captured_update, "WARM_UP", 1)
    monkeypatch.setattr(captured_update, "CapturedFunction", fails)
    monkeypatch.setattr(cuda_graphs, "_end_failed_capture", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(GradientMethod, "capturable", True)
    with pytest.warns(RuntimeWarning, match="updates run without a CUDA graph, kernel by kernel: not captured"):
        found = trained("copy", "rnn", small_data)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=CLOSE, rtol=0)


def small_run(**options: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = SequenceModel(create("rnn", 2, 6), 1)
    data: Any = options.pop("data", tasks.make("adding", length=8))
    shared = {"steps": 6, "validate_every": 1, "batch_size": 3, "lr": 0.02}
    fit(model, data, device="cpu", progress=False, **shared, **options)
    return [p.detach().clone() for p in model.parameters()]


def own_arrays() -> tuple[list[torch.Tensor], torch.Tensor]:
    """Sequences of different lengths with a number each."""
    x = torch.randn(12, 7, 2, generator=torch.Generator().manual_seed(0))
    return [row[: 3 + i % 5] for i, row in enumerate(x)], x[:, 0, 0] * 10


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adamw", "schedule": "cosine", "warmup": 2},
        {"optimizer": "rmsprop", "schedule": "one-cycle"},
        {"optimizer": "sgd", "schedule": "plateau", "decay_patience": 1},
        {"data": own_arrays(), "loss": "mae", "metric": "mae"},
    ],
    ids=lambda options: options.get("schedule", "arrays"),
)
def test_schedules_and_losses_that_a_user_chooses(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = small_run(**options)
    monkeypatch.setattr(captured_update, "WARM_UP", NEVER)
    monkeypatch.setattr(GradientMethod, "capturable", True)
    for one, other in zip(small_run(**options), expected, strict=True):
        torch.testing.assert_close(one, other, atol=CLOSE, rtol=0)


@pytest.mark.parametrize(
    ("options", "captured"),
    [
        ({"optimizer": "adam"}, True),
        ({"optimizer": "adamw", "schedule": "plateau", "warmup": 3}, True),
        ({"optimizer": "nadam"}, False),
        ({"optimizer": "torch.optim:AdamW"}, False),
        ({"schedule": "module:function"}, False),
    ],
)
def test_which_updates_are_captured(options: dict[str, Any], captured: bool) -> None:
    """What torch users make themselves may keep numbers on the host."""
    model, fabric = SequenceModel(create("rnn", 2, 3), 1), Fabric(accelerator="cpu")
    method = GradientMethod(fabric, fabric.setup_module(model), model, tasks.make("adding"), Settings(**options))
    method.fabric = cast(Any, SimpleNamespace(device=torch.device("cuda"), world_size=1))
    assert method.capturable is captured
