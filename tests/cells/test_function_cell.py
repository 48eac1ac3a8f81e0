"""Cells from functions: what is refused and how, what a layer of one can do, and that all engines agree."""

from __future__ import annotations

import copy
import pickle
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import evenflow
from evenflow import Parameter, Recurrent
from evenflow.models.population import Population
from evenflow.models.sequence_model import SequenceModel
from evenflow.scan import backend

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import own_cells
from own_cells import CELLS, cornn, lem

SAME = {"atol": 1e-10, "rtol": 1e-10}  # float64
OWN_NAME = "a name of a state, matrix or parameter must be its own"
SINGLE = {"atol": 2e-5, "rtol": 2e-5}  # the same step summed in another order


@evenflow.cell(
    states=("h", "c"),
    matrices={"U": 2, "V": 1},
    parameters={"p": Parameter(0.5), "q": Parameter(2.0, "layer")},
    blocks=2,
)
def several(a, h, c, U, V, p, q, *, rate=0.5):
    """two states, two matrices, two parameters, two blocks

    and more that the equation does not say
    """
    x, y = (a + h @ U.mT).chunk(2, -1)
    c = (1 - rate) * c + rate * torch.tanh(x + p * c)
    return torch.sigmoid(y) * torch.tanh(q * c @ V.mT), c


@evenflow.cell()
def plain(a, h, U):
    return torch.tanh(a + h @ U.mT)


@evenflow.cell()
def sorted_units(a, h, U):
    return torch.tanh(a + h @ U.mT).sort(-1).values


@evenflow.cell()
def in_place(a, h, U):
    return (a + h @ U.mT).tanh_()


@evenflow.cell()
def branches(a, h, U, *, deep=True):
    x = a + h @ U.mT
    return torch.tanh(x) if deep else x


@pytest.fixture
def unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    """No reason has been said yet in this process."""
    backend._warn_once.cache_clear()


# --- what is refused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"states": "h"}, "states must be a tuple of names, such as ('h',), got 'h'"),
        ({"matrices": "U"}, "matrices must be a tuple of names, such as ('h',), got 'U'"),
        ({"parameters": ("a b",)}, "parameters must be a tuple of names, such as ('h',), got ('a b',)"),
        ({"states": ()}, "states must be one to 4 names, got 0"),
        ({"states": tuple("vwxyz")}, "states must be one to 4 names, got 5"),
        ({"matrices": ()}, "matrices or parameters must have at least one name: a step without weights is not trained"),
        ({"matrices": {"U": 0}}, "the blocks of matrix U must be a whole number of at least 1, got 0"),
        ({"blocks": 0}, "blocks must be a whole number of at least 1, got 0"),
        ({"parameters": {"p": 1.0}}, "parameter p must be a Parameter, got 1.0"),
        ({"states": ("h", "U")}, f"{OWN_NAME}, got 'U' twice or reserved"),
        ({"parameters": ("bias",)}, f"{OWN_NAME}, got 'bias' twice or reserved"),
        ({"parameters": ("h0",)}, f"{OWN_NAME}, got 'h0' twice or reserved"),
        ({"parameters": ("a",)}, f"{OWN_NAME}, got 'a' twice or reserved"),
    ],
)  # fmt: skip
def test_what_the_decorator_refuses(options, said):
    with pytest.raises(ValueError) as why:
        evenflow.cell(**options)
    assert str(why.value) == said


def test_a_parameter_is_one_number_per_unit_or_per_layer():
    with pytest.raises(ValueError) as why:
        Parameter(0.0, "block")
    assert str(why.value) == "per must be 'unit' or 'layer', got 'block'"
    with pytest.raises(ValueError) as why:
        Parameter("one")
    assert str(why.value).startswith("start must be a finite number, got 'one'")


