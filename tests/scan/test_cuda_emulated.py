"""The CUDA kernels, run on the CPU by `cuda_on_cpu.h`: every output and gradient against the torch operations and
against autograd through the plain equation in double precision.

What this cannot show is speed, and whether a GPU's memory is as orderly as the emulation; `tests/gpu` runs them there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from cuda_cases import BATCH, MODELS, STEPS, Case, elman_inputs, gru_inputs, lstm_inputs, normal, states_of
from cuda_emulator import COMPILER, Emulator
from torch import Tensor

from evenflow.activations import ACTIVATIONS
from evenflow.scan import elman_torch, gru_torch, lstm_torch
from evenflow.scan.cuda import build, elman, gru, lstm, problem
from evenflow.scan.cuda.plan import Tile

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")

CLOSE = {"atol": 1e-5, "rtol": 1e-5}  # single precision, sums of at most 64 products in another order
# Drift of a norm in 100 steps: single precision's is 1e-8; with the half nearest to each number, whose products make
# sums that the hardware has to cut off, it is 4e-6.
NORM_KEPT = 1e-6
# ‖difference‖ / ‖result‖ of one product: single precision's is 1e-7, and two of the three products would leave 1e-4.
PRODUCT = 3e-7
RAGGED = {"even": None, "ragged": (4, 3, 3, 1)}  # rows running at each step; must not rise


PLAIN = Case(12, Tile(1, 8, 4, 2))  # padded units, one item per lane
PAIRS = Case(12, Tile(1, 4, 4, 4))  # several items per lane, so that the two units of a pair are one thread's
APART = Case(20, Tile(2, 8, 2, 2))  # a cluster
SHAPES = [
    Case(8, Tile(1, 8, 4, 1)),
    Case(12, Tile(1, 16, 8, 4)),
    Case(20, Tile(1, 4, 4, 4, held=1)),
    Case(32, Tile(1, 32, 4, 1)),
    Case(40, Tile(1, 8, 4, 2, held=0)),
    Case(64, Tile(1, 16, 8, 1)),
    Case(20, Tile(4, 8, 2, 2)),
    Case(32, Tile(2, 16, 4, 8)),
    Case(40, Tile(4, 16, 4, 1, mail=True)),
    Case(64, Tile(8, 16, 2, 4, held=0, mail=True)),
    Case(40, Tile(16, 8, 2, 4, mail=True)),
    Case(40, None),
]
ON_TENSOR_CORES = [
    Case(16, Tile(1, 32, 16, 8, tensor=True)),
    Case(40, Tile(1, 64, 16, 16, tensor=True)),  # padded units and inputs, several rows of matrices
    Case(64, Tile(1, 64, 16, 8, held=1, tensor=True)),  # most weights in shared memory, two warps share the inputs
    Case(64, Tile(2, 128, 32, 16, held=5, mail=True, tensor=True)),
    Case(40, Tile(4, 256, 16, 8, mail=True, tensor=True)),  # more lanes than items
    Case(64, Tile(4, 32, 16, 8, tensor=True)),
    Case(80, Tile(6, 64, 16, 16, held=2, mail=True, tensor=True)),  # a cluster of no power of two
    Case(128, Tile(4, 32, 16, 8, held=13, mail=True, tensor=True)),  # weights in shared memory among those in registers
    Case(482, Tile(16, 128, 32, 8, held=9, mail=True, tensor=True)),  # two items of a lane, which travel in fours
    Case(64, Tile(1, 64, 16, 8, held=1, tensor=True, ring=3)),  # weights that come from device memory every step
    Case(40, Tile(2, 64, 16, 16, held=0, mail=True, tensor=True, ring=4)),
]
SEVERAL = Case(36, Tile(1, 64, 32, 8, tensor=True))  # four items of a lane, moved at once
GATES = [Case(20, Tile(1, 8, 4, 2)), APART, *SHAPES[1:3], Case(40, Tile(4, 8, 2, 2, held=1)), *SHAPES[-2:]]
SCATTERED = [  # blocks send sums
    Case(64, Tile(4, 32, 16, 8, mail=True, tensor=True, scatter=True)),
    Case(40, Tile(4, 64, 16, 16, held=3, mail=True, tensor=True, scatter=True)),
    Case(64, Tile(2, 64, 16, 8, held=0, mail=True, tensor=True, scatter=True)),
    Case(40, Tile(4, 64, 16, 8, held=0, mail=True, tensor=True, scatter=True, ring=3)),
]
GATES += [ON_TENSOR_CORES[1], ON_TENSOR_CORES[3], *ON_TENSOR_CORES[-2:], *SCATTERED[:2], SCATTERED[-1]]
RINGED = ON_TENSOR_CORES[-1]
# By units: half of the rows with one tile, then the others with another.
TURNS = {12: ((2, PLAIN.tile), (2, PAIRS.tile)), 20: ((2, GATES[0].tile), (2, APART.tile))}
LSTMS = {
    "plain": (4, False, False),
    "peephole": (4, True, False),
    "1997": (3, False, True),
    "3 gates": (3, False, False),
}


def kernels() -> Iterator[build.Kernel]:
    """All that this file runs, so that they are compiled in one go."""
    for way in ("forward", "backward"):
        for case in [PLAIN, PAIRS, APART]:
            for activation in ACTIVATIONS:
                for gated in (False, True) if case is PLAIN else (case is PAIRS,):
                    yield elman.kernel(way, states_of(case), gated, activation, case.tile)
        yield elman.kernel(way, states_of(PAIRS), False, "abs", PAIRS.tile)
        for case in [*SHAPES, *ON_TENSOR_CORES, *SCATTERED]:
            yield elman.kernel(way, states_of(case), True, "tanh", case.tile)
        for case in GATES:
            tile = case.gathering if way == "forward" else case.tile
            yield gru.kernel(way, states_of(case), tile)
            yield lstm.kernel(way, states_of(case), 4, True, False, tile)
        yield elman.kernel(way, states_of(ON_TENSOR_CORES[2]), False, "identity", ON_TENSOR_CORES[2].tile)
        for activation in ACTIVATIONS:
            yield elman.kernel(way, states_of(SEVERAL), False, activation, SEVERAL.tile)
        for gates, peephole, truncated in LSTMS.values():
            for case in (APART, RINGED):
                yield lstm.kernel(way, states_of(case), gates, peephole, truncated, case.tile)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(kernels(), tmp_path_factory.mktemp("kernels"))


@pytest.fixture(autouse=True)
def emulated(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    machine.order = 0
    monkeypatch.setattr(build, "launch", machine.launch)
    return machine


def same(names: str, got: tuple[Tensor, ...], expected: tuple[Tensor, ...], **bounds: float) -> None:
    for name, one, other in zip(names.split(), got, expected, strict=True):
        torch.testing.assert_close(one, other, **(bounds or CLOSE), msg=lambda said, name=name: f"{name}: {said}")


ELMAN = "d_a d_weight d_h0 d_alpha d_beta d_parameter d_states"


def check_elman(case: Case, activation: str, gated: bool, ragged: tuple[int, ...] | None, tap: bool) -> None:
    inputs = elman_inputs(case, activation, gated)
    expected = elman_torch.forward(*inputs, activation, ragged)
    got = elman.forward(*inputs, activation, ragged, tile=case.tile)
    same("states kept", got, expected)
    grad = normal(*expected[0].shape, seed=4)
    back = elman_torch.backward(grad, *expected, *inputs[1:], activation, ragged, tap)
    # The way back starts from the same numbers, so that a kink is on the same side for both.
    same(ELMAN, elman.backward(grad, *expected, *inputs[1:], activation, ragged, tap, tile=case.tile), back)


@pytest.mark.parametrize("ragged", RAGGED.values(), ids=RAGGED)
@pytest.mark.parametrize("gated", [False, True], ids=["elman", "gated"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation: str, gated: bool, ragged: tuple[int, ...] | None) -> None:
    check_elman(PLAIN, activation, gated, ragged, tap=True)


@pytest.mark.parametrize("activation", ["tanh", "abs"])
def test_numbers_that_begin_anywhere(activation: str) -> None:
    """Threads move several at once, which must begin at a multiple of their bytes; parts of other tensors may not."""
    inputs = elman_inputs(PAIRS, activation, True)

    def moved(value: Tensor | None) -> Tensor | None:
        if value is None:
            return None
        within = value.new_empty(value.numel() + 1)[1:].view_as(value)
        return within.copy_(value)

    expected = elman.forward(*inputs, activation, None, tile=PAIRS.tile)
    got = elman.forward(*map(moved, inputs), activation, None, tile=PAIRS.tile)
    same("states kept", got, expected, atol=0, rtol=0)
    grad = normal(*expected[0].shape, seed=4)
    back = elman.backward(grad, *expected, *inputs[1:], activation, None, True, tile=PAIRS.tile)
    again = elman.backward(
        moved(grad), *map(moved, expected), *map(moved, inputs[1:]), activation, None, True, tile=PAIRS.tile
    )
    same(ELMAN, again, back, atol=0, rtol=0)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_in_a_cluster_and_with_several_items_per_thread(activation: str) -> None:
    check_elman(APART, activation, False, (4, 3, 3, 1), tap=False)
    check_elman(PAIRS, activation, True, None, tap=False)


def test_a_slope_in_brackets() -> None:
    check_elman(PLAIN, "leaky(0.5)", False, None, tap=False)


@pytest.mark.parametrize("ragged", RAGGED.values(), ids=RAGGED)
@pytest.mark.parametrize("case", [*SHAPES, *ON_TENSOR_CORES, *SCATTERED], ids=str)
def test_shapes(case: Case, ragged: tuple[int, ...] | None) -> None:
    check_elman(case, "tanh", True, ragged, tap=True)


@pytest.mark.parametrize("ragged", RAGGED.values(), ids=RAGGED)
@pytest.mark.parametrize("case", GATES, ids=str)
def test_gru(case: Case, ragged: tuple[int, ...] | None) -> None:
    for bias in (True, False):
        a, weight, shift, h0 = gru_inputs(case.hidden)
        inputs = (a, weight, shift if bias else None, h0)
        expected = gru_torch.forward(*inputs, ragged)
        same("states kept", gru.forward(*inputs, ragged, tile=case.gathering), expected)
        given = (normal(*expected[0].shape, seed=4), *expected, weight, h0, ragged, bias)
        got = gru.backward(*given, tile=case.tile)
        same("d_a d_weight d_bias d_h0 d_states", got, gru_torch.backward(*given))


LSTM = "d_a d_weight d_h0 d_c0 d_peephole d_h"


def check_lstm(case: Case, kind: tuple[int, bool, bool], ragged: tuple[int, ...] | None) -> None:
    gates, peephole, truncated = kind
    inputs = lstm_inputs(case.hidden, gates, peephole)
    expected = lstm_torch.forward(*inputs, ragged)
    same("h c gates", lstm.forward(*inputs, ragged, tile=case.gathering), expected)
    grads = normal(*expected[0].shape, seed=5), normal(*expected[0].shape, seed=6)
    for grad_h, grad_c, tap in ((*grads, True), (grads[0], None, False), (None, grads[1], False)):
        given = (grad_h, grad_c, *expected, *inputs[1:], truncated, ragged, tap)
        same(LSTM, lstm.backward(*given, tile=case.tile), lstm_torch.backward(*given))


@pytest.mark.parametrize("ragged", RAGGED.values(), ids=RAGGED)
@pytest.mark.parametrize("kind", LSTMS.values(), ids=LSTMS)
@pytest.mark.parametrize("case", [APART, RINGED], ids=str)
def test_lstm_kinds(case: Case, kind: tuple[int, bool, bool], ragged: tuple[int, ...] | None) -> None:
    check_lstm(case, kind, ragged)


@pytest.mark.parametrize("case", GATES, ids=str)
def test_lstm_shapes(case: Case) -> None:
    check_lstm(case, (4, True, False), (4, 3, 3, 1))


@pytest.fixture
def in_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(problem, "turns", lambda table, states, device, tile: TURNS[states[-1]])
    for module in (elman, gru, lstm):
        module._kernels.cache_clear()
    yield
    for module in (elman, gru, lstm):
        module._kernels.cache_clear()


@pytest.mark.parametrize("ragged", RAGGED.values(), ids=RAGGED)
@pytest.mark.usefixtures("in_turns")
def test_some_rows_after_others(ragged: tuple[int, ...] | None) -> None:
    check_elman(Case(12, None), "modrelu", True, ragged, tap=True)
    check_elman(Case(12, None), "abs", False, ragged, tap=True)
    check_lstm(Case(20, None), (4, True, False), ragged)
    a, weight, bias, h0 = gru_inputs(20)
    expected = gru_torch.forward(a, weight, bias, h0, ragged)
    same("states kept", gru.forward(a, weight, bias, h0, ragged), expected)
    given = (normal(*expected[0].shape, seed=4), *expected, weight, h0, ragged, True)
    same("d_a d_weight d_bias d_h0 d_states", gru.backward(*given), gru_torch.backward(*given))


def by_autograd(
    step: Callable[..., tuple[Tensor, ...]], inputs: list[Tensor], a: Tensor, grad: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Outputs of the plain loop over `step` in double precision, and gradients by a and the inputs."""
    a, leaves = a.double().requires_grad_(), [v.double().requires_grad_() for v in inputs]
    state: tuple[Tensor, ...] = ()
    outs = []
    for a_t in a.unbind(1):
        state = step(a_t, state, *leaves)
        outs.append(state[0])
    out = torch.stack(outs, 1)
    return out, list(torch.autograd.grad(out, [a, *leaves], grad.double()))


