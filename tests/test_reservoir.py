"""The echo state network: its matrix, its memory, its readout, and a chaotic series."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from evenflow.reservoir import EchoState, Ridge, SeriesPosition
from evenflow.reservoir.sparse import cyclic

ROUNDING = 1e-5  # float32: eigenvalues, and sums over some hundred steps
EXACT = 1e-10  # float64, the same sums in another order
SAME_READOUT = 1e-8  # one solve in float64 of sums taken in another order, with a condition number near 1e6
FORGOTTEN = 1e-6  # what is left of the distance of two beginnings after 200 steps at radius 0.9
CAPACITY = 0.9  # of one delay for each unit; measured 0.99 linear, 0.35 with tanh
INPUT, HIDDEN, STEPS, BATCH = 2, 20, 50, 3
DOCUMENT = Path(__file__).parent.parent / "docs" / "reservoir.md"


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(**options: object) -> EchoState:
    settings = {"generator": seeded(), "washout": 5, "density": 0.3, "dtype": torch.float64} | options
    return EchoState(INPUT, HIDDEN, **settings)  # type: ignore[arg-type]


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def mackey_glass(steps: int, delay: float = 17, part: int = 10, skip: int = 500) -> Tensor:
    """x' = 0.2 x(t-τ) / (1 + x(t-τ)^10) - 0.1 x by the classical Runge-Kutta step of 1/part, seen once per unit."""
    lag, dt = int(delay * part), 1 / part
    x = np.empty((steps + skip) * part + lag + 1)
    x[: lag + 1] = 1.2 + 0.2 * (np.random.default_rng(0).random(lag + 1) - 0.5)
    for t in range(lag, len(x) - 1):
        push = 0.2 * x[t - lag] / (1 + x[t - lag] ** 10)
        k1 = push - 0.1 * x[t]
        k2 = push - 0.1 * (x[t] + dt / 2 * k1)
        k3 = push - 0.1 * (x[t] + dt / 2 * k2)
        k4 = push - 0.1 * (x[t] + dt * k3)
        x[t + 1] = x[t] + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return torch.tensor(x[lag + 1 :: part][skip : skip + steps]).unsqueeze(-1) - 0.9


# The matrix.


@pytest.mark.parametrize("radius", [0.5, 0.9, 1.25])
@pytest.mark.parametrize(("size", "density"), [(60, 0.1), (60, 1.0), (7, 0.3), (1, 1.0)])
def test_radius_and_density(size, density, radius):
    W = EchoState(1, size, radius=radius, density=density, generator=seeded()).weight_hh_l0
    assert torch.linalg.eigvals(W.double()).abs().max().item() == pytest.approx(radius, rel=ROUNDING)
    assert int((W != 0).sum()) == round(density * size * size)


def test_a_draw_without_a_cycle_is_drawn_again():
    """Three entries of 5 x 5 seldom close a cycle."""
    for seed in range(20):
        W = EchoState(1, 5, density=0.12, generator=seeded(seed)).weight_hh_l0.double()
        assert torch.linalg.matrix_power(W, 5).abs().max() > 0
        assert torch.linalg.eigvals(W).abs().max().item() == pytest.approx(0.9, rel=ROUNDING)


def test_cycles():
    chain = torch.diag(torch.ones(4), 1)
    shuffled = chain[torch.tensor([3, 1, 0, 4, 2])][:, torch.tensor([3, 1, 0, 4, 2])]
    loop = chain.clone()
    loop[4, 0] = 1e-3
    assert not cyclic(chain)
    assert not cyclic(shuffled)
    assert not cyclic(torch.zeros(3, 3))
    assert cyclic(loop)
    assert cyclic(torch.eye(2))


def test_scalings_and_seed():
    esn = small(input_scaling=0.3, bias_scaling=0.05)
    assert 0.2 < esn.weight_ih_l0.abs().max() <= 0.3
    assert 0.03 < esn.bias_l0.abs().max() <= 0.05
    for name, value in small(input_scaling=0.3, bias_scaling=0.05).state_dict().items():
        assert torch.equal(value, esn.state_dict()[name]), name
    assert not torch.equal(small(generator=seeded(1)).weight_hh_l0, esn.weight_hh_l0)


def test_nothing_is_trained():
    esn = small(activation="modrelu", leak=0.5)
    assert list(esn.parameters()) == []
    assert {"weight_ih_l0", "weight_hh_l0", "bias_l0", "activation_l0"} <= set(dict(esn.named_buffers()))