@pytest.mark.parametrize(
    ("step", "got"),
    [
        (lambda a, h: a, "(a, h)"),
        (lambda a, U, h: a, "(a, U, h)"),
        (lambda a, h, U, p: a, "(a, h, U, p)"),
        (lambda *given: given, "()"),
        (lambda: None, "()"),
    ],
)
def test_arguments_are_the_names(step, got):
    with pytest.raises(ValueError) as why:
        evenflow.cell()(step)
    assert str(why.value) == (
        "<lambda> must take (a, h, U), the pre-activation, its states, matrices and parameters, "
        f"got {got}; constants come after a *"
    )


def test_constants():
    assert cornn(dt=0.1).settings() == {"cell": "cornn", "dt": 0.1}
    with pytest.raises(ValueError) as why:
        cornn(speed=2)
    assert str(why.value) == "cornn has no constant 'speed'; it has dt, gamma, epsilon"
    with pytest.raises(ValueError) as why:
        lem(dt=0.1)
    assert str(why.value) == "lem has no constant 'dt'; it has none"

    @evenflow.cell()
    def needs(a, h, U, *, rate):
        return rate * torch.tanh(a + h @ U.mT)

    with pytest.raises(ValueError) as why:
        needs()
    assert str(why.value) == "needs needs a value for its constant 'rate'"
    assert needs(rate=0.5).step(torch.zeros(1, 2), torch.zeros(1, 2), torch.eye(2)).shape == (1, 2)


def refused(step, **options):
    with pytest.raises(ValueError) as why:
        Recurrent(evenflow.cell(**options)(step)(), 2, 4)
    return str(why.value)


def test_states_that_a_step_returns():
    def two(a, h, U):
        return a + h @ U.mT, h

    def short(a, h, U):
        return (a + h @ U.mT)[:, :3]

    def number(a, h, U):
        return 1.0

    def per_row(a, h, U):
        return (a + h @ U.mT).mean(-1, keepdim=True)

    assert refused(two) == "the step of two must return 1 state, as many as it takes, got 2"
    must = "state 0 that the step of {} returns must have shape (B, 4), got {}"
    assert refused(short) == must.format("short", "shape (B, 3)")
    assert refused(number) == must.format("number", "1.0")
    assert refused(per_row) == must.format("per_row", "shape (B, 1)")

    def one(a, h, c, U):
        return a + h @ U.mT

    assert refused(one, states=("h", "c")) == "the step of one must return 2 states, as many as it takes, got 1"


def test_a_step_that_fails_says_where():
    def wrong(a, h, U):
        return a[:, :3] + h @ U.mT

    said = refused(wrong)
    line = wrong.__code__.co_firstlineno + 1
    assert said.startswith(f"the step of wrong fails at line {line} of {__file__}: The size of tensor a (3) must match")


def test_a_branch_on_a_number_is_refused_when_the_layer_is_made():
    def step(a, h, U, p):
        return torch.tanh(a + h @ U.mT) if p > 0 else a

    said = refused(step, parameters={"p": Parameter(1.0, "layer")})
    line = step.__code__.co_firstlineno + 1
    assert said == (
        f"a step may not decide on a number (line {line} of {__file__}): use torch.where, which takes both sides"
    )


def test_a_branch_on_a_constant_is_python():
    x = torch.randn(5, 3, 2)
    deep, flat = (
        Recurrent(branches(deep=deep), 2, 4, generator=torch.Generator().manual_seed(0)) for deep in (True, False)
    )
    flat.load_state_dict(deep.state_dict())
    assert not torch.equal(deep(x)[0], flat(x)[0])


def test_maps_by_name():
    with pytest.raises(ValueError) as why:
        Recurrent(cornn(), 2, 4, map={"U": "cayley"})
    assert str(why.value) == "unknown matrix of cornn in map 'U', known are V, W"
    with pytest.raises(ValueError) as why:
        Recurrent(lem(), 2, 4, map={"W": "no such map"})
    assert "no such map" in str(why.value)

    @evenflow.cell(matrices={"U": 2}, blocks=2)
    def gated(a, h, U):
        x, y = (a + h @ U.mT).chunk(2, -1)
        return torch.sigmoid(x) * torch.tanh(y)

    with pytest.raises(ValueError) as why:
        Recurrent(gated(), 2, 4, map="cayley")
    assert str(why.value) == (
        "gated has no map on its gates, so map must be 'free', got 'cayley'; for a map on each block give "
        "map={'U': 'cayley'}"
    )


