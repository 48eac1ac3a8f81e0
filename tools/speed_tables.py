"""Write the tables of speed in README.md and docs/ from the measurements in benchmarks/results.

    python tools/speed_tables.py            # rewrite the tables of all pages
    python tools/speed_tables.py --check    # change nothing; exit code 1 if a page differs

A table stands in a page between `<!-- table: NAME -->` and `<!-- end of table -->`. NAME is a key of TABLES, the
functions that return the rows of a table, the heading first.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/performance.md",
    "docs/performance-details.md",
    "docs/cells.md",
    "docs/data.md",
    "docs/learning.md",
)
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end of table -->)", flags=re.DOTALL)

Rows = list[list[str]]

SIZES = [(128, 50), (256, 50), (512, 50), (1024, 50), (128, 256), (512, 256)]
SIZE_NAMES = [f"H={hidden} B={batch}" for hidden, batch in SIZES]
GOALS = [0.65, 0.5, 1 / 6, 1 / 4, 0.45, 1 / 3]
GOAL_ROW = ["goal", "0.65", "0.5", "1/6", "1/4", "0.45", "1/3"]
MAPS = {"rotations": "rotations", "householder(16)": "householder", "svd(16, 16)": "svd", "exponential": "exponential"}
CELLS = {"Elman": "Elman abs", "scalar-gated": "gated relu"}


@cache
def measured(name: str) -> dict[str, Any]:
    """The content of benchmarks/results/NAME.json."""
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text("utf-8"))


def span(values: Iterable[float], digits: int | None = None) -> str:
    """The smallest and the largest value as text: "0.29 to 0.31", or one number where both round to the same.

    digits: decimals; by default none if all values are above 2, else two.
    """
    numbers = list(values)
    if digits is None:
        digits = 0 if min(numbers) > 2 else 2
    least, most = f"{min(numbers):.{digits}f}", f"{max(numbers):.{digits}f}"
    return least if least == most else f"{least} to {most}"


# Layers on a CPU.


def generated_over_hand_written(cell: str) -> str:
    """The time of the generated C over that of the hand-written C it replaced, H = 128, B = 50, one thread."""
    (ratio,) = (
        row["ratio"]
        for row in measured("cells-cpu")["rows"]
        if (row["cell"], row["hidden"], row["batch"]) == (cell, 128, 50)
    )
    return f"{ratio:.2f}"


def cpu_layers_table() -> Rows:
    times, ratios = measured("recurrence-cpu")["median_ms"], measured("recurrence-cpu")["ratios"]
    # Label, name in recurrence-cpu.json, name in cells-cpu.json.
    layers = [
        ("`torch.nn.RNN`, relu", "torch.nn.RNN relu", ""),
        *((f"`RNN`, {name}", f"evenflow RNN {name}", f"elman {name}")
          for name in ("identity", "relu", "leaky", "prelu", "tanh", "abs", "oplu", "modrelu")),
        ("`RNN`, complex_modrelu", "evenflow RNN complex_modrelu", ""),
        *((f"`{name}`", f"evenflow {name}", "") for name in ("urnn", "ornn", "spectral", "fastrnn")),
        ("`sgornn`", "evenflow sgornn", "scalar-gated"),
        ("`full-urnn`", "evenflow full-urnn", "complex elman"),
        ("`arjovsky-urnn`", "evenflow arjovsky-urnn", ""),
        ("`torch.nn.GRU`", "torch.nn.GRU", ""),
        ("`GRU`", "evenflow GRU", "gru"),
        ("`ugru`", "evenflow ugru", ""),
        ("`torch.nn.LSTM`", "torch.nn.LSTM", ""),
        ("`LSTM`", "evenflow LSTM", "lstm"),
        ('`LSTM(form="peephole")`', "evenflow LSTM, peephole", "lstm peephole"),
        ('`LSTM(form="1997")`', "evenflow LSTM, 1997", "lstm 1997"),
        ("`RNN`, relu, no compiler", "evenflow RNN relu, not compiled", ""),
        ("`GRU`, no compiler", "evenflow GRU, not compiled", ""),
        ("`LSTM`, no compiler", "evenflow LSTM, not compiled", ""),
    ]  # fmt: skip
    return [
        ["layer", "ms", "of torch's layer", "of the autograd loop", "generated / hand-written C"],
        *(
            [label, f"{times[name]:.0f}", *(f"{ratios[name][peer]:.2f}" for peer in ("torch", "loop")),
             generated_over_hand_written(cell) if cell else ""]
            for label, name, cell in layers
        ),
    ]  # fmt: skip


def cpu_summary_table() -> Rows:
    times, ratios = measured("recurrence-cpu")["median_ms"], measured("recurrence-cpu")["ratios"]
    plain = [f"evenflow RNN {name}" for name in
             ("identity", "relu", "leaky", "prelu", "tanh", "abs", "oplu", "modrelu", "complex_modrelu")]  # fmt: skip
    systems = [f"evenflow {n}" for n in ("urnn", "ornn", "spectral", "full-urnn", "arjovsky-urnn", "fastrnn", "sgornn")]
    groups = [
        ("`torch.nn.RNN`, relu", ["torch.nn.RNN relu"]),
        ("`RNN` with each of 9 activations", plain),
        ("`urnn` `ornn` `spectral` `full-urnn` `arjovsky-urnn` `fastrnn` `sgornn`", systems),
        ("`torch.nn.GRU`", ["torch.nn.GRU"]),
        ("`GRU`, `ugru`", ["evenflow GRU", "evenflow ugru"]),
        ("`torch.nn.LSTM`", ["torch.nn.LSTM"]),
        ("`LSTM`, also with peepholes", ["evenflow LSTM", "evenflow LSTM, peephole"]),
        ("`LSTM` of 1997", ["evenflow LSTM, 1997"]),
    ]
    return [
        ["layer", "ms", "of torch's layer"],
        *(
            [label, span((times[name] for name in names), 0), span(ratios[name]["torch"] for name in names)]
            for label, names in groups
        ),
    ]


def cpu_sizes_table() -> Rows:
    kinds = ("RNN", "GRU", "LSTM")
    sizes = {size: times for size, times in measured("sizes-cpu").items() if size[0].isdigit()}
    return [
        ["H, B, T", *(f"`{kind}` / `torch.nn.{kind}`" for kind in kinds)],
        *([size, *(f"{t[k] / t[f'torch.nn.{k}']:.2f}" for k in kinds)] for size, t in sizes.items()),
    ]


def cpu_parts_table() -> Rows:
    parts, lstm = measured("sizes-cpu")["parts of Elman"], measured("sizes-cpu")["parts of LSTM"]

    def backward(part: dict[str, float]) -> float:
        return part["way back"] - part["gradient of W_hh"]

    return [
        ["part", "multiply-adds", "bytes moved", "floor", "measured", "LSTM, measured"],
        ["recurrence, forward", "642 M", "40 MB", "6 ms", f"{parts['forward']:.0f} ms", f"{lstm['forward']:.0f} ms"],
        ["recurrence, backward", "642 M", "60 MB", "6 ms", f"{backward(parts):.0f} ms", f"{backward(lstm):.0f} ms"],
        ["gradient of W_hh", "642 M", "40 MB", "6 ms", *(f"{p['gradient of W_hh']:.0f} ms" for p in (parts, lstm))],
        ["projection and its gradient", "20 M", "40 MB", "1.5 ms",
         *(f"{p['projection and its gradient']:.0f} ms" for p in (parts, lstm))],
    ]  # fmt: skip


def cpu_memory_table() -> Rows:
    runs = measured("memory-cpu")
    options = ["", ", checkpoint_every=1", ", checkpoint_every=150", ", storage=bfloat16"]

    def cell(name: str) -> str:
        run = runs.get(name)
        return f"{run['GB']:.2f} GB, {run['seconds']:.1f} s" if run else ""

    return [
        ["layer", "T", "default", "`checkpoint_every=1`", "`checkpoint_every=150`", '`storage="bfloat16"`'],
        *(
            [label, "20,000", *(cell(f"{name}, T=20000, output{stack}{option}") for option in options)]
            for label, name, stack in [("RNN, tanh", "rnn", ""), ("GRU", "gru", ""), ("LSTM", "lstm", ""),
                                       ("LSTM, four layers", "lstm", ", num_layers=4")]
        ),
    ]  # fmt: skip


def cpu_linear_table() -> Rows:
    batches = (1, 2, 4, 8, 20)
    times = [measured("sizes-cpu")[f"linear B={batch}"] for batch in batches]
    return [
        ["pieces / loop", *(f"B={batch}" for batch in batches)],
        *(
            [label, *(f"{took[f'{kind}, pieces'] / took[f'{kind}, steps']:.1f}" for took in times)]
            for label, kind in (("torch operations", "torch"), ("compiled", "compiled"))
        ),
    ]


def last_state_table() -> Rows:
    heading = ["H, B, T", "one product, ms", "all steps, ms", "ratio", "ratio, forward only", "`torch.nn.RNN`, ms",
               "error", "error of all steps"]  # fmt: skip
    rows = []
    for run in measured("last-state-cpu")["sizes"]:
        if "one product" in run["ms"]:
            one, steps, torchs = (run["ms"][name] for name in ("one product", "all steps", "torch.nn.RNN"))
            forward = run["ms without gradients"]
            ratios = [f"{one / steps:.2f}", f"{forward['one product'] / forward['all steps']:.2f}"]
            errors = [f"{run['error'][name]:.1e}" for name in ("one product", "all steps")]
            size = ", ".join(map(str, run["H, B, T"]))
            rows.append([size, f"{one:.0f}", f"{steps:.0f}", *ratios, f"{torchs:.0f}", *errors])
    return [heading, *rows]


# Cells of one's own.


def own_cells_table() -> Rows:
    sizes = [(hidden, batch) for hidden in (32, 128, 512) for batch in (1, 50)]
    ratios: dict[str, dict[tuple[int, int], float]] = {}
    for row in measured("cells-cpu")["rows"]:
        if row["against"] == "torch.nn.GRU":
            ratios.setdefault(row["cell"], {})[row["hidden"], row["batch"]] = row["ratio"]
    return [
        ["cell", *(f"H={hidden}, B={batch}" for hidden, batch in sizes)],
        *([cell, *(f"{of[size]:.2f}" for size in sizes)] for cell, of in ratios.items()),
    ]


# Layers on an H200.


def h200_layers(kind: str) -> Rows:
    """Times over cuDNN's; kind is "eager" or "graph"."""
    runs = [measured("goals-cuda")[f"rnn {size}"] for size in SIZE_NAMES]
    names = {"recurrence without a map": "alone"}
    names |= {f"{cell}, {map}": f"{CELLS[cell]}, {MAPS[map]}" for map in MAPS for cell in CELLS}
    return [
        ["", *SIZE_NAMES],
        ["cuDNN RNN relu, ms", *(f"{run['cuDNN'][kind]:.2f}" for run in runs)],
        *([label, *(f"{run[name][kind] / run['cuDNN'][kind]:.2f}" for run in runs)] for label, name in names.items()),
        GOAL_ROW,
    ]


