"""The tables of docs/performance.md are what the committed benchmarks hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/performance.md").read_text("utf-8")
SIZES = [(128, 50), (256, 50), (512, 50), (1024, 50), (128, 256), (512, 256)]
WAYS = {"Eager:": "eager", "Recorded:": "graph"}
MAPS = {"rotations": "rotations", "householder(16)": "householder", "svd(16, 16)": "svd", "exponential": "exponential"}
CELLS = {"Elman": "Elman abs", "gated": "gated relu"}
LAYERS = {f"{cell}, {map}": f"{CELLS[cell]}, {MAPS[map]}" for cell in CELLS for map in MAPS}
LAYERS["recurrence alone"] = "alone"


def measured(name: str) -> dict[str, Any]:
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text("utf-8"))


def rows(begin: str, end: str) -> dict[str, list[str]]:
    """The tables between two texts of the page: cells by the first of their row."""
    part = PAGE[PAGE.index(begin) : PAGE.index(end, PAGE.index(begin))]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line[:1] == "|"]
    return {first: rest for first, *rest in cells}


@pytest.mark.parametrize(("begin", "end"), [("Eager:", "Recorded:"), ("Recorded:", "Eager passes at")])
def test_layers_beside_cudnn(begin: str, end: str) -> None:
    goals, way, shown = measured("goals-cuda"), WAYS[begin], rows(begin, end)
    runs = [goals[f"rnn H={hidden} B={batch}"] for hidden, batch in SIZES]
    assert shown["cuDNN RNN relu, ms"] == [f"{run['cuDNN'][way]:.2f}" for run in runs]
    for label, name in LAYERS.items():
        assert shown[label] == [f"{run[name][way] / run['cuDNN'][way]:.2f}" for run in runs], label


def test_what_is_kept() -> None:
    timed, shown = measured("kept-cuda"), rows("### What is kept of a step", "1.05 is one state")
    names = [name for name in timed if f"{name}, checkpointed" in timed]
    assert set(names) < set(shown)
    for name in names:
        runs = (timed[name], timed[f"{name}, states alone"], timed[f"{name}, checkpointed"])
        assert shown[name] == [cell for run in runs for cell in (f"{run['states']:.2f}", f"{run['graph']:.2f}")], name


def test_the_bench() -> None:
    """The paragraph of ratios to cuDNN's layers, to the loop and to flashrnn, each to two digits."""
    of = {name.removeprefix("evenflow "): ratios for name, ratios in measured("recurrence-cuda")["ratios"].items()}
    begin = PAGE.index("On an H200 (`benchmarks/results/recurrence-cuda.json`)")
    said = PAGE[begin : PAGE.index("## H200", begin)].replace("\n", " ")

    def between(names: list[str], peer: str = "torch", digits: int = 2) -> str:
        least, most = (f"{end(of[name][peer] for name in names):.{digits}f}" for end in (min, max))
        return least if least == most else f"{least} to {most}"

    elman = [name for name in of if name.startswith("RNN ") and name != "RNN identity"]
    systems = ["urnn", "ornn", "spectral", "full-urnn", "arjovsky-urnn", "fastrnn", "sgornn"]
    assert f"the Elman layers {between(elman)} and {between(['RNN identity'])} without activation" in said
    assert f"the systems with maps {between(systems)}, GRU {between(['GRU'])}, uGRU {between(['ugru'])}" in said
    assert f"LSTM {between(['LSTM'])}, with peepholes {between(['LSTM, peephole'])}" in said
    assert f"of 1997 {between(['LSTM, 1997'])}." in said
    ours = [*elman, "RNN identity", *systems, "GRU", "ugru", "LSTM", "LSTM, peephole", "LSTM, 1997"]
    assert {name for name in of if not name.startswith(("torch", "loop", "flashrnn"))} == set(ours)
    loops = [name for name in of if name.startswith("loop")]
    flashrnn = ["flashrnn rnn", "flashrnn gru, step by step", "flashrnn lstm"]
    assert f"plain torch takes {between(loops, digits=0)} times as long as cuDNN" in said
    assert f"others, {between(flashrnn, digits=0)} times" in said
    assert f"every layer here takes {between(ours, 'flashrnn')} of its time" in said


def test_gradients_by_every_state() -> None:
    taps = measured("goals-cuda")["taps"]

    def more(name: str, way: str) -> str:
        return f"{100 * (taps[f'{name}, tapped'][way] / taps[name][way] - 1):.1f} %"

    begin = PAGE.index("**Gradients by every state**")
    said = PAGE[begin : PAGE.index("**T=100,000**", begin)].replace("\n", " ")
    assert f"{more('H=128', 'graph')} at H=128, {more('H=512', 'graph')} at H=512" in said
    assert f"recorded: {more('layer H=128', 'graph')} and {more('layer H=512', 'graph')}" in said
    assert f"script, {more('layer H=512', 'eager')} at H=512" in said


def test_updates() -> None:
    timed, shown = measured("training-cuda"), rows("### Updates", "Every system trains faster")
    for name, took in timed["mnist"].items():
        if name.startswith("torch") or name == "1 x sgornn":
            continue
        cells = shown[f"{name}, three layers" if name == "gated-feedback" else name]
        assert cells == [f"{took:.2f}", f"{timed['adding'][name]:.2f}"], name


def test_every_system_is_faster_than_cudnn() -> None:
    """What the page says, by the committed times: beside one layer as wide, and three layers with as many weights."""
    for name in ("mnist", "adding"):
        took = measured("training-cuda")[name]
        (stack,) = (took[label] for label in took if "3 layers of" in label and not label.endswith(" 128"))
        for system in (label for label in took if not label.startswith("torch") and " x " not in label):
            assert took[system] < (stack if system == "gated-feedback" else took["torch.nn.RNN"]), system
