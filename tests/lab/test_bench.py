"""The benchmark measures what it says: every case, against the right peer, in one run."""

from __future__ import annotations

import errno
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from evenflow.activations import ACTIVATIONS
from evenflow.lab import bench, bench_cases, cli

TINY = {"device": "cpu", "hidden": 4, "batch": 2, "length": 5, "repeats": 2}
FLAGS = [part for name, value in TINY.items() for part in (f"--{name}", str(value))]


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(["bench", *arguments])
    return left.value.code  # type: ignore[return-value]


@pytest.fixture(scope="module")
def result() -> bench.BenchResult:
    return bench.bench(**TINY)  # type: ignore[arg-type]


def test_times_every_layer_beside_its_peers(result: bench.BenchResult) -> None:
    names = [f"RNN {a}" for a in ACTIVATIONS] + ["urnn", "sgornn", "GRU", "ugru", "LSTM", "LSTM, peephole"]
    for name in names:
        assert set(result.ratios(f"evenflow {name}")) == {"torch", "loop"}
    assert all(ms > 0 for ms in result.median_ms.values())
    ms = result.median_ms
    assert result.ratios("evenflow ugru")["torch"] == ms["evenflow ugru"] / ms["torch.nn.GRU"]
    assert result.ratios("evenflow LSTM, 1997")["loop"] == ms["evenflow LSTM, 1997"] / ms["loop lstm"]
    assert result.ratios("torch.nn.RNN relu")["torch"] == 1
    assert result.table().row_count == len(ms)


@pytest.mark.parametrize("kind", bench.PEERS)
def test_the_loop_is_torchs_layer(kind: str) -> None:
    x = torch.randn(6, 3, bench.INPUT, generator=torch.Generator().manual_seed(0))
    module = {"rnn": torch.nn.RNN(2, 4, nonlinearity="relu"), "gru": torch.nn.GRU(2, 4), "lstm": torch.nn.LSTM(2, 4)}[
        kind
    ]
    gradients = []
    for run in (bench_cases._training_pass(module, x), bench_cases._loop(kind, module, x)):
        run()
        gradients.append([p.grad.clone() for p in module.parameters()])  # type: ignore[union-attr]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_leaves_the_generator_alone() -> None:
    before = torch.get_rng_state()
    bench.bench(**TINY | {"repeats": 1})  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("precision", ["none", "ieee", "tf32"])
def test_products_are_whole_and_then_as_they_were(precision: str) -> None:
    matmul: Any = torch.backends.cuda.matmul
    rnn: Any = torch.backends.cudnn.rnn  # type: ignore[attr-defined]
    before = matmul.fp32_precision, rnn.fp32_precision
    try:
        matmul.fp32_precision = rnn.fp32_precision = precision
        found = matmul.fp32_precision, rnn.fp32_precision
        with bench._without_tf32():
            assert (matmul.fp32_precision, rnn.fp32_precision) == ("ieee", "ieee")
        assert (matmul.fp32_precision, rnn.fp32_precision) == found
    finally:
        matmul.fp32_precision, rnn.fp32_precision = before


@pytest.mark.parametrize(("kind", "gates", "biases"), [("rnn", 1, 1), ("gru", 3, 4), ("lstm", 4, 4)])
def test_what_flashrnn_is_given(kind: str, gates: int, biases: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own shapes: (B, T, gates, heads, H), (gates, heads, H, H) and (biases, heads, H)."""
    seen: list[Any] = []

    def fused(a: Tensor, R: Tensor, b: Tensor, **options: str) -> tuple[Tensor, None]:
        seen.append((tuple(a.shape), tuple(R.shape), tuple(b.shape), options))
        return (a.sum(2) + R.sum((0, 2)) + b.sum(0)).unsqueeze(0), None

    monkeypatch.setitem(sys.modules, "flashrnn", types.SimpleNamespace(flashrnn=fused))
    module = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[kind](2, 4)
    cases = bench_cases._flashrnn_cases(kind, module, torch.randn(6, 3, 2))
    fused_too = ["cuda"] if kind == "gru" else ["cuda_fused", "cuda"]
    assert [case.name.endswith("step by step") for case in cases] == [backend == "cuda" for backend in fused_too]
    for case in cases:
        case.run()
    function = "elman" if kind == "rnn" else kind
    shapes = (3, 6, gates, 1, 4), (gates, 1, 4, 4), (biases, 1, 4)
    expected = [{"function": function, "backend": backend, "dtype": "float32"} for backend in fused_too]
    assert seen == [(*shapes, options) for options in expected]
    assert module.weight_ih_l0.grad is not None


def test_ratios_are_to_the_fused_flashrnn_where_it_runs() -> None:
    times = {"evenflow LSTM": 1.0, "flashrnn lstm, step by step": 20.0}
    result = bench.BenchResult({}, {}, dict.fromkeys(("evenflow LSTM", "flashrnn lstm"), "lstm"), times)
    assert result.ratios("evenflow LSTM") == {"flashrnn": 1 / 20}
    result.median_ms["flashrnn lstm"] = 4.0
    assert result.ratios("evenflow LSTM") == {"flashrnn": 1 / 4}


def test_a_peer_that_does_not_run_is_noted() -> None:
    def broken() -> None:
        raise RuntimeError("no kernel for this size\nand more")

    result = bench.BenchResult({}, {}, {}, {})
    assert not bench._warm(bench.Case("flashrnn lstm", "lstm", broken), torch.device("cpu"), result)
    assert result.notes == ["flashrnn lstm did not run: no kernel for this size"]
    with pytest.raises(RuntimeError, match="no kernel"):
        bench._warm(bench.Case("evenflow LSTM", "lstm", broken), torch.device("cpu"), result)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"hidden": 5}, "hidden must be even, since some activations and maps pair units, got 5"),
        ({"batch": 0}, "batch must be a whole number of at least 1, got 0"),
        ({"repeats": 1.5}, "repeats must be a whole number of at least 1, got 1.5"),
        ({"device": "tpu"}, "device must be one of auto, cpu, cuda, got 'tpu'"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_bad_settings_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as refused:
        bench.bench(**TINY | options)
    assert str(refused.value) == sentence


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_no_gpu_is_said() -> None:
    with pytest.raises(ValueError, match="torch finds no GPU, got 'cuda'"):
        bench.bench(device="cuda")
    assert bench.find_device("auto").type == "cpu"


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "result.json"
    assert command(*FLAGS, "--quiet", "--out", str(out)) == 0
    shown = capsys.readouterr().out
    assert "H=4 B=2 T=5 float32" in shown
    assert "evenflow sgornn" in shown
    written = json.loads(out.read_text())
    assert written["hardware"]["name"]
    assert written["hardware"]["device"] == "cpu"
    assert written["settings"] == {name: value for name, value in TINY.items() if name != "device"}
    assert set(written["ratios"]) == set(written["median_ms"])


def test_a_full_disk_names_the_file_and_keeps_what_was_there(
    result: bench.BenchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "result.json"
    out.write_text("before", encoding="utf-8")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*result.json'"):
        result.write(out)
    assert os.listdir(tmp_path) == ["result.json"]
    assert out.read_text(encoding="utf-8") == "before"


def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--help") == 0
    assert "Example:  evenflow bench" in capsys.readouterr().out


def test_a_folder_as_file_is_refused_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--out", str(tmp_path)) == 2
    assert capsys.readouterr().err == f"evenflow: --out must be a file, got the folder {tmp_path}\n"