# The layer.


@pytest.mark.parametrize("engine", ["auto", "torch", "reference"])
@pytest.mark.parametrize("leak", [1.0, 0.5, 0.05])
@pytest.mark.parametrize("activation", ["tanh", "relu", "oplu"])
def test_equation(leak, activation, engine):
    esn = small(leak=leak, activation=activation, engine=engine)
    assert esn.leak == pytest.approx(leak)
    x, h = noise(STEPS, BATCH, INPUT), noise(1, BATCH, HIDDEN, seed=2)
    states, last = esn(x, h)
    h = h[0]
    for t in range(STEPS):
        a = x[t] @ esn.weight_ih_l0.T + esn.bias_l0 + h @ esn.weight_hh_l0.T
        h = (1 - leak) * h + leak * esn.cell.activation(a)
        torch.testing.assert_close(states[t], h, atol=EXACT, rtol=EXACT)
    assert torch.equal(last[0], states[-1])


@pytest.mark.parametrize("leak", [1.0, 0.3])
def test_call_forms(leak):
    esn, x = small(leak=leak), noise(9, BATCH, INPUT)
    whole, last = esn(x)
    assert whole.shape == (9, BATCH, HIDDEN)
    assert last.shape == (1, BATCH, HIDDEN)
    first, h = esn(x[:4])
    torch.testing.assert_close(torch.cat((first, esn(x[4:], h)[0])), whole, atol=EXACT, rtol=0)
    torch.testing.assert_close(esn(x[:, 0])[0], whole[:, 0], atol=EXACT, rtol=0)
    batch_first = small(leak=leak, batch_first=True)
    torch.testing.assert_close(batch_first(x.transpose(0, 1))[0], whole.transpose(0, 1), atol=EXACT, rtol=0)
    packed, ends = esn(pack_padded_sequence(x, torch.tensor([4, 9, 1]), enforce_sorted=False))
    assert len(packed.data) == 14
    torch.testing.assert_close(ends[0, 0], whole[3, 0], atol=EXACT, rtol=0)


@pytest.mark.parametrize("leak", [1.0, 0.5])
def test_echo_state_property(leak):
    """Two beginnings meet: what the state holds comes from the input alone."""
    esn, x = small(leak=leak, radius=0.9), noise(400, 1, INPUT)
    one, _ = esn(x, torch.ones(1, 1, HIDDEN, dtype=torch.float64))
    two, _ = esn(x, -torch.ones(1, 1, HIDDEN, dtype=torch.float64))
    distance = (one - two).norm(dim=-1).squeeze()
    assert distance[0] > 0.1
    assert distance[200] < FORGOTTEN * distance[0]


def memory(activation: str) -> float:
    """Jaeger's capacity: the sum over delays k of the squared correlation of a readout with x_{t-k}."""
    x, delays = 2 * torch.rand(3000, 1, generator=seeded(3), dtype=torch.float64) - 1, 2 * HIDDEN
    past = torch.cat([x.roll(k, 0) for k in range(1, delays + 1)], -1)
    options = {"radius": 0.95, "density": 1.0, "bias_scaling": 0.0, "ridge": 1e-10, "activation": activation}
    esn = EchoState(1, HIDDEN, generator=seeded(), dtype=torch.float64, **options).fit(x[:2000], past[:2000])
    found, past = esn.predict(x)[0][2000:], past[2000:]
    found, past = found - found.mean(0), past - past.mean(0)
    return float(((found * past).sum(0).square() / (found.square().sum(0) * past.square().sum(0))).sum())


def test_memory_capacity():
    """No more than one delay for each unit, and most of that in a linear network (Jaeger 2001)."""
    linear, tanh = memory("identity"), memory("tanh")
    assert CAPACITY * HIDDEN < linear < 1.05 * HIDDEN  # chance adds a little: forty delays, a thousand steps
    assert tanh < 0.7 * linear


def test_a_large_radius_holds_on():
    esn, x = small(radius=3.0, input_scaling=0.01), noise(400, 1, INPUT)
    ends = [esn(x, s * torch.ones(1, 1, HIDDEN, dtype=torch.float64))[0][-1] for s in (1.0, -1.0)]
    assert (ends[0] - ends[1]).norm() > 0.1


def test_gradients_pass_to_what_stands_below():
    esn = small(leak=0.5)
    assert torch.autograd.gradcheck(lambda x: esn(x)[0], (noise(3, BATCH, INPUT).requires_grad_(),))
    with esn.taps() as taps:
        output, _ = esn(noise(9, BATCH, INPUT))
    output[-1].sum().backward()
    assert taps[0].grad.shape == (9, BATCH, HIDDEN)
    assert (taps[0].grad.norm(dim=-1) > 0).all()


