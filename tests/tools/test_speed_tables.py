"""Tables and numbers of speed on the pages are those of the committed measurements."""

from __future__ import annotations

import pytest

import speed_tables
from h200_tables import GOALS, SIZE_NAMES, activation_ratios
from measurements import ROOT, measured, span
from speed_tables import PAGES

DETAILS = "docs/performance-details.md"


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next heading, on one line."""
    text = (ROOT / page).read_text("utf-8")
    begin = text.index(f"{heading}\n") + len(heading)
    end = text.find("\n#", begin)
    return " ".join(text[begin : end if end > 0 else None].split())


def assert_numbers(page: str, heading: str, numbers: list[str]) -> None:
    text = section(page, heading)
    assert [number for number in numbers if number not in text] == []


@pytest.mark.parametrize("page", PAGES)
def test_tables_hold_what_was_measured(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert text == speed_tables.rewritten(text)


def test_every_table_stands_on_a_page() -> None:
    text = "".join((ROOT / page).read_text("utf-8") for page in PAGES)
    assert {name for name in speed_tables.TABLES if f"<!-- table: {name} -->" not in text} == set()


def test_a_changed_table_is_written_again() -> None:
    text = (ROOT / "docs/performance.md").read_text("utf-8")
    (row,) = (line for line in text.splitlines() if line.startswith("| cornn |"))
    assert speed_tables.rewritten(text.replace(row, "| cornn | 0.00 |")) == text


def test_ratios_without_a_compiler_and_of_generated_code() -> None:
    ratios = measured("recurrence-cpu")["ratios"]
    numbers = [f"{ratios[f'evenflow {name}, not compiled']['torch']:.2f}" for name in ("RNN relu", "GRU", "LSTM")]
    by_hand = sorted(row["ratio"] for row in measured("cells-cpu")["rows"] if row["against"] == "by hand")
    median = (by_hand[41] + by_hand[42]) / 2
    assert len(by_hand) == 84
    assert_numbers("docs/performance.md", "## On a CPU", [*numbers, f"{median:.2f}", span(by_hand)])
    slower = sum(ratio > 1.03 for ratio in by_hand)
    assert_numbers("docs/cells.md", "## How fast", [f"{median:.2f}", span(by_hand), f"{slower} of them"])


def test_the_generated_cuda_that_the_pages_quote() -> None:
    own = [row["ratio"] for row in measured("cells-cuda")["rows"] if row["beside"] == "torch gru"]
    assert len(own) == 7
    for page, heading in (("README.md", "## Speed"), ("docs/performance.md", "## On an H200")):
        assert_numbers(page, heading, [span(own)])


def test_every_system_is_faster_than_cudnn() -> None:
    """One layer against cuDNN's of the same width, gated feedback against three layers with as many weights."""
    for task in ("mnist", "adding"):
        took = measured("training-cuda")[task]
        (stack,) = (took[label] for label in took if "3 layers of" in label and not label.endswith(" 128"))
        for system in (label for label in took if not label.startswith("torch") and " x " not in label):
            assert took[system] < (stack if system == "gated-feedback" else took["torch.nn.RNN"]), system


def test_which_points_miss_their_goal() -> None:
    ratios = dict(zip(SIZE_NAMES, activation_ratios(), strict=True))
    goals = dict(zip(SIZE_NAMES, GOALS, strict=True))
    missed = {size: {name for name, ratio in of.items() if ratio > goals[size]} for size, of in ratios.items()}
    gated = {f"gated {name}, exponential" for name in ("complex_modrelu", "oplu", "tanh", "prelu", "modrelu")}
    complex_modrelu = {"gated complex_modrelu, rotations", "gated complex_modrelu, svd"}
    assert missed["H=128 B=50"] == gated | complex_modrelu | {"Elman complex_modrelu, exponential"}
    assert missed["H=512 B=256"] == {"gated complex_modrelu, exponential"}
    wide = ratios["H=1024 B=50"].values()
    lowest_gated = [measured("goals-cuda")[f"{kind} H=1024 B=50"] for kind in ("gru", "lstm")]
    gates = [
        took / run["cuDNN"][how] for run in lowest_gated for name, both in run.items() if name != "cuDNN"
        for how, took in both.items()
    ]  # fmt: skip
    heading = "### What limits the cases that miss their goal"
    assert_numbers(DETAILS, heading, [span(wide), span(gates)])