def test_elman_against_autograd_in_double_precision() -> None:
    a, weight, h0, alpha, beta, _ = elman_inputs(SHAPES[8], "tanh", True)

    def step(
        a_t: Tensor, state: tuple[Tensor, ...], weight: Tensor, h0: Tensor, alpha: Tensor, beta: Tensor
    ) -> tuple[Tensor]:
        (h,) = state or (h0,)
        return (alpha[:, None] * (a_t + h @ weight.mT).tanh() + beta[:, None] * h,)

    grad = normal(*a.shape, seed=4)
    states, expected = by_autograd(step, [weight, h0, alpha, beta], a, grad)
    got = elman.forward(a, weight, h0, alpha, beta, None, "tanh", None, tile=SHAPES[8].tile)
    back = elman.backward(grad, *got, weight, h0, alpha, beta, None, "tanh", None, False, tile=SHAPES[8].tile)
    same("states", (got[0].double(),), (states,))
    same("d_a d_weight d_h0 d_alpha d_beta", tuple(v.double() for v in back[:5]), tuple(expected))


def test_gru_against_autograd_in_double_precision() -> None:
    size = APART.hidden
    a, weight, bias, h0 = gru_inputs(size)

    def step(a_t: Tensor, state: tuple[Tensor, ...], weight: Tensor, bias: Tensor, h0: Tensor) -> tuple[Tensor]:
        (h,) = state or (h0,)
        r, z, q = (h @ weight.mT).chunk(3, -1)
        a_r, a_z, a_n = a_t.chunk(3, -1)
        z = (a_z + z).sigmoid()
        return ((1 - z) * (a_n + (a_r + r).sigmoid() * (q + bias[:, None])).tanh() + z * h,)

    grad = normal(MODELS, STEPS, BATCH, size, seed=4)
    states, expected = by_autograd(step, [weight, bias, h0], a, grad)
    got = gru.forward(a, weight, bias, h0, None, tile=APART.tile)
    back = gru.backward(grad, *got, weight, h0, None, False, tile=APART.tile)
    same("states", (got[0].double(),), (states,))
    same("d_a d_weight d_bias d_h0", tuple(v.double() for v in back[:4]), tuple(expected))


