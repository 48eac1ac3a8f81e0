"""The tables of docs/performance.md are what the committed benchmarks hold."""

from __future__ import annotations

import json
from collections.abc import Iterable
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


def ends(values: list[float], digits: int = 2) -> str:
    least, most = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return least if least == most else f"{least} to {most}"


def test_the_bench() -> None:
    """The paragraph of ratios to cuDNN's layers, to the loop and to flashrnn, each to two digits."""
    of = {name.removeprefix("evenflow "): ratios for name, ratios in measured("recurrence-cuda")["ratios"].items()}
    begin = PAGE.index("On an H200 (`benchmarks/results/recurrence-cuda.json`)")
    said = PAGE[begin : PAGE.index("## H200", begin)].replace("\n", " ")

    def between(names: list[str], peer: str = "torch", digits: int = 2) -> str:
        return ends([of[name][peer] for name in names], digits)

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


def test_what_the_states_alone_cost() -> None:
    timed, goals, page = measured("kept-cuda"), measured("goals-cuda"), PAGE.replace("\n", " ").replace("  ", " ")
    cells = ["Elman abs", "Elman prelu", "gated relu", "GRU", "LSTM"]
    alone = {name: timed[f"{name}, states alone"] for name in ["Elman tanh", *cells]}
    longer = ends([alone[name]["graph"] / timed[name]["graph"] for name in cells])
    assert longer == "1.35 to 1.55"
    assert f"takes {longer} times as long" in page
    assert f"{ends([alone[name]['graph'] for name in ['Elman tanh', *cells[:3]]])} ms for the Elman and gated" in page
    cudnn = [goals[f"{kind} H=128 B=50"]["cuDNN"]["graph"] for kind in ("rnn", "gru", "lstm")]
    assert f"cuDNN's plain RNN takes {cudnn[0]:.2f} recorded" in page
    shares = alone["GRU"]["graph"] / cudnn[1], alone["LSTM"]["graph"] / cudnn[2]
    assert "the GRU {:.2f} of cuDNN's, the LSTM {:.2f}".format(*shares) in page
    assert f"would take {alone['gated relu']['graph'] / cudnn[0]:.2f} of cuDNN's time before any map" in page
    scripts = [run["eager"] for name, run in timed.items() if ", " in name and "feedback" not in name]
    feedback = [timed[f"gated feedback, {how}"]["eager"] for how in ("checkpointed", "states alone")]
    assert f"{ends(scripts, 0)} ms here, gated feedback {feedback[0]:.0f}, and {feedback[1]:.0f} with 1" in page


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


def test_every_activation() -> None:
    product, shown = measured("product-cuda"), rows("Every activation, recorded", "**Reached**, recorded")
    goals = {
        "H=128 B=50": 0.65, "H=256 B=50": 0.5, "H=512 B=50": 1 / 6, "H=1024 B=50": 1 / 4, "H=128 B=256": 0.45,
        "H=512 B=256": 1 / 3,
    }  # fmt: skip
    ratios = {
        size: {name: took / product[size]["cuDNN"] for name, took in product[size].items() if name != "cuDNN"}
        for size in goals
    }
    for cell in ("Elman", "gated"):
        for complex_units in (", complex_modrelu", ""):
            for exponential in (", exponential", ""):
                wanted = [
                    ends([
                        ratio for name, ratio in found.items()
                        if name.startswith(cell) and ("complex_modrelu" in name) == bool(complex_units)
                        and name.endswith("exponential") == bool(exponential)
                    ])
                    for found in ratios.values()
                ]  # fmt: skip
                assert shown[f"{cell}{complex_units}{exponential}"] == wanted
    within = [{name for name, ratio in ratios[size].items() if ratio <= goal} for size, goal in goals.items()]
    assert shown["within it, of 72"] == [str(len(names)) for names in within]
    missed = ratios["H=128 B=50"].keys() - within[0]
    gated = {f"gated {name}, exponential" for name in ("complex_modrelu", "oplu", "tanh", "prelu", "modrelu")}
    complex_modrelu = {"gated complex_modrelu, rotations", "gated complex_modrelu, svd"}
    assert missed == gated | complex_modrelu | {"Elman complex_modrelu, exponential"}
    narrow = {f"Elman {name}, {map}" for name in ("identity", "relu", "leaky") for map in ("rotations", "svd")}
    householder = {name for name in ratios["H=128 B=256"] if name.startswith("Elman") and name.endswith("householder")}
    assert within[4] == narrow | householder - {"Elman oplu, householder", "Elman complex_modrelu, householder"}
    assert ratios["H=512 B=256"].keys() - within[5] == {"gated complex_modrelu, exponential"}


