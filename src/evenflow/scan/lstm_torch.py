"""The LSTM recurrence in torch operations; see `lstm` for the arguments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.scan.elman_torch import running_mask


def forward(
    a: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, batch_sizes: Sequence[int] | None
) -> tuple[Tensor, Tensor, Tensor]:
    size = h0.shape[-1]
    fresh = torch.empty_like if batch_sizes is None else torch.zeros_like
    like = a[..., :size]
    gates, hs, cs = (
        fresh(a),
        fresh(like, memory_format=torch.contiguous_format),
        fresh(like, memory_format=torch.contiguous_format),
    )
    for m in range(a.shape[0]):
        h, c, transposed = h0[m], c0[m], weight[m].mT
        scratch = torch.empty_like(c)
        for t, (a_t, gate, h_t, c_t) in enumerate(
            zip(a[m].unbind(0), gates[m].unbind(0), hs[m].unbind(0), cs[m].unbind(0), strict=True)
        ):
            if batch_sizes is not None:
                n = batch_sizes[t]
                a_t, gate, h_t, c_t, h, c, scratch = (v[:n] for v in (a_t, gate, h_t, c_t, h, c, scratch))
            torch.addmm(a_t, h, transposed, out=gate)
            gate[:, : 2 * size].sigmoid_()
            gate[:, 2 * size : 3 * size].tanh_()
            gate[:, 3 * size :].sigmoid_()
            i, f, g, o = gate.chunk(4, -1)
            torch.mul(f, c, out=c_t)
            c_t.addcmul_(i, g)
            torch.tanh(c_t, out=scratch)
            torch.mul(o, scratch, out=h_t)
            h, c = h_t, c_t
    return hs, cs, gates


def backward(
    grad_h: Tensor | None,
    grad_c: Tensor | None,
    hs: Tensor,
    cs: Tensor,
    gates: Tensor,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor,
    batch_sizes: Sequence[int] | None,
    want_state_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    grad_h = torch.zeros_like(hs) if grad_h is None else grad_h
    grad_c = torch.zeros_like(cs) if grad_c is None else grad_c
    if batch_sizes is not None:
        mask = running_mask(batch_sizes, grad_h)
        grad_h, grad_c = grad_h * mask, grad_c * mask
    models, _, batch, size = hs.shape
    d_a = torch.empty_like(gates)
    d_h = torch.empty_like(hs) if want_state_gradient else hs.new_empty(0)
    d_weight, d_h0, d_c0 = torch.empty_like(weight), torch.empty_like(h0), torch.empty_like(c0)
    for m in range(models):
        i, f, g, o = gates[m].chunk(4, -1)
        tanh_c = cs[m].tanh()
        before = torch.cat([c0[m].unsqueeze(0), cs[m, :-1]])
        # How each gate's pre-activation moves c, and how the output gate and c move h: for all steps in one go.
        into_c = torch.stack([g * i * (1 - i), before * f * (1 - f), i * (1 - g * g)], -2)  # (T, B, 3, H)
        o_into_h = tanh_c * o * (1 - o)
        c_into_h = o * (1 - tanh_c * tanh_c)
        after: Tensor | None = None
        carried = torch.zeros_like(c0[m])
        g_t = torch.empty_like(h0[m])
        outs = d_h[m].unbind(0) if want_state_gradient else [g_t] * len(hs[m])
        rows = zip(
            grad_h[m].unbind(0),
            grad_c[m].unbind(0),
            outs,
            d_a[m].unflatten(-1, (4, size)).unbind(0),
            into_c.unbind(0),
            o_into_h.unbind(0),
            c_into_h.unbind(0),
            f.unbind(0),
            strict=True,
        )
        for from_h, from_c, g_t, d, into, o_slope, c_slope, forget in reversed(list(rows)):
            if after is None:
                g_t.copy_(from_h)
            else:
                torch.addmm(from_h, after, weight[m], out=g_t)
            carried.add_(from_c).addcmul_(g_t, c_slope)
            torch.mul(into, carried.unsqueeze(1), out=d[:, :3])
            torch.mul(g_t, o_slope, out=d[:, 3])
            carried.mul_(forget)
            after = d.view(batch, 4 * size)
        first, rest = d_a[m, 0], d_a[m, 1:].flatten(0, 1)
        torch.mm(first.mT, h0[m], out=d_weight[m])
        d_weight[m].addmm_(rest.mT, hs[m, :-1].flatten(0, 1))
        torch.mm(first, weight[m], out=d_h0[m])
        d_c0[m] = carried
    return d_a, d_weight, d_h0, d_c0, d_h
