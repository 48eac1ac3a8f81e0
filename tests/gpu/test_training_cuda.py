"""Updates captured as CUDA graphs train as those that run kernel by kernel; `make test-gpu` runs these."""

from __future__ import annotations

import copy
import random
import warnings
from typing import Any

import pytest
import torch

from evenflow.lab.training import captured_update, evaluation

pytest.importorskip("lightning_fabric")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

from evenflow import SequenceModel, create, fit  # noqa: E402
from evenflow.lab import tasks  # noqa: E402
from evenflow.lab.training.config import build  # noqa: E402
from evenflow.lab.training.launch import matmul_precision  # noqa: E402
from evenflow.lab.training.loop import Loop  # noqa: E402

STEPS = 30
# An exponential captured after its angles have grown may square more often, so that its last bits may differ; all else
# is the same kernels.
CLOSE = 1e-4


def trained(system: str, settings: dict[str, Any], task: str = "adding") -> list[torch.Tensor]:
    torch.manual_seed(0)
    problem = tasks.make(task, length=20)
    model = SequenceModel(create(system, problem.input_size, 16), problem.output_size, readout=problem.readout)
    fit(model, problem, steps=STEPS, device="cuda", progress=False, **settings)
    return [p.detach() for p in model.parameters()]


OPTIMISERS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam", "clip_norm": 1.0},
    "rmsprop": {"optimizer": "rmsprop", "momentum": 0.5},
    "sgd": {"optimizer": "sgd", "lr": 1e-2, "momentum": 0.9, "nesterov": True},
    "rate in steps": {"optimizer": "adam", "schedule": "step", "decay": 0.5, "decay_every": 15},
    "double precision": {"optimizer": "adam", "precision": "64-true"},
    "short products": {"optimizer": "adam", "precision": "tf32"},
}