def h200_eager_table() -> Rows:
    return h200_layers("eager")


def h200_captured_table() -> Rows:
    return h200_layers("graph")


def gated_rows(kind: str) -> Rows:
    """GRU and LSTM over cuDNN's, 50 rows, by size."""
    layers = [("GRU", "gru", "GRU"), ("GRU with a map (`ugru`)", "gru", "ugru"), ("LSTM", "lstm", "LSTM"),
              ("LSTM with peepholes", "lstm", "LSTM, peephole")]  # fmt: skip
    goals = measured("goals-cuda")
    runs = {name: [goals[f"{name} H={hidden} B=50"] for hidden in (128, 256, 512, 1024)] for name in ("gru", "lstm")}
    return [
        [label, *(f"{run[name][kind] / run['cuDNN'][kind]:.2f}" for run in runs[peer])] for label, peer, name in layers
    ]


def h200_gated_table() -> Rows:
    goals = measured("goals-cuda")
    rows: Rows = [["B=50", "H=128", "H=256", "H=512", "H=1024"]]
    for label, kind in (("eager", "eager"), ("captured", "graph")):
        for name in ("gru", "lstm"):
            times = [goals[f"{name} H={hidden} B=50"]["cuDNN"][kind] for hidden in (128, 256, 512, 1024)]
            rows.append([f"cuDNN {name.upper()}, {label}, ms", *(f"{time:.2f}" for time in times)])
        rows += [[f"{first}, {label}", *rest] for first, *rest in gated_rows(kind)]
    return [*rows, ["goal", "0.6", "0.2", "0.2", "0.2"]]