def test_saved_tensors() -> None:
    runs = measured("kept-cuda")
    cells = ["Elman abs", "Elman prelu", "gated relu", "GRU", "LSTM"]
    longer = {name: runs[f"{name}, states alone"]["graph"] / runs[name]["graph"] for name in ["Elman tanh", *cells]}
    scripts = [run["eager"] for name, run in runs.items() if ", " in name and "feedback" not in name]
    feedback = [runs[f"gated feedback, {how}"]["eager"] for how in ("checkpointed", "states alone")]
    cudnn = measured("goals-cuda")["rnn H=128 B=50"]["cuDNN"]["graph"]
    numbers = [span(longer[name] for name in cells), f"{longer['Elman tanh']:.2f} times", f"{cudnn:.2f} ms"]
    numbers += [f"{span(scripts, 0)} ms", f"{feedback[0]:.0f} ms with 392 and {feedback[1]:.0f} ms with 1"]
    assert_numbers(DETAILS, "### Saved tensors", numbers)


def test_long_sequences_and_linear_recurrences_on_a_gpu() -> None:
    memory = measured("goals-cuda")["memory T=100000"]["H=128 B=16"]
    linear = measured("goals-cuda")["linear T=10000"]["H=128"]
    numbers = [
        f"{memory[f'checkpoint_every {every}, GB']:.2f} GB" for every in (None, 1000)
    ] + [f"{1e3 * memory[f'checkpoint_every {every}, seconds']:.0f} ms" for every in (None, 1000)]  # fmt: skip
    numbers += [f"{time:.2f}" for rows in (1, 10, 20) for time in
                (linear[f"B={rows}"]["plan_ms"], linear[f"B={rows}"]["steps_ms"])]  # fmt: skip
    assert_numbers(DETAILS, "### Several models, taps, long sequences", numbers)


def test_populations_over_three_runs() -> None:
    runs = [*measured("training-cuda-repeated")["runs"], measured("training-cuda")]
    for count in (16, 32):
        for run in runs:
            assert f"{run['mnist'][f'{count} x sgornn']:.1f}" in section(DETAILS, "### Updates")


def test_numbers_of_the_cpu() -> None:
    sizes, memory = measured("sizes-cpu"), measured("memory-cpu")
    large = sizes["1024, 50, 50"]
    numbers = [f"{large['LSTM'] / 1e3:.2f} s", f"{large['torch.nn.LSTM'] / 1e3:.2f} s"]
    assert_numbers(DETAILS, "### Layers", numbers)
    step = 1e3 * sizes["linear B=1"]["compiled, steps"] / 1e4
    assert_numbers(DETAILS, "### Linear recurrences", [f"{step:.2f} µs"])
    long = [memory[f"rnn, T=100000, {loss}, checkpoint_every=300"] for loss in ("output", "h_n")]
    numbers = [f"{run['GB']:.2f} GB and {run['seconds']:.1f} s" for run in long]
    assert_numbers(DETAILS, "### Long sequences in little memory", numbers)


def test_the_pieces_of_the_page_about_clusters() -> None:
    page = "docs/scale.md"
    lines = measured("scaling-cpu")["axes"]
    many = next(row["seconds"] for row in lines["M"]["LSTM"] if row["M"] == 256)
    alone = next(row["seconds"] for row in lines["M"]["LSTM"] if row["M"] == 1)
    each = many / 256
    numbers = [f"{each * 1e3:.2f} ms a model and update", f"one alone takes {alone * 1e3:.2f} ms"]
    assert_numbers(page, "## Ten thousand series", numbers)
    exchange = measured("data-parallel-cpu")["exchange"].values()
    least, most = min(e["seconds"] for e in exchange), max(e["gigabytes_a_second"] for e in exchange)
    mnist = measured("training-cuda")["mnist"]
    numbers = [f"{least * 1e3:.2f} ms at least", f"{most:.1f} GB/s at most", f"{2 * least * 1e3:.1f} ms"]
    numbers += [f"takes {mnist['16 x sgornn']:.1f} ms", f"one model takes {mnist['sgornn']:.2f} ms"]
    assert_numbers(page, "## Data-parallel training, and from which size it pays", numbers)
    hours = [10 * round(each * 1e9 / 3600 / 10), round(mnist["16 x sgornn"] / 16 * 1e6 / 3600)]
    numbers = [f"{hours[0]} core hours", f"{hours[1]} hours for a million runs"]
    assert_numbers(page, "## A plan for a million runs", numbers)
