"""ONNX files in onnxruntime beside the models they were made from."""

from __future__ import annotations

import pytest
import torch

import evenflow
from evenflow.systems import SYSTEMS

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

I, H, O = 3, 16, 2
# Of the largest number, float32: the two runtimes order their sums differently.
ROUNDING = 1e-5


def layer(name: str, **options: object) -> torch.nn.Module:
    return evenflow.create(name, I, H, generator=torch.Generator().manual_seed(0), **options)


def run(path, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    results = session.run(names, {name: value.numpy() for name, value in inputs.items()})
    return dict(zip(names, map(torch.from_numpy, results), strict=True))


def agree(result: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((result - expected).abs().max() <= ROUNDING * max(1.0, expected.abs().max().item()))


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_for_any_length_and_batch(name, tmp_path):
    model = evenflow.SequenceModel(layer(name), O, readout="every").eval()
    evenflow.export.to_onnx(model, tmp_path / "model.onnx")
    for steps, rows in ((1, 1), (7, 3), (784, 2)):
        x = draw(steps, rows, I)
        with torch.no_grad():
            expected, state = model(x)
        results = run(tmp_path / "model.onnx", x=x)
        assert agree(results["y"], expected)
        for name, member in zip(model.layer.cell.states, state if isinstance(state, tuple) else (state,), strict=True):
            assert agree(results[f"{name}_n"], member)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("name", ["rnn", "lstm", "sgornn", "gated-feedback"])
def test_layers_directions_and_initial_states(name, tmp_path):
    options = {"num_layers": 2} | ({} if name == "gated-feedback" else {"bidirectional": True, "batch_first": True})
    made = layer(name, **options).eval()
    evenflow.export.to_onnx(made, tmp_path / "layer.onnx", states=True)
    members = 2 if name == "gated-feedback" else 4
    x = draw(4, 9, I) if made.batch_first else draw(9, 4, I)
    states = [draw(members, 4, H) for _ in made.cell.states]
    with torch.no_grad():
        expected, final = made(x, tuple(states) if len(states) > 1 else states[0])
    results = run(tmp_path / "layer.onnx", x=x, **dict(zip((f"{n}_0" for n in made.cell.states), states, strict=True)))
    assert agree(results["y"], expected)
    for name, member in zip(made.cell.states, final if len(states) > 1 else (final,), strict=True):
        assert agree(results[f"{name}_n"], member)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lstm", {"proj_size": 5}),
        ("lstm", {"proj_size": 5, "bidirectional": True}),
        ("gated-feedback", {"unit": "lstm"}),
    ],
)
@pytest.mark.parametrize("given", [False, True])
def test_states_of_several_sizes_and_learned_states(name, options, given, tmp_path):
    made = layer(name, initial_state="learned", **options).eval()
    for key, weight in made.named_parameters():
        if key.startswith(("h0", "c0")):
            torch.nn.init.uniform_(weight)
    evenflow.export.to_onnx(made, tmp_path / "layer.onnx", states=given)
    x, members = draw(9, 4, I), len(made.suffixes)
    states = tuple(draw(members, 4, size) for size in made.state_sizes)
    with torch.no_grad():
        expected, final = made(x, states if given else None)
    first = dict(zip(("h_0", "c_0"), states, strict=True)) if given else {}
    results = run(tmp_path / "layer.onnx", x=x, **first)
    assert agree(results["y"], expected)
    assert all(agree(results[f"{name}_n"], state) for name, state in zip("hc", final, strict=True))


def test_scaled_inputs(tmp_path):
    model = evenflow.SequenceModel(layer("sgornn"), O).eval()
    mean, scale = 100 * torch.rand(I), torch.rand(I) + 0.1
    options = {"scaling": (mean.tolist(), scale), "output_scaling": ([1.0, -2.0], [3.0, 0.5])}
    evenflow.export.to_onnx(model, tmp_path / "model.onnx", **options)
    x = mean + scale * draw(20, 4, I)
    with torch.no_grad():
        expected = model((x - mean) / scale)[0] * torch.tensor([3.0, 0.5]) + torch.tensor([1.0, -2.0])
    assert agree(run(tmp_path / "model.onnx", x=x)["y"], expected)


@pytest.mark.parametrize("options", [{"vocabulary": 5}, {"readout_units": 7}, {"readout": "every", "vocabulary": 5}])
def test_embeddings_readouts_and_softmax(options, tmp_path):
    model = evenflow.SequenceModel(layer("sgornn", initial_state="learned"), O, **options).eval()
    evenflow.export.to_onnx(model, tmp_path / "model.onnx", softmax=True)
    x = torch.randint(5, (9, 4)) if "vocabulary" in options else draw(9, 4, I)
    with torch.no_grad():
        assert agree(run(tmp_path / "model.onnx", x=x)["y"], model(x)[0].softmax(-1))


