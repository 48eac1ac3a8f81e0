"""Feed-forward networks: their equations and numbers, singular values within the margin, gradients within bounds."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from evenflow.activations import ACTIVATIONS
from evenflow.feedforward import MLP, NETWORKS, FeedForward, ResNet, SpectralLinear, SpectralMLP, SpectralResNet
from evenflow.feedforward.spectral import CENTERS

EXACT = 1e-10  # float64, a handful of products
ROUNDING = 1e-5  # float32, singular values of a product of reflections
VANISHED = 1e-6  # a gradient this much smaller than the one it came from is gone in float32
TRAINED, GUESSED = 0.6, 0.2  # share of ten kinds of digits that a network names rightly
LEARNED = 0.1  # cross entropy of three classes, 1.1 for a guess
INPUT, OUTPUT, WIDTH = 7, 3, 8

networks = pytest.mark.parametrize("name", NETWORKS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(name: str, **options: object) -> FeedForward:
    settings = {"width": WIDTH, "depth": 4, "generator": seeded()} | options
    return NETWORKS[name](INPUT, OUTPUT, **settings)  # type: ignore[arg-type]


def train(model: nn.Module, steps: int, lr: float) -> float:
    x, y = torch.randn(16, INPUT, generator=seeded(1)), torch.randint(OUTPUT, (16,), generator=seeded(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def gradient_ratio(model: FeedForward, x: Tensor) -> float:
    """|∂L/∂h_0| / |∂L/∂h_L| for a loss with a random gradient at the output, over one example."""
    seen: list[Tensor] = []

    def listen(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        inputs[0].retain_grad()
        seen.append(inputs[0])

    hooks = [module.register_forward_pre_hook(listen) for module in (model.hidden[0], model.output)]
    y = model(x)
    for hook in hooks:
        hook.remove()
    (y * torch.randn(y.shape, generator=seeded(5), dtype=y.dtype)).sum().backward()
    first, last = (h.grad.norm().item() for h in seen)
    return first / last


# The layer.


@pytest.mark.parametrize("shape", [(5, 5), (9, 4), (4, 9), (1, 6), (6, 1)], ids=str)
@pytest.mark.parametrize("reflectors", ["all", "one"])
def test_spectral_linear_keeps_its_singular_values(shape, reflectors):
    inputs, outputs = shape
    m = None if reflectors == "all" else 1
    layer = SpectralLinear(inputs, outputs, reflectors=m, margin=0.2, generator=seeded())
    assert (torch.linalg.svdvals(layer.weight) - 1).abs().max() < ROUNDING
    assert torch.equal(layer.bias, torch.zeros(outputs))
    optimizer = torch.optim.SGD(layer.parameters(), lr=10.0)
    x = torch.randn(20, inputs, generator=seeded(1))
    before = layer.weight.detach().clone()
    for _ in range(20):
        optimizer.zero_grad()
        (layer(x) - 3 * x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    s = torch.linalg.svdvals(layer.weight)
    assert not torch.allclose(layer.weight, before, atol=1e-2)
    assert s.min() >= 0.8 - ROUNDING
    assert s.max() <= 1.2 + ROUNDING
    torch.testing.assert_close(layer.singular_values().sort(descending=True).values, s, atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("shape", [(4, 7), (7, 4), (5, 5)], ids=str)
def test_spectral_linear_makes_every_matrix(shape):
    """Theorem 4: min(in, out) reflectors on either side are enough for any shape."""
    inputs, outputs = shape
    layer = SpectralLinear(inputs, outputs, margin=None, dtype=torch.float64)
    wanted = torch.randn(outputs, inputs, generator=seeded(3), dtype=torch.float64)
    layer.weight = wanted
    assert (layer.weight - wanted).abs().max() < EXACT


@pytest.mark.parametrize(("inputs", "outputs", "m"), [(6, 6, 2), (9, 4, 4), (4, 9, 3)])
def test_spectral_linear_numbers(inputs, outputs, m):
    layer = SpectralLinear(inputs, outputs, reflectors=m)
    expected = m * (inputs + outputs) - m * (m - 1) + min(inputs, outputs) + outputs
    assert sum(p.numel() for p in layer.parameters()) == expected


def test_spectral_linear_starts_again():
    layer = SpectralLinear(5, 4, margin=0.1, generator=seeded())
    start = copy.deepcopy(layer.state_dict())
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(1.0)
    layer.reset_parameters(generator=seeded())
    for name, value in layer.state_dict().items():
        assert torch.equal(value, start[name]), name


# The equations.


def test_mlp_equation():
    model = small("mlp", depth=2, activation="tanh", dtype=torch.float64)
    x = torch.randn(5, INPUT, dtype=torch.float64)
    h = torch.tanh(x @ model.input.weight.T + model.input.bias)
    for layer in model.hidden:
        h = torch.tanh(h @ layer.weight.T + layer.bias)
    torch.testing.assert_close(model(x), h @ model.output.weight.T + model.output.bias, atol=EXACT, rtol=0)


@pytest.mark.parametrize("name", ["resnet", "spectral-resnet"])
def test_resnet_equation(name):
    model = small(name, activation="tanh", dtype=torch.float64)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3)
    x = torch.randn(5, INPUT, dtype=torch.float64)
    h = x @ model.input.weight.T + model.input.bias
    for first, second in zip(model.hidden[::2], model.hidden[1::2], strict=True):
        h = h + torch.tanh(h @ first.weight.T + first.bias) @ second.weight.T + second.bias
    torch.testing.assert_close(model(x), h @ model.output.weight.T + model.output.bias, atol=EXACT, rtol=0)


@networks
@pytest.mark.parametrize("activation", [*ACTIVATIONS, "leaky(0.5)"])
def test_shapes_and_activations(name, activation):
    model = small(name, activation=activation)
    for shape in [(5,), (), (0,), (2, 3)]:
        assert model(torch.randn(*shape, INPUT)).shape == (*shape, OUTPUT)
    model(torch.randn(5, INPUT)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@networks
@pytest.mark.parametrize("depth", [2, 200])
def test_depths(name, depth):
    model = small(name, depth=depth)
    assert len(model.hidden) == depth
    assert model(torch.randn(2, INPUT)).isfinite().all()


# The numbers.


@networks
@pytest.mark.parametrize(("I", "n", "L", "m"), [(784, 128, 30, 32), (7, 8, 4, 8), (3, 8, 2, 1)])
def test_numbers(name, I, n, L, m):
    O = 10
    spectral = name.startswith("spectral")
    model = NETWORKS[name](I, O, width=n, depth=L, **({"reflectors": m} if spectral else {}))
    k = min(I, n)
    if spectral:
        expected = k * (I + n) - k * (k - 1) + k + n + L * (2 * m * n - m * (m - 1) + 2 * n) + O * (n + 1)
    else:
        expected = n * (I + 1) + L * n * (n + 1) + O * (n + 1)
    assert sum(p.numel() for p in model.parameters()) == expected


def test_numbers_of_a_trained_activation():
    def count(name: str, activation: str) -> int:
        return sum(p.numel() for p in small(name, activation=activation).parameters())

    assert count("mlp", "modrelu") - count("mlp", "relu") == (4 + 1) * WIDTH
    assert count("resnet", "modrelu") - count("resnet", "relu") == 4 // 2 * WIDTH


@networks
def test_one_seed_one_network(name):
    first, second, other = small(name), small(name), small(name, generator=seeded(1))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    x = torch.randn(4, INPUT)
    assert not torch.allclose(first(x), other(x))


def test_a_free_network_draws_nothing_from_the_global_generator():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    small("mlp")
    assert torch.equal(torch.get_rng_state(), before)


# What the margin gives.


@pytest.mark.parametrize("name", ["spectral-mlp", "spectral-resnet"])
def test_singular_values_stay_within_the_margin(name):
    model = small(name, margin=0.05)
    train(model, 30, lr=0.3)
    centers = [CENTERS[place] for place in ("input", *model._places())]
    moved = 0.0
    for layer, center in zip([model.input, *model.hidden], centers, strict=True):
        s = torch.linalg.svdvals(layer.weight.detach())
        assert center - 0.05 - ROUNDING <= s.min()
        assert s.max() <= center + 0.05 + ROUNDING
        moved = max(moved, (layer.singular_values() - center).abs().max().item())
    assert moved > 0.01


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1000),
    depth=st.sampled_from([2, 10, 30]),
    margin=st.sampled_from([0.0, 0.01, 0.1]),
    name=st.sampled_from(["spectral-mlp", "spectral-resnet"]),
    activation=st.sampled_from(["oplu", "abs", "identity", "leaky(0.5)", "tanh"]),
)
def test_gradient_bounds_hold_for_any_numbers(seed, depth, margin, name, activation):
    model = small(name, depth=depth, margin=margin, activation=activation, dtype=torch.float64)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=seeded(seed), dtype=p.dtype))
    low, high = model.gradient_bounds()
    ratio = gradient_ratio(model, torch.randn(1, INPUT, generator=seeded(seed), dtype=torch.float64))
    assert low * (1 - EXACT) <= ratio <= high * (1 + EXACT)


@pytest.mark.parametrize("depth", [30, 100])
def test_gradients_stay_within_their_bounds(depth):
    """Where the plain MLP has lost its gradient, and the spectral one with the document's leaky ReLU most of it."""
    x = torch.randn(1, 64, generator=seeded(4))
    options = {"width": 32, "depth": depth, "generator": seeded()}
    spectral = SpectralMLP(64, 10, margin=0.01, start="random", **options)
    low, high = spectral.gradient_bounds()
    assert (low, high) == (pytest.approx(0.99**depth), pytest.approx(1.01**depth))
    assert low - ROUNDING < gradient_ratio(spectral, x) < high + ROUNDING
    residual = SpectralResNet(64, 10, **options)
    assert gradient_ratio(residual, x) == pytest.approx(1.0)  # every block starts as the identity
    leaky = gradient_ratio(SpectralMLP(64, 10, activation="leaky", start="random", **options), x)
    plain = gradient_ratio(MLP(64, 10, **options), x)
    assert leaky < 1e-2
    assert plain < 1e-4
    if depth == 100:
        assert max(leaky, plain) < VANISHED
        # The plain sum grows instead: each block adds to the length.
        assert gradient_ratio(ResNet(64, 10, **options), x) > 1e3