def test_under_a_trained_readout():
    esn, readout = small(dtype=torch.float32), nn.Linear(HIDDEN, 1)
    x = torch.randn(40, 8, INPUT, generator=seeded(3))
    y = x[:-1, :, :1]  # the input before
    optimizer = torch.optim.Adam(readout.parameters(), lr=0.05)
    losses = []
    for _ in range(300):
        loss = (readout(esn(x)[0][1:]) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * y.var(), "a readout without the reservoir's memory leaves all of it"


def test_compile():
    esn, x = small(leak=0.5), noise(6, BATCH, INPUT)
    compiled = torch.compile(esn, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x)[0], esn(x)[0], atol=EXACT, rtol=0)


# The readout.


@pytest.mark.parametrize("ridge", [1e-6, 1.0, 0.0])
def test_readout_is_the_ridge_solution(ridge):
    """numpy's least squares, with the penalty as further rows of data and no penalty on the bias."""
    esn, x, y = small(ridge=ridge), noise(STEPS, BATCH, INPUT), noise(STEPS, BATCH, 4, seed=2)
    esn.fit(x, y)
    features = torch.cat((esn(x)[0], x), -1)[5:].flatten(0, 1).numpy()
    F = features.shape[1]
    penalty = np.concatenate((ridge**0.5 * np.eye(F), np.zeros((F, 1))), 1)
    rows = np.concatenate((np.concatenate((features, np.ones((len(features), 1))), 1), penalty))
    targets = np.concatenate((y[5:].flatten(0, 1).numpy(), np.zeros((F, 4))))
    W = np.linalg.lstsq(rows, targets, rcond=None)[0].T
    found = np.concatenate((esn.readout_weight.numpy(), esn.readout_bias.numpy()[:, None]), 1)
    np.testing.assert_allclose(found, W, atol=SAME_READOUT, rtol=SAME_READOUT)
    outputs, state = esn.predict(x)
    np.testing.assert_allclose(outputs[5:].flatten(0, 1).numpy(), rows[: len(features)] @ W.T, atol=1e-7)
    assert torch.equal(state, esn(x)[1])


@pytest.mark.parametrize("cuts", [(50,), (3, 1, 20, 26), (1,) * 50], ids=["whole", "uneven", "single-steps"])
def test_streaming_equals_whole(cuts, monkeypatch):
    x, y = noise(STEPS, BATCH, INPUT), noise(STEPS, BATCH, 2, seed=2)
    whole = small().fit(x, y)
    streamed = small().fit(iter(zip(x.split(cuts), y.split(cuts), strict=True)))
    by_hand, state = small(), None
    for piece, targets in zip(x.split(cuts), y.split(cuts), strict=True):
        state = by_hand.partial_fit(piece, targets, state)
    by_hand.solve()
    # A long tensor is read in pieces too; here of two steps each.
    monkeypatch.setattr("evenflow.reservoir.readout.PIECE", 2 * BATCH * (HIDDEN + INPUT))
    cut = small().fit(x, y)
    for other in (streamed, by_hand, cut):
        torch.testing.assert_close(other.readout_weight, whole.readout_weight, atol=SAME_READOUT, rtol=SAME_READOUT)
        torch.testing.assert_close(other.readout_bias, whole.readout_bias, atol=SAME_READOUT, rtol=SAME_READOUT)
    torch.testing.assert_close(cut.predict(x)[0], whole.predict(x)[0], atol=1e-7, rtol=0)


def test_each_series_is_washed_out_once():
    x, y = noise(STEPS, BATCH, INPUT), noise(STEPS, BATCH, 2, seed=2)
    one_by_one = small()
    for b in range(BATCH):
        state = one_by_one.partial_fit(x[:3, b], y[:3, b])
        one_by_one.partial_fit(x[3:, b], y[3:, b], state)
    assert one_by_one._sums.count == BATCH * (STEPS - 5)
    one_by_one.solve()
    whole = small().fit(x, y)
    torch.testing.assert_close(one_by_one.readout_weight, whole.readout_weight, atol=SAME_READOUT, rtol=SAME_READOUT)
    first = small(batch_first=True).fit(x.transpose(0, 1), y.transpose(0, 1))
    torch.testing.assert_close(first.readout_weight, whole.readout_weight, atol=SAME_READOUT, rtol=SAME_READOUT)
    torch.testing.assert_close(first.predict(x.transpose(0, 1))[0], whole.predict(x)[0].transpose(0, 1))


