"""The recurrence kernels on a GPU against the torch operations in double precision; `make test-gpu` runs these.

`tests/scan/test_cuda_emulated.py` runs the same kernels on a CPU, at small sizes and with every option.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from evenflow import create
from evenflow.activations import ACTIVATIONS
from evenflow.scan import choice, elman_torch, gated_feedback_torch, gru_torch, lstm_torch
from evenflow.scan.cuda import build, elman, gated_feedback, gradient, gru, lstm, patches, plan, problem

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

# Single precision against double, as ‖difference‖ / ‖reference‖, all steps together; the goal is 1e-5 at T = 784.
CLOSE = 1e-5
# A number summed over all steps, rows and, but for modrelu, units or pairs of them; its parts largely cancel.
CLOSE_SUM = 1e-4
# Of units, at few steps, that two precisions put on different sides of a kink.
FEW_AT_A_KINK = 1e-3
# How far a norm may drift in 784 steps: 1.3e-7 a step, the rounding of a single-precision number.
NORM_KEPT = 1e-4
# The weight gradient alone, from the same numbers: three products of eleven bits and rounded sums.
CLOSE_GRADIENT = 1e-6
SIZES = (8, 100, 128, 192, 256, 384, 512, 768, 1024)
GATED_SIZES = (8, 100, 128, 256, 512, 640, 1024)
SUMS = ("d_alpha", "d_beta", "d_parameter")
ELMAN = ["d_a", "d_weight", "d_h0", "d_alpha", "d_beta", "d_parameter", "d_states"]
GRU = ["d_a", "d_weight", "d_bias", "d_h0", "d_states"]
LSTM = ["d_a", "d_weight", "d_h0", "d_c0", "d_peephole", "d_h"]
STACK = ["d_a", "d_feedback", "d_gate", "d_own", "d_up", "d_bias", "d_shift", "d_h0", "d_c0", "d_states"]
SHARES = {"tanh": 1, "gru": 3, "lstm": 4}  # numbers of a unit that come from below
STACK_SIZES, STACK_LAYERS, STACK_BATCHES = (8, 37, 128, 256), (1, 3), (1, 256)


# By H.
ON_TENSOR_CORES = {
    100: plan.Tile(1, 32, 16, 8, tensor=True),
    128: plan.Tile(1, 64, 16, 16, tensor=True),
    256: plan.Tile(8, 128, 16, 8, mail=True, tensor=True),
    384: plan.Tile(8, 64, 16, 8, held=16, tensor=True),
    512: plan.Tile(8, 64, 16, 16, mail=True, tensor=True),
    768: plan.Tile(16, 384, 48, 8, mail=True, tensor=True),
    1024: plan.Tile(16, 128, 32, 8, held=36, mail=True, tensor=True),
}
# Forward and backward: several numbers per unit can be scattered where they go in, not where they come out.
GATED_ON_TENSOR_CORES = {
    256: (plan.Tile(8, 128, 16, 8, mail=True, tensor=True),) * 2,
    512: (
        plan.Tile(16, 128, 16, 8, held=32, mail=True, tensor=True),
        plan.Tile(16, 128, 16, 8, held=32, mail=True, tensor=True, scatter=True),
    ),
}


@pytest.fixture(autouse=True)
def poisoned() -> None:
    """Free memory holds NaN, so that a number which no kernel wrote shows."""
    poison = [torch.full((1 << n,), torch.nan, device="cuda") for n in range(8, 26) for _ in range(2)]
    torch.cuda.synchronize()
    del poison


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).cuda()


def orthogonal(models: int, size: int, blocks: int = 1) -> Tensor:
    drawn = normal(models * blocks, size, size, seed=1)
    return torch.linalg.qr(drawn)[0].reshape(models, blocks * size, size).contiguous()


def double(values: Any) -> list[Any]:
    return [v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for v in values]


def same(names: list[str], got: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for name, one, other in zip(names, got, expected, strict=True):
        assert one.shape == other.shape, name
        if other.numel():
            error = ((one.double() - other).norm() / other.norm().clamp(min=1e-30)).item()
            assert error < (CLOSE_SUM if name in SUMS else CLOSE), f"{name} is off by {error:.1e}"  # NaN fails too


def elman_inputs(
    size: int, batch: int, steps: int, models: int, activation: str, gated: bool
) -> tuple[Tensor | None, ...]:
    parameter = {
        "prelu": torch.full((models, 1), 0.3).cuda(),
        "modrelu": 0.1 * normal(models, size, seed=3),
        "complex_modrelu": 0.1 * normal(models, size // 2, seed=3),
    }.get(activation)
    shares = [torch.full((models, 1), value).cuda() if gated else None for value in (0.3, 0.6)]
    a = 0.3 * normal(models, steps, batch, size)
    return a, orthogonal(models, size), normal(models, batch, size, seed=2), *shares, parameter


def check_elman(
    inputs: tuple[Tensor | None, ...], activation: str, sizes: list[int] | None, tile: plan.Tile | None = None
) -> None:
    expected = elman_torch.forward(*double(inputs), activation, sizes)
    got = elman.forward(*inputs, activation, sizes, tile=tile)
    marked = expected[1].dtype == torch.int8
    same(["states"] if marked else ["states", "kept"], got[: 2 - marked], expected[: 2 - marked])
    if marked:
        assert (got[1] != expected[1]).double().mean() < FEW_AT_A_KINK
    grad = normal(*got[0].shape, seed=4)
    # Back from the same numbers, rounded, so that every kink is on the same side for both.
    kept = [v.float() if v.is_floating_point() else v for v in expected]
    back = elman_torch.backward(*double((grad, *kept, *inputs[1:])), activation, sizes, True)
    same(ELMAN, elman.backward(grad, *kept, *inputs[1:], activation, sizes, True, tile=tile), back)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("batch", [1, 50, 256])
@pytest.mark.parametrize("size", SIZES)
def test_elman_sizes(size: int, batch: int, steps: int) -> None:
    check_elman(elman_inputs(size, batch, steps, 1, "tanh", False), "tanh", None)


@pytest.mark.parametrize("size", SIZES)
def test_elman_long(size: int) -> None:
    check_elman(elman_inputs(size, 50, 784, 1, "tanh", True), "tanh", None)


@pytest.mark.parametrize("ragged", [False, True], ids=["even", "ragged"])
@pytest.mark.parametrize("gated", [False, True], ids=["elman", "gated"])
def test_some_rows_after_others(gated: bool, ragged: bool) -> None:
    machine = problem.machine(torch.device("cuda", 0))
    if not plan.covers(plan.ELMAN, 512, machine):
        pytest.skip("no clusters")
    tile = plan.ELMAN[5][1][-1]
    batch = machine.at_once(tile) * tile.rows + 16
    inputs = elman_inputs(512, batch, 5, 1, "tanh", gated)
    assert len(elman.kernels("forward", inputs[0], gated, "tanh")) == 2
    check_elman(inputs, "tanh", [batch, batch, batch - 10, 40, 3] if ragged else None)


@pytest.mark.parametrize("gated", [False, True], ids=["elman", "gated"])
@pytest.mark.parametrize("size", [100, 256, 1024])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation: str, size: int, gated: bool) -> None:
    # Few steps: near a kink two precisions may differ, and an error made once stays.
    check_elman(elman_inputs(size, 5, 4, 2, activation, gated), activation, [5, 5, 3, 2])


@pytest.mark.parametrize("gated", [False, True], ids=["elman", "gated"])
@pytest.mark.parametrize("size", [128, 512])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_long(activation: str, size: int, gated: bool) -> None:
    *inputs, parameter = elman_inputs(size, 50, 784, 1, activation, gated)
    if parameter is not None and "modrelu" in activation:
        parameter = -parameter.abs()  # above zero it jumps, and the precisions part where it does
    check_elman((*inputs, parameter), activation, None)


@pytest.mark.parametrize("size", [128, 256])
def test_many_models(size: int) -> None:
    check_elman(elman_inputs(size, 50, 20, 16, "tanh", False), "tanh", None)


@pytest.mark.parametrize("mail", [False, True], ids=["barrier", "mail"])
@pytest.mark.parametrize("size", [256, 512])
def test_both_ways_to_exchange_states(size: int, mail: bool) -> None:
    chosen = plan.choose(plan.ELMAN, size, 50, 1)
    tile = plan.Tile(chosen.blocks, chosen.lanes, chosen.units, chosen.rows, chosen.held, mail)
    check_elman(elman_inputs(size, 50, 784, 1, "tanh", False), "tanh", None, tile)


@pytest.mark.parametrize("batch", [3, 50])
@pytest.mark.parametrize("size", ON_TENSOR_CORES)
def test_on_tensor_cores(size: int, batch: int) -> None:
    tile = ON_TENSOR_CORES[size]
    check_elman(elman_inputs(size, batch, 784, 1, "tanh", False), "tanh", None, tile)
    for pairs in ("oplu", "complex_modrelu"):
        check_elman(elman_inputs(size, batch, 5, 2, pairs, True), pairs, [batch, batch, 3, 2, 1], tile)


@pytest.mark.parametrize("activation", ["identity", "oplu"])
def test_tensor_cores_keep_the_norm(activation: str) -> None:
    """Sums that were cut off would shrink an orthogonal recurrence, a little at each step."""
    a, *rest = elman_inputs(256, 8, 784, 1, activation, False)
    tile = ON_TENSOR_CORES[256]
    states, kept = elman.forward(torch.zeros_like(a), *rest, activation, None, tile=tile)
    assert (states[:, -1].norm() / rest[1].norm() - 1).abs() < NORM_KEPT
    grad = torch.zeros_like(states)
    grad[:, -1] = normal(1, 8, 256, seed=4)
    d_h0 = elman.backward(grad, states, kept, *rest, activation, None, False, tile=tile)[2]
    assert (d_h0.norm() / grad.norm() - 1).abs() < NORM_KEPT


@pytest.mark.parametrize("steps", [1, 3, 784])
@pytest.mark.parametrize("batch", [1, 50, 256])
@pytest.mark.parametrize("size", GATED_SIZES)
def test_gru(size: int, batch: int, steps: int) -> None:
    check_gru(size, batch, steps)


@pytest.mark.parametrize("size", GATED_ON_TENSOR_CORES)
def test_gru_on_tensor_cores(size: int) -> None:
    check_gru(size, 50, 784, *GATED_ON_TENSOR_CORES[size])


def check_gru(size: int, batch: int, steps: int, there: plan.Tile | None = None, back: plan.Tile | None = None) -> None:
    if batch == 256 and steps == 784:
        pytest.skip("the reference alone takes the memory of a small GPU")
    a, weight = normal(1, steps, batch, 3 * size), orthogonal(1, size, 3)
    inputs = a, weight, normal(1, size, seed=2), normal(1, batch, size, seed=3)
    expected = gru_torch.forward(*double(inputs), None)
    same(["states", "kept"], gru.forward(*inputs, None, tile=there), expected)
    kept = [v.float() for v in expected]
    given = (normal(*kept[0].shape, seed=4), *kept, weight, inputs[3], None, True)
    same(GRU, gru.backward(*given, tile=back), gru_torch.backward(*double(given)))


@pytest.mark.parametrize("steps", [1, 3, 784])
@pytest.mark.parametrize("batch", [1, 50, 256])
@pytest.mark.parametrize("size", GATED_SIZES)
def test_lstm(size: int, batch: int, steps: int) -> None:
    check_lstm(size, batch, steps)


@pytest.mark.parametrize("size", GATED_ON_TENSOR_CORES)
def test_lstm_on_tensor_cores(size: int) -> None:
    check_lstm(size, 50, 784, *GATED_ON_TENSOR_CORES[size])


def check_lstm(
    size: int, batch: int, steps: int, there: plan.Tile | None = None, back: plan.Tile | None = None
) -> None:
    if batch == 256 and steps == 784:
        pytest.skip("the reference alone takes the memory of a small GPU")
    a, weight = normal(1, steps, batch, 4 * size), orthogonal(1, size, 4)
    states = normal(1, batch, size, seed=2), normal(1, batch, size, seed=3)
    inputs = a, weight, *states, 0.3 * normal(1, 3 * size, seed=5)
    expected = lstm_torch.forward(*double(inputs), None)
    same(["h", "c", "gates"], lstm.forward(*inputs, None, tile=there), expected)
    kept = [v.float() for v in expected]
    grads = normal(*kept[0].shape, seed=6), normal(*kept[0].shape, seed=7)
    given = (*grads, *kept, *inputs[1:], False, None, True)
    same(LSTM, lstm.backward(*given, tile=back), lstm_torch.backward(*double(given)))


@pytest.fixture(scope="module")
def stacks() -> None:
    """Compiles the kernels of gated feedback in one go: each of them takes seconds of a core."""
    device, sizes = torch.device("cuda", 0), itertools.product(STACK_SIZES, STACK_LAYERS, (False, True), (50,))
    others = [(100, 2, False, 3 * batch) for batch in STACK_BATCHES]
    wanted = {
        gated_feedback.chosen(way, size, layers, shares, dropped and layers > 1, rows, device)
        for size, layers, dropped, rows in [*sizes, *others]
        for shares in SHARES.values()
        for way in ("forward", "backward")
    }
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda kernel: build.code(kernel, 0), wanted))


@pytest.mark.usefixtures("stacks")
@pytest.mark.parametrize("layers", STACK_LAYERS)
@pytest.mark.parametrize("size", STACK_SIZES)
@pytest.mark.parametrize("unit", SHARES)
def test_gated_feedback(unit: str, size: int, layers: int) -> None:
    check_gated_feedback(unit, size, layers, 50, [50] * 10 + [33] * 5 + [2, 1, 1, 1, 1], dropped=True)
    check_gated_feedback(unit, size, layers, 50, None, dropped=False, steps=5)


@pytest.mark.usefixtures("stacks")
@pytest.mark.parametrize("unit", SHARES)
def test_gated_feedback_long(unit: str) -> None:
    check_gated_feedback(unit, 128, 3, 50, None, dropped=False, steps=784)


@pytest.mark.usefixtures("stacks")
@pytest.mark.parametrize("batch", STACK_BATCHES)
@pytest.mark.parametrize("unit", SHARES)
def test_gated_feedback_with_other_batches_and_several_models(unit: str, batch: int) -> None:
    check_gated_feedback(unit, 100, 2, batch, None, dropped=False, steps=5, models=3)


def stack_inputs(
    unit: str, size: int, layers: int, batch: int, steps: int, models: int, dropped: bool
) -> tuple[Tensor | None, ...]:
    shares, L, H = SHARES[unit], layers, size
    wide = shares * H + L
    feedback = orthogonal(models, H, L * L).view(models, L, L, H, H).permute(0, 1, 4, 2, 3).reshape(models, L, H, L * H)
    return (
        normal(models, steps, batch, wide),
        normal(models, steps, batch, (L - 1) * H, seed=1).sign() + 1 if dropped else None,
        feedback.contiguous(),
        normal(models, L * L, L * H, seed=2) / (L * H) ** 0.5,
        orthogonal(models, H, L * (shares - 1)).view(models, L, -1, H) if shares > 1 else None,
        normal(models, L - 1, wide, H, seed=4) / H**0.5,
        0.3 * normal(models, L - 1, wide, seed=5),
        0.3 * normal(models, L, H, seed=6) if unit == "gru" else None,
        normal(models, batch, L * H, seed=7),
        normal(models, batch, L * H, seed=8) if unit == "lstm" else None,
    )


def check_gated_feedback(
    unit: str,
    size: int,
    layers: int,
    batch: int,
    sizes: list[int] | None,
    dropped: bool,
    steps: int | None = None,
    models: int = 1,
) -> None:
    dropped = dropped and layers > 1
    inputs = stack_inputs(unit, size, layers, batch, steps or len(sizes or ()), models, dropped)
    assert gated_feedback.missing(inputs[2], *inputs) is None
    expected = gated_feedback_torch.forward(*double(inputs), sizes)
    same(["h", "c", "units", "gates"], gated_feedback.forward(*inputs, sizes), expected)
    kept = [v.float() for v in expected]
    grads = normal(*kept[0].shape, seed=9), normal(*kept[0].shape, seed=10) if unit == "lstm" else None
    _, factors, feedback, gate, own, up, _, _, h0, c0 = inputs
    given = (*grads, *kept, factors, feedback, gate, own, up, h0, c0, sizes, True)
    same(STACK, gated_feedback.backward(*given), gated_feedback_torch.backward(*double(given)))


@pytest.mark.parametrize("unit", SHARES)
def test_gated_feedback_gives_the_same_bits_every_time(unit: str) -> None:
    inputs = stack_inputs(unit, 128, 3, 50, 100, 1, False)
    _, factors, feedback, gate, own, up, _, _, h0, c0 = inputs
    seen = []
    for _ in range(3):
        kept = gated_feedback.forward(*inputs, None)
        given = (kept[0], None, *kept, factors, feedback, gate, own, up, h0, c0, None, True)
        seen.append((*kept, *gated_feedback.backward(*given)))
    for other in seen[1:]:
        assert all(torch.equal(one, two) for one, two in zip(seen[0], other, strict=True))


@pytest.mark.parametrize("tensor", [False, True], ids=["plan", "tensor cores"])
@pytest.mark.parametrize("size", [128, 256, 1024])
def test_the_same_bits_every_time(size: int, tensor: bool) -> None:
    tile = ON_TENSOR_CORES[size] if tensor else None
    inputs = elman_inputs(size, 50, 100, 1, "tanh", True)
    seen = []
    for _ in range(3):
        kept = elman.forward(*inputs, "tanh", None, tile=tile)
        seen.append((*kept, *elman.backward(kept[0], *kept, *inputs[1:], "tanh", None, True, tile=tile)))
    for other in seen[1:]:
        assert all(torch.equal(one, two) for one, two in zip(seen[0], other, strict=True))


def test_weights_from_device_memory_give_the_same_bits_every_time() -> None:
    a, weight, h0 = normal(2, 40, 50, 3 * 700), orthogonal(2, 700, 3), normal(2, 50, 700, seed=3)
    assert gru.kernel("forward", torch.empty(2, 40, 50, 700, device="cuda")).tile.ring
    seen = []
    for _ in range(3):
        kept = gru.forward(a, weight, None, h0, None)
        seen.append((*kept, *gru.backward(kept[0], *kept, weight, h0, None, True)))
    for other in seen[1:]:
        assert all(torch.equal(one, two) for one, two in zip(seen[0], other, strict=True))


@pytest.mark.parametrize("name", ["rnn", "sgornn", "gru", "lstm"])
def test_steps_stored_in_half_precision(name: str) -> None:
    """The kernels run, in single precision, and what is kept between the passes takes half the memory."""
    plain, stored = (create(name, 2, 128, storage=storage).cuda() for storage in (None, "bfloat16"))
    stored.load_state_dict(plain.state_dict())
    x, kept, outputs = normal(784, 16, 2), [], []
    for layer in (plain, stored):
        layer(x)  # a library's first product of its kind keeps a workspace
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        output, _ = layer(x)
        kept.append(torch.cuda.memory_allocated() - before)
        output.float().square().mean().backward()
        outputs.append([output.float(), *(p.grad for p in layer.parameters())])
        del output
    assert kept[1] < 0.6 * kept[0]
    for one, other in zip(*outputs, strict=True):
        assert (other - one).norm() < 0.05 * one.norm() + 1e-6


def exact_gradient(d: Tensor, x: Tensor, x0: Tensor) -> Tensor:
    behind = torch.cat([x0.unsqueeze(1), x[:, :-1]], 1)
    return d.flatten(1, 2).double().mT @ behind.flatten(1, 2).double()


def check_gradient(got: Tensor, expected: Tensor) -> None:
    assert got.shape == expected.shape
    error = ((got.double() - expected).norm() / expected.norm()).item()
    assert error < CLOSE_GRADIENT, f"off by {error:.1e}"


@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize("size", [8, 33, 100, 128, 256, 512, 1024])
def test_weight_gradient(size: int, models: int) -> None:
    d, x, x0 = (normal(models, 200, 50, width, seed=seed) for seed, width in enumerate((3 * size, size, size)))
    x0 = x0[:, 0].contiguous()
    for left in (d[..., :size].contiguous(), d[..., : 2 * size]):  # also rows of a wider tensor, as the GRU's
        expected = exact_gradient(left, x, x0)
        flat = left.flatten(1, 2), x.flatten(1, 2), x0
        for patch in (None, *patches.PATCHES):
            got = gradient.product(*flat, patch=patch)
            check_gradient(got, expected)
            for _ in range(2):
                assert torch.equal(gradient.product(*flat, patch=patch), got)
        check_gradient(problem.weight_gradient(left, x, x0), expected)


@pytest.mark.parametrize("patch", patches.PATCHES, ids=lambda p: f"{p.tall} x {p.wide}{', halves' * p.halves}")
@pytest.mark.parametrize("kind", ["either sign", "one sign"])
def test_weight_gradient_over_200_000_rows(kind: str, patch: patches.Patch) -> None:
    d, x, x0 = normal(1, 784, 256, 64), normal(1, 784, 256, 64, seed=1), normal(1, 256, 64, seed=2)
    if kind == "one sign":
        d, x, x0 = d.abs(), x.abs(), x0.abs()
    for parts in (1, 40):
        got = gradient.product(d.flatten(1, 2), x.flatten(1, 2), x0, patch=patch, parts=parts)
        check_gradient(got, exact_gradient(d, x, x0))


@pytest.mark.parametrize("width", [1, 2, 3, 16])
def test_products_with_a_thin_side(width: int) -> None:
    left, right = normal(4, 5000, 128), normal(4, 5000, width, seed=1)
    check_gradient(gradient.product(left, right), left.double().mT @ right.double())


def test_another_batch_compiles_nothing() -> None:
    kernels = {
        elman.kernel("forward", torch.empty(1, steps, batch, 100, device="cuda"), False, "tanh")
        for steps, batch in ((3, 1), (700, 50), (10, 132))
    }
    assert len(kernels) == 1


def test_on_a_stream_of_its_own() -> None:
    inputs = elman_inputs(128, 50, 100, 1, "tanh", False)
    expected = elman.forward(*inputs, "tanh", None)[0]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = elman.forward(*inputs, "tanh", None)[0]
    stream.synchronize()
    assert torch.equal(got, expected)


def test_clusters_at_once() -> None:
    machine = problem.machine(torch.device("cuda", 0))
    assert (machine.clusters != {}) == (torch.cuda.get_device_capability() >= problem.CLUSTERS)
    for size, count in machine.clusters.items():
        assert 1 <= count <= machine.processors // size


def test_which_problems_run() -> None:
    weight = torch.empty(1, 128, 128, device="cuda")
    assert elman.missing(weight, None, weight) is None
    assert elman.missing(weight.double()) is not None
    assert elman.missing(weight, weight.cpu()) is not None
    assert elman.missing(torch.empty(1, 1025, 1025, device="cuda")) is not None
    assert gru.missing(torch.empty(1, 3 * 1025, 1025, device="cuda")) is not None


@pytest.mark.parametrize("batch", [1, 3, 10])
def test_linear_recurrences_run_in_pieces(batch: int) -> None:
    inputs = elman_inputs(33, batch, 10_000, 1, "identity", False)
    assert elman._pieces(inputs[0]) > 2
    check_elman(inputs, "identity", None)
    few = elman_inputs(33, batch, 100, 1, "identity", False)
    assert elman._pieces(few[0]) == 1


@pytest.mark.parametrize("name", ["rnn", "gru", "lstm", "sgornn", "lstm-1997", "lstm-peephole"])
def test_layers_take_the_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer on a GPU gives what its loop gives, ragged batches, several layers and both directions included."""
    torch.manual_seed(0)
    launched = []
    launch = build.launch
    monkeypatch.setattr(build, "launch", lambda kernel, *rest: (launched.append(kernel), launch(kernel, *rest)))
    x = torch.nn.utils.rnn.pack_sequence([normal(n, 3, seed=n) for n in (9, 7, 7, 1)])
    layer = create(name, 3, 16, num_layers=2, bidirectional=True).cuda()
    results = []
    for engine in ("auto", "reference"):
        layer.engine = engine
        layer.zero_grad()
        output, state = layer(x)
        h = state[0] if isinstance(state, tuple) else state
        (output.data.sin().sum() + h.square().sum()).backward()
        results.append([output.data.detach(), h.detach(), *(p.grad for p in layer.parameters())])
    assert len(launched) == 8  # two layers, two directions, there and back
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("unit", SHARES)
def test_a_layer_with_gated_feedback_takes_its_kernels(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    launched = []
    launch = build.launch
    monkeypatch.setattr(build, "launch", lambda kernel, *rest: (launched.append(kernel), launch(kernel, *rest)))
    x = torch.nn.utils.rnn.pack_sequence([normal(n, 3, seed=n) for n in (9, 7, 7, 1)])
    layer = create("gated-feedback", 3, 16, unit=unit).cuda()
    results = []
    for engine in ("auto", "reference"):
        layer.engine = engine
        layer.zero_grad()
        output, state = layer(x)
        h = state[0] if isinstance(state, tuple) else state
        (output.data.sin().sum() + h.square().sum()).backward()
        results.append([output.data.detach(), h.detach(), *(p.grad for p in layer.parameters())])
    assert len(launched) == 2  # all layers at once, there and back
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_a_double_precision_layer_says_that_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_said", set())
    layer = create("rnn", 2, 4).cuda().double()
    with pytest.warns(RuntimeWarning, match=r"step by step.*float32, not torch.float64"):
        layer(torch.zeros(3, 1, 2, device="cuda", dtype=torch.float64))


def test_recurrences_can_be_captured() -> None:
    """No kernel waits for the host, so that a whole training step can become a CUDA graph."""
    layer = create("sgornn", 2, 16).cuda()
    x = normal(5, 3, 2)

    def step() -> Tensor:
        for p in layer.parameters():
            p.grad = None
        output = layer(x)[0]
        output.sum().backward()
        return output

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step()
    x.copy_(normal(5, 3, 2, seed=9))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(output, layer(x)[0])