def h200_summary_table() -> Rows:
    runs = [measured("goals-cuda")[f"rnn {size}"] for size in SIZE_NAMES[:4]]
    labels = {"Elman with a map": "Elman abs", "scalar-gated with a map": "gated relu"}
    return [
        ["layer, B=50", "H=128", "H=256", "H=512", "H=1024"],
        *(
            [label, *(span(run[f"{cell}, {map}"]["graph"] / run["cuDNN"]["graph"] for map in MAPS.values())
                      for run in runs)]
            for label, cell in labels.items()
        ),
        *gated_rows("graph"),
    ]  # fmt: skip


def h200_bench_table() -> Rows:
    ratios = {name.removeprefix("evenflow "): of for name, of in measured("recurrence-cuda")["ratios"].items()}
    elman = [name for name in ratios if name.startswith("RNN ") and name != "RNN identity"]
    groups = {
        "Elman layers": elman,
        "Elman, identity": ["RNN identity"],
        "systems with maps or scalar gates": [
            "urnn", "ornn", "spectral", "full-urnn", "arjovsky-urnn", "fastrnn", "sgornn",
        ],
        "GRU": ["GRU"],
        "ugru": ["ugru"],
        "LSTM": ["LSTM"],
        "LSTM with peepholes": ["LSTM, peephole"],
        "LSTM of 1997": ["LSTM, 1997"],
        "loop over time in torch": [name for name in ratios if name.startswith("loop")],
        "flashrnn 1.0.8": ["flashrnn rnn", "flashrnn gru, step by step", "flashrnn lstm"],
    }  # fmt: skip
    return [
        ["", "of cuDNN's time", "of flashrnn's time"],
        *(
            [label, *(span(ratios[name][peer] for name in names) for peer in ("torch", "flashrnn"))]
            for label, names in groups.items()
        ),
    ]  # fmt: skip


