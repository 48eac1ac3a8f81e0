"""Recurrent dropout, zoneout, layer normalisation, weight dropout: against loops written here, with the same masks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import evenflow
from evenflow import GRU, LSTM, RNN, SCRN, ComplexRNN, GatedFeedbackRNN, Recurrent, ScalarGatedRNN, SequenceModel
from evenflow.cells import CELLS, Cell, Elman, ProjectedLSTM, Regularised, Weights, regularised
from evenflow.cells.regularised import takes
from evenflow.models import Population
from evenflow.step import Untranslatable

SAME = {"atol": 1e-10, "rtol": 1e-9}  # float64, the same sums in another order
SINGLE = {"atol": 1e-4, "rtol": 1e-4}  # float32, sums of some hundred terms in another order
INPUT, HIDDEN, STEPS = 3, 6, 7
LENGTHS = torch.tensor([7, 7, 5, 2, 1])

LAYERS: dict[str, Callable[..., Recurrent]] = {
    "rnn": lambda **o: RNN(INPUT, HIDDEN, activation="sin", **o),
    "scalar-gated": lambda **o: ScalarGatedRNN(INPUT, HIDDEN, activation="tanh", **o),
    "gru": lambda **o: GRU(INPUT, HIDDEN, **o),
    "lstm": lambda **o: LSTM(INPUT, HIDDEN, **o),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "recurrent dropout": {"recurrent_dropout": 0.4},
    "zoneout": {"zoneout": 0.3},
    "layer norm": {"layer_norm": True},
    "weight dropout": {"weight_dropout": 0.5},
    "all": {"recurrent_dropout": 0.4, "zoneout": 0.3, "layer_norm": True, "weight_dropout": 0.5},
}
NOISE = [name for name in OPTIONS if name != "layer norm"]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class Drawn:
    """The masks that a layer drew, in the order of its layers and directions."""

    def __init__(self, layer: Recurrent) -> None:
        self.masks: list[Tensor | None] = []
        self.weights: list[dict[str, Tensor]] = []
        cell = layer.cell
        assert isinstance(cell, Regularised)
        masks, drop_weights = type(cell).masks, type(cell).drop_weights

        def draw_masks(*arguments: Any) -> Tensor | None:
            self.masks.append(masks(cell, *arguments))
            return self.masks[-1]

        def draw_weights(weights: Any) -> Any:
            drawn = drop_weights(cell, weights)
            # What was dropped, as factors: the loop applies them to weights of its own.
            self.weights.append(
                {n: (w != 0) / (1 - cell.weight_dropout) for n, w in drawn.items() if n in cell.dropped}
            )
            return drawn

        cell.masks, cell.drop_weights = draw_masks, draw_weights  # type: ignore[method-assign]


def one_step(kind: str, a: Tensor, before: list[Tensor], w: dict[str, Tensor], kept: Tensor | float, norm: Any) -> Any:
    """The new states; `norm` normalises one gate."""
    h = before[0]
    u = [piece.mT for piece in w["weight_hh"].chunk({"gru": 2, "lstm": 4}.get(kind, 1))]
    x = a.chunk({"gru": 3, "lstm": 4}.get(kind, 1), -1)
    if kind == "rnn":
        return [torch.sin(norm(0, x[0] + (h * kept) @ u[0]))]
    if kind == "scalar-gated":
        f = torch.tanh(norm(0, x[0] + (h * kept) @ u[0]))
        return [w["gate_alpha"].sigmoid() * f + w["gate_beta"].sigmoid() * h]
    if kind == "gru":
        r, z = (torch.sigmoid(norm(k, x[k] + (h * kept) @ u[k])) for k in (0, 1))
        n = torch.tanh(norm(2, x[2] + r * ((h * kept) @ w["weight_hh_n"].mT + w["bias_hh_n"])))
        return [(1 - z) * n + z * h]
    i, f, g, o = (norm(k, x[k] + (h * kept) @ u[k]) for k in range(4))
    c = torch.sigmoid(f) * before[1] + torch.sigmoid(i) * torch.tanh(g)
    return [torch.sigmoid(o) * torch.tanh(norm(4, c)), c]


def loop(layer: Recurrent, kind: str, x: Tensor, lengths: Tensor, drawn: Drawn) -> list[Tensor]:
    """Output and final states of a layer, from its equations, sequence by sequence."""
    cell = layer.cell
    assert isinstance(cell, Regularised)
    finals: list[list[Tensor]] = []
    directions = 2 if layer.bidirectional else 1
    for index, suffix in enumerate(layer.suffixes):
        if index % directions == 0:
            outputs: list[Tensor] = []
        w = layer.direction_weights(index)
        if layer.training and drawn.weights:
            w |= {name: w[name] * factor for name, factor in drawn.weights[index].items() if cell.weight_dropout}
        columns = drawn.masks[index] if layer.training and drawn.masks else None
        sides: list[Tensor] = []
        ends: list[list[Tensor]] = []
        for b, length in enumerate(lengths.tolist()):
            states = [torch.zeros(1, HIDDEN, dtype=x.dtype) for _ in cell.states]
            every: list[Tensor] = []
            steps = range(length)
            for n, t in enumerate(reversed(steps) if suffix.endswith("reverse") else steps):
                masks = [] if columns is None else list(columns[n, b : b + 1].split(HIDDEN, -1))
                kept = masks.pop(0) / (1 - cell.recurrent_dropout) if masks and cell.recurrent_dropout else 1.0
                share = x[t, b : b + 1] @ w["weight_ih"].mT

                def norm(k: int, z: Tensor, w: dict[str, Tensor] = w) -> Tensor:
                    part = slice(k * HIDDEN, (k + 1) * HIDDEN)
                    if not cell.layer_norm:
                        return z
                    z = layer_norm(z, (HIDDEN,)) * w["norm"][part]
                    return z + w["bias"][part] if k * HIDDEN < len(w["bias"]) else z

                a = share if cell.layer_norm else share + w["bias"]
                new = one_step(kind, a, states, w, kept, norm)
                for i, p in enumerate(cell.zoneout):
                    if p and masks:
                        d = masks.pop(0)
                        new[i] = d * states[i] + (1 - d) * new[i]
                    elif p:
                        new[i] = p * states[i] + (1 - p) * new[i]
                states = new
                every.append(states[0])
            ends.append(states)
            every = every[::-1] if suffix.endswith("reverse") else every
            sides.append(torch.nn.functional.pad(torch.cat(every), (0, 0, 0, len(x) - length)))
        outputs.append(torch.stack(sides, 1))
        finals.append([torch.cat(member) for member in zip(*ends, strict=True)])
        if index % directions == directions - 1:
            x = torch.cat(outputs, -1)
    return [x, *(torch.stack(member) for member in zip(*finals, strict=True))]


def flat(result: Any) -> list[Tensor]:
    output, state = result
    output = pad_packed_sequence(output)[0] if not isinstance(output, Tensor) else output
    return [output, *(state if isinstance(state, tuple) else (state,))]


def gradients(results: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
    weighed = [torch.linspace(-1, 2, r.numel(), dtype=r.dtype).reshape(r.shape) for r in results]
    return list(torch.autograd.grad(sum((r * w).sum() for r, w in zip(results, weighed, strict=True)), leaves))


@pytest.mark.parametrize("engine", ["auto", "torch", "reference"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", LAYERS)
def test_equals_a_loop_with_the_same_masks(kind: str, option: str, engine: str) -> None:
    """Outputs, final states and all gradients of two ragged bidirectional layers."""
    layer = LAYERS[kind](
        num_layers=2, bidirectional=True, engine=engine, dtype=torch.float64, generator=None, **OPTIONS[option]
    )
    with torch.no_grad():  # away from starting values that are all alike
        for name, p in layer.named_parameters():
            if name.startswith(("bias", "norm")):
                p.add_(0.3 * torch.randn_like(p))
    drawn = Drawn(layer)
    x = torch.randn(STEPS, len(LENGTHS), INPUT, dtype=torch.float64, requires_grad=True)
    leaves = [x, *layer.parameters()]
    results = flat(layer(pack_padded_sequence(x, LENGTHS)))
    expected = loop(layer, kind, x, LENGTHS, drawn)
    for got, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(got, wanted, **SAME)
    for got, wanted in zip(gradients(results, leaves), gradients(expected, leaves), strict=True):
        torch.testing.assert_close(got, wanted, **SAME)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", LAYERS)
def test_evaluation_is_without_noise_and_has_the_expectation_of_zoneout(kind: str, option: str) -> None:
    layer = LAYERS[kind](dtype=torch.float64, **OPTIONS[option]).eval()
    drawn = Drawn(layer)
    x = torch.randn(STEPS, len(LENGTHS), INPUT, dtype=torch.float64)
    results = flat(layer(pack_padded_sequence(x, LENGTHS)))
    assert not drawn.masks
    assert not drawn.weights
    for got, wanted in zip(results, loop(layer, kind, x, LENGTHS, drawn), strict=True):
        torch.testing.assert_close(got, wanted, **SAME)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", CELLS)
def test_every_cell_takes_an_option_or_refuses_it(name: str, option: str) -> None:
    """What a cell takes runs fused, and equals the plain loop."""
    if name == "gated_feedback":
        with pytest.raises(ValueError, match="layers share one step"):
            GatedFeedbackRNN(INPUT, HIDDEN, **{"zoneout": 0.1, "weight_dropout": 0.1})
        return
    options = dict(OPTIONS[option])
    if not takes(CELLS[name](), "read") and options.pop("recurrent_dropout", 0):
        with pytest.raises(ValueError, match=f"recurrent_dropout must be 0 with {CELLS[name]().name}"):
            Recurrent(CELLS[name](), INPUT, HIDDEN, **OPTIONS[option])
    if not takes(CELLS[name](), "normal") and options.pop("layer_norm", False):
        with pytest.raises(ValueError, match=f"layer_norm must be False with {CELLS[name]().name}"):
            Recurrent(CELLS[name](), INPUT, HIDDEN, layer_norm=True)
    layer = Recurrent(CELLS[name](), INPUT, HIDDEN, dtype=torch.float64, **options)
    x = torch.randn(STEPS, 4, INPUT, dtype=torch.float64)
    seen = []
    for engine in ("auto", "torch", "reference"):
        layer.engine = engine
        torch.manual_seed(1)
        results = flat(layer(x))
        seen.append([*results, *gradients(results, list(layer.parameters()))])
    assert layer.cell.programs
    assert not any(isinstance(program, Untranslatable) for program in layer.cell.programs.values())
    for other in seen[:2]:
        for got, wanted in zip(other, seen[2], strict=True):
            torch.testing.assert_close(got, wanted, **SAME)


MAKERS: dict[str, Callable[[], Cell]] = {name: make for name, make in CELLS.items() if name != "gated_feedback"}
MAKERS["lstm_projected"] = lambda: ProjectedLSTM(4)


@pytest.mark.parametrize("name", [name for name in MAKERS if takes(MAKERS[name](), "read")])
def test_recurrent_dropout_of_one_sequence_is_a_matrix_without_some_columns(name: str) -> None:
    """``U (m h) = (U diag(m)) h``."""
    torch.manual_seed(9)
    layer = Recurrent(MAKERS[name](), INPUT, HIDDEN, recurrent_dropout=0.4, dtype=torch.float64)
    torch.manual_seed(9)
    plain = Recurrent(MAKERS[name](), INPUT, HIDDEN, dtype=torch.float64)
    drawn = Drawn(layer)
    x = torch.randn(STEPS, 1, INPUT, dtype=torch.float64)
    got = layer(x)[0]
    assert drawn.masks[0] is not None
    kept = drawn.masks[0][0, 0] / 0.6
    with torch.no_grad():
        for matrix in ("weight_hh_l0", "weight_hh_n_l0", "weight_ah_l0"):
            if hasattr(plain, matrix):
                weight = getattr(plain, matrix)
                setattr(plain, matrix, torch.nn.Parameter(weight * kept[: weight.shape[-1]]))
    torch.testing.assert_close(got, plain(x)[0], **SAME)


@pytest.mark.parametrize("name", [name for name in MAKERS if takes(MAKERS[name](), "normal")])
def test_layer_normalisation_takes_the_scale_away(name: str) -> None:
    layer = Recurrent(MAKERS[name](), INPUT, HIDDEN, layer_norm=True, dtype=torch.float64)
    x = torch.randn(STEPS, 4, INPUT, dtype=torch.float64)
    expected = layer(x)[0]
    with torch.no_grad():
        plain = slice(None, HIDDEN - 1 if name == "scrn" else None)  # without the context unit
        for weight, rows in (
            ("weight_ih", plain),
            ("weight_hh", slice(None)),
            ("weight_hh_n", slice(None)),
            ("weight_hs", slice(None)),
        ):
            if hasattr(layer, f"{weight}_l0"):
                getattr(layer, f"{weight}_l0")[rows] *= 1000
    torch.testing.assert_close(layer(x)[0], expected, atol=1e-3, rtol=1e-3)  # eps is 1e-5 of a variance near 0.1


@pytest.mark.parametrize("kind", LAYERS)
def test_probabilities_of_zero_are_no_option(kind: str) -> None:
    zero = {"recurrent_dropout": 0.0, "zoneout": 0, "layer_norm": False, "weight_dropout": 0.0}
    torch.manual_seed(2)
    plain = LAYERS[kind]()
    torch.manual_seed(2)
    layer = LAYERS[kind](**zero)
    assert type(layer.cell) is type(plain.cell)
    assert repr(layer) == repr(plain)
    x = torch.randn(STEPS, 4, INPUT)
    assert torch.equal(layer(x)[0], plain(x)[0])


@pytest.mark.parametrize("option", NOISE)
@pytest.mark.parametrize("kind", LAYERS)
def test_a_seed_repeats_a_pass(kind: str, option: str) -> None:
    layer = LAYERS[kind](**OPTIONS[option])
    x = torch.randn(STEPS, 4, INPUT)
    first, second = (layer(x)[0] for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    third = layer(x)[0]
    torch.manual_seed(5)
    assert torch.equal(layer(x)[0], third)
    assert torch.equal(layer.eval()(x)[0], layer(x)[0])


def test_masks_are_those_of_the_papers() -> None:
    """One mask for all steps of a sequence; a new one for each step and unit; one for a matrix in the whole pass."""
    layer = LSTM(INPUT, 50, recurrent_dropout=0.3, zoneout=(0.1, 0.6), weight_dropout=0.2)
    drawn = Drawn(layer)
    layer(torch.randn(40, 30, INPUT))
    assert drawn.masks[0] is not None
    kept, h, c = drawn.masks[0].split(50, -1)
    assert torch.equal(kept, kept[:1].expand_as(kept))
    bound = 0.03  # five standard deviations of the mean of 1500 draws are 0.06; of 60,000, 0.01
    for mask, share, most in ((kept[0], 0.7, 2 * bound), (h, 0.1, bound), (c, 0.6, bound)):
        assert set(mask.unique().tolist()) == {0.0, 1.0}
        assert abs(mask.mean() - share) < most
    dropped = drawn.weights[0]["weight_hh"]
    assert abs((dropped == 0).double().mean() - 0.2) < bound


def test_complex_units_keep_or_lose_both_numbers() -> None:
    layer = ComplexRNN(INPUT, 8, recurrent_dropout=0.5, zoneout=0.5)
    drawn = Drawn(layer)
    layer(torch.randn(STEPS, 4, INPUT))
    assert drawn.masks[0] is not None
    for mask in drawn.masks[0].split(8, -1):
        assert torch.equal(mask[..., :4], mask[..., 4:])


@pytest.mark.parametrize("option", OPTIONS)
def test_settings_copies_and_state_dicts_carry_the_options(option: str) -> None:
    options = OPTIONS[option]
    layer = evenflow.create("gru", INPUT, HIDDEN, num_layers=2, **options)
    assert {name: layer.cell.settings()[name] for name in options} == options
    for name, value in options.items():
        assert f"{name}={value!r}" in repr(layer)
    twin = pickle.loads(pickle.dumps(layer))
    assert repr(twin) == repr(layer)
    other = evenflow.create("gru", INPUT, HIDDEN, num_layers=2, **options)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(STEPS, 4, INPUT)
    for same in (twin, other):
        torch.manual_seed(3)
        expected = layer(x)[0]
        torch.manual_seed(3)
        assert torch.equal(same(x)[0], expected)
    names = {name for name, _ in evenflow.create("gru", INPUT, HIDDEN, num_layers=2).named_parameters()}
    added = {"norm_l0", "norm_l1"} if options.get("layer_norm") else set()
    assert {name for name, _ in layer.named_parameters()} == names | added


@pytest.mark.parametrize("option", OPTIONS)
def test_a_saved_model_has_the_options(option: str, tmp_path: Path) -> None:
    model = SequenceModel(LSTM(INPUT, HIDDEN, **OPTIONS[option]), 2)
    evenflow.save(model, tmp_path / "model")
    loaded = evenflow.load(tmp_path / "model").model
    assert repr(loaded.layer) == repr(model.layer)
    x = torch.randn(STEPS, 4, INPUT)
    assert torch.equal(loaded.eval()(x)[0], model.eval()(x)[0])


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("every", [1, 3])
def test_checkpoints_change_nothing(option: str, every: int) -> None:
    layer = LSTM(INPUT, HIDDEN, dtype=torch.float64, **OPTIONS[option])
    x = torch.randn(STEPS, 4, INPUT, dtype=torch.float64, requires_grad=True)
    seen = []
    for checkpoint_every in (None, every):
        layer.checkpoint_every = checkpoint_every
        torch.manual_seed(4)
        results = flat(layer(x))
        seen.append([*results, *gradients(results, [x, *layer.parameters()])])
    for got, wanted in zip(*reversed(seen), strict=True):
        torch.testing.assert_close(got, wanted, **SAME)


@pytest.mark.parametrize("option", OPTIONS)
def test_second_derivatives(option: str) -> None:
    """The loop that differentiates again has the masks of the first pass."""
    layer = GRU(INPUT, HIDDEN, dtype=torch.float64, **OPTIONS[option])
    x = torch.randn(3, 2, INPUT, dtype=torch.float64, requires_grad=True)

    def output(x: Tensor) -> Tensor:
        torch.manual_seed(6)
        return layer(x)[0]

    assert torch.autograd.gradcheck(output, (x,))
    assert torch.autograd.gradgradcheck(output, (x,))


@pytest.mark.parametrize("storage", ["bfloat16", "float16"])
def test_half_precision_keeps_masks_exact(storage: str) -> None:
    layer = GRU(INPUT, 32, storage=storage, recurrent_dropout=0.4, zoneout=0.3)
    x = torch.randn(STEPS, 4, INPUT)
    torch.manual_seed(7)
    half = layer(x)[0].float()
    layer.storage = None
    torch.manual_seed(7)
    torch.testing.assert_close(half, layer(x)[0], atol=0.05, rtol=0.05)  # eight bits of bfloat16, seven steps


def test_the_models_of_a_population_have_masks_of_their_own() -> None:
    options = {"recurrent_dropout": 0.4, "zoneout": 0.3, "layer_norm": True, "weight_dropout": 0.5}
    first = SequenceModel(GRU(INPUT, HIDDEN, **options), 2)
    models = [first, pickle.loads(pickle.dumps(first))]
    population = Population(models)
    x = torch.randn(STEPS, 4, INPUT)
    outputs, _ = population(torch.stack([x, x]))
    assert not torch.allclose(outputs[0], outputs[1])
    outputs.sum().backward()
    assert all(p.grad is not None for p in population.parameters())
    population.eval()
    outputs, _ = population(torch.stack([x, x]))
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(outputs[0], first(x)[0], **SINGLE)


@evenflow.cell()
def leaky(a: Tensor, h: Tensor, U: Tensor) -> Tensor:
    """half of the state before"""
    return 0.5 * h + 0.5 * torch.tanh(a + h @ U.mT)


def test_a_cell_of_ones_own_takes_what_needs_no_help_of_its_step() -> None:
    layer = Recurrent(leaky(), INPUT, HIDDEN, zoneout=0.2, weight_dropout=0.3)
    x = torch.randn(STEPS, 4, INPUT)
    torch.manual_seed(8)
    fused = layer(x)[0]
    layer.engine = "reference"
    torch.manual_seed(8)
    torch.testing.assert_close(layer(x)[0], fused, **SINGLE)


class OwnInput(Elman):
    """A cell that computes its pre-activations in a way of its own."""

    def project(self, x: Tensor, weights: Weights) -> Tensor:
        return super().project(x, weights).sin()


def test_a_cell_with_its_own_input_takes_no_option() -> None:
    Recurrent(OwnInput(), 2, 4)(torch.randn(STEPS, 4, 2))
    with pytest.raises(ValueError, match="zoneout must be left out with OwnInput"):
        Recurrent(OwnInput(), 2, 4, zoneout=0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: RNN(2, 4, recurrent_dropout=1.0),
            "recurrent_dropout must be a number of at least 0 and below 1, got 1.0",
        ),
        (lambda: RNN(2, 4, weight_dropout=-0.1), "weight_dropout must be a number of at least 0 and below 1, got -0.1"),
        (lambda: RNN(2, 4, zoneout=True), "zoneout must be a number of at least 0 and below 1, got True"),
        (lambda: RNN(2, 4, zoneout=float("nan")), "zoneout must be a number of at least 0 and below 1, got nan"),
        (lambda: RNN(2, 4, zoneout=(0.1, 0.2)), "zoneout must be one probability, or 1 for the states h of Elman"),
        (lambda: LSTM(2, 4, zoneout=(0.1,)), "zoneout must be one probability, or 2 for the states h, c of LSTM"),
        (lambda: RNN(2, 4, layer_norm="yes"), "layer_norm must be True or False, got 'yes'"),
        (lambda: RNN(2, 4, gain=1.05, layer_norm=True), "gain must be 1 with layer_norm"),
        (lambda: RNN(2, 4, map="cayley", weight_dropout=0.5), "weight_dropout must be 0 with map 'cayley'"),
        (lambda: GRU(2, 4, map="cayley", weight_dropout=0.5), "weight_dropout must be 0 with map 'cayley'"),
        (lambda: ComplexRNN(2, 4, layer_norm=True), "layer_norm must be False with ComplexElman"),
        (lambda: Recurrent(leaky(), 2, 4, recurrent_dropout=0.1), "recurrent_dropout must be 0 with leaky"),
        (lambda: Recurrent(leaky(), 2, 4, layer_norm=True), "layer_norm must be False with leaky"),
        (lambda: GatedFeedbackRNN(2, 4, zoneout=0.1), "zoneout must be left out for GatedFeedbackRNN"),
        (lambda: evenflow.create("esn", 2, 4, zoneout=0.1), "system 'esn' has no option 'zoneout'"),
    ],
)
def test_refusals(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        make()
    assert message in str(raised.value)


def test_torch_has_no_such_layer() -> None:
    with pytest.raises(ValueError, match="it has zoneout"):
        evenflow.to_torch(GRU(2, 4, zoneout=0.1))


def test_hessian_free_refuses_noise() -> None:
    model = SequenceModel(GRU(2, 4, zoneout=0.1), 1)
    with pytest.raises(ValueError, match="HessianFree needs a model without dropout"):
        evenflow.optim.HessianFree(model, lambda y, t: (y - t).square().mean())


def test_the_cell_itself_where_all_options_are_off() -> None:
    cell = CELLS["gru"]()
    assert regularised(cell) is cell
    assert SCRN(2, 8, recurrent_dropout=0.1).cell.core is not None