@pytest.mark.parametrize("piece", [50, 7, 150], ids=["within the washout", "uneven", "beyond the washout"])
def test_interleaved_series_are_washed_out_once_each(piece):
    """The washout belongs to a series: it makes no difference what came between two pieces of it."""
    x, y = noise(200, 2, INPUT), noise(200, 2, 1, seed=2)
    mixed, reached = small(washout=100), [None, None]
    for begin in range(0, 200, piece):
        for b in range(2):
            part = slice(begin, begin + piece)
            reached[b] = mixed.partial_fit(x[part, b], y[part, b], reached[b])
            assert reached[b].washout == max(0, 100 - begin - piece)
    assert mixed._sums.count == 2 * (200 - 100)
    mixed.solve()
    whole = small(washout=100).fit(x, y)
    torch.testing.assert_close(mixed.readout_weight, whole.readout_weight, atol=SAME_READOUT, rtol=SAME_READOUT)
    torch.testing.assert_close(reached[1].state, mixed(x[:, 1])[1], atol=EXACT, rtol=0)


def test_a_state_from_elsewhere_is_not_washed_out_again():
    esn, x, y = small(washout=100), noise(200, INPUT), noise(200, 1, seed=2)
    _, warm = esn(x[:100])
    fresh = small(washout=100)
    fresh.partial_fit(x[100:], y[100:], warm)
    assert fresh._sums.count == 100
    fresh.solve()
    torch.testing.assert_close(fresh.readout_weight, esn.fit(x, y).readout_weight, atol=SAME_READOUT, rtol=SAME_READOUT)


def test_predicting_goes_on_where_fitting_stopped():
    esn, x = small(), noise(STEPS, BATCH, INPUT)
    reached = esn.partial_fit(x[:39], x[1:40])
    esn.solve()
    assert isinstance(pickle.loads(pickle.dumps(reached)), SeriesPosition)
    torch.testing.assert_close(esn.predict(x[39:], reached)[0], esn.predict(x)[0][39:], atol=EXACT, rtol=EXACT)
    free = esn.run(4, reached.state, x[39])
    for one, other in zip(esn.run(4, reached, x[39]), free, strict=True):
        assert torch.equal(one, other)


def test_fitting_again_forgets():
    x, y = noise(STEPS, BATCH, INPUT), noise(STEPS, BATCH, 2, seed=2)
    again = small().fit(-x, x.square()).fit(x, y)
    assert torch.equal(again.readout_weight, small().fit(x, y).readout_weight)


def test_an_offset_costs_no_digits():
    """Sums of squares would lose all sixteen of a target that stands at 1e8."""
    ridge, features, targets = Ridge(), noise(500, 4), noise(500, 1, seed=2)
    for f, t in zip(features.split(50), targets.split(50), strict=True):
        ridge.add(f + 1e6, t + 1e8)
    near = Ridge()
    near.add(features, targets)
    torch.testing.assert_close(ridge.solve(1e-3)[0], near.solve(1e-3)[0], atol=1e-7, rtol=0)


def test_the_readout_holds_only_a_piece_of_the_states():
    """A generator of pieces is never gathered: each is gone when the next is made."""
    import weakref

    alive: list[weakref.ref[Tensor]] = []

    def pieces():
        for seed in range(20):
            x = noise(100, 1, INPUT, seed=seed)
            alive.append(weakref.ref(x))
            assert sum(ref() is not None for ref in alive) <= 2
            yield x, x[..., :1]
            del x

    small().fit(pieces())


# A chaotic series.


