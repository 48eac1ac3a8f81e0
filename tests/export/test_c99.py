"""Exported C beside the models it was made from."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from c99_program import build, export_and_run, needs_compiler

import evenflow
from evenflow.activations import ACTIVATIONS
from evenflow.systems import SYSTEMS

I, H, O, T = 9, 32, 2, 128
# Of the largest output, float32, T steps as in HAR: the order of sums differs from torch's.
ROUNDING = 1e-6
# Systems whose float32 result in torch is further from that in float64: the state of lstm-1997 grows, and the others
# keep what rounding adds to it.
LONGER = {"lstm-1997": 1e-5, "gated-feedback": 3e-6, "arjovsky-urnn": 3e-6, "vprnn": 2e-6}
# Of the largest output: 127 steps of int8, H terms, T steps of an untrained model.
INT8 = 0.25
# Code and constants of SGORNN for HAR-2, and its memory with the stack of a call.
FLASH, RAM = 12_000, 2_000


def layer(name: str, units: int = H, **options: object) -> torch.nn.Module:
    return evenflow.create(name, I, units, generator=torch.Generator().manual_seed(0), **options)


def model_of(made: torch.nn.Module, **options: object) -> evenflow.SequenceModel:
    options = {"readout": "every"} | options
    return evenflow.SequenceModel(made, O, generator=torch.Generator().manual_seed(1), **options).eval()


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def difference(result: torch.Tensor, expected: torch.Tensor) -> float:
    return ((result - expected).abs().max() / expected.abs().max()).item()


def expected(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(x)[0]


@needs_compiler
@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_equals_torch(name, tmp_path):
    model, x = model_of(layer(name)), draw(T, 2, I)
    y = expected(model, x)
    assert difference(export_and_run(model, x, tmp_path), y) <= LONGER.get(name, ROUNDING)
    approximate = export_and_run(model, x, tmp_path, approximate=True)
    assert difference(approximate, y) <= 2 * LONGER.get(name, ROUNDING)
    assert "math.h" not in (tmp_path / "model.c").read_text()
    int8 = export_and_run(model, x, tmp_path, weights="int8")
    assert 1e-5 < difference(int8, y) <= INT8


@evenflow.cell(states=("y", "z"), matrices=("W", "V"))
def cornn(a, y, z, W, V, *, dt=0.05, gamma=1.0, epsilon=0.5):
    z = z + dt * (torch.tanh(a + y @ W.mT + z @ V.mT) - gamma * y - epsilon * z)
    return y + dt * z, z


@evenflow.cell(states=("h",), matrices={"U": 3}, parameters=("g",), blocks=3)
def normalised_gru(a, h, U, g):
    a_r, a_z, a_n = a.chunk(3, -1)
    u_r, u_z, u_n = (h @ U.mT).chunk(3, -1)
    n = a_n + torch.sigmoid(a_r + u_r) * u_n
    n = (n - n.mean(-1, keepdim=True)) / (n.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
    z = torch.sigmoid(a_z + u_z)
    return z * h + (1 - z) * torch.tanh((1 + g) * n)


@evenflow.cell(states=("int", "häufig"), matrices=("U", "V"), parameters=("step", "w0_0", "größe"))
def oddly_named(a, int, häufig, U, V, step, w0_0, größe):
    """Names that C does not allow or that the file has too, a product of a product, and a state that is read late."""
    s = torch.softmax(häufig + (int @ U.mT) @ V.mT, -1) + step
    first = int[:, :1] * 0.5 + s[:, :1]
    return torch.cat([first, torch.tanh(a + w0_0 + s)[:, 1:] - 0.1 * first], -1), 0.5 * int + größe


@needs_compiler
@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("cell", [cornn(), normalised_gru(), oddly_named()], ids=lambda cell: cell.name)
def test_cells_of_ones_own(cell, approximate, tmp_path):
    model, x = model_of(evenflow.Recurrent(cell, I, H, num_layers=2)), draw(T, 2, I)
    with torch.no_grad():
        for name in ("g", "step", "w0_0", "größe"):
            for suffix in ("_l0", "_l1"):
                if hasattr(model.layer, name + suffix):
                    torch.nn.init.uniform_(getattr(model.layer, name + suffix), -0.5, 0.5)
    result = export_and_run(model, x, tmp_path, approximate=approximate)
    assert difference(result, expected(model, x)) <= 2 * ROUNDING


def swish(a):
    return a * torch.sigmoid(1.5 * a)


@needs_compiler
@pytest.mark.parametrize("activation", [*sorted(ACTIVATIONS), swish, torch.nn.functional.gelu, torch.log1p])
def test_every_activation_and_functions_of_ones_own(activation, tmp_path):
    model, x = model_of(layer("rnn", 16, activation=activation)), draw(30, 2, I)
    x = x.abs() if activation is torch.log1p else x
    if activation is torch.log1p:
        with torch.no_grad():
            for weight in model.layer.parameters():
                weight.abs_()
    for approximate in (False, True):
        result = export_and_run(model, x, tmp_path, approximate=approximate)
        assert difference(result, expected(model, x)) <= 2 * ROUNDING


@needs_compiler
@pytest.mark.parametrize("weights", ["float32", "int8"])
@pytest.mark.parametrize(
    "options",
    [
        {"vocabulary": 5},
        {"readout_units": 7},
        {"readout": "last", "vocabulary": 5, "readout_units": 3},
    ],
    ids=str,
)
def test_embeddings_readouts_learned_states_and_softmax(options, weights, tmp_path):
    model = model_of(layer("sgornn", initial_state="learned", num_layers=2), **options)
    torch.nn.init.uniform_(model.layer.h0_l0)
    torch.nn.init.uniform_(model.layer.h0_l1)
    x = torch.randint(5, (20, 3)) if "vocabulary" in options else draw(20, 3, I)
    result = export_and_run(model, x, tmp_path, softmax=True, weights=weights)
    y = expected(model, x).softmax(-1)
    result = result[-1] if options.get("readout") == "last" else result
    assert (result - y).abs().max() <= (ROUNDING if weights == "float32" else 0.05)


@needs_compiler
@pytest.mark.parametrize("weights", ["float32", "int8"])
@pytest.mark.parametrize("places", [(0,), (4,), (1, 2), (0, 2, 4)])
def test_columns_of_categories(places, weights, tmp_path):
    columns = [(place, 6, 2 + place) for place in places]
    width = 5 + sum(size - 1 for _, _, size in columns)
    model = model_of(evenflow.create("gru", width, 7), readout="every", column_embeddings=columns)
    x = draw(12, 3, 5)
    for place in places:
        x[..., place] = torch.randint(6, (12, 3)).float()
    mean = torch.tensor([0.0 if place in places else 3.0 for place in range(5)])
    scale = torch.tensor([1.0 if place in places else 2.0 for place in range(5)])
    result = export_and_run(model, x, tmp_path, scaling=(mean, scale), weights=weights)
    assert (result - expected(model, (x - mean) / scale)).abs().max() <= (ROUNDING if weights == "float32" else 0.1)
    wrong = x[:, :1].clone()
    wrong[3, 0, places[0]], wrong[7, 0, places[-1]] = 6, -1
    kept = [step for step in range(12) if step not in (3, 7)]
    left_out = export_and_run(model, wrong, tmp_path, scaling=(mean, scale), weights=weights)
    assert torch.equal(
        left_out[kept], export_and_run(model, wrong[kept], tmp_path, scaling=(mean, scale), weights=weights)
    )


@needs_compiler
@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_symbols_out_of_range_are_left_out(weights, tmp_path):
    model, x = model_of(layer("gru"), vocabulary=5), torch.tensor([[1], [-1], [4], [5], [2]])
    result = export_and_run(model, x, tmp_path, weights=weights)
    kept = export_and_run(model, x[[0, 2, 4]], tmp_path, weights=weights)
    assert torch.equal(result[[0, 2, 4]], kept)


@needs_compiler
@pytest.mark.parametrize(
    "make",
    [
        lambda: layer("lstm", proj_size=5, bias=False),
        lambda: layer("scrn", context_size=1, rates="learned"),
        lambda: layer("gated-feedback", unit="lstm", initial_state="learned"),
        lambda: layer("gru", num_layers=3, batch_first=True),
        lambda: layer("rnn", 1),
        lambda: layer("rnn", 2, map="rotations"),
        lambda: layer("rnn", map="householder", reflectors=5, activation="abs"),
        lambda: layer("sgornn", gain=1.05),
        lambda: layer("lstm").double(),
    ],
)
def test_layers_alone(make, tmp_path):
    made = make().eval()
    if made.initial_state == "learned":
        for name, weight in made.named_parameters():
            if name.startswith(("h0", "c0")):
                torch.nn.init.uniform_(weight)
    x = draw(50, 2, I)
    given = x.to(next(made.parameters()).dtype)
    y = expected(made, given.transpose(0, 1) if made.batch_first else given)
    y = y.transpose(0, 1) if made.batch_first else y
    assert difference(export_and_run(made, x, tmp_path), y) <= 2 * ROUNDING


@needs_compiler
@pytest.mark.parametrize("name", ["fastrnn", "gru", "lstm"])
def test_regularisers_are_exported_as_they_are_in_evaluation(name, tmp_path):
    options = {"recurrent_dropout": 0.3, "zoneout": 0.2, "layer_norm": True, "weight_dropout": 0.4}
    made, x = layer(name, **options), draw(50, 2, I)  # in training mode
    result = export_and_run(made, x, tmp_path)
    assert difference(result, expected(made.eval(), x)) <= 2 * ROUNDING


@needs_compiler
@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_scaled_inputs(weights, tmp_path):
    model, x = model_of(layer("sgornn")), draw(50, 2, I)
    mean, scale = 1000 * torch.rand(I).double(), torch.rand(I).double() + 0.1
    raw = (x.double() * scale + mean).float()
    outputs = ([100.0, -3.0], [7.0, 0.1])
    options = {"scaling": (mean, scale.tolist()), "output_scaling": outputs, "weights": weights}
    result = export_and_run(model, raw, tmp_path, **options)
    given = ((raw - mean.float()) / scale.float()).float()
    y = expected(model, given)
    for k, (shift, factor) in enumerate(zip(*outputs, strict=True)):
        assert difference((result[..., k] - shift) / factor, y[..., k]) <= (2e-5 if weights == "float32" else INT8)


@needs_compiler
@pytest.mark.parametrize("units", [2, 6, 32, 258, 300])
@pytest.mark.parametrize("spread", [0.05, 3.14159])
@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_rotations_of_any_angle_and_size(units, spread, weights, tmp_path):
    made = evenflow.RNN(I, units, map="rotations", activation="identity")
    with torch.no_grad():
        made.parametrizations.weight_hh_l0.original.uniform_(-spread, spread)
    model, x = model_of(made), draw(10, 2, I)
    error = difference(export_and_run(model, x, tmp_path, weights=weights), expected(model, x))
    assert error <= (4 * ROUNDING if weights == "float32" else INT8)  # up to 18 layers, each rounded in each step
    text = (tmp_path / "model.c").read_text()
    assert f"[{made.weight_hh_l0.numel()}]" not in text or units == 2  # no whole matrix
    assert ("static const signed char w0_0_l0[" in text) == (
        weights == "int8" and made.parametrizations.weight_hh_l0.original.abs().max() <= torch.pi / 2
    )


@needs_compiler
def test_int8_matrices_of_maps_stay_orthogonal(tmp_path):
    """A state that is turned many times keeps its length, although the numbers of its map are rounded to a byte."""
    for name in ("rotations", "householder"):
        made = evenflow.RNN(I, H, map=name, activation="identity", bias=False).eval()
        x = torch.cat([draw(1, 1, I), torch.zeros(400, 1, I)])
        length = export_and_run(made, x, tmp_path, weights="int8").norm(dim=-1)
        assert (length / length[0] - 1).abs().max() < 1e-4


@pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="there is no arm-none-eabi-gcc")
def test_sgornn_for_har_fits_a_microcontroller(tmp_path):
    model = model_of(layer("sgornn", 128), readout="last")
    assert model.parameter_counts()["total"] == 2436
    evenflow.export.to_c(model, tmp_path / "model.c")
    flags = "-std=c99 -mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16 -Os -fstack-usage -c model.c"
    subprocess.run(["arm-none-eabi-gcc", *flags.split()], cwd=tmp_path, check=True)
    sizes = subprocess.run(["arm-none-eabi-size", "model.o"], cwd=tmp_path, check=True, capture_output=True, text=True)
    text, data, bss = map(int, sizes.stdout.splitlines()[1].split()[:3])
    stack = sum(int(line.split("\t")[1]) for line in (tmp_path / "model.su").read_text().splitlines())
    assert text + data <= FLASH
    assert data + bss + 128 * 4 + stack <= RAM  # with all functions on the stack at once


@needs_compiler
def test_the_program_of_the_page_classifies_a_sequence(tmp_path):
    page = (Path(__file__).parents[2] / "docs/export.md").read_text(encoding="utf-8")
    (tmp_path / "main.c").write_text(page.split("```c\n")[1].split("```")[0])
    model, x = model_of(layer("sgornn"), readout="last"), draw(T, 1, I)
    evenflow.export.to_c(model, tmp_path / "model.c", softmax=True)
    build(tmp_path, ["main.c", "model.c"], "program", ["-lm"])
    text = " ".join(f"{v:.9g}" for v in x.flatten().tolist())
    done = subprocess.run([str(tmp_path / "program")], input=text, capture_output=True, encoding="ascii", check=True)
    assert torch.allclose(
        torch.tensor([float(v) for v in done.stdout.split()]), expected(model, x).softmax(-1), atol=1e-5
    )


def test_a_file_is_named_by_its_prefix(tmp_path):
    evenflow.export.to_c(layer("rnn"), tmp_path / "my-model 2.c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my-model 2.c", "my-model 2.h"]
    header = (tmp_path / "my-model 2.h").read_text()
    assert "void my_model_2_step(my_model_2_state *state, const float *x);" in header
    assert '#include "my-model 2.h"' in (tmp_path / "my-model 2.c").read_text()


def bad_weight() -> torch.nn.Module:
    made = layer("rnn")
    with torch.no_grad():
        made.weight_hh_l0[0, 0] = torch.nan
    return made


class Projecting(evenflow.cells.LSTMStep):
    def project(self, x, weights):
        return super().project(2 * x, weights)


def projecting_layer() -> torch.nn.Module:
    made = layer("lstm")
    made.cell = Projecting()
    return made


@evenflow.cell()
def sorted_cell(a, h, U):
    return torch.tanh(a + h @ U.mT).sort(-1)[0]


def sorting_layer() -> torch.nn.Module:
    return evenflow.Recurrent(sorted_cell(), 3, 4)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: layer("lstm", bidirectional=True), {}, "model must not be bidirectional: "),
        (lambda: evenflow.SequenceModel(torch.nn.GRU(3, 4), 2), {}, "model must be a SequenceModel over a recurrent "),
        (lambda: layer("rnn").half(), {}, "model must hold float32 or float64 numbers, got torch.float16"),
        (lambda: layer("rnn"), {"softmax": True}, "softmax must be False for a layer, which has no readout"),
        (lambda: layer("rnn"), {"weights": "int4"}, "weights must be one of float32, int8, got 'int4'"),
        (lambda: layer("rnn"), {"path": "model.cpp"}, "path must end in .c, got "),
        (lambda: layer("rnn"), {"path": "2.c"}, "path must name a file that begins with a letter, "),
        (bad_weight, {}, "the weights of the model must be finite numbers of float32, but those of w0_0_l0 are not"),
        (bad_weight, {"weights": "int8"}, "the weights of the model must be finite numbers of float32, but those of "),
        (sorting_layer, {}, "the step of sorted_cell cannot be exported: the operation sort"),
        (projecting_layer, {}, "the step of Projecting cannot be exported: it has a "),
        (lambda: layer("rnn"), {"scaling": ([0.0] * 3, [1.0] * 3)}, "the mean in scaling must be 9 finite numbers, "),
        (lambda: layer("rnn"), {"scaling": ([0.0] * 9, [0.0] * 9)}, "the scale in scaling must be above 0 for every "),
        (
            lambda: layer("rnn"),
            {"output_scaling": ([0.0], [1.0])},
            "output_scaling must be None for a layer, which has",
        ),
        (
            lambda: model_of(layer("rnn")),
            {"output_scaling": ([0.0] * 2, [1.0] * 2), "softmax": True},
            "output_scaling must be None with softmax, whose outputs are probabilities",
        ),
        (lambda: layer("rnn"), {"scaling": [1.0]}, "scaling must be a pair (mean, scale), got [1.0]"),
        (
            lambda: model_of(layer("rnn"), vocabulary=4),
            {"scaling": ([0.0] * 9, [1.0] * 9)},
            "scaling must be None for a model with a vocabulary, whose inputs are symbols",
        ),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_sentence(make, options, message, tmp_path):
    path = tmp_path / options.pop("path", "model.c")
    made = make()
    with pytest.raises(ValueError) as error:
        evenflow.export.to_c(made, path, **options)
    assert str(error.value).startswith(message)
    assert not list(tmp_path.iterdir())


def test_the_files_before_stay_when_an_export_fails(tmp_path):
    evenflow.export.to_c(layer("rnn"), tmp_path / "model.c")
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError):
        evenflow.export.to_c(bad_weight(), tmp_path / "model.c")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
