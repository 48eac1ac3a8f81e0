"""Cells that nobody has written by hand for any engine, each from its paper's equation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

import evenflow
from evenflow import Parameter


@evenflow.cell(states=("y", "z"), matrices=("W", "V"))
def cornn(a: Tensor, y: Tensor, z: Tensor, W: Tensor, V: Tensor, *, dt: float = 0.05, gamma: float = 1.0,
          epsilon: float = 0.5) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y'' = tanh(W y + V y' + a) - γ y - ε y' (Rusch and Mishra 2021)"""
    z = z + dt * (torch.tanh(a + y @ W.mT + z @ V.mT) - gamma * y - epsilon * z)
    return y + dt * z, z


@evenflow.cell(states=("y", "z"), matrices={"W": 3, "V": 1}, blocks=4)
def lem(a: Tensor, y: Tensor, z: Tensor, W: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """long expressive memory (Rusch et al. 2022)"""
    a1, a2, a3, a4 = a.chunk(4, -1)
    w1, w2, w3 = (y @ W.mT).chunk(3, -1)
    d1, d2 = torch.sigmoid(a1 + w1), torch.sigmoid(a2 + w2)
    z = (1 - d1) * z + d1 * torch.tanh(a3 + w3)
    return (1 - d2) * y + d2 * torch.tanh(a4 + z @ V.mT), z


@evenflow.cell(matrices=("U_f", "U_h"), blocks=2)
def mgu(a: Tensor, h: Tensor, U_f: Tensor, U_h: Tensor) -> Tensor:
    """minimal gated unit (Zhou et al. 2016)"""
    a_f, a_h = a.chunk(2, -1)
    f = torch.sigmoid(a_f + h @ U_f.mT)
    return (1 - f) * h + f * torch.tanh(a_h + (f * h) @ U_h.mT)


@evenflow.cell(matrices={"U": 2}, blocks=2)
def ugrnn(a: Tensor, h: Tensor, U: Tensor) -> Tensor:
    """update gate RNN (Collins et al. 2017)"""
    c, g = (a + h @ U.mT).chunk(2, -1)
    g = torch.sigmoid(g)
    return g * h + (1 - g) * torch.tanh(c)


@evenflow.cell(parameters={"b_z": Parameter(), "b_h": Parameter(), "zeta": Parameter(1.0, "layer"),
                           "nu": Parameter(-4.0, "layer")})  # fmt: skip
def fastgrnn(a: Tensor, h: Tensor, U: Tensor, b_z: Tensor, b_h: Tensor, zeta: Tensor, nu: Tensor) -> Tensor:
    """one matrix for gate and candidate (Kusupati et al. 2018)"""
    pre = a + h @ U.mT
    z = torch.sigmoid(pre + b_z)
    return (torch.sigmoid(zeta) * (1 - z) + torch.sigmoid(nu)) * torch.tanh(pre + b_h) + z * h


@evenflow.cell(matrices={"U": 2, "U_n": 1}, blocks=3)
def gru_inside(a: Tensor, h: Tensor, U: Tensor, U_n: Tensor) -> Tensor:
    """the GRU as published first, with U (r h) (Cho et al. 2014)"""
    a_r, a_z, a_n = a.chunk(3, -1)
    u_r, u_z = (h @ U.mT).chunk(2, -1)
    r, z = torch.sigmoid(a_r + u_r), torch.sigmoid(a_z + u_z)
    return (1 - z) * torch.tanh(a_n + (r * h) @ U_n.mT) + z * h


@evenflow.cell(matrices={"U": 2, "U_n": 1}, parameters={"gain": Parameter(1.0), "shift": Parameter()}, blocks=3)
def layer_norm_gru(a: Tensor, h: Tensor, U: Tensor, U_n: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    """a GRU whose candidate is normalised over the units (Ba et al. 2016)"""
    a_r, a_z, a_n = a.chunk(3, -1)
    u_r, u_z = (h @ U.mT).chunk(2, -1)
    r, z = torch.sigmoid(a_r + u_r), torch.sigmoid(a_z + u_z)
    n = layer_norm(a_n + r * (h @ U_n.mT), h.shape[-1:], gain, shift)
    return (1 - z) * torch.tanh(n) + z * h


CELLS = {
    "cornn": cornn,
    "lem": lem,
    "mgu": mgu,
    "ugrnn": ugrnn,
    "fastgrnn": fastgrnn,
    "gru u(r h)": gru_inside,
    "layer-norm gru": layer_norm_gru,
}
