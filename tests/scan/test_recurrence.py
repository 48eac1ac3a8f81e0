"""The fused scans give what the reference loop gives: every state, and every gradient."""

from __future__ import annotations

import copy
import ctypes
import functools
import platform
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from evenflow import GRU, SCRN, cells
from evenflow.activations import ACTIVATIONS
from evenflow.cells import (
    LSTM1997,
    Cell,
    ComplexElman,
    DiagonalSSM,
    Elman,
    GatedFeedback,
    GRUStep,
    LRUStep,
    LSTMStep,
    PeepholeLSTM,
    RotRNNStep,
    ScalarGated,
    SCRNStep,
)
from evenflow.runtime import compile_c
from evenflow.scan import cpu, recurrence, scan
from evenflow.scan.derived_parameters import with_derived

# Sums of at most 128 terms over 17 steps, taken in another order: a few hundred roundings of 1e-16.
DOUBLE = 1e-12
# What the design promises in single precision at T = 1,000, against a reference in double.
SINGLE = 1e-5

CELLS: dict[str, Cell] = {f"elman-{name}": Elman(name) for name in ACTIVATIONS}
CELLS |= {f"gated-{name}": ScalarGated(name, alpha=0.3, beta=0.6) for name in ACTIVATIONS}
CELLS["gru"] = GRUStep()
LSTMS = {
    "lstm": LSTMStep(),
    "lstm-peephole": PeepholeLSTM(),
    "lstm-1997": LSTM1997(),
    "lstm-1997-full": LSTM1997("full"),
}
CELLS |= LSTMS
# The rest of the library's cells; gated feedback runs through a stack of layers, SCRN has two sizes.
LISTED = set(map(type, CELLS.values())) | {GatedFeedback, SCRNStep, ComplexElman}
CELLS |= {name: kind() for name, kind in cells.CELLS.items() if kind not in LISTED}
# Without a forget gate the full gradient grows a thousandfold over a thousand steps: in single precision the reference
# loop itself is then off by 2e-5.
STEADY = [name for name in LSTMS if name != "lstm-1997-full"]
COMPLEX = (LRUStep, DiagonalSSM, RotRNNStep)
SHAPES = [(1, 1, 1), (2, 3, 2), (17, 3, 7), (17, 50, 16), (2, 50, 33), (17, 1, 33), (17, 3, 128), (1, 50, 128)]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The torch loops here are a thousand tiny steps, which only wait for each other in several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def problem(cell: Cell, steps: int, batch: int, hidden: int) -> dict[str, Tensor]:
    """Every tensor a scan differentiates by, in double precision."""
    generator = torch.Generator().manual_seed(steps + 100 * batch + 10_000 * hidden)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    tensors = {"a": normal(steps, batch, cell.blocks * hidden)}
    for matrix in cell.matrices(hidden):
        blocks = [torch.linalg.qr(normal(matrix.size, matrix.size)).Q for _ in range(matrix.blocks)]
        tensors[matrix.name] = torch.cat(blocks)
    tensors |= {f"{name}0": normal(batch, hidden) for name in cell.states}
    if "n" in cell.states:  # a sum of positive numbers, which is divided by
        tensors["n0"] = tensors["n0"].abs() + 0.5
    for name, value in cell.start(1, hidden, True, generator).items():
        if name != "bias" and (name != "weight_ih" or isinstance(cell, RotRNNStep)):  # which normalises its inputs
            # modrelu's, the peepholes' and the GRU's own starts are too near zero to matter
            tensors[name] = value.double() if value.abs().max() > 0.1 else 0.3 * normal(*value.shape)
    return tensors


def run(
    cell: Cell,
    tensors: dict[str, Tensor],
    engine: str,
    batch_sizes: list[int] | None = None,
    dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """States, and the gradients of a sum that weighs every state of every step differently; none counts as zero."""
    inputs = {name: value.to(dtype).detach().clone().requires_grad_() for name, value in tensors.items()}
    steps, batch = inputs["a"].shape[:2]
    inputs["tap"] = torch.zeros(
        steps, batch, inputs[f"{cell.states[0]}0"].shape[1], dtype=inputs["a"].dtype, requires_grad=True
    )
    state = tuple(inputs[f"{name}0"] for name in cell.states)
    states = scan(cell, inputs["a"], state, cell.prepare(inputs), batch_sizes, inputs["tap"], engine)
    generator = torch.Generator().manual_seed(0)
    weighed = [(s * torch.randn(s.shape, generator=generator).to(s)).sum() for s in states]
    torch.stack(weighed).sum().backward()
    gradients = {
        f"gradient by {name}": torch.zeros_like(value) if value.grad is None else value.grad
        for name, value in inputs.items()
    }
    return {f"state {i}": s.detach() for i, s in enumerate(states)} | gradients


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor], bound: float) -> None:
    for name, value in wanted.items():
        error = (found[name].double() - value).norm() / value.norm().clamp(min=1e-30)
        assert error <= bound or torch.equal(found[name].double(), value), f"{name} is off by {error:.1e}"