def test_lstm_against_autograd_in_double_precision() -> None:
    size = APART.hidden
    a, weight, h0, c0, peephole = lstm_inputs(size, 4, True)

    def step(
        a_t: Tensor, state: tuple[Tensor, ...], weight: Tensor, h0: Tensor, c0: Tensor, peephole: Tensor
    ) -> tuple[Tensor, Tensor]:
        h, c = state or (h0, c0)
        i, f, g, o = (a_t + h @ weight.mT).chunk(4, -1)
        p_i, p_f, p_o = peephole[:, None].chunk(3, -1)
        c = (f + p_f * c).sigmoid() * c + (i + p_i * c).sigmoid() * g.tanh()
        return (o + p_o * c).sigmoid() * c.tanh(), c

    grad = normal(MODELS, STEPS, BATCH, size, seed=5)
    states, expected = by_autograd(step, [weight, h0, c0, peephole], a, grad)
    got = lstm.forward(a, weight, h0, c0, peephole, None, tile=APART.tile)
    back = lstm.backward(grad, None, *got, weight, h0, c0, peephole, False, None, False, tile=APART.tile)
    same("h", (got[0].double(),), (states,))
    same("d_a d_weight d_h0 d_c0 d_peephole", tuple(v.double() for v in back[:5]), tuple(expected))


