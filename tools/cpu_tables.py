"""The tables of speed on a CPU: the rows of each, the heading first."""

from __future__ import annotations

from measurements import Rows, measured, span


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
        return part["backward"] - part["gradient of W_hh"]

    return [
        ["part", "multiply-adds", "bytes moved", "floor", "measured", "LSTM, measured"],
        ["recurrence, forward", "642 M", "40 MB", "3 ms", f"{parts['forward']:.0f} ms", f"{lstm['forward']:.0f} ms"],
        ["recurrence, backward", "642 M", "60 MB", "3 ms", f"{backward(parts):.0f} ms", f"{backward(lstm):.0f} ms"],
        ["gradient of W_hh", "642 M", "40 MB", "3 ms", *(f"{p['gradient of W_hh']:.0f} ms" for p in (parts, lstm))],
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


def linear_scans_table() -> Rows:
    runs = {(r["case"], r["engine"], r["steps"]): r for r in measured("linear-scans-cpu")["rows"]}
    lengths = list(dict.fromkeys(steps for _, _, steps in runs))
    systems = list(dict.fromkeys(case for case, engine, _ in runs if engine == "c"))

    def cell(system: str, steps: int) -> str:
        compiled, pieces = runs[system, "c", steps], runs[system, "pieces", steps]
        return f"{compiled['to_gru']:.2f}, {compiled['to_loop']:.2f}, {pieces['to_loop']:.2f}"

    return [
        ["system", *(f"T={steps:,}" for steps in lengths)],
        *([f"`{system}`", *(cell(system, steps) for steps in lengths)] for system in systems),
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


def regularisers_table() -> Rows:
    rows = [row for row in measured("regularisers-cpu")["rows"] if row["batch"] == 32]
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    shown: dict[str, dict[str, str]] = {}
    for row in rows:
        ratios = (row["of_plain"], row["of_loop"], row["eval_of_plain"])
        shown.setdefault(row["option"], {})[row["layer"]] = " / ".join(f"{ratio:.2f}" for ratio in ratios)
    return [["option", *layers], *([option, *(of[layer] for layer in layers)] for option, of in shown.items())]


def streaming_table() -> Rows:
    """One step over that of torch's cell of the same kind."""
    rows = measured("streaming-cpu")["rows"]
    sizes = list(dict.fromkeys((row["hidden"], row["batch"]) for row in rows))
    of = {(row["case"], row["hidden"], row["batch"]): row for row in rows}
    names = [name for name in dict.fromkeys(row["case"] for row in rows) if not name.startswith("torch")]
    return [
        ["one step", "us, H=128, B=1", "against", *(f"H={hidden}, B={batch}" for hidden, batch in sizes)],
        *(
            [f"`{name}`", f"{of[name, *sizes[0]]['us']:.1f}", f"`{of[name, *sizes[0]]['against']}`"]
            + [f"{of[name, *size]['ratio']:.2f}" for size in sizes]
            for name in names
        ),
    ]


def compilers_table() -> Rows:
    layers = measured("compilers-cpu")["layers"]
    moments = {"first call, s": "first call", "first call, compiled before, s": "first call, code in the cache"}
    rows = [
        [f"`{name}`, {compiler}", *(f"{times[moment]:.1f} s" for moment in moments), f"{times['pass, ms']:.0f} ms"]
        for name, compilers in layers.items()
        for compiler, times in compilers.items()
    ]
    return [["layer", *moments.values(), "a pass"], *rows]
