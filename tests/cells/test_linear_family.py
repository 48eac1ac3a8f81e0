"""Linear recurrences against the equations of their papers, written out here a second time with complex numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from evenflow import create
from evenflow.cells.diagonal_ssm import frequencies
from evenflow.scan.compiled_step import compiled_step

SAME = {"atol": 1e-12, "rtol": 1e-10}  # float64, the same sums in another order
ROUNDED = {"atol": 1e-6, "rtol": 1e-5}  # starting values, drawn in double and stored in single precision
T, B, I, H = 6, 3, 2, 8
N = H // 2


def drawn(name: str, **options: object) -> tuple[torch.nn.Module, dict[str, Tensor], Tensor]:
    """A layer in float64 with random weights, its weights, and an input."""
    torch.manual_seed(0)
    layer = create(name, I, H, dtype=torch.float64, **options)
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return layer, dict(layer.direction_weights(0)), torch.randn(T, B, I, dtype=torch.float64)


def as_complex(v: Tensor, dim: int = -1) -> Tensor:
    return torch.complex(*v.chunk(2, dim))


def as_real(z: Tensor) -> Tensor:
    return torch.cat([z.real, z.imag], -1)


def σ(v: Tensor) -> Tensor:
    return 1 / (1 + (-v).exp())


def lru(w: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor]:
    Λ = torch.exp(torch.complex(-w["decay"].exp(), w["phase"].exp()))
    Bx = x.to(Λ.dtype) @ as_complex(w["weight_ih"], 0).T
    return (as_real(Λ * as_complex(h) + w["scale"].exp() * Bx),)


def state_space(w: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor]:
    Λ, Δ = torch.complex(-w["decay"].exp(), w["frequency"]), w["log_step"].exp()
    Bx = x.to(Λ.dtype) @ as_complex(w["weight_ih"], 0).T
    return (as_real(torch.exp(Λ * Δ) * as_complex(h) + (torch.exp(Λ * Δ) - 1) / Λ * Bx),)


def linoss(w: dict[str, Tensor], x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """The paper's M⁻¹ of the implicit scheme, two by two numbers for each unit."""
    A, Δ = w["stiffness"].clamp(min=0), σ(w["time_step"])
    M = torch.stack([torch.ones_like(A), Δ * A, -Δ, torch.ones_like(A)], -1).unflatten(-1, (2, 2))
    right = torch.stack([z + Δ * (x @ w["weight_ih"].T), y], -1)
    z, y = torch.linalg.solve(M, right.unsqueeze(-1)).squeeze(-1).unbind(-1)
    return y, z