def test_what_a_pass_must_cost() -> None:
    goals, shown = measured("goals-cuda"), rows("### What a pass must cost", "Neither arithmetic nor memory")
    for hidden in (128, 256, 512, 1024):
        rows_of_states = 784 * 50 * hidden
        adds, moved = 3 * rows_of_states * hidden, 7 * 4 * rows_of_states
        took = goals[f"rnn H={hidden} B=50"]["alone"]["graph"]
        assert shown[f"H={hidden}"] == [
            f"{adds / 1e9:.1f} G",
            f"{1e3 * adds / (132 * 128 * 1.98e9):.2f} ms",
            f"{moved / 1e6:.0f} MB",
            f"{1e3 * moved / 4.3e12:.2f} ms",
            f"{took:.2f} ms",
            f"{1e3 * took / 784:.2f} µs",
        ]


def test_many_models() -> None:
    found = measured("goals-cuda")["populations"]
    begin = PAGE.index("**Many models.**")
    said = PAGE[begin : PAGE.index("**Gradients by", begin)].replace("\n", " ")
    alone, recorded, script = (
        [
            (found[f"{m} models, {name}"][way], found[f"{m} models, {name}"][way] / found["one by cuDNN"][way])
            for m in (16, 32)
        ]
        for name, way in (("alone", "graph"), ("sgornn", "graph"), ("sgornn", "eager"))
    )
    assert (
        "B=50: {:.2f} ms, {:.2f} of what cuDNN needs for one (goal 2.5); 32: {:.2f} ms, {:.2f} (goal 4)".format(
            *alone[0], *alone[1]
        )
        in said
    )
    assert "a `Population`: {:.2f} ms, {:.2f}; 32: {:.2f} ms, {:.2f}, as".format(*recorded[0], *recorded[1]) in said
    assert "{0:.2f} and {2:.2f} ms, {1:.2f} and {3:.2f}.".format(*script[0], *script[1]) in said


def test_exactness() -> None:
    found = {name: off for name, off in measured("exactness-cuda").items() if isinstance(off, dict)}
    begin = PAGE.index("### Exactness")
    said = PAGE[begin : PAGE.index("### What is kept", begin)].replace("\n", " ")
    apart = [f"{name}, free" for name in ("Elman complex_modrelu", "Elman abs", "Elman modrelu", "gated prelu")]

    def most(what: str, way: str, names: Iterable[str]) -> str:
        return f"{max(found[name][way][what] for name in names):.1e}".replace("e-0", "e-")

    outputs, others = ([most(what, way, names) for way in ("fused", "loop")] for what, names in
                       (("outputs", found), ("gradients", found.keys() - set(apart))))  # fmt: skip
    assert "off by at most {}, those of the plain loop in single precision by {};".format(*outputs) in said
    assert "by the weights by at most {}, the loop's by {}:".format(*others) in said
    fused, loop = ([most("gradients", way, [name]) for name in apart] for way in ("fused", "loop"))
    assert f"complex_modrelu, {fused[0]} (the loop {loop[0]})" in said
    assert "sides: {}, {} and {} ".format(*fused[1:]) + "(the loop {}, {} and {})".format(*loop[1:]) in said