def test_mackey_glass():
    """One step ahead against a linear autoregression of a hundred steps, and 84 steps alone."""
    series = mackey_glass(2501)
    x, y = series[:-1], series[1:]
    train, lags = 2000, 100
    esn = EchoState(1, 300, ridge=1e-8, generator=seeded(), dtype=torch.float64).fit(x[:train], y[:train])
    known, state = esn.predict(x[:train])
    ahead, _ = esn.predict(x[train:], state)
    spread = y[train:].std()
    error = (ahead - y[train:]).square().mean().sqrt() / spread

    history = series.squeeze().unfold(0, lags, 1)[: len(y) - lags + 1]
    history = torch.cat((history, torch.ones(len(history), 1)), 1)
    until = train - lags + 1
    w = torch.linalg.lstsq(history[:until], y[lags - 1 : train], driver="gelsd").solution
    linear = (history[until:] @ w - y[train:]).square().mean().sqrt() / spread
    # Measured: 6.4e-5 against 4.5e-4 (over six seeds up to 1.2e-4), and below 4.1e-3 (up to 0.011) against 0.74.
    assert error < 1.5e-4
    assert error < 0.3 * linear

    free, _ = esn.run(84, state, known[-1])
    seen = series[train - lags + 1 : train + 1, 0].tolist()  # ends with the value that known[-1] stands for
    for _ in range(84):
        seen.append(float(torch.tensor([*seen[-lags:], 1.0], dtype=torch.float64) @ w[:, 0]))
    alone = torch.tensor(seen[lags:], dtype=torch.float64).unsqueeze(-1)
    truth = y[train : train + 84]
    drift, linear_drift = ((found - truth).square().mean().sqrt() / spread for found in (free, alone))
    assert drift < 0.02
    assert drift < 0.1 * linear_drift


def test_running_alone_is_predicting_from_its_own_outputs():
    esn, x = small(), noise(STEPS, BATCH, INPUT)
    esn.fit(x[:-1], x[1:])
    outputs, state = esn.predict(x)
    free, after = esn.run(4, state, outputs[-1])
    assert free.shape == (4, BATCH, INPUT)
    fed = torch.cat((outputs[-1:], free[:-1]))
    again, last = esn.predict(fed, state)
    torch.testing.assert_close(again, free, atol=EXACT, rtol=0)
    torch.testing.assert_close(last, after, atol=EXACT, rtol=0)
    _, one = esn.predict(x[:, 0])
    torch.testing.assert_close(esn.run(4, one, outputs[-1, 0])[0], free[:, 0], atol=1e-8, rtol=0)
    turned = copy.deepcopy(esn)
    turned.batch_first = True
    torch.testing.assert_close(turned.run(4, state, outputs[-1])[0], free.transpose(0, 1), atol=EXACT, rtol=0)


# Saving.