@pytest.mark.parametrize("order", [1, 2], ids=["falling", "scattered"])
@pytest.mark.parametrize(
    "case", [SHAPES[1], SHAPES[6], SHAPES[8], SHAPES[10], *ON_TENSOR_CORES[1:], *SCATTERED], ids=str
)
def test_the_order_of_threads_does_not_matter(case: Case, order: int, emulated: Emulator) -> None:
    inputs = elman_inputs(case, "tanh", True)
    seen = []
    for emulated.order in (0, order):
        states, kept = elman.forward(*inputs, "tanh", None, tile=case.tile)
        seen.append(
            (states, kept, *elman.backward(states, states, kept, *inputs[1:], "tanh", None, True, tile=case.tile))
        )
    same(f"states kept {ELMAN}", *seen, atol=0, rtol=0)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_on_tensor_cores(activation: str) -> None:
    check_elman(SEVERAL, activation, False, None, tap=True)
    check_elman(SEVERAL, activation, False, (4, 3, 3, 1), tap=False)


def test_tensor_cores_keep_a_nan_in_its_row() -> None:
    inputs = elman_inputs(SEVERAL, "tanh", False)
    inputs[0][0, 1, 2, 5] = torch.nan
    states = elman.forward(*inputs, "tanh", None, tile=SEVERAL.tile)[0]
    assert states[0, 2:, 2].isnan().all()
    spoilt = states.isnan().any(-1)
    assert spoilt.sum() == STEPS - 1
    assert spoilt[0, 1:, 2].all()