def h200_activations_table() -> Rows:
    run = measured("goals-cuda")["rnn H=128 B=50"]
    names = ["relu", "leaky", "prelu", "tanh", "abs", "oplu", "modrelu", "complex_modrelu", "identity"]
    return [
        ["activation", "eager", "captured"],
        *([name, *(f"{run[f'Elman {name}'][kind] / run['cuDNN'][kind]:.2f}" for kind in ("eager", "graph"))]
          for name in names),
    ]  # fmt: skip


def activation_ratios() -> list[dict[str, float]]:
    """For each of SIZES: cell, activation and map to the time over cuDNN's, captured."""
    runs = (measured("product-cuda")[size] for size in SIZE_NAMES)
    return [{name: took / run["cuDNN"] for name, took in run.items() if name != "cuDNN"} for run in runs]


def h200_product_table() -> Rows:
    ratios = activation_ratios()
    rows = []
    for exponential in (False, True):
        for cell, prefix in (("Elman", "Elman"), ("scalar-gated", "gated")):
            for complex_units in (False, True):
                label = cell + ", complex_modrelu" * complex_units + ", exponential" * exponential
                spans = [
                    span(
                        ratio
                        for name, ratio in of.items()
                        if name.startswith(prefix)
                        and ("complex_modrelu" in name) == complex_units
                        and name.endswith("exponential") == exponential
                    )
                    for of in ratios
                ]
                rows.append([label, *spans])
    within = [sum(ratio <= goal for ratio in of.values()) for of, goal in zip(ratios, GOALS, strict=True)]
    return [["", *SIZE_NAMES], *rows, GOAL_ROW, [f"within the goal, of {len(ratios[0])}", *map(str, within)]]


def h200_floor_table() -> Rows:
    rows = []
    for hidden in (128, 256, 512, 1024):
        numbers = 784 * 50 * hidden
        adds, moved = 3 * numbers * hidden, 7 * 4 * numbers
        took = measured("goals-cuda")[f"rnn H={hidden} B=50"]["alone"]["graph"]
        rows.append([
            f"H={hidden}", f"{adds / 1e9:.1f} G", f"{1e3 * adds / (132 * 128 * 1.98e9):.2f} ms",
            f"{moved / 1e6:.0f} MB", f"{1e3 * moved / 4.3e12:.2f} ms", f"{took:.2f} ms", f"{1e3 * took / 784:.2f} µs",
        ])  # fmt: skip
    return [["", "multiply-adds", "time for them", "bytes", "time for them", "measured", "measured per step"], *rows]