def test_safetensors_round_trip_in_a_fresh_process(tmp_path):
    from safetensors.torch import load_file, save_file

    esn, x = small(leak=0.4, dtype=torch.float32), noise(STEPS, BATCH, INPUT).float()
    esn.fit(x[:-1], x[1:])
    outputs, state = esn.predict(x)
    save_file(esn.state_dict(), tmp_path / "esn.safetensors")
    save_file({"x": x}, tmp_path / "x.safetensors")
    script = (
        "import sys, torch\n"
        "from safetensors.torch import load_file, save_file\n"
        "from evenflow.reservoir import EchoState\n"
        f"esn = EchoState({INPUT}, {HIDDEN}, leak=0.9)\n"
        "esn.load_state_dict(load_file(sys.argv[1] + '/esn.safetensors'))\n"
        "outputs, state = esn.predict(load_file(sys.argv[1] + '/x.safetensors')['x'])\n"
        "save_file({'outputs': outputs, 'state': state}, sys.argv[1] + '/found.safetensors')\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    found = load_file(tmp_path / "found.safetensors")
    assert torch.equal(found["outputs"], outputs)
    assert torch.equal(found["state"], state)


def test_copies():
    esn, x = small(leak=0.4), noise(STEPS, BATCH, INPUT)
    esn.fit(x[:-1], x[1:])
    for other in (copy.deepcopy(esn), pickle.loads(pickle.dumps(esn))):
        assert torch.equal(other.predict(x)[0], esn.predict(x)[0])
    assert esn.float().predict(x.float())[0].dtype == torch.float32
    assert "leak=0.4" in repr(esn)
    assert "readout=2 wide" in repr(esn)


def test_document_runs():
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(blocks) >= 2
    space: dict[str, object] = {}
    for block in blocks:
        exec(block, space)


# Wrong input.


def fitted() -> EchoState:
    x = noise(STEPS, BATCH, INPUT)
    return small().fit(x, x[..., :1])


X = noise(STEPS, BATCH, INPUT)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: EchoState(1, 0), "hidden_size must be a whole number of at least 1, got 0"),
        (lambda: EchoState(1, 5, radius=0.0), "radius must be a number above 0, got 0.0"),
        (lambda: EchoState(1, 5, radius=float("nan")), "radius must be a number above 0, got nan"),
        (lambda: EchoState(1, 5, leak=1.5), "leak must be a number above 0 and at most 1, got 1.5"),
        (lambda: EchoState(1, 5, leak=0), "leak must be a number above 0 and at most 1, got 0"),
        (lambda: EchoState(1, 5, density=-0.1), "density must be a number above 0 and at most 1, got -0.1"),
        (lambda: EchoState(1, 5, input_scaling=-1), "input_scaling must be a number of at least 0, got -1"),
        (lambda: EchoState(1, 5, bias_scaling="a"), "bias_scaling must be a number of at least 0, got 'a'"),
        (lambda: EchoState(1, 5, ridge=-1e-6), "ridge must be a number of at least 0, got -1e-06"),
        (lambda: EchoState(1, 5, washout=-1), "washout must be a whole number of at least 0, got -1"),
        (
            lambda: EchoState(1, 400, density=1e-7, generator=seeded()),
            "density must be larger for 400 units, as 100 draws had no cycle, got 1e-07",
        ),
        (lambda: small()(noise(5, BATCH, 3)), "input must be (T, B, I) or (T, I) with I = 2, got (5, 3, 3)"),
        (lambda: small().predict(X), "there is no readout yet: call fit first"),
        (lambda: small().run(3, X[0], X[0]), "there is no readout yet: call fit first"),
        (lambda: small().solve(), "there is nothing to solve from: no step was seen beyond the washout"),
        (lambda: small().fit(X[:5], X[:5]), "there is nothing to solve from: no step was seen beyond the washout"),
        (lambda: small().fit(X), "y must be a tensor of targets for this x, got NoneType"),
        (
            lambda: small().fit(X, X.numpy()),
            "y must be a tensor of targets for this x, got ndarray: torch.tensor(y, dtype=torch.float32) is one",
        ),
        (
            lambda: small().fit(X.numpy(), X.numpy()),
            "x must be a tensor, got ndarray: torch.tensor(x, dtype=torch.float32) is one",
        ),
        (lambda: small().fit([(X, X)], X), "y must be left out where x is an iterable of pairs (x, y)"),
        (
            lambda: small().fit(X, X[:-1]),
            "y must have as many steps and rows as x, got (49, 3, 2) and (50, 3, 2)",
        ),
        (lambda: small().fit(X, X[0, 0]), "y must be a tensor of two or three dimensions, got (2,)"),
        (
            lambda: small().fit(pack_padded_sequence(X, torch.tensor([50, 2, 2])), X),
            "x must be a tensor of two or three dimensions, got PackedSequence",
        ),
        (
            lambda: small().fit([(X, X), (X, X[..., :1])]),
            "y must be as wide as before, 2, got 1",
        ),
        (
            lambda: small().fit(X, X / 0),
            "x and y must hold finite numbers, got inf or nan in the states or the targets",
        ),
        (
            lambda: small().fit(X * float("nan"), X),
            "x and y must hold finite numbers, got inf or nan in the states or the targets",
        ),
        (
            lambda: fitted().run(3, noise(1, BATCH, HIDDEN), X[0]),
            "run feeds outputs back, so they must be 2 wide like the input, got 1",
        ),
        (
            lambda: small().fit(X, X).run(0, noise(1, BATCH, HIDDEN), X[0]),
            "steps must be a whole number of at least 1, got 0",
        ),
        (
            lambda: small().fit(X, X).run(3, noise(1, BATCH, HIDDEN), X),
            "start must be (B, I) or (I) with I = 2, got (50, 3, 2)",
        ),
        (
            lambda: fitted().predict(X, noise(1, 4, HIDDEN)),
            "h0 must have shape (1, 3, 20) for this input, got (1, 4, 20)",
        ),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == words


def test_a_layer_is_called_with_where_a_series_stands():
    esn = small()
    x, y = noise(20, 2, INPUT), noise(20, 2, 1)
    reached = esn.partial_fit(x, y)
    for one, other in zip(esn(x, reached), esn(x, reached.state), strict=True):
        assert torch.equal(one, other)


def test_ridge_with_weights_is_ridge_with_repeated_rows():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 4, generator=draw), torch.randn(30, 2, generator=draw)
    weights = torch.arange(30) % 3 + 1
    weighted, repeated = Ridge(), Ridge()
    for rows in (slice(0, 11), slice(11, 30)):
        weighted.add(x[rows], y[rows], weights[rows])
    repeated.add(x.repeat_interleave(weights, 0), y.repeat_interleave(weights, 0))
    for one, other in zip(weighted.solve(0.1), repeated.solve(0.1), strict=True):
        assert torch.allclose(one, other, atol=1e-12)
