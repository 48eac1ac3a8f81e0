"""What a step may use: each operation beside torch's, what is refused and how, and pairs, parts and reductions."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from evenflow.scan import torch_operations
from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.engine import ScanInputs, scan_gradients
from evenflow.step import Untranslatable, program_text, translate
from evenflow.step.operations import POINTWISE
from evenflow.step.trace import NumberNeeded

SAME = {"atol": 1e-10, "rtol": 1e-10}  # float64
STATE_0 = "state 0 that the step of the step returns"
OUTSIDE = torch.ones(2, 4)  # a tensor that no step is given
LOOSE = {"hardsigmoid": 1e-7, "hardswish": 1e-7, "elu": 1e-7}  # torch's gradients take 1/6, and celu's 1/α, in float32
ABOVE = {"log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal", "pow"}  # of numbers above 0
# By name in torch, where `torch.NAME(x)` is not what calls it.
CALLS = {
    "rsub": lambda x, y: torch.rsub(x, y, alpha=0.3),
    "add": lambda x, y: torch.add(x, y, alpha=0.3),
    "sub": lambda x, y: torch.sub(x, y, alpha=0.3),
    "mul": torch.mul,
    "div": lambda x, y: x / (2 + y * y),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "pow": lambda x, y: x**2 + x**-3 + x**0.5 + x**1.3 + x**y + 2.5**y,
    "clamp": lambda x, y: x.clamp(-0.4, 0.7) + y.clamp(max=0.3) + x.clamp(y - 0.5, y + 0.25),
    "clamp_min": lambda x, y: torch.clamp_min(x, 0.2),
    "clamp_max": lambda x, y: torch.clamp_max(x, 0.2),
    "hardtanh": lambda x, y: F.hardtanh(x, -0.3, 0.8) + F.relu6(y),
    "hardsigmoid": lambda x, y: F.hardsigmoid(4 * x),
    "hardswish": lambda x, y: F.hardswish(4 * x),
    "leaky_relu": lambda x, y: F.leaky_relu(x, 0.3) + F.leaky_relu(y),
    "threshold": lambda x, y: F.threshold(x, 0.2, -1.5),
    "elu": lambda x, y: F.elu(x, 0.7) + F.selu(y) + F.celu(x, 0.4),
    "silu": lambda x, y: F.silu(x),
    "mish": lambda x, y: F.mish(x),
    "gelu": lambda x, y: F.gelu(x) + F.gelu(y, approximate="tanh"),
    "softplus": lambda x, y: F.softplus(x) + F.softplus(y, 3.0, 2.0),
    "log_sigmoid_forward": lambda x, y: F.logsigmoid(x),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3) + torch.lerp(x, y, x.sigmoid()),
    "addcmul": lambda x, y: torch.addcmul(x, y, x, value=0.7),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, 2 + x * x, value=0.7),
    "where": lambda x, y: torch.where(x > y, x * x, y),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 0.5),
    "gt": lambda x, y: torch.where(x > 0.1, x, y),
    "lt": lambda x, y: torch.where(x < y, x, y),
    "ge": lambda x, y: torch.where(x >= y, x, y),
    "le": lambda x, y: torch.where(x <= 0.1, x, y),
    "eq": lambda x, y: torch.where(x.sign() == y.sign(), x, y),
    "ne": lambda x, y: torch.where(x.sign() != y.sign(), x, y),
    "logical_not": lambda x, y: torch.where(torch.logical_not(x > 0), x, y),
    "bitwise_not": lambda x, y: torch.where(~(x > 0), x, y),
    "logical_and": lambda x, y: torch.where(torch.logical_and(x > 0, y > 0), x, y),
    "bitwise_and": lambda x, y: torch.where((x > 0) & (y > 0), x, y),
    "logical_or": lambda x, y: torch.where(torch.logical_or(x > 0, y > 0), x, y),
    "bitwise_or": lambda x, y: torch.where((x > 0) | (y > 0), x, y),
}


def held(step, a: int = 6, states=(6,), matrices=((6, 6),), parameters=(), above: bool = False, atol: float = 1e-10):
    """Hold one compiled step to the step itself: the new states and all gradients."""
    made = CompiledStep(program_text.write(translate(step, a, states, matrices, parameters)))

    def leaf(*shape: int) -> torch.Tensor:
        x = torch.randn(*shape, dtype=torch.float64)
        return (x.abs() + 0.2 if above else x).requires_grad_()

    inputs = [leaf(1, 1, 7, a), *(leaf(1, 7, n) for n in states), *(leaf(1, *shape) for shape in matrices)]
    inputs += [leaf(1, n) for n in parameters if n is not None]
    held_parameters = iter(inputs[1 + len(states) + len(matrices) :])
    given = [None if n is None else next(held_parameters) for n in parameters]
    a_t, *rest = inputs[: 1 + len(states) + len(matrices)]
    before, weights = rest[: len(states)], rest[len(states) :]
    wanted = step(a_t[0, 0], *(v[0] for v in (*before, *weights)), *(None if p is None else p[0] for p in given))
    wanted = list(wanted) if isinstance(wanted, tuple) else [wanted]
    arriving = [torch.randn_like(s) for s in wanted]
    known = torch.autograd.grad(wanted, inputs, arriving, allow_unused=True)
    with torch.no_grad():
        scanned = ScanInputs(made, a_t, before, weights, given)
        found = torch_operations.forward(scanned)
        up = [g[None, None] for g in arriving]
        d_a, d_states, d_matrices, d_parameters, _ = scan_gradients(torch_operations, scanned, found, up, False)
    for mine, theirs in zip(found[0], wanted, strict=True):
        torch.testing.assert_close(mine[0, 0], theirs, **SAME)
    got = [d_a, *d_states, *d_matrices, *(d for d in d_parameters if d is not None)]
    for mine, theirs, given_value in zip(got, known, inputs, strict=True):
        zeros = torch.zeros_like(given_value)
        torch.testing.assert_close(mine, zeros if theirs is None else theirs, atol=atol, rtol=atol)


@pytest.mark.parametrize("name", [name for name in POINTWISE if name != "_prelu_kernel"])
def test_pointwise_operations_are_torchs(name: str) -> None:
    single = getattr(torch, name, None)
    call = CALLS.get(name) or (lambda x, y: single(x))

    def step(a, h, U):  # type: ignore[no-untyped-def]
        return call(a, h @ U.mT / 6)

    held(step, above=name in ABOVE, atol=LOOSE.get(name, 1e-10))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sum(-1, keepdim=True) * x,
        lambda x: x.mean(1, keepdim=True) - x,
        lambda x: x.var(-1, keepdim=True) * x,
        lambda x: x.std(-1, correction=0, keepdim=True) * x,
        lambda x: x.amax(-1, keepdim=True) * x,
        lambda x: x - x.amin(-1, keepdim=True),
        lambda x: torch.softmax(x, -1),
        lambda x: F.layer_norm(x, (6,)),
    ],
    ids=["sum", "mean", "var", "std", "amax", "amin", "softmax", "layer_norm"],
)
def test_reductions_are_torchs(call) -> None:  # type: ignore[no-untyped-def]
    held(lambda a, h, U: call(a + h @ U.mT))


@pytest.mark.parametrize("size", [1, 6])
def test_prelu_with_its_trained_slope(size: int) -> None:
    held(lambda a, h, U, p: F.prelu(a + h @ U.mT, p), parameters=(size,))


def test_parameters_that_a_layer_goes_without() -> None:
    def step(a, h, U, gain, shift):  # type: ignore[no-untyped-def]
        x = a + h @ U.mT if gain is None else gain * (a + h @ U.mT)
        return x.tanh() if shift is None else x.tanh() + shift * shift.mean(-1, keepdim=True)

    for parameters in ((6, 6), (1, None), (None, 1), (None, None)):
        held(step, parameters=parameters)


def test_pairs_by_chunk_and_cat() -> None:
    def step(a, h, U):  # type: ignore[no-untyped-def]
        x, y = (a + h @ U.mT).chunk(2, -1)
        return torch.cat([torch.maximum(x, y), torch.minimum(x, y)], -1)

    held(step)


def test_parts_of_matrices_and_their_transposes() -> None:
    def step(a, h, U, V):  # type: ignore[no-untyped-def]
        u = h @ U[:6].mT + h @ U[6:] + torch.cat([h[:, :2] @ V[:4, :2].mT, h[:, 2:] @ V.mT[2:, :2]], -1)
        return torch.tanh(a + u + (h @ V.mT).tanh() @ V)

    held(step, matrices=((12, 6), (6, 6)))


@pytest.mark.parametrize(
    "row",
    [
        lambda h, p: p.expand(len(h), -1),
        lambda h, p: p.tanh().expand(len(h), -1),
        lambda h, p: torch.cat([p[:2].expand(len(h), -1), h[:, 2:]], -1),
        lambda h, p: torch.cat([torch.zeros_like(h[:, :1]), h[:, 1:]], -1),
        lambda h, p: torch.cat([h[:, :5], torch.ones_like(h[:, :1])], -1),
        lambda h, p: torch.ones_like(h),
    ],
)
def test_parameters_and_constants_in_products(row) -> None:  # type: ignore[no-untyped-def]
    held(lambda a, h, U, p: torch.tanh(a + row(h, p) @ U.mT + h), parameters=(6,))


def test_a_number_per_row_for_each_unit() -> None:
    def step(a, h, U):  # type: ignore[no-untyped-def]
        mean = h.mean(-1, keepdim=True).expand(-1, 6)
        return a + mean @ U.mT + torch.cat([mean[:, :2], h[:, 2:]], -1)

    held(step)


@pytest.mark.parametrize("low", [None, -0.5])
@pytest.mark.parametrize("high", [None, 0.5])
def test_gradient_of_clamp_at_its_ends(low, high) -> None:  # type: ignore[no-untyped-def]
    """What stands exactly at an end keeps its gradient, as in torch."""
    if low is None and high is None:
        pytest.skip("clamps nothing")
    made = CompiledStep(
        program_text.write(translate(lambda a, h, U: a.clamp(low, high) + h @ U.mT, 3, [3], [(3, 3)], []))
    )
    a = torch.tensor([[[[-0.5, 0.5, 0.7]]]], dtype=torch.float64, requires_grad=True)
    h, U = torch.zeros(1, 1, 3).double(), torch.zeros(1, 3, 3).double()
    (wanted,) = torch.autograd.grad(a.clamp(low, high).sum(), a)
    inputs = ScanInputs(made, a.detach(), [h], [U], [])
    found = torch_operations.forward(inputs)
    d_a, *_ = scan_gradients(torch_operations, inputs, found, [torch.ones(1, 1, 1, 3).double()], False)
    torch.testing.assert_close(d_a, wanted)


def refused(step, **sizes) -> str:  # type: ignore[no-untyped-def]
    given = {"a": 4, "states": (4,), "matrices": ((4, 4),), "parameters": ()} | sizes
    with pytest.raises(Untranslatable) as why:
        translate(step, *given.values())
    return str(why.value)


def test_refusals_name_the_operation_the_line_and_what_works() -> None:
    def sorted_step(a, h, U):  # type: ignore[no-untyped-def]
        return (a + h @ U.mT).sort(-1).values

    line = sorted_step.__code__.co_firstlineno + 1
    assert refused(sorted_step) == (
        f"the operation sort (line {line} of {__file__}) cannot be translated; write it with arithmetic, torch.where, "
        "and functions such as tanh"
    )


@pytest.mark.parametrize(
    ("step", "what", "instead"),
    [
        (lambda a, h, U: (a + h @ U.mT).relu_(), "the in-place operation relu_", "without changing a tensor: relu"),
        (lambda a, h, U: a + h @ U.tanh(), "tanh on a matrix", "in `prepare`"),
        (lambda a, h, U: a + h @ U.mT @ h.mT, "transpose of a state", "only matrices"),
        (lambda a, h, U: a + h @ (U @ U), "of two states, or of two matrices", "h @ U.mT"),
        (lambda a, h, U: a + (h @ U.mT).mean(0), "mean over dimension [0]", "dim=-1"),
        (lambda a, h, U: a + (h @ U.mT).sum(-1)[:, None], "sum without keepdim=True", "keep the dimension"),
        (lambda a, h, U: a + (h @ U.mT)[:, ::2].repeat(1, 2), "slice with step 2", "chunk"),
        (lambda a, h, U: a + (h @ U.mT)[:, 0:1] * h[:, 0][:, None], "select takes a dimension away", "x[:, i : i + 1]"),
        (lambda a, h, U: a + torch.cat([h, h]) [:2] @ U.mT, "cat over dimension", "dim=-1"),
        (lambda a, h, U: a + h @ U.mT + torch.rand(4), "the operation rand", "torch.where"),
        (lambda a, h, U: a + h @ U.mT + OUTSIDE, "a tensor from outside", "parameter"),
    ],
)  # fmt: skip
def test_what_a_step_may_not_do(step, what: str, instead: str) -> None:  # type: ignore[no-untyped-def]
    said = refused(step)
    assert what in said
    assert instead in said


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda a, h, U: (a + h @ U.mT, h), "the step of the step must return 1 state, as many as it takes, got 2"),
        (lambda a, h, U: (a + h @ U.mT)[:, :3], f"{STATE_0} must have shape (B, 4), got shape (B, 3)"),
        (lambda a, h, U: None, f"{STATE_0} must have shape (B, 4), got None"),
    ],
)  # fmt: skip
def test_wrong_states(step, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError) as why:
        translate(step, 4, [4], [(4, 4)], [])
    assert str(why.value) == said


def test_a_matrix_is_no_state() -> None:
    with pytest.raises(ValueError) as why:
        translate(lambda a, h, U: U, 2, [2], [(2, 2)], [])  # of just that shape while it is traced
    assert str(why.value) == f"{STATE_0} must be computed by the step, got a matrix"


@pytest.mark.parametrize(
    "positive",
    [lambda h, U: h.sum() > 0, lambda h, U: (h > 0).any(), lambda h, U: (h.cumsum(-1) @ U.mT)[0, 0].item() > 0],
    ids=["sum", "any", "product"],
)
def test_a_branch_behind_an_operation_that_is_not_translated(positive) -> None:  # type: ignore[no-untyped-def]
    def step(a, h, U):  # type: ignore[no-untyped-def]
        return a + h @ U.mT if positive(h, U) else a

    with pytest.raises(NumberNeeded):
        translate(step, 4, [4], [(4, 4)], [])


def test_a_branch_on_a_number() -> None:
    def step(a, h, U, p):  # type: ignore[no-untyped-def]
        return a + h @ U.mT if p > 0 else a

    with pytest.raises(ValueError) as why:
        translate(step, 4, [4], [(4, 4)], [1])
    assert f"a step may not decide on a number (line {step.__code__.co_firstlineno + 1} of {__file__})" in str(
        why.value
    )