def test_hidden_layers_start_at_the_identity():
    identity, random = small("spectral-mlp"), small("spectral-mlp", start="random")
    for one, other in zip(identity.hidden, random.hidden, strict=True):
        assert (one.weight - torch.eye(WIDTH)).abs().max() < ROUNDING
        assert (other.weight - torch.eye(WIDTH)).abs().max() > 0.1
    assert torch.equal(identity.input.weight, random.input.weight)
    identity(torch.randn(6, INPUT, generator=seeded(1))).square().sum().backward()
    for layer in identity.hidden:  # it is no place that training cannot leave
        assert all(p.grad.abs().max() > 0 for p in layer.parametrizations.parameters())


DEEP = {  # by name: learning rates, each tried by itself, and options
    "spectral-mlp": ((2e-3,), {"reflectors": 4}),
    "spectral-resnet": ((1e-2,), {"reflectors": 4}),
    "mlp": ((1e-2, 1e-3, 1e-4), {}),
}


@pytest.mark.parametrize("name", DEEP)
def test_a_hundred_layers_train(name):
    """Digits, 60 updates of Adam: measured 0.76 to 0.82 and 0.84 to 0.93 of the test digits over three seeds."""
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    order = torch.randperm(len(digits.target), generator=seeded())
    x, y = torch.tensor(digits.data, dtype=torch.float32)[order] / 16 - 0.3, torch.tensor(digits.target)[order]
    rates, options = DEEP[name]
    for rate in rates:
        generator = seeded()
        model = NETWORKS[name](64, 10, width=32, depth=100, generator=generator, **options)
        optimizer = torch.optim.Adam(model.parameters(), rate)
        for _ in range(60):
            rows = torch.randint(1400, (100,), generator=generator)
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            right = (model(x[1400:]).argmax(-1) == y[1400:]).float().mean()
        if name == "mlp":
            assert right < GUESSED
        else:
            assert right > TRAINED


