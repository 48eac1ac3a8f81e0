"""Cells against the equations of their papers, written out here a second time, and the papers' parameter counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import evenflow
from evenflow import create

SAME = {"atol": 1e-12, "rtol": 1e-10}  # float64, the same sums in another order
T, B, I, H = 6, 3, 2, 8


def drawn(name: str, **options: object) -> tuple[evenflow.Recurrent, dict[str, Tensor], Tensor]:
    """A layer in float64 with random weights, its weights, and an input."""
    torch.manual_seed(0)
    layer = create(name, I, H, dtype=torch.float64, **options)
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return layer, dict(layer.direction_weights(0)), torch.randn(T, B, I, dtype=torch.float64)


def σ(v: Tensor) -> Tensor:
    return torch.sigmoid(v)


def cornn(w: dict[str, Tensor], x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    drive = torch.tanh(y @ w["weight_hh"].T + z @ w["weight_hz"].T + x @ w["weight_ih"].T + w["bias"])
    z = z + 0.05 * (drive - y - 0.5 * z)
    return y + 0.05 * z, z


def lem(w: dict[str, Tensor], x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    V1, V2, Vz, Vy = w["weight_ih"].chunk(4)
    b1, b2, bz, by = w["bias"].chunk(4)
    W1, W2, Wz = w["weight_hh"].chunk(3)
    Δ, Δ_bar = σ(y @ W1.T + x @ V1.T + b1), σ(y @ W2.T + x @ V2.T + b2)
    z = (1 - Δ) * z + Δ * torch.tanh(y @ Wz.T + x @ Vz.T + bz)
    return (1 - Δ_bar) * y + Δ_bar * torch.tanh(z @ w["weight_hz"].T + x @ Vy.T + by), z


def antisymmetric(w: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor]:
    return (h + 0.1 * torch.tanh(h @ w["weight_hh"].T + x @ w["weight_ih"].T + w["bias"]),)


def antisymmetric_gated(w: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor]:
    (Vz, Vh), (bz, bh), U = w["weight_ih"].chunk(2), w["bias"].chunk(2), w["weight_hh"]
    return (h + 0.01 * σ(h @ U.T + x @ Vz.T + bz) * torch.tanh(h @ U.T + x @ Vh.T + bh),)


def lipschitz(w: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor]:
    inner = torch.tanh(h @ w["weight_hh"].T + x @ w["weight_ih"].T + w["bias"])
    return (h + 0.03 * (h @ w["weight_ah"].T + inner),)


def asrnn(w: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor]:
    W_f = w["weight_ff"] @ torch.diag(w["saturation"].abs() + 0.01)
    inside = (x @ w["weight_ih"].T + h @ w["weight_hh"].T + w["bias"]) @ W_f.T
    return (torch.linalg.solve(W_f, torch.tanh(inside).T).T,)


def mgu(w: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor]:
    (Wf, Wh), (bf, bh) = w["weight_ih"].chunk(2), w["bias"].chunk(2)
    f = σ(x @ Wf.T + h @ w["weight_hh"].T + bf)
    return ((1 - f) * h + f * torch.tanh(x @ Wh.T + (f * h) @ w["weight_hh_n"].T + bh),)


def ugrnn(w: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor]:
    (Wg, Wc), (bg, bc) = w["weight_ih"].chunk(2), w["bias"].chunk(2)
    g = σ(x @ Wg.T + h @ w["weight_hh"].T + bg)
    return (g * h + (1 - g) * torch.tanh(x @ Wc.T + h @ w["weight_hh_n"].T + bc),)


def fastgrnn(w: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor]:
    p, (bz, bh) = x @ w["weight_ih"].T + h @ w["weight_hh"].T, w["bias_gates"].chunk(2)
    z = σ(p + bz)
    return ((σ(w["gate_zeta"]) * (1 - z) + σ(w["gate_nu"])) * torch.tanh(p + bh) + z * h,)


def gru_2014(w: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor]:
    (Wr, Wz, Wn), (br, bz, bn), (Ur, Uz) = w["weight_ih"].chunk(3), w["bias"].chunk(3), w["weight_hh"].chunk(2)
    r, z = σ(x @ Wr.T + h @ Ur.T + br), σ(x @ Wz.T + h @ Uz.T + bz)
    return (z * h + (1 - z) * torch.tanh(x @ Wn.T + (r * h) @ w["weight_hh_n"].T + bn),)


def goru(w: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor]:
    (Wr, Wz, Wn), (br, bz, bn), (Ur, Uz) = w["weight_ih"].chunk(3), w["bias"].chunk(3), w["weight_hh"].chunk(2)
    r, z = σ(x @ Wr.T + h @ Ur.T + br), σ(x @ Wz.T + h @ Uz.T + bz)
    v = x @ Wn.T + bn + r * (h @ w["weight_hh_n"].T)
    return (z * h + (1 - z) * v.sign() * torch.relu(v.abs() + w["activation"]),)


def indrnn(w: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor]:
    return (torch.relu(x @ w["weight_ih"].T + w["bias"] + w["unit_weight"].clamp(-1, 1) * h),)


def unicornn(w: dict[str, Tensor], x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    Δt = 0.1 * (0.5 + 0.5 * torch.tanh(w["time_scale"] / 2))
    z = z - Δt * (torch.tanh(w["unit_weight"] * y + x @ w["weight_ih"].T + w["bias"]) + y)
    return y + Δt * z, z


PAPERS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "cornn": cornn,
    "lem": lem,
    "antisymmetric": antisymmetric,
    "antisymmetric-gated": antisymmetric_gated,
    "lipschitz": lipschitz,
    "asrnn": asrnn,
    "mgu": mgu,
    "ugrnn": ugrnn,
    "fastgrnn": fastgrnn,
    "gru-2014": gru_2014,
    "goru": goru,
    "indrnn": indrnn,
    "unicornn": unicornn,
}


@pytest.mark.parametrize("name", PAPERS)
def test_step_is_that_of_the_paper(name: str) -> None:
    layer, weights, x = drawn(name)
    states = tuple(torch.randn(B, H, dtype=torch.float64) for _ in layer.cell.states)
    given = tuple(s.unsqueeze(0) for s in states)
    output, _ = layer(x, given if len(given) > 1 else given[0])
    for t in range(T):
        states = PAPERS[name](weights, x[t], *states)
        torch.testing.assert_close(output[t], states[0], **SAME)


# The numbers of the papers' layers for I inputs and H units. Where a paper has two biases that appear only as a sum,
# one is counted.
COUNTS = {
    "cornn": I * H + 2 * H * H + H,
    "lem": 4 * I * H + 4 * H * H + 4 * H,
    "antisymmetric": I * H + H * (H - 1) // 2 + H,
    "antisymmetric-gated": 2 * I * H + H * (H - 1) // 2 + 2 * H,
    "lipschitz": I * H + 2 * H * H + H,
    "nnrnn": I * H + H * (H - 1) // 2 + H + H * (H - 2) // 2 + H,
    "asrnn": I * H + 2 * (H * (H - 1) // 2) + 2 * H,
    "mgu": 2 * (I * H + H * H + H),
    "ugrnn": 2 * (I * H + H * H + H),
    "fastgrnn": I * H + H * H + 2 * H + 2,
    "gru-2014": 3 * (I * H + H * H + H),
    # Of a GRU with one bias, where the candidate's matrix has H / 2 angles in each of 2 log2 H layers of rotations; and
    # modrelu's bias.
    "goru": 3 * (I * H + H) + 2 * H * H + 6 * (H // 2) + H,
    "indrnn": I * H + 2 * H,
    "unicornn": I * H + 3 * H,
    "slstm": 4 * (I * H + H * H + H),
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_count(name: str) -> None:
    assert sum(p.numel() for p in create(name, I, H).parameters()) == COUNTS[name]


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_slstm_is_the_equation_without_stabiliser(heads: int) -> None:
    layer, w, x = drawn("slstm", heads=heads)
    d = H // heads
    output, states = layer(x)
    h, c, n = (torch.zeros(B, H, dtype=torch.float64) for _ in range(3))
    for t in range(T):
        a = (x[t] @ w["weight_ih"].T + w["bias"]).view(B, heads, 4, d)
        a = a + torch.einsum("bkd,kged->bkge", h.view(B, heads, d), w["weight_hh"].view(heads, 4, d, d))
        i, f, g, o = (v.reshape(B, H) for v in a.unbind(2))
        c, n = σ(f) * c + i.exp() * torch.tanh(g), σ(f) * n + i.exp()
        h = σ(o) * c / n
        torch.testing.assert_close(output[t], h, **SAME)
    assert len(states) == 4


def test_slstm_stays_finite_with_large_gates() -> None:
    layer = create("slstm", 1, 4)
    with torch.no_grad():
        layer.weight_ih_l0.fill_(500.0)
    output, _ = layer(torch.randn(50, 2, 1))
    assert output.isfinite().all()
    assert output.abs().max() <= 1


def test_heads_divide_the_units() -> None:
    with pytest.raises(ValueError, match="hidden_size must be a multiple of heads = 3, got 8"):
        create("slstm", 2, 8, heads=3)


def test_settings_are_options_of_the_layer() -> None:
    layer = evenflow.CoRNN(2, 8, dt=0.1, gamma=2.0, num_layers=2)
    assert (layer.cell.dt, layer.cell.gamma, layer.num_layers) == (0.1, 2.0, 2)
    assert "dt=0.1" in repr(layer)
    with pytest.raises(ValueError, match="dt must be a number above 0, got 0"):
        evenflow.CoRNN(2, 8, dt=0)
    with pytest.raises(ValueError, match=r"CoRNN has no option .gama.*did you mean gamma"):
        evenflow.CoRNN(2, 8, gama=1.0)


def test_a_unit_beyond_the_bound_comes_back() -> None:
    layer = create("indrnn", 1, 1, activation="identity", bias=False)
    with torch.no_grad():
        layer.weight_ih_l0.fill_(1)
        layer.unit_weight_l0.fill_(1.5)
    x = torch.ones(4, 1, 1)
    torch.testing.assert_close(layer(x)[0].flatten(), torch.arange(1.0, 5))  # u counts as 1
    optimiser = torch.optim.SGD(layer.parameters(), 0.01)
    for _ in range(100):
        optimiser.zero_grad()
        layer(x)[0][-1].square().sum().backward()
        optimiser.step()
    assert layer.unit_weight_l0.abs() < 1


def test_low_rank_layer_has_few_parameters() -> None:
    layer = create("fastgrnn", 2, 32, map="low_rank", rank=4)
    assert sum(p.numel() for p in layer.parameters()) == 2 * 32 + 2 * 32 * 4 + 2 * 32 + 2
    assert torch.linalg.matrix_rank(layer.weight_hh_l0) == 4


def test_sparse_layer_has_few_entries() -> None:
    """In training too: numbers change places, their number stays."""
    layer = create("fastgrnn", 2, 16, map="sparse", density=0.25)
    first = layer.weight_hh_l0.detach() != 0
    optimizer = torch.optim.Adam(layer.parameters(), 0.05)
    for _ in range(20):
        optimizer.zero_grad()
        layer(torch.randn(10, 4, 2))[0].square().mean().backward()
        optimizer.step()
    last = layer.weight_hh_l0.detach() != 0
    assert int(first.sum()) == int(last.sum()) == 64
    assert not torch.equal(first, last)
    with pytest.raises(ValueError, match="Thresholded makes matrices with up to 64 nonzero entries, got one with 256"):
        layer.weight_hh_l0 = torch.ones(16, 16)
    with pytest.raises(ValueError, match="density must be a number above 0 and at most 1, got 0"):
        create("fastgrnn", 2, 16, map="sparse", density=0)