@pytest.mark.parametrize("settings", OPTIMISERS.values(), ids=OPTIMISERS)
def test_captured_updates_train_as_plain_ones(
    settings: dict[str, Any], captures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    got = trained("rnn", settings)
    assert captures
    assert None not in captures
    monkeypatch.setattr(captured_update, "WARM_UP", 10**9)
    for one, other in zip(got, trained("rnn", settings), strict=True):
        torch.testing.assert_close(one, other, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("task", ["adding", "copy"])
@pytest.mark.parametrize(
    "system",
    [
        "urnn",
        "sgornn",
        "spectral",
        "ugru",
        "lstm",
        "exprnn",
        "scrn",
        "full-urnn",
        "arjovsky-urnn",
    ],
)
def test_systems(system: str, task: str, captures: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    got = trained(system, {}, task)
    assert [entry is not None for entry in captures] == [True]
    monkeypatch.setattr(captured_update, "WARM_UP", 10**9)
    for one, other in zip(got, trained(system, {}, task), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("system", ["rnn", "lstm"])
def test_ragged_batches_are_captured_and_train_as_packed_ones(
    system: str, captures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padded on the GPU, where sorting them would mean to wait; packed when that is switched off."""
    got = trained(system, {}, "multiplication")
    assert [entry is not None for entry in captures] == [True]
    monkeypatch.setattr(captured_update, "WARM_UP", 10**9)
    monkeypatch.setattr(evaluation, "runs_padded", lambda _: False)
    for one, other in zip(got, trained(system, {}, "multiplication"), strict=True):
        torch.testing.assert_close(one, other, rtol=CLOSE, atol=CLOSE)


def test_ragged_sequences_of_a_file_read_at_every_step(
    tmp_path: Any, captures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of a data set are padded to one of a few lengths, and each of these is captured."""
    lines, draw = ["id,a,b"], random.Random(0)
    for number in range(60):
        lines += [f"{number},{draw.gauss(0, 1)},{draw.gauss(0, 1)}" for _ in range(draw.randint(4, 40))]
    path = tmp_path / "walks.csv"
    path.write_text("\n".join(lines))

    def found() -> list[torch.Tensor]:
        torch.manual_seed(0)
        task = tasks.CsvData(str(path), kind="next")
        assert task.readout == "every"
        model = SequenceModel(create("sgornn", task.input_size, 16), task.output_size, readout="every")
        fit(model, task, steps=40, batch_size=3, device="cuda", progress=False)
        return [p.detach() for p in model.parameters()]

    got = found()
    assert 0 < len(captures) <= captured_update.LIMIT
    assert None not in captures
    monkeypatch.setattr(captured_update, "WARM_UP", 10**9)
    monkeypatch.setattr(evaluation, "runs_padded", lambda _: False)
    for one, other in zip(got, found(), strict=True):
        torch.testing.assert_close(one, other, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("task", ["temporal-order", "multiplication"])
def test_mixtures_of_shares_in_time(task: str, captures: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"optimizer": "temporal-simplex", "lr": 1e-2}
    got = trained("rnn", settings, task)
    assert [entry is not None for entry in captures] == [True]
    monkeypatch.setattr(captured_update, "WARM_UP", 10**9)
    for one, other in zip(got, trained("rnn", settings, task), strict=True):
        torch.testing.assert_close(one, other, rtol=CLOSE, atol=CLOSE)


def test_bases_that_move_along_geodesics(captures: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"bases_lr": 1e-2, "optimizer": "rmsprop", "penalty": "weight_decay(1e-3)"}
    got = trained("factorized", settings)
    assert [entry is not None for entry in captures] == [True]
    monkeypatch.setattr(captured_update, "WARM_UP", 10**9)
    for one, other in zip(got, trained("factorized", settings), strict=True):
        torch.testing.assert_close(one, other, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("system", ["urnn", "ornn", "spectral", "factorized"])
def test_tf32_shortens_the_readout_and_neither_states_nor_maps(system: str) -> None:
    torch.manual_seed(0)
    model = SequenceModel(create(system, 3, 64), 500, readout="every").cuda()
    x = torch.randn(20, 50, 3, device="cuda")
    found = []
    for precision in ("32-true", "tf32"):
        with matmul_precision(precision):
            states, _ = model.layer(x)  # of three inputs, which a kernel of their own multiplies
            found.append((states, model.read(states), model.layer.weight_hh_l0))
    (states, outputs, matrix), (short_states, short_outputs, short_matrix) = found
    off = ((short_outputs - outputs).norm() / outputs.norm()).item()
    assert 1e-5 < off < 1e-3, "ten bits of mantissa"
    # An exponential may square once less.
    torch.testing.assert_close(short_matrix, matrix, rtol=0, atol=2e-6)
    torch.testing.assert_close(short_states, states, rtol=2e-5, atol=2e-5)


def test_a_layers_capture_ends_with_the_setting_it_was_made_under() -> None:
    torch.manual_seed(0)
    layer = create("rnn", 128, 64).cuda()
    x = torch.randn(20, 50, 128, device="cuda")
    with torch.no_grad():
        whole = layer(x)[0].clone()
        with matmul_precision("tf32"):
            for _ in range(10):  # as often as it takes to be captured
                short = layer(x)[0].clone()
        again = layer(x)[0]
    assert ((short - whole).norm() > 1e-5 * whole.norm()).item()
    torch.testing.assert_close(again, whole, rtol=1e-5, atol=1e-5)


class ReadByTheHost(torch.nn.Module):
    """A readout that decides on a number, which a capture does not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 1)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.linear(h) if h.sum().item() < 1e9 else self.linear(0 * h)


def test_what_cannot_be_captured_trains_all_the_same() -> None:
    torch.manual_seed(0)
    model = SequenceModel(create("rnn", 2, 16), 1)
    model.output = ReadByTheHost()
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(RuntimeWarning, match="updates run without a CUDA graph"):
        fit(model, tasks.make("adding", length=20), steps=STEPS, device="cuda", progress=False)
    assert all((p.cpu() != before[name].cpu()).any() for name, p in model.state_dict().items())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained("rnn", {})


def test_a_resumed_run_ends_in_the_same_bits(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tomli_w")
    settings: dict[str, Any] = {"device": "cuda", "progress": False, "checkpoint_every": 6, "steps": STEPS}
    task, look = tasks.make("adding", length=20), Loop.record

    def interrupted(loop: Loop, found: Any = None) -> None:
        look(loop, found)
        if loop.step == 20:
            raise KeyboardInterrupt

    def model() -> SequenceModel:
        torch.manual_seed(0)
        return SequenceModel(create("sgornn", 2, 16), 1)

    whole, parts = model(), model()
    fit(whole, task, folder=tmp_path / "whole", **settings)
    monkeypatch.setattr(Loop, "record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(parts, task, folder=tmp_path / "parts", **settings)
    monkeypatch.setattr(Loop, "record", look)
    fit(parts, task, folder=tmp_path / "parts", resume=True, **settings)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


@pytest.mark.parametrize("name", ["mlp", "spectral-resnet"])
def test_networks_without_time(name: str, captures: list[Any]) -> None:
    pytest.importorskip("sklearn")
    problem = tasks.make("digits")
    model = build(problem, {"name": name, "hidden_size": 16, "depth": 4}, 0)
    result = fit(model, problem, steps=STEPS, device="cuda", progress=False)
    assert captures
    assert result.valid_loss == result.valid_loss