def h200_populations_table() -> Rows:
    runs = measured("goals-cuda")["populations"]
    one = runs["one by cuDNN"]
    rows = []
    for label, name, kind in (
        ("recurrence, captured", "alone", "graph"),
        ("`sgornn` with readout, captured", "sgornn", "graph"),
        ("`sgornn` with readout, eager", "sgornn", "eager"),
    ):
        times = [runs[f"{count} models, {name}"][kind] for count in (16, 32)]
        rows.append([label, *(text for time in times for text in (f"{time:.2f}", f"{time / one[kind]:.2f}"))])
    return [["", "16 models, ms", "of one cuDNN model", "32 models, ms", "of one cuDNN model"], *rows]


def h200_taps_table() -> Rows:
    runs = measured("goals-cuda")["taps"]

    def extra(name: str, kind: str) -> str:
        return f"{100 * (runs[f'{name}, tapped'][kind] / runs[name][kind] - 1):.1f} %"

    return [
        ["", "H=128", "H=512"],
        *(
            [label, *(extra(f"{prefix}H={hidden}", kind) for hidden in (128, 512))]
            for label, prefix, kind in (
                ("recurrence, captured", "", "graph"),
                ("layer, captured", "layer ", "graph"),
                ("layer, eager", "layer ", "eager"),
            )
        ),
    ]


def h200_saved_table() -> Rows:
    runs = measured("kept-cuda")
    names = [name for name in runs if f"{name}, checkpointed" in runs]
    labels = {"gated relu": "scalar-gated relu"}

    def cells(run: dict[str, float]) -> list[str]:
        return [f"{run['states']:.2f}", f"{run['graph']:.2f}"]

    return [
        ["", "saved", "ms", "saved, `checkpoint_every=1`", "ms", "saved, `checkpoint_every=392`", "ms"],
        *(
            [labels.get(n, n), *cells(runs[n]), *cells(runs[f"{n}, states alone"]), *cells(runs[f"{n}, checkpointed"])]
            for n in names
        ),
    ]


def h200_updates_table() -> Rows:
    mnist, adding = measured("training-cuda")["mnist"], measured("training-cuda")["adding"]

    def label(name: str) -> str:
        if name == "torch.nn.RNN":
            return "plain script with `torch.nn.RNN` (cuDNN, relu)"
        if "3 layers of 128" in name:
            return "the same, three layers of 128 units"
        if name.startswith("torch"):
            return "the same, three layers with the weights of gated feedback (191 and 192 units)"
        count, times, system = name.partition(" x ")
        return f"{count} models of `{system}`" if times else f"`{name}`"

    def adding_name(name: str) -> str:
        return name.replace("191", "192")

    return [
        ["", "pixel MNIST, 784 steps, ms", "adding, 1,000 steps, ms"],
        *(
            [label(name), f"{took:.2f}", f"{adding[adding_name(name)]:.2f}"]
            for name, took in mnist.items()
            if name != "1 x sgornn"
        ),
    ]


def h200_updates_summary_table() -> Rows:
    mnist = measured("training-cuda")["mnist"]
    repeated = [run["mnist"] for run in measured("training-cuda-repeated")["runs"]]
    groups = [
        ("plain script with `torch.nn.RNN` (cuDNN)", ["torch.nn.RNN"]),
        ("`vprnn` `ornn` `sgornn` `urnn` `spectral`", ["vprnn", "ornn", "sgornn", "urnn", "spectral"]),
        ("`full-urnn` `gru` `ugru` `lstm`", ["full-urnn", "gru", "ugru", "lstm"]),
    ]
    sixteen = [run["16 x sgornn"] for run in (mnist, *repeated)]
    return [
        ["one update of", "ms"],
        *([label, span((mnist[name] for name in names), 2)] for label, names in groups),
        ["16 models of `sgornn` together, three runs", span(sixteen, 1)],
    ]