def test_bounds_without_a_margin():
    assert small("spectral-mlp", margin=None).gradient_bounds() == (0.0, float("inf"))
    assert small("spectral-resnet", margin=None).gradient_bounds() == (0.0, float("inf"))
    assert small("spectral-mlp", margin=1.5).gradient_bounds() == (0.0, 2.5**4)


def test_a_block_of_two_zeros_would_not_move():
    def zeros(place: str, columns: int, rows: int, generator: torch.Generator | None) -> nn.Linear:
        return SpectralLinear(columns, rows, center=float(place == "input"), margin=0.1, generator=generator)

    def moves(model: FeedForward) -> list[float]:
        model(torch.randn(6, INPUT, generator=seeded(1))).square().sum().backward()
        return [sum(p.grad.abs().sum().item() for p in layer.parametrizations.parameters()) for layer in model.hidden]

    assert moves(ResNet(INPUT, OUTPUT, width=WIDTH, depth=4, linear=zeros)) == [0.0] * 4
    first, second, *_ = moves(small("spectral-resnet"))
    assert first == 0.0
    assert second > 1e-3


# The contract of a module.


@networks
def test_overfits(name):
    options = {"margin": 0.3} if name == "spectral-resnet" else {}
    assert train(small(name, width=32, **options), 150, lr=0.01) < LEARNED