def test_sizes_on_a_cpu() -> None:
    found, shown = (
        measured("sizes-cpu"),
        rows("Other sizes (`python benchmarks/sizes_cpu.py`", "Of 1024 units the LSTM"),
    )
    for size, took in found.items():
        if size[0].isdigit():
            assert shown[size] == [f"{took[n] / took[f'torch.nn.{n}']:.2f}" for n in ("RNN", "GRU", "LSTM")], size
    pieces = rows("time of pieces / of the loop", "So the compiled loop")
    for label, kind in (("torch operations", "torch"), ("compiled", "compiled")):
        times = [found[f"linear B={batch}"] for batch in (1, 2, 4, 8, 20)]
        assert pieces[label] == [f"{took[f'{kind}, pieces'] / took[f'{kind}, steps']:.1f}" for took in times]
    large = found["1024, 50, 50"]
    said = PAGE.replace("\n", " ")
    assert f"torch's, {large['LSTM'] / 1e3:.2f} s against {large['torch.nn.LSTM'] / 1e3:.2f}:" in said
    assert f"({1e3 * found['linear B=1']['compiled, steps'] / 1e4:.2f} µs a step at B=1)" in said
    lstm = found["parts of LSTM"]
    own = [lstm["forward"], lstm["way back"] - lstm["gradient of W_hh"], lstm["gradient of W_hh"]]
    assert "forward {:.0f} ms, backward {:.0f} ms, gradient of W_hh {:.0f} ms against".format(*own) in said
    assert f"projection with its gradient {lstm['projection and its gradient']:.0f} ms" in said
    parts, table = found["parts of Elman"], rows("| | multiply-adds | bytes moved", "Measured part by part")
    back = parts["way back"] - parts["gradient of W_hh"]
    for label, took in (("recurrence, forward", parts["forward"]), ("recurrence, backward", back)):
        assert table[label][-1] == f"{took:.0f} ms ({1e3 * took / 784:.0f} µs a step)"
    for label in ("gradient of W_hh", "projection and its gradient"):
        assert table[label][-1] == f"{parts[label]:.0f} ms"


def test_memory_on_a_cpu() -> None:
    found, shown = measured("memory-cpu"), rows("Peak memory of a training step", "The loss is on")
    options = ["", ", checkpoint_every=1", ", checkpoint_every=150", ", storage=bfloat16"]
    for label, name in (("RNN tanh", "rnn"), ("GRU", "gru"), ("LSTM", "lstm")):
        took = [found[f"{name}, T=20000, output{option}"] for option in options]
        assert shown[label][1:] == [f"{each['GB']:.2f} GB, {each['seconds']:.1f} s" for each in took]
    long = [found[f"rnn, T=100000, {loss}, checkpoint_every=300"] for loss in ("output", "h_n")]
    said = "`checkpoint_every=300`: {GB:.2f} GB and {seconds:.1f} s".format(**long[0])
    assert said + ", with a loss on `h_n` {GB:.2f} GB and {seconds:.1f} s.".format(**long[1]) in PAGE.replace("\n", " ")
    for option in ("", ", storage=bfloat16"):
        took = found[f"lstm, T=20000, output, num_layers=4{option}"]
        assert f"{took['GB']:.2f} GB, {took['seconds']:.1f} s" in shown["LSTM, four layers"]


def test_the_last_state_in_one_product() -> None:
    shown = rows("(`python benchmarks/last_state.py`", "With few rows to an input")
    timed = [run for run in measured("last-state-cpu")["sizes"] if "one product" in run["ms"]]
    assert len(timed) == len(shown) - 2  # the heading and the line below it
    for run in timed:
        one, all_steps, torchs = (run["ms"][name] for name in ("one product", "all steps", "torch.nn.RNN"))
        errors = [f"{run['error'][name]:.1e}" for name in ("one product", "all steps")]
        alone = run["ms without gradients"]
        ratios = [f"{one / all_steps:.2f}", f"{alone['one product'] / alone['all steps']:.2f}"]
        cells = [f"{one:.0f}", f"{all_steps:.0f}", *ratios, f"{torchs:.0f}", *errors]
        assert shown[", ".join(map(str, run["H, B, T"]))] == cells
