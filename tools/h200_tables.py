"""The tables of speed on an H200: the rows of each, the heading first."""

from __future__ import annotations

from collections.abc import Iterable

from measurements import Rows, measured, span

SIZES = [(128, 50), (256, 50), (512, 50), (1024, 50), (128, 256), (512, 256)]
SIZE_NAMES = [f"H={hidden} B={batch}" for hidden, batch in SIZES]
GOALS = [0.65, 0.5, 1 / 6, 1 / 4, 0.45, 1 / 3]
GOAL_ROW = ["goal", "0.65", "0.5", "1/6", "1/4", "0.45", "1/3"]
MAPS = {"rotations": "rotations", "householder(16)": "householder", "svd(16, 16)": "svd", "exponential": "exponential"}
CELLS = {"Elman": "Elman abs", "scalar-gated": "gated relu"}


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


def own_cells_h200_table() -> Rows:
    """Cells that nobody wrote a kernel for beside cuDNN's GRU."""
    rows = [row for row in measured("cells-cuda")["rows"] if row["part"] == "own" and row["beside"] == "torch gru"]
    return [
        ["cell", "ms", "cuDNN's GRU, ms", "ratio"],
        *([row["of"]["name"], *(f"{row[key]:.2f}" for key in ("ms", "other_ms", "ratio"))] for row in rows),
    ]