def product_on_tensor_cores(weight: Tensor, h0: Tensor, steps: int = 1) -> tuple[Tensor, Tensor]:
    """W^steps h0 and the same in double precision, for the case that has such a kernel."""
    size, tile = ON_TENSOR_CORES[2]
    a = torch.zeros(1, steps, 8, size)
    exact = h0.double()
    for _ in range(steps):
        exact = exact @ weight.double().mT
    return elman.forward(a, weight, h0, None, None, None, "identity", None, tile=tile)[0][:, -1].double(), exact


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("larger", [1.0, 100.0, 1e4])
def test_tensor_cores_take_outputs_and_states_of_any_size(larger: float, scale: float) -> None:
    """Every output has a power of its own, so that large weights of one take nothing from another."""
    size = ON_TENSOR_CORES[2].hidden
    weight, h0 = torch.linalg.qr(normal(1, size, size))[0].contiguous(), scale * normal(1, 8, size, seed=2)
    weight[:, ::16] *= larger
    got, exact = product_on_tensor_cores(weight, h0)
    rows = torch.arange(size) % 16 != 0
    for part in (rows, ~rows):
        assert (got - exact)[..., part].norm() / exact[..., part].norm() < PRODUCT


def test_tensor_cores_keep_the_norm_of_one_sign() -> None:
    """Where all products have one sign their sums are the largest, and what is cut off of them would show."""
    size = ON_TENSOR_CORES[2].hidden
    weight = torch.linalg.qr(normal(1, size, size))[0].abs().contiguous()
    weight /= torch.linalg.matrix_norm(weight, 2)
    got, exact = product_on_tensor_cores(weight, normal(1, 8, size, seed=2).abs(), steps=100)
    assert abs(got.norm() / exact.norm() - 1) < NORM_KEPT


def test_tensor_cores_keep_the_norm() -> None:
    """Sums that were cut off would shrink an orthogonal recurrence, a little at each step."""
    size, tile = ON_TENSOR_CORES[2]
    weight, h0 = torch.linalg.qr(normal(1, size, size))[0].contiguous(), normal(1, 8, size, seed=2)
    given = (weight, h0, None, None, None, "identity", None)
    states, kept = elman.forward(torch.zeros(1, 100, 8, size), *given, tile=tile)
    assert abs(states[:, -1].norm() / h0.norm() - 1) < NORM_KEPT
    grad = torch.zeros_like(states)
    grad[:, -1] = h0
    d_h0 = elman.backward(grad, states, kept, *given, False, tile=tile)[2]
    assert abs(d_h0.norm() / h0.norm() - 1) < NORM_KEPT


def test_rows_at_their_end_are_zero_whatever_lies_beyond() -> None:
    inputs = elman_inputs(PLAIN, "tanh", False)
    inputs[0][:, 3, 1:] = torch.nan
    sizes = (4, 3, 3, 1)
    states, kept = elman.forward(*inputs, "tanh", sizes, tile=PLAIN.tile)
    grad = normal(*states.shape)
    grad[:, 3, 1:] = torch.nan
    d_a, *rest = elman.backward(grad, states, kept, *inputs[1:], "tanh", sizes, True, tile=PLAIN.tile)
    for value in (states, d_a, rest[-1]):
        assert not value[:, 3, 1:].any()
        assert not value.isnan().any()


def test_one_row_does_not_touch_another() -> None:
    inputs = elman_inputs(APART, "tanh", False)
    clean, _ = elman.forward(*inputs, "tanh", None, tile=APART.tile)
    inputs[0][0, 1, 2] = torch.nan
    spoilt, _ = elman.forward(*inputs, "tanh", None, tile=APART.tile)
    assert spoilt[0, 1:, 2].isnan().all()
    spoilt[0, 1:, 2] = clean[0, 1:, 2]
    torch.testing.assert_close(spoilt, clean, atol=0, rtol=0)


def test_lengths_of_rows() -> None:
    assert problem.lengths((4, 3, 3, 1), 4, torch.empty(0)).tolist() == [4, 3, 3, 1]
    assert problem.lengths((2, 2), 3, torch.empty(0)).tolist() == [2, 2, 0]
    assert problem.lengths(None, 3, torch.empty(0)) is None