def linoss_imex(w: dict[str, Tensor], x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    A, Δ = w["stiffness"].clamp(min=0), σ(w["time_step"])
    z = z + Δ * (-A * y + x @ w["weight_ih"].T)
    return y + Δ * z, z


def rotrnn(w: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor]:
    """Head by head, with the block-diagonal rotation matrix."""
    heads, new = len(w["decay"]), torch.zeros_like(h)
    for k, γ in enumerate(torch.exp(-w["decay"].exp())):
        pairs = torch.arange(N).chunk(heads)[k]
        rows = torch.cat([pairs, pairs + N])
        W = w["weight_ih"][rows]
        c, s = torch.diag(w["phase"][pairs].cos()), torch.diag(w["phase"][pairs].sin())
        R = torch.cat([torch.cat([c, -s], 1), torch.cat([s, c], 1)])
        ξ = torch.sqrt((1 - γ**2) / torch.trace(W.T @ W))
        new[:, rows] = γ * h[:, rows] @ R.T + ξ * x @ W.T
    return (new,)


def mingru(w: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor]:
    (Wz, Wh), (bz, bh) = w["weight_ih"].chunk(2), w["bias"].chunk(2)
    z = σ(x @ Wz.T + bz)
    return ((1 - z) * h + z * (x @ Wh.T + bh),)


def positive(v: Tensor) -> Tensor:
    """The paper's g: log g is log(relu(x) + 1/2) for x >= 0 and -softplus(-x) else."""
    return torch.where(v >= 0, (torch.relu(v) + 0.5).log(), -torch.nn.functional.softplus(-v)).exp()


def minlstm(w: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor]:
    (Wf, Wi, Wh), (bf, bi, bh) = w["weight_ih"].chunk(3), w["bias"].chunk(3)
    f, i = σ(x @ Wf.T + bf), σ(x @ Wi.T + bi)
    return (f / (f + i) * h + i / (f + i) * positive(x @ Wh.T + bh),)


def rglru(w: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor]:
    (Wr, Wi, Wn), (br, bi, bn) = w["weight_ih"].chunk(3), w["bias"].chunk(3)
    a = σ(w["decay"]) ** (8 * σ(x @ Wr.T + br))
    return (a * h + torch.sqrt(1 - a**2) * (σ(x @ Wi.T + bi) * (x @ Wn.T + bn)),)


PAPERS: dict[str, tuple[str, dict[str, object], Callable[..., tuple[Tensor, ...]]]] = {
    "lru": ("lru", {}, lru),
    "s4d": ("s4d", {}, state_space),
    "s5": ("s5", {}, state_space),
    "linoss": ("linoss", {}, linoss),
    "linoss imex": ("linoss", {"scheme": "imex"}, linoss_imex),
    "rotrnn": ("rotrnn", {}, rotrnn),
    "rotrnn two heads": ("rotrnn", {"heads": 2}, rotrnn),
    "mingru": ("mingru", {}, mingru),
    "minlstm": ("minlstm", {"candidate": "positive"}, minlstm),
    "rglru": ("rglru", {}, rglru),
}


@pytest.mark.parametrize("name", PAPERS)
def test_step_is_that_of_the_paper(name: str) -> None:
    system, options, paper = PAPERS[name]
    layer, weights, x = drawn(system, **options)
    states = tuple(torch.randn(B, H, dtype=torch.float64) for _ in layer.cell.states)
    given = tuple(s.unsqueeze(0) for s in states)
    output, _ = layer(x, given if len(given) > 1 else given[0])
    for t in range(T):
        states = paper(weights, x[t], *states)
        torch.testing.assert_close(output[t], states[0], **SAME)


# Of the papers' layers for I inputs and H real numbers of the state, without what reads the state (C and D). RotRNN
# also has its basis P, which what reads the state contains here.
COUNTS = {
    "lru": I * H + 3 * N,
    "s4d": I * H + 3 * N,
    "s5": I * H + 3 * N,
    "linoss": I * H + 2 * H,
    "rotrnn": I * H + N + 1,
    "mingru": 2 * (I * H + H),
    "minlstm": 3 * (I * H + H),
    "rglru": 3 * (I * H + H) + H,
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_count(name: str) -> None:
    assert sum(p.numel() for p in create(name, I, H).parameters()) == COUNTS[name]


@pytest.mark.parametrize("name", COUNTS)
def test_runs_in_pieces(name: str) -> None:
    """Every one of these steps is found to be linear, and gives over a long sequence what the loop gives."""
    options = {"dtype": torch.float64, "num_layers": 2, "bidirectional": True}
    layer, loop = (create(name, I, H, engine=engine, **options) for engine in ("torch", "reference"))
    loop.load_state_dict(layer.state_dict())
    x = torch.randn(300, B, I, dtype=torch.float64)
    found, wanted = layer(x)[0], loop(x)[0]
    steps = [compiled_step(str(text)) for text in layer.cell.programs.values()]
    assert steps
    assert all(step.linear_forward is not None and step.linear_backward is not None for step in steps)
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-8)
    found.square().sum().backward()
    wanted.square().sum().backward()
    for p, q in zip(layer.parameters(), loop.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, atol=1e-8, rtol=1e-7)


def test_lru_starts_in_its_ring() -> None:
    layer = create("lru", 1, 4096, r_min=0.5, r_max=0.8, max_phase=0.3)
    λ = torch.exp(torch.complex(-layer.decay_l0.exp(), layer.phase_l0.exp()))
    assert 0.5 <= λ.abs().min() <= 0.51
    assert 0.79 <= λ.abs().max() <= 0.8
    assert λ.angle().min() > 0
    assert 0.29 <= λ.angle().max() <= 0.3 + 1e-6
    # Uniform over the area: half of it is within the root of the mean of both squares.
    assert ((λ.abs() < math.sqrt((0.5**2 + 0.8**2) / 2)).float().mean() - 0.5).abs() < 0.05
    torch.testing.assert_close(layer.scale_l0.exp(), (1 - λ.abs().square()).sqrt(), **ROUNDED)


def test_a_readout_is_the_papers_output() -> None:
    """Re(C z) is a linear map of both parts of z."""
    layer, _, x = drawn("lru")
    z = as_complex(layer(x)[0])
    C = torch.randn(5, N, dtype=torch.complex128)
    torch.testing.assert_close((z @ C.T).real, layer(x)[0] @ torch.cat([C.real, -C.imag], -1).T, **SAME)


def test_state_spaces_start_at_the_eigenvalues_of_the_papers() -> None:
    n, k = 16, torch.arange(16, dtype=torch.float64)
    root = (2 * torch.arange(2 * n, dtype=torch.float64) + 1).sqrt()
    legs = -torch.tril(root[:, None] * root, -1) - torch.diag(torch.arange(1.0, 2 * n + 1, dtype=torch.float64))
    normal = legs + torch.outer(root, root) / 2  # HiPPO-LegS plus a matrix of rank one
    eigenvalues = torch.linalg.eigvals(normal)
    torch.testing.assert_close(eigenvalues.real, torch.full((2 * n,), -0.5, dtype=torch.float64), atol=1e-9, rtol=0)
    above = eigenvalues.imag[eigenvalues.imag > 0].sort().values
    torch.testing.assert_close(frequencies("legs", n), above, atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(frequencies("lin", n), math.pi * k)
    torch.testing.assert_close(frequencies("inv", n), 32 / math.pi * (32 / (2 * k + 1) - 1))
    for name, start in (("s5", "legs"), ("s4d", "lin")):
        layer = create(name, 1, 2 * n)
        torch.testing.assert_close(layer.frequency_l0, frequencies(start, n).float())
        torch.testing.assert_close((-layer.decay_l0.exp()), torch.full((n,), -0.5))
        assert 0.001 <= layer.log_step_l0.exp().min() <= layer.log_step_l0.exp().max() <= 0.1


def test_rotations_in_any_basis() -> None:
    """With an orthogonal P, ``x_t = γ P R Pᵀ x_{t-1} + ξ P W u_t`` is P times our state."""
    layer, w, u = drawn("rotrnn")
    P = torch.linalg.qr(torch.randn(H, H, dtype=torch.float64)).Q
    γ, c, s = torch.exp(-w["decay"].exp()), torch.diag(w["phase"].cos()), torch.diag(w["phase"].sin())
    R = torch.cat([torch.cat([c, -s], 1), torch.cat([s, c], 1)])
    M = P @ w["weight_ih"]
    state, outputs = torch.zeros(B, H, dtype=torch.float64), []
    for t in range(T):
        state = γ * state @ (P @ R @ P.T).T + torch.sqrt((1 - γ**2) / torch.trace(M.T @ M)) * u[t] @ M.T
        outputs.append(state)
    torch.testing.assert_close(torch.stack(outputs), layer(u)[0] @ P.T, **SAME)


def test_the_state_of_rotrnn_keeps_its_norm() -> None:
    torch.manual_seed(0)
    layer = create("rotrnn", 16, 32, gamma_min=0.99, gamma_max=0.99)
    output, _ = layer(torch.randn(2000, 50, 16))
    assert abs(output[1000:].square().sum(-1).mean() - 1) < 0.03


def test_rglru_starts_between_the_papers_bounds() -> None:
    kept = create("rglru", 1, 4096).decay_l0.sigmoid() ** 8
    assert 0.9 - 1e-4 <= kept.min() <= 0.901
    assert 0.998 <= kept.max() <= 0.999 + 1e-4


def test_rglru_has_a_slope_where_it_keeps_everything() -> None:
    layer = create("rglru", 1, 4)
    with torch.no_grad():
        layer.bias_l0[:4] = -200.0  # r is 0 in single precision, and so λ is 1
    layer(torch.randn(10, 2, 1))[0].sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_imex_keeps_the_energy_that_im_loses() -> None:
    """Without input the symplectic scheme's oscillators keep y' of its first steps, over a thousand steps."""
    sizes = {}
    for scheme in ("im", "imex"):
        torch.manual_seed(0)
        layer = create("linoss", 1, 8, scheme=scheme, dtype=torch.float64)
        start = (torch.ones(1, 2, 8, dtype=torch.float64), torch.zeros(1, 2, 8, dtype=torch.float64))
        output, _ = layer(torch.zeros(1000, 2, 1, dtype=torch.float64), start)
        sizes[scheme] = output[-100:].abs().amax(0).min()
    assert sizes["im"] < 1e-3
    assert sizes["imex"] > 0.5


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("lru", {"r_min": 1.0}, "r_min must be a number of at least 0 and below 0.999, got 1.0"),
        ("s5", {"start": "leg"}, "start must be one of legs, lin, inv, got 'leg'"),
        ("s5", {"step_max": 0.0001}, "step_max must be a number of at least 0.001, got 0.0001"),
        ("linoss", {"scheme": "ex"}, "scheme must be one of im, imex, got 'ex'"),
        ("rotrnn", {"heads": 3}, "hidden_size / 2 must be a multiple of heads = 3, got 8 / 2"),
        ("mingru", {"candidate": "tanh"}, "candidate must be one of identity, positive, got 'tanh'"),
        ("rglru", {"c": 0}, "c must be a number above 0, got 0"),
    ],
)
def test_wrong_settings_are_refused(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        create(name, I, H, **options)