@pytest.mark.parametrize(
    ("made", "what", "instead"),
    [
        (sorted_units, "the operation sort", "write it with arithmetic, torch.where, and functions such as tanh"),
        (in_place, "the in-place operation tanh_", "write it without changing a tensor: tanh"),
    ],
)
def test_an_unknown_operation_runs_in_the_loop_and_is_said_once(made, what, instead, unsaid):
    layer, x = Recurrent(made(), 2, 4), torch.randn(5, 3, 2, requires_grad=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        output, _ = layer(x)
        output.sum().backward()
        layer(x)
        Recurrent(made(), 2, 4)(x)
    line = made.step.__code__.co_firstlineno + 2
    assert [str(w.message) for w in said if w.category is RuntimeWarning] == [
        "evenflow runs a recurrence in its plain loop, many times slower than by a fused scan: "
        f"of {made.__name__}, {what} (line {line} of {__file__}) cannot be translated; {instead}"
    ]
    layer.engine = "reference"
    torch.testing.assert_close(output, layer(x)[0])


# --- what a layer of one can do


def layers(cell, **options):
    """The same layer for each engine."""
    found = [
        Recurrent(cell, 3, 6, engine=engine, dtype=torch.float64, **options)
        for engine in ("auto", "torch", "reference")
    ]
    with torch.no_grad():
        for name, p in found[0].named_parameters():
            if not name.startswith("parametrizations"):
                p.add_(0.3 * torch.randn_like(p))
    for other in found[1:]:
        other.load_state_dict(found[0].state_dict())
    return found


def agree(found, x, hx=None, **bounds):
    results = []
    for layer in found:
        x = x.detach().requires_grad_()
        with layer.taps() as taps:
            output, final = layer(x, hx)
        several = final if isinstance(final, tuple) else (final,)
        loss = output.sin().sum() + sum((n + 2) * s.cos().sum() for n, s in enumerate(several))
        moving = [x, *layer.parameters(), *taps]
        gradients = torch.autograd.grad(loss, moving)
        results.append([output, *several, *gradients])
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            torch.testing.assert_close(mine, theirs, **(bounds or SAME))


EVERY = [*CELLS.values(), several]


@pytest.mark.parametrize("made", EVERY, ids=[made.__name__ for made in EVERY])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2, "bidirectional": True}, {"initial_state": "learned", "bias": False}],
    ids=["one", "stack", "learned"],
)
def test_engines_agree(made, options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing runs in the loop
        agree(layers(made(), **options), torch.randn(7, 5, 3, dtype=torch.float64))


@pytest.mark.parametrize("made", [cornn, several, CELLS["layer-norm gru"]])
def test_engines_agree_on_packed_sequences(made):
    found = layers(made(), bidirectional=True)
    x = torch.randn(7, 4, 3, dtype=torch.float64)
    packed = pack_padded_sequence(x, [7, 2, 5, 1], enforce_sorted=False)
    outputs = [pad_packed_sequence(layer(packed)[0])[0] for layer in found]
    for other in outputs[1:]:
        torch.testing.assert_close(outputs[0], other, **SAME)
    gradients = [
        torch.autograd.grad(o.sin().sum(), list(layer.parameters())) for o, layer in zip(outputs, found, strict=True)
    ]
    for other in gradients[1:]:
        for mine, theirs in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(mine, theirs, **SAME)


def test_is_the_step_by_hand():
    layer = Recurrent(several(rate=0.25), 3, 6, dtype=torch.float64)
    x = torch.randn(7, 5, 3, dtype=torch.float64)
    output, (h_n, c_n) = layer(x)
    weights = [layer.U_l0, layer.V_l0, layer.p_l0, layer.q_l0]
    h = c = torch.zeros(5, 6, dtype=torch.float64)
    for t in range(7):
        h, c = several.step(x[t] @ layer.weight_ih_l0.mT + layer.bias_l0, h, c, *weights, rate=0.25)
        torch.testing.assert_close(output[t], h, **SAME)
    torch.testing.assert_close(h_n[0], h, **SAME)
    torch.testing.assert_close(c_n[0], c, **SAME)


def test_weights_and_their_starting_values():
    layer = Recurrent(several(), 3, 6, initial_state="learned")
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert shapes == {
        "weight_ih_l0": (12, 3), "bias_l0": (12,), "p_l0": (6,), "q_l0": (1,), "h0_l0": (6,), "c0_l0": (6,),
        "U_l0": (12, 6), "V_l0": (6, 6),
    }  # fmt: skip
    assert layer.p_l0.tolist() == [0.5] * 6
    assert layer.q_l0.tolist() == [2.0]


def test_maps_on_matrices():
    layer = Recurrent(cornn(), 3, 6, map={"W": "cayley", "V": "householder"}, dtype=torch.float64)
    for matrix in (layer.W_l0, layer.V_l0):
        torch.testing.assert_close(matrix.mT @ matrix, torch.eye(6, dtype=torch.float64), atol=1e-10, rtol=0)
    agree([layer, _engine(layer, "reference")], torch.randn(7, 5, 3, dtype=torch.float64))
    free = Recurrent(cornn(), 3, 6, map={"W": "cayley"})
    assert {name for name, _ in free.named_parameters()} >= {"V_l0"}
    assert evenflow.maps.residual(free.W_l0) < 1e-5


def test_one_map_for_all_square_matrices():
    layer = Recurrent(several(), 3, 6, map="exponential")
    assert evenflow.maps.residual(layer.V_l0) < 1e-5
    assert "U_l0" in dict(layer.named_parameters())  # of two blocks: free


def test_a_map_on_each_block():
    layer = Recurrent(lem(), 3, 6, map={"W": "cayley", "V": "cayley"}, dtype=torch.float64)
    for block in (*layer.W_l0.split(6), layer.V_l0):
        torch.testing.assert_close(block.mT @ block, torch.eye(6, dtype=torch.float64), atol=1e-10, rtol=0)
    agree([layer, _engine(layer, "torch"), _engine(layer, "reference")], torch.randn(7, 5, 3, dtype=torch.float64))


def _engine(layer, engine):
    other = copy.deepcopy(layer)
    other.engine = engine
    return other


@pytest.mark.parametrize("every", [1, 3])
def test_checkpoints(every):
    whole = layers(several())[0]
    pieces = _engine(whole, "auto")
    pieces.checkpoint_every = every
    agree([whole, pieces], torch.randn(11, 5, 3, dtype=torch.float64))


@pytest.mark.parametrize("made", EVERY, ids=[made.__name__ for made in EVERY])
def test_storage_in_half_precision(made):
    layer = Recurrent(made(), 3, 6)
    stored = Recurrent(made(), 3, 6, storage="bfloat16")
    stored.load_state_dict(layer.state_dict())
    x = torch.randn(9, 5, 3)
    output, wanted = stored(x)[0], layer(x)[0]
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), wanted, atol=0.05, rtol=0.05)
    output.float().square().sum().backward()
    wanted.square().sum().backward()
    for (name, mine), theirs in zip(stored.named_parameters(), layer.parameters(), strict=True):
        off = (mine.grad - theirs.grad).norm() / theirs.grad.norm().clamp(min=1)
        assert off < 0.05, name