def even(cell: Cell, hidden: int) -> int:
    """Some activations are of pairs, and some units are complex."""
    paired = getattr(getattr(cell, "activation", None), "paired", False) or isinstance(cell, COMPLEX)
    return hidden + hidden % 2 if paired else hidden


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "T{}-B{}-H{}".format(*s))
@pytest.mark.parametrize("name", CELLS)
def test_agrees_with_the_reference(name: str, shape: tuple[int, int, int], engine: str) -> None:
    cell, (steps, batch, hidden) = CELLS[name], shape
    tensors = problem(cell, steps, batch, even(cell, hidden))
    assert_close(run(cell, tensors, engine), run(cell, tensors, "reference"), DOUBLE)


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("name", CELLS)
def test_agrees_on_ragged_lengths(name: str, engine: str) -> None:
    cell = CELLS[name]
    tensors, sizes = problem(cell, 9, 5, 6), [5, 5, 4, 4, 4, 2, 1, 1, 1]
    assert_close(run(cell, tensors, engine, sizes), run(cell, tensors, "reference", sizes), DOUBLE)


@pytest.mark.parametrize("name", [*(f"elman-{a}" for a in ACTIVATIONS), "gated-relu", "gated-tanh", "gru", *STEADY])
def test_single_precision_over_a_thousand_steps(name: str) -> None:
    cell = CELLS[name]
    tensors = {key: value.float().double() for key, value in problem(cell, 1000, 3, 32).items()}
    if name == "elman-complex_modrelu":  # a bias above zero stretches angles: the loop itself is then off by 2e-5
        tensors["activation"] = -tensors["activation"].abs()
    wanted = run(cell, tensors, "reference")
    for engine in ("auto", "torch"):
        assert_close(run(cell, tensors, engine, dtype=torch.float32), wanted, SINGLE)


def matrix_with_large_entries(kind: str, hidden: int) -> Tensor:
    """Entries near one are added apart from the others, as long as there are no more of them than rows."""
    generator = torch.Generator().manual_seed(hidden)
    small = 0.1 * torch.randn(hidden, hidden, generator=generator, dtype=torch.float64) / hidden**0.5
    if kind == "one":
        small[hidden // 2, hidden // 3] = -0.9
    elif kind == "permutation":
        small += torch.eye(hidden, dtype=torch.float64)[torch.randperm(hidden, generator=generator)]
    elif kind == "column":
        small[:, hidden // 2] = 0.8
    else:
        small[:, ::2] = 0.8
    return small


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str | None], ctypes.CDLL]:
    @functools.cache
    def library(flag: str, source: str | None) -> ctypes.CDLL:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compile_c, "FLAGS", compile_c.FLAGS.replace("-O3", "-O1") + " " + flag)
            text = cpu.PRODUCTS.read_text() if source is None else source
            return compile_c.load(text, cpu.HEADERS, tmp_path_factory.mktemp("narrow"))

    return library


