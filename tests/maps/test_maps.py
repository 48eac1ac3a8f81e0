"""Claims every map must hold: a map is tested here by being listed in MAPS."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from evenflow.maps import MAPS, Factorized, Map, attach, detach, make, residual
from evenflow.maps.map import HALF
from evenflow.maps.rounding import MOVED

# |WᵀW - I|, the sum itself taken in float64: a few roundings of the entries, whatever the size.
ORTHOGONAL = {torch.float32: 1e-6, torch.float64: 1e-12}
# The same after 10,000 updates of the raw numbers, which only rounding can spoil.
ORTHOGONAL_LATER = 1e-5
# Two ways to the same float64 number.
EXACT = 1e-9
# Two ways to the same float32 gradient, relative to its largest entry: the sums are over 16 entries.
GRADIENT = 1e-4

SIZES = (1, 2, 3, 8, 33, 128, 512)
EVEN = {"rotations", "schur"}  # maps of even sizes
NO_INVERSE = {"rotations", "unitary_product", "schur"}  # too few numbers for every matrix, or no decomposition in torch
ANY_SHAPE = {"free", "svd", "factorized", "low_rank", "sparse"}
# Settings beyond the defaults that go through the same claims.
SETTINGS: list[tuple[str, dict[str, object]]] = [
    *((name, {}) for name in MAPS),
    ("free", {"init": "glorot_normal"}),
    ("exponential", {"method": "eigen"}),
    ("exponential", {"init": "haar"}),
    ("cayley", {"signs": "half"}),
    ("householder", {"reflectors": 0}),
    ("householder", {"reflectors": 1}),
    ("rotations", {"layers": 1}),
    ("svd", {"reflectors": 0, "margin": 0.2}),
    ("svd", {"reflectors": 1, "margin": 0.0}),
    ("svd", {"margin": None}),
    ("svd", {"margin": 0.5, "bound": "clip"}),
    ("factorized", {"margin": None}),
    ("unitary", {"method": "cayley"}),
]


def case(name: str, options: dict[str, object]) -> str:
    return "-".join([name, *(f"{key}={value}" for key, value in options.items())])


every = pytest.mark.parametrize(("name", "options"), SETTINGS, ids=[case(*setting) for setting in SETTINGS])
orthogonal = [setting for setting in SETTINGS if MAPS[setting[0]].orthogonal]
every_orthogonal = pytest.mark.parametrize(("name", "options"), orthogonal, ids=[case(*s) for s in orthogonal])


def by_hand(map: Map) -> bool:
    """Whether the gradient of the map is written by hand."""
    return type(map).vjp is not Map.vjp


def fits(name: str, n: int) -> bool:
    return n % 2 == 0 or name not in EVEN


def numbers(map: Map, *lead: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(*lead, *shape, generator=source, dtype=dtype) for shape in map.raw_shapes]


@pytest.mark.parametrize("dtype", ORTHOGONAL, ids=str)
@pytest.mark.parametrize("n", SIZES)
@every_orthogonal
def test_orthogonal(name: str, options: dict[str, object], n: int, dtype: torch.dtype) -> None:
    if not fits(name, n) or (n == 512 and options.get("init") == "haar"):
        pytest.skip("a size the map does not have, or a start that takes minutes to draw")
    if n == 512 and options.get("method") == "eigen":
        pytest.skip("seconds of eigenvectors; 128 shows the same")
    map = make(name, n, **options)
    start = [r.to(dtype) for r in map.start(torch.Generator().manual_seed(n))]
    for raw in (start, [3 * r for r in start]):
        W = map(*raw)
        assert W.shape == (n, n)
        assert residual(W.to(torch.complex128 if W.is_complex() else torch.float64)) <= ORTHOGONAL[dtype]


@pytest.mark.parametrize("updates", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [name for name in MAPS if MAPS[name].orthogonal])
def test_orthogonal_after_many_updates(name: str, updates: int) -> None:
    map = make(name, 32)
    raw = [nn.Parameter(r) for r in map.start(torch.Generator().manual_seed(0))]
    optimizer = torch.optim.Adam(raw, lr=0.01)
    pulls = torch.randn(100, 32, 32, generator=torch.Generator().manual_seed(1))
    for step in range(updates):
        optimizer.zero_grad()
        W = map(*raw)
        W.backward(pulls[step % 100].to(W.dtype))
        optimizer.step()
    W = map(*raw).detach()
    assert residual(W.to(torch.complex128 if W.is_complex() else torch.float64)) <= ORTHOGONAL_LATER


@every
def test_start_is_the_generators(name: str, options: dict[str, object]) -> None:
    map = make(name, 8, **options)
    draw = [map.start(torch.Generator().manual_seed(seed)) for seed in (1, 1)]
    for a, b, shape in zip(*draw, map.raw_shapes, strict=True):
        assert a.shape == shape
        assert a.dtype == torch.float32
        assert torch.equal(a, b)


@every
def test_right_inverse(name: str, options: dict[str, object]) -> None:
    map = make(name, 6, **options)
    W = map(*(r.double() for r in map.start(torch.Generator().manual_seed(0))))
    if name in NO_INVERSE:
        with pytest.raises(ValueError, match="cannot be given a matrix"):
            map.right_inverse(W)
        return
    if options.get("reflectors") == 1 and name == "svd":
        with pytest.raises(
            ValueError, match="SVD with 1 and 1 reflectors cannot make this matrix; 6 on either side can"
        ):
            map.right_inverse(W)
        return
    raw = map.right_inverse(W)
    raw = raw if isinstance(raw, tuple) else (raw,)
    assert tuple(r.shape for r in raw) == map.raw_shapes
    assert (map(*raw) - W).abs().max() < EXACT


@every
def test_right_inverse_refuses_another_shape(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"makes matrices of 4 x 4, got one of shape \(3, 4\)"):
        make(name, 4, **options).right_inverse(torch.zeros(3, 4))


@pytest.mark.parametrize("lead", [(), (2,), (2, 2)], ids=["one", "models", "grid"])
@every
def test_gradcheck(name: str, options: dict[str, object], lead: tuple[int, ...]) -> None:
    map = make(name, 4, **options)
    raw = [r.requires_grad_() for r in numbers(map, *lead) if r.numel()]
    empty = [r for r in numbers(map, *lead) if not r.numel()]
    if raw:
        assert torch.autograd.gradcheck(lambda *r: map(*empty, *r), raw)


@every
def test_gradient_of_the_gradient(name: str, options: dict[str, object]) -> None:
    map = make(name, 4, **options)
    raw = [r.requires_grad_() for r in numbers(map) if r.numel()]
    empty = [r for r in numbers(map) if not r.numel()]
    if raw:
        assert torch.autograd.gradgradcheck(lambda *r: map(*empty, *r), raw)


@pytest.mark.parametrize("name", MAPS)
def test_many_gradients_side_by_side(name: str) -> None:
    """As a Jacobian by `torch.autograd.functional.jacobian(..., vectorize=True)` asks for them."""
    map = make(name, 4)
    raw = [r.requires_grad_() for r in numbers(map)]
    W = map(*raw)
    pulls = torch.randn(3, *W.shape, generator=torch.Generator().manual_seed(1), dtype=W.dtype)
    found = torch.autograd.grad(W, raw, pulls, is_grads_batched=True, retain_graph=True)
    apart = [torch.autograd.grad(W, raw, pull, retain_graph=True) for pull in pulls]
    for one, others in zip(found, zip(*apart, strict=True), strict=True):
        torch.testing.assert_close(one, torch.stack(others), atol=EXACT, rtol=EXACT)


@pytest.mark.parametrize("n", [2, 6, 16])
@every
def test_by_hand_equals_plain(name: str, options: dict[str, object], n: int) -> None:
    map = make(name, n, **options)
    if not by_hand(map):
        pytest.skip("torch differentiates this one anyway")
    for dtype, bound in ((torch.float64, EXACT), (torch.float32, GRADIENT)):
        raw = [r.requires_grad_() for r in numbers(map, 3, dtype=dtype)]
        W, expected = map(*raw), map.plain(*raw)
        assert (W - expected).abs().max() < bound
        pull = torch.randn(W.shape, generator=torch.Generator().manual_seed(1), dtype=W.dtype)
        inputs = [r for r in raw if r.numel()]
        if inputs and map.parameter_count:
            got = torch.autograd.grad(W, inputs, pull)
            for g, e in zip(got, torch.autograd.grad(expected, inputs, pull), strict=True):
                assert (g - e).abs().max() <= bound * (1 + e.abs().max())


@every
def test_models_are_independent(name: str, options: dict[str, object]) -> None:
    map = make(name, 6, **options)
    raw = numbers(map, 2, 3)
    W = map(*raw)
    assert W.shape == (2, 3, 6, 6)
    assert (W[1, 2] - map(*(r[1, 2] for r in raw))).abs().max() < EXACT


@every
def test_product(name: str, options: dict[str, object]) -> None:
    map = make(name, 6, **options)
    for lead in ((), (3,)):
        raw = numbers(map, *lead)
        W = map(*raw)
        h = torch.randn(*lead, 5, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(W.dtype)
        assert (map.product(h, *raw) - h @ W.mT).abs().max() < EXACT


@pytest.mark.parametrize("dtype", HALF, ids=str)
@every
def test_half_precision_is_computed_in_full(name: str, options: dict[str, object], dtype: torch.dtype) -> None:
    map = make(name, 6, **options)
    raw = [r.to(dtype).requires_grad_() for r in map.start(torch.Generator().manual_seed(0))]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        W = map(*raw)
    expected = map(*(r.detach().float() for r in raw))
    assert W.dtype == (expected.dtype if expected.is_complex() else dtype)
    assert torch.equal(W, expected.to(W.dtype))
    if map.parameter_count:
        W.abs().sum().backward()
        assert all(r.grad is not None and r.grad.isfinite().all() for r in raw if r.numel())


@every_orthogonal
def test_whole_float32_products_whatever_is_allowed(name: str, options: dict[str, object]) -> None:
    map = make(name, 64, **options)
    raw = map.start(torch.Generator().manual_seed(0))
    expected, allowed = map(*raw), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch.equal(map(*raw), expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(allowed)


@every
def test_computed_in_float64_on_request(name: str, options: dict[str, object]) -> None:
    if name == "free":
        pytest.skip("nothing is computed")
    map, exact = make(name, 8, **options), make(name, 8, precision="float64", **options)
    raw = map.start(torch.Generator().manual_seed(0))
    W, full = exact(*raw), map(*(r.double() for r in raw))
    assert W.dtype == map(*raw).dtype
    if map.orthogonal and not W.is_complex():  # rounded with care, see test_rounding
        assert (W - full).abs().max() <= MOVED
        assert residual(W.double()) < ORTHOGONAL[torch.float32]
    else:
        assert torch.equal(W, full.to(W.dtype))


@every
def test_state_dict_round_trip(name: str, options: dict[str, object]) -> None:
    def layer(seed: int) -> nn.Module:
        return attach(
            nn.Linear(6, 6), "weight", make(name, 6, **options), generator=torch.Generator().manual_seed(seed)
        )

    first, second = layer(1), layer(2)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.weight, second.weight)


@every
def test_detach_leaves_the_weight(name: str, options: dict[str, object]) -> None:
    layer = attach(nn.Linear(6, 6), "weight", make(name, 6, **options))
    W = layer.weight.detach().clone()
    if name == "free":
        assert not parametrize.is_parametrized(layer)
        return
    detach(layer, "weight")
    assert isinstance(layer.weight, nn.Parameter)
    assert list(layer.state_dict()) == ["bias", "weight"] or list(layer.state_dict()) == ["weight", "bias"]
    assert torch.equal(layer.weight, W)


@every
def test_compiles_whole(name: str, options: dict[str, object]) -> None:
    torch.compiler.reset()
    map = make(name, 6, **options)
    raw = [r.requires_grad_() for r in numbers(map) if r.numel()]
    empty = [r for r in numbers(map) if not r.numel()]

    def loss(*raw: Tensor) -> Tensor:
        return map(*empty, *raw)[0].abs().square().sum() + map(*empty, *raw)[1, 2].abs()

    value = torch.compile(loss, backend="aot_eager", fullgraph=True)(*raw)
    assert (value - loss(*raw)).abs() < EXACT
    if raw and value.requires_grad:
        for g, e in zip(torch.autograd.grad(value, raw), torch.autograd.grad(loss(*raw), raw), strict=True):
            assert (g - e).abs().max() < EXACT


@pytest.mark.parametrize("name", MAPS)
def test_bad_sizes(name: str) -> None:
    for size in (0, -1, 2.5):
        with pytest.raises(ValueError, match="rows must be a whole number of at least 1"):
            make(name, size)
    with pytest.raises(ValueError, match=r"precision must be one of float32, float64, got|no option 'precision'"):
        make(name, 4, precision="half")


@pytest.mark.parametrize("name", [name for name in MAPS if name not in ANY_SHAPE])
def test_needs_a_square_matrix(name: str) -> None:
    with pytest.raises(ValueError, match="needs a square matrix, got 4 x 6"):
        make(name, 4, 6)


def counted(name: str, n: int, m: int = 3) -> int:
    """The parameter counts the documents give."""
    return {
        "free": n * n,
        "exponential": n * (n - 1) // 2,
        "moving_base": n * (n - 1) // 2,
        "cayley": n * (n - 1) // 2,
        "householder": m * n - m * (m - 1) // 2,
        "rotations": n // 2 * {4: 4, 32: 10, 128: 14, 256: 16, 512: 18}[n],
        "svd": 2 * (m * n - m * (m - 1) // 2) + n,
        "factorized": 2 * n * n + n,
        "unitary": n * n,
        "unitary_product": 7 * n,
        "unitary_scaled": n * n + n,
        "schur": n * (n - 1) // 2 + n + n * (n - 2) // 2,
        "antisymmetric": n * (n - 1) // 2,
        "symmetric_skew": n * n,
        "low_rank": 2 * n * (n // 4),
        "sparse": n * n,
    }[name]


@pytest.mark.parametrize("n", [4, 32, 128, 256, 512])
@pytest.mark.parametrize("name", MAPS)
def test_parameter_count(name: str, n: int) -> None:
    options = {"reflectors": 3} if name in ("householder", "svd") else {}
    map = make(name, n, **options)
    assert map.parameter_count == counted(name, n) == sum(r.numel() for r in map.start())


def test_rates_and_stiefel_match_the_numbers() -> None:
    for name in MAPS:
        map = make(name, 4)
        assert len(map.rates) == len(map.stiefel) == len(map.raw_shapes)
        assert any(map.stiefel) == isinstance(map, Factorized)


@every
def test_autocast_leaves_value_and_gradient_in_full(name: str, options: dict[str, object]) -> None:
    seen = []
    for lower in (False, True):
        map = make(name, 16, **options)
        if not by_hand(map) or not all(map.raw_shapes[0]):
            pytest.skip("torch differentiates it" if map.parameter_count else "it has no numbers")
        leaves = [r.requires_grad_() for r in map.start(torch.Generator().manual_seed(2))]
        with torch.autocast("cpu", torch.bfloat16, enabled=lower):
            matrix = map(*leaves)
            weight = torch.linspace(-1, 1, matrix.numel()).reshape(matrix.shape)
            loss = (matrix * weight).sum()
            seen.append([matrix, *torch.autograd.grad(loss.real, leaves)])
    for one, other in zip(*seen, strict=True):
        assert torch.equal(one, other)


@every
def test_every_buffer_is_in_the_state_dict(name, options):
    """Programs that fill an empty module from a file would leave random numbers in others."""
    map = make(name, 8, **options)
    assert {key for key, _ in map.named_buffers()} <= map.state_dict().keys()


@every
def test_a_map_that_first_ran_in_inference_mode_has_a_gradient(name, options):
    map = make(name, 8, **options)
    raw = [r.requires_grad_() for r in map.start(torch.Generator().manual_seed(0))]
    with torch.inference_mode():
        map(*raw)
    map(*raw).abs().sum().backward()
    assert all(r.grad is not None for r in raw)