def exactness_table() -> Rows:
    runs = {name: errors for name, errors in measured("exactness-cuda").items() if isinstance(errors, dict)}
    kinks = {"Elman complex_modrelu": "Elman, complex_modrelu", "Elman abs": "Elman, abs",
             "Elman modrelu": "Elman, modrelu", "gated prelu": "scalar-gated, prelu"}  # fmt: skip

    def most(names: Iterable[str]) -> list[str]:
        of = [runs[name] for name in names]
        return [
            f"{max(each[engine][what] for each in of):.1e}".replace("e-0", "e-")
            for what in ("outputs", "gradients")
            for engine in ("fused", "loop")
        ]

    heading = ["", "outputs, kernel", "outputs, loop", "gradients, kernel", "gradients, loop"]
    others = [name for name in runs if name.removesuffix(", free") not in kinks]
    rows = [["all others, largest error", *most(others)]]
    return [heading, *rows, *([label, *most([f"{name}, free"])] for name, label in kinks.items())]


# Data and optimisers.


def data_table() -> Rows:
    runs = measured("data-cuda")
    return [
        ["", "load", "a batch", "an update", "share"],
        *(
            [label, f"{run['ready_s']:.2f} s", f"{run['batch_ms']:.3f} ms", f"{run['step_ms']:.2f} ms",
             f"{100 * run['share']:.1f} %"]
            for label, run in (("pixel MNIST, 784 steps", runs["mnist"]), ("adding, T = 1,000", runs["adding"]))
        ),
    ]  # fmt: skip


def geodesic_table() -> Rows:
    """Steps of geodesic descent over those with an explicit inverse."""
    columns = ["small", "middling", "large", "momentum, small", "adam"]
    headings = ["`η\\|A\\|` small", "medium", "large", "momentum", "Adam"]
    rows = []
    for device, label in (("cpu", "one CPU core"), ("cuda", "H200")):
        for size in ("512 x 512", "512 x 32"):
            ratios = measured(f"geodesic-{device}")["ratio_to_naive"][size]
            rows.append([f"{size}, {label}", *(f"{ratios[c]:.2f}" if c in ratios else "" for c in columns)])
    return [["matrix", *headings], *rows]


# Maps.


def map_times(device: str) -> Rows:
    times = measured(f"maps-{device}")["milliseconds"]

    def text(value: float) -> str:
        return f"{value:.0f}" if value >= 100 and device == "cpu" else f"{value:.2f}"

    rows = [[name, *(text(times[n][name]) for n in times)] for name in times["128"]]
    return [["", *(f"n = {n}" for n in times)], *rows]


def maps_h200_table() -> Rows:
    return map_times("cuda")


def maps_cpu_table() -> Rows:
    return map_times("cpu")


TABLES: dict[str, Callable[[], Rows]] = {
    "cpu-layers": cpu_layers_table,
    "cpu-summary": cpu_summary_table,
    "cpu-sizes": cpu_sizes_table,
    "cpu-parts": cpu_parts_table,
    "cpu-memory": cpu_memory_table,
    "cpu-linear": cpu_linear_table,
    "last-state": last_state_table,
    "own-cells": own_cells_table,
    "h200-eager": h200_eager_table,
    "h200-captured": h200_captured_table,
    "h200-gated": h200_gated_table,
    "h200-summary": h200_summary_table,
    "h200-bench": h200_bench_table,
    "h200-activations": h200_activations_table,
    "h200-product": h200_product_table,
    "h200-floor": h200_floor_table,
    "h200-populations": h200_populations_table,
    "h200-taps": h200_taps_table,
    "h200-saved": h200_saved_table,
    "h200-updates": h200_updates_table,
    "h200-updates-summary": h200_updates_summary_table,
    "exactness": exactness_table,
    "data": data_table,
    "geodesic": geodesic_table,
    "maps-h200": maps_h200_table,
    "maps-cpu": maps_cpu_table,
}


def markdown(rows: Rows) -> str:
    heading, *others = (f"| {' | '.join(row)} |\n" for row in rows)
    return heading + "|---" * len(rows[0]) + "|\n" + "".join(others)


def rewritten(text: str) -> str:
    """The text of a page with its tables made from the measurements."""
    return BLOCK.sub(lambda match: match[1] + markdown(TABLES[match[2]]()) + match[3], text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a page differs")
    check = parser.parse_args().check
    differing = 0
    for page in map(ROOT.joinpath, PAGES):
        text = page.read_text("utf-8")
        if rewritten(text) != text:
            differing += 1
            print(f"{page.relative_to(ROOT)}: {'differs' if check else 'rewritten'}")
            if not check:
                page.write_text(rewritten(text), "utf-8")
    return int(check and differing > 0)


if __name__ == "__main__":
    raise SystemExit(main())