@networks
def test_state_dict_round_trip(name):
    model, other = small(name, activation="prelu"), small(name, activation="prelu", generator=seeded(1))
    train(model, 2, lr=0.01)
    other.load_state_dict(model.state_dict())
    x = torch.randn(5, INPUT)
    assert torch.equal(model(x), other(x))


@networks
@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_copies(name, way):
    model, x = small(name, margin=0.1) if name.startswith("spectral") else small(name), torch.randn(5, INPUT)
    train(model, 2, lr=0.01)
    other = pickle.loads(pickle.dumps(model)) if way == "pickle" else copy.deepcopy(model)
    assert torch.equal(other(x), model(x))
    assert list(other.state_dict()) == list(model.state_dict())
    before = model(x)
    train(other, 2, lr=0.01)
    assert torch.equal(model(x), before)
    assert not torch.equal(other(x), before)


@networks
def test_safetensors_round_trip(name, tmp_path):
    from safetensors.torch import load_file, save_file

    model, other, x = small(name), small(name, generator=seeded(1)), torch.randn(5, INPUT)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    assert torch.equal(other(x), model(x))


@networks
def test_dtype(name):
    model = small(name, dtype=torch.float64)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert model(torch.randn(2, INPUT, dtype=torch.float64)).dtype == torch.float64


@networks
def test_autocast(name):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = small(name)(torch.randn(2, INPUT))
    assert y.dtype == torch.bfloat16
    assert y.isfinite().all()


@networks
def test_compile(name):
    model, x = small(name, depth=2), torch.randn(4, INPUT)
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)
    results = []
    for run in (model, compiled):
        y = run(x)
        y.square().sum().backward()
        results.append([y, *(p.grad for p in run.parameters())])
    for eager, traced in zip(*results, strict=True):
        torch.testing.assert_close(traced, eager, atol=ROUNDING, rtol=ROUNDING)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: MLP(4, 2, depth=0), "depth must be a whole number of at least 1, got 0"),
        (lambda: MLP(4, 2, width=0), "width must be a whole number of at least 1, got 0"),
        (lambda: MLP(0, 2), "input_size must be a whole number of at least 1, got 0"),
        (lambda: MLP(4, 2.5), "output_size must be a whole number of at least 1, got 2.5"),
        (lambda: ResNet(4, 2, depth=3), "depth must be even, as blocks have two layers each, got 3"),
        (lambda: SpectralResNet(4, 2, depth=3), "depth must be even, as blocks have two layers each, got 3"),
        (
            lambda: SpectralMLP(4, 2, margin=-0.1),
            "margin must be a number of at least 0, or None for no bound, got -0.1",
        ),
        (
            lambda: SpectralResNet(4, 2, width=8, reflectors=9),
            "reflectors must be from 0 to 8 for a side of 8, got 9",
        ),
        (lambda: SpectralMLP(4, 2, width=5), "oplu sorts pairs of units, so hidden_size must be even, got 5"),
        (lambda: SpectralMLP(4, 2, start="zero"), "start must be one of identity, random, got 'zero'"),
        (lambda: SpectralLinear(4, 3).share_reflectors(), "share_reflectors needs a square layer, got 4 to 3"),
        (
            lambda: SpectralLinear(4, 4, reflectors=(2, 1)).share_reflectors(),
            "share_reflectors needs as many reflectors on either side, got 7 and 4 numbers",
        ),
        (lambda: SpectralLinear(0, 4), "in_features must be a whole number of at least 1, got 0"),
        (lambda: SpectralLinear(4, True), "out_features must be a whole number of at least 1, got True"),
        (lambda: MLP(4, 2, depth=1)(torch.randn(3, 5)), "x must be (B, I) with I = 4, got (3, 5)"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == words


def test_unknown_activation():
    with pytest.raises(ValueError, match="unknown activation 'rel', did you mean relu"):
        MLP(4, 2, activation="rel")


@networks
def test_dropout_drops_units_after_each_activation(name):
    model, x = small(name, dropout=0.5, activation="relu"), torch.randn(5, INPUT, generator=seeded(3))
    plain = small(name, activation="relu")
    assert torch.equal(model.eval()(x), plain.eval()(x))
    uses: list[Tensor] = []
    model.train().drop.register_forward_hook(lambda _, args, result: uses.append(result / args[0]))
    torch.manual_seed(0)
    model(x)
    assert len(uses) == model._activations()
    shares = torch.cat([use[use.isfinite()] for use in uses])
    assert {0.0, 2.0} >= set(shares.tolist())  # what is kept counts twice, so that the mean stays
    with pytest.raises(ValueError, match="dropout must be"):
        small(name, dropout=1.0)