def test_taps_are_gradients_by_the_states():
    layer, x = Recurrent(cornn(), 3, 6, dtype=torch.float64), torch.randn(7, 5, 3, dtype=torch.float64)
    with layer.taps() as taps:
        output, _ = layer(x)
    output[-1].sum().backward()
    assert taps[0].grad.shape == (7, 5, 6)
    torch.testing.assert_close(taps[0].grad[-1], torch.ones(5, 6, dtype=torch.float64))


def test_state_dict_pickle_and_copies():
    x = torch.randn(7, 5, 3)
    layer = Recurrent(cornn(dt=0.2), 3, 6, map={"W": "cayley"}, initial_state="learned")
    wanted = layer(x)[0]
    loaded = Recurrent(cornn(dt=0.2), 3, 6, map={"W": "cayley"}, initial_state="learned")
    loaded.load_state_dict(layer.state_dict())
    for other in (loaded, pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), copy.copy(layer)):
        torch.testing.assert_close(other(x)[0], wanted)
        assert other.cell.settings() == {"cell": "cornn", "dt": 0.2}
    assert pickle.loads(pickle.dumps(own_cells.cornn)) is own_cells.cornn
    assert "cell='cornn', dt=0.2" in repr(layer)


def test_a_cell_says_its_equation():
    assert several().equation == "two states, two matrices, two parameters, two blocks"
    assert plain().equation == ""
    assert (several.__name__, several().name) == ("several", "several")