@pytest.fixture(params=["widest", "-mno-avx512f", "-mno-avx"])
def _vectors(request: pytest.FixtureRequest, compiled: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library for this processor, and for the same one with narrower vectors."""
    if not cpu.accepts(torch.zeros(1)):
        pytest.skip("a matter of the compiled library, which is not there")
    if request.param != "widest":
        if platform.machine() not in ("x86_64", "AMD64"):
            pytest.skip("another processor has other vectors")
        monkeypatch.setattr(cpu, "library", lambda source=None: compiled(request.param, source))
        monkeypatch.setattr(cpu, "step_library", lambda step, dtype: compiled(request.param, cpu.source(step, dtype)))


@pytest.mark.usefixtures("_vectors")
@pytest.mark.parametrize("batch", [1, 8, 13])
@pytest.mark.parametrize("hidden", [1, 6, 33, 80])
@pytest.mark.parametrize("kind", ["one", "permutation", "column", "many"])
def test_agrees_where_entries_are_large(kind: str, hidden: int, batch: int) -> None:
    cell = CELLS["gated-abs"]
    tensors = problem(cell, 5, batch, hidden) | {"weight_hh": matrix_with_large_entries(kind, hidden)}
    assert_close(run(cell, tensors, "auto"), run(cell, tensors, "reference"), DOUBLE)


@pytest.mark.usefixtures("_vectors")
def test_small_terms_are_not_lost_beside_a_large_one() -> None:
    """Each of 63 terms is below half of the large one's last digit, and together they are eight of it."""
    weight, tiny = torch.zeros(64, 64), 2.0**-27
    weight[0], weight[:, 0], weight[0, 0] = tiny, tiny, 0.9
    tensors = {"a": torch.zeros(1, 2, 64), "weight_hh": weight, "h0": torch.ones(2, 64)}
    inputs = {name: value.requires_grad_() for name, value in tensors.items()}
    (states,) = scan(Elman("identity"), inputs["a"], (inputs["h0"],), inputs, None, None, "auto")
    states.sum().backward()
    exact = weight[0, 0].item() + 63 * tiny
    for found in (states[0, :, 0], inputs["h0"].grad[:, 0]):
        assert (found.double() - exact).abs().max() <= 2.0**-25  # one rounding


@pytest.mark.parametrize("size", [0, 3])
def test_no_number_among_large_entries_is_seen(size: int) -> None:
    tensors = problem(CELLS["elman-relu"], 3, 2, 33)
    tensors["weight_hh"][:size] = 0.9
    tensors["weight_hh"][5, 7] = torch.nan
    state = run(CELLS["elman-relu"], tensors, "auto")["state 0"]
    assert state[0, :, 5].isnan().all()
    assert state[0, :, 6].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
@pytest.mark.parametrize(
    "name", ["elman-tanh", "elman-oplu", "gated-prelu", "gated-modrelu", "elman-complex_modrelu", "gru", *LSTMS]
)
def test_same_bits_for_any_number_of_threads(name: str, dtype: torch.dtype) -> None:
    if not cpu.accepts(torch.zeros(1)):
        pytest.skip("a promise of the compiled library, which is not there")
    cell = CELLS[name]
    tensors, sizes = problem(cell, 40, 13, 34), [13] * 20 + [7] * 10 + [2] * 10
    results = []
    for count in (1, 2, 3, 5):
        torch.set_num_threads(count)
        results.append(run(cell, tensors, "auto", sizes, dtype))
    for other in results[1:]:
        assert all(torch.equal(other[key], value) for key, value in results[0].items())


def over_models(cell: Cell, tensors: dict[str, Tensor], engine: str) -> Tensor:
    """The states of several models, each with weights of its own, by one call of the operator."""
    states = [tensors[f"{name}0"] for name in cell.states]
    members = [cell.prepare({n: v[m] for n, v in tensors.items()}) for m in range(len(tensors["a"]))]
    matrices, parameters = zip(*(cell.arguments(weights) for weights in members), strict=True)
    matrices = [torch.stack(v) for v in zip(*matrices, strict=True)]
    parameters = [torch.stack(v) for v in zip(*parameters, strict=True) if v[0] is not None]
    text = cell.program(tensors["a"].shape[-1], [s.shape[-1] for s in states], members[0])
    assert isinstance(text, str)
    parameters = with_derived(text, parameters)
    found = recurrence.fused_scan(text, tensors["a"], states, matrices, parameters, engine=engine)
    return torch.stack(found[: len(states)], 1)


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("name", CELLS)
def test_models_are_independent(name: str, engine: str) -> None:
    members = [{k: v * (1 + 0.1 * i) for k, v in problem(CELLS[name], 5, 4, 6).items()} for i in range(3)]
    stacked = {n: torch.stack([m[n] for m in members]).requires_grad_() for n in members[0]}
    states = over_models(CELLS[name], stacked, engine)
    states.sin().sum().backward()
    for index, member in enumerate(members):
        alone = {n: value.unsqueeze(0).requires_grad_() for n, value in member.items()}
        state = over_models(CELLS[name], alone, engine)
        state.sin().sum().backward()
        torch.testing.assert_close(states[index], state[0], rtol=DOUBLE, atol=DOUBLE)
        for key, one in alone.items():
            if one.grad is not None:
                torch.testing.assert_close(stacked[key].grad[index], one.grad[0], rtol=DOUBLE, atol=DOUBLE)  # type: ignore[index]


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_a_gru_without_bias(engine: str) -> None:
    tensors = problem(GRUStep(), 5, 3, 6)
    del tensors["bias_hh_n"]
    assert_close(run(GRUStep(), tensors, engine), run(GRUStep(), tensors, "reference"), DOUBLE)


@pytest.mark.parametrize("map", ["exponential", "cayley", "rotations", "svd"])
def test_a_mapped_candidate(map: str) -> None:
    """The whole layer, both ways and packed: what the map's own numbers learn is the same by every engine."""
    layer = GRU(3, 6, map=map, bidirectional=True, dtype=torch.float64)
    x = torch.randn(9, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    packed = pack_padded_sequence(x, torch.tensor([9, 2, 5, 5]), enforce_sorted=False)
    results = []
    for engine in ("auto", "torch", "reference"):
        layer.engine = engine
        layer.zero_grad()
        output, final = layer(packed)
        (output.data.sin().sum() + final.square().sum()).backward()
        results.append([output.data.detach(), *(p.grad for p in layer.parameters())])
    for found in results[:-1]:
        for one, wanted in zip(found, results[-1], strict=True):
            torch.testing.assert_close(one, wanted, rtol=DOUBLE, atol=DOUBLE)


def test_a_truncated_gradient_leaves_the_initial_state_alone() -> None:
    tensors = {name: value.requires_grad_() for name, value in problem(LSTM1997(), 5, 3, 6).items()}
    h, _ = scan(LSTM1997(), tensors["a"], (tensors["h0"], tensors["c0"]), tensors)
    h.sum().backward()
    assert tensors["h0"].grad is None
    assert tensors["c0"].grad is not None


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("name", ["elman-tanh", "gated-abs", "gru", *LSTMS])
def test_a_subclass_runs_as_its_own_step(name: str, engine: str, operators: Callable[..., list[str]]) -> None:
    """It means another equation, which is translated anew."""
    cell, kind = CELLS[name], type(CELLS[name])

    def step(self: Cell, a: Tensor, *given: Tensor) -> Tensor | tuple[Tensor, ...]:
        found = kind.step(self, a, *given)
        several = found if isinstance(found, tuple) else (found,)
        return tuple(0.9 * s + 0.1 * before.sin() for s, before in zip(several, given, strict=False))

    other = copy.copy(cell)
    other.__class__ = type("Other", (kind,), {"step": step})
    tensors, sizes = problem(cell, 9, 5, 6), [5, 5, 4, 4, 4, 2, 1, 1, 1]
    wanted = run(other, tensors, "reference", sizes)
    assert not torch.allclose(wanted["state 0"], run(cell, tensors, "reference", sizes)["state 0"])
    assert_close(run(other, tensors, engine, sizes), wanted, DOUBLE)
    assert "evenflow::recurrence" in operators(lambda: run(other, tensors, engine, sizes))


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("name", CELLS)
def test_nan_propagates(name: str, engine: str) -> None:
    cell = CELLS[name]
    tensors = problem(cell, 6, 3, 6)
    tensors["a"][2, 1] = float("nan")
    found = run(cell, tensors, engine)
    assert found["state 0"][2:, 1].isnan().all()
    assert not found["state 0"][:2].isnan().any()
    assert not found["state 0"][:, [0, 2]].isnan().any()


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("name", CELLS)
def test_an_empty_batch(name: str, engine: str) -> None:
    cell = CELLS[name]
    found = run(cell, problem(cell, 4, 0, 6), engine)
    assert found["state 0"].shape == (4, 0, 6)
    assert not any(
        found[f"gradient by {name}"].any()
        for name in (*cell.recurrent, *cell.parameters)
        if f"gradient by {name}" in found
    )


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("lengths", [None, (9, 5, 5, 1)], ids=["even", "ragged"])
@pytest.mark.parametrize("rates", ["fixed", "learned"])
@pytest.mark.parametrize("activation", ["tanh", "modrelu", "oplu", "complex_modrelu"])
def test_scrn(activation: str, rates: str, lengths: tuple[int, ...] | None, engine: str) -> None:
    """Two scans, one of the context and one that it feeds."""
    torch.manual_seed(0)
    layer = SCRN(3, 8, context_size=2, activation=activation, rates=rates, dtype=torch.float64)
    x, h0 = torch.randn(9, 4, 3, dtype=torch.float64), torch.randn(1, 4, 8, dtype=torch.float64)
    seen = []
    for each in (engine, "reference"):
        layer.engine = each
        layer.zero_grad()
        start = h0.clone().requires_grad_()
        output, h_n = layer(x if lengths is None else pack_padded_sequence(x, torch.tensor(lengths)), start)
        data = output if lengths is None else output.data
        (data.sin().sum() + h_n.square().sum()).backward()
        seen.append([data, h_n, start.grad, *(p.grad for p in layer.parameters())])
    for got, expected in zip(*seen, strict=True):
        torch.testing.assert_close(got, expected, atol=DOUBLE, rtol=DOUBLE)


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("lengths", [None, (5, 2)], ids=["even", "ragged"])
def test_scrn_with_a_tap(lengths: tuple[int, ...] | None, engine: str, operators: Callable[..., list[str]]) -> None:
    """What reaches a context unit directly and by way of h is one gradient."""
    layer = SCRN(3, 8, context_size=2, dtype=torch.float64)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    given = x if lengths is None else pack_padded_sequence(x, torch.tensor(lengths))
    grads = []

    def passed() -> None:
        with layer.taps() as taps:
            output, _ = layer(given)
        (output if lengths is None else output.data).square().sum().backward()
        grads.append(taps[0].grad)

    for layer.engine in (engine, "reference"):
        passed()
    torch.testing.assert_close(*grads, rtol=DOUBLE, atol=DOUBLE)
    layer.engine = engine
    assert "evenflow::recurrence" in operators(passed)