def with_positions(*places: int) -> torch.Tensor:
    """Inputs ``(9, 4, 5)`` with whole numbers below 6 in some columns."""
    x = draw(9, 4, 5)
    for place in places:
        x[..., place] = torch.randint(6, (9, 4)).float()
    return x


@pytest.mark.parametrize("places", [(0,), (4,), (1, 2), (0, 2, 4)])
def test_columns_of_categories(places, tmp_path):
    columns = [(place, 6, 2 + place) for place in places]
    width = 5 + sum(size - 1 for _, _, size in columns)
    model = evenflow.SequenceModel(evenflow.create("gru", width, 7), O, column_embeddings=columns).eval()
    mean = torch.tensor([0.0 if place in places else 3.0 for place in range(5)])
    scale = torch.tensor([1.0 if place in places else 2.0 for place in range(5)])
    evenflow.export.to_onnx(model, tmp_path / "model.onnx", scaling=(mean, scale))
    x = with_positions(*places)
    with torch.no_grad():
        assert agree(run(tmp_path / "model.onnx", x=x)["y"], model((x - mean) / scale)[0])


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
    return z * h + (1 - z) * torch.tanh(g * n)


@pytest.mark.parametrize("cell", [cornn(), normalised_gru()])
def test_cells_of_ones_own(cell, tmp_path):
    model = evenflow.SequenceModel(evenflow.Recurrent(cell, I, H), O).eval()
    evenflow.export.to_onnx(model, tmp_path / "model.onnx")
    x = draw(20, 4, I)
    with torch.no_grad():
        assert agree(run(tmp_path / "model.onnx", x=x)["y"], model(x)[0])


@pytest.mark.parametrize("name", ["rnn", "gru", "lstm", "scrn"])
def test_regularisers_are_exported_as_they_are_in_evaluation(name, tmp_path):
    options = {"recurrent_dropout": 0.3, "zoneout": 0.2, "layer_norm": True, "weight_dropout": 0.4}
    made = layer(name, num_layers=2, bidirectional=True, **options)  # in training mode
    evenflow.export.to_onnx(made, tmp_path / "layer.onnx")
    x = draw(9, 4, I)
    with torch.no_grad():
        assert agree(run(tmp_path / "layer.onnx", x=x)["y"], made.eval()(x)[0])


@pytest.mark.parametrize("activation", sorted(evenflow.activations.ACTIVATIONS))
def test_every_activation(activation, tmp_path):
    made = layer("rnn", activation=activation).eval()
    evenflow.export.to_onnx(made, tmp_path / "layer.onnx")
    x = draw(9, 4, I)
    with torch.no_grad():
        assert agree(run(tmp_path / "layer.onnx", x=x)["y"], made(x)[0])


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_file_is_little_more_than_its_weights(name, tmp_path):
    made = evenflow.SequenceModel(evenflow.create(name, 9, 128), 2)
    evenflow.export.to_onnx(made, tmp_path / "model.onnx")
    layer, cell = made.layer, made.layer.cell
    read = layer.step_weights(0)
    names = {"weight_ih", "bias", *cell.recurrent, *cell.parameters} & read.keys()  # and not those that these are from
    weights = sum(read[name].numel() for name in names) + sum(w.numel() for w in made.output.parameters())
    assert (tmp_path / "model.onnx").stat().st_size <= 1.2 * 4 * weights + 20_000


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (
            lambda: evenflow.SequenceModel(torch.nn.GRU(3, 4), 2),
            {},
            "model must be a SequenceModel over a recurrent layer, or the layer, got GRU",
        ),
        (lambda: layer("rnn").bfloat16(), {}, "model must hold float32 or float64 numbers, got torch.bfloat16"),
        (lambda: layer("rnn"), {"softmax": True}, "softmax must be False for a layer, which has no readout"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_sentence(make, options, message, tmp_path):
    with pytest.raises(ValueError) as error:
        evenflow.export.to_onnx(make(), tmp_path / "model.onnx", **options)
    assert str(error.value) == message
    assert not list(tmp_path.iterdir())


def test_double_precision(tmp_path):
    made = layer("urnn").double().eval()
    evenflow.export.to_onnx(made, tmp_path / "layer.onnx")
    x = draw(50, 4, I).double()
    with torch.no_grad():
        assert torch.allclose(run(tmp_path / "layer.onnx", x=x)["y"], made(x)[0], atol=1e-11)