@pytest.mark.parametrize("made", EVERY, ids=[made.__name__ for made in EVERY])
def test_population(made):
    models = [SequenceModel(Recurrent(made(), 3, 6, dtype=torch.float64), 2) for _ in range(3)]
    models = [model.double() for model in models]
    x = torch.randn(3, 7, 5, 3, dtype=torch.float64)
    outputs, _ = Population(models)(x)
    outputs.sin().sum().backward()
    got = [[p.grad.clone() for p in model.parameters()] for model in models]
    for n, model in enumerate(models):
        model.zero_grad()
        output, _ = model(x[n])
        torch.testing.assert_close(outputs[n], output, **SAME)
        output.sin().sum().backward()
        for mine, p in zip(got[n], model.parameters(), strict=True):
            torch.testing.assert_close(mine, p.grad, **SAME)


def test_second_derivatives():
    found = layers(several())
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    results = []
    for layer in found:
        parameters = list(layer.parameters())
        gradients = torch.autograd.grad(layer(x)[0].sin().sum(), parameters, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in gradients), parameters))
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            torch.testing.assert_close(mine, theirs, **SAME)


@pytest.mark.parametrize("made", [cornn, several])
def test_compiles_without_a_break(made):
    layer, x = Recurrent(made(), 3, 6), torch.randn(7, 5, 3)
    fast = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(fast(x)[0], layer(x)[0], **SINGLE)
    gradients = [
        torch.autograd.grad(each(x)[0].sin().sum(), list(layer.parameters())) for each in (fast, layer)
    ]  # fmt: skip
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, **SINGLE)


def test_under_torch_func_it_is_the_loop():
    layer, x = Recurrent(cornn(), 3, 6, dtype=torch.float64), torch.randn(5, 2, 3, dtype=torch.float64)
    direction = torch.randn_like(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, moved = torch.func.jvp(lambda x: layer(x)[0], (x,), (direction,))
    (wanted,) = torch.autograd.functional.jvp(lambda x: layer(x)[0], x, direction)[1:]
    torch.testing.assert_close(moved, wanted, **SAME)


def test_a_layer_takes_the_cell_with_or_without_its_call():
    torch.manual_seed(0)
    called = Recurrent(cornn(), 2, 4)
    torch.manual_seed(0)
    uncalled = Recurrent(cornn, 2, 4)
    x = torch.randn(3, 2, 2)
    assert torch.equal(called(x)[0], uncalled(x)[0])
    assert repr(cornn) == "cornn(dt=0.05, gamma=1.0, epsilon=0.5)"
    with pytest.raises(ValueError) as why:
        Recurrent(torch.tanh, 2, 4)
    assert str(why.value).startswith(
        "cell must be a cell, such as evenflow.cells.GRUStep() or one of @evenflow.cell, got"
    )
