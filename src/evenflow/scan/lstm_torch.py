"""The LSTM recurrence in torch operations; see `lstm` for the arguments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.scan.elman_torch import running_mask


def forward(
    a: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, peephole: Tensor | None, batch_sizes: Sequence[int] | None
) -> tuple[Tensor, Tensor, Tensor]:
    size = h0.shape[-1]
    forgets = a.shape[-1] == 4 * size
    inner = a.shape[-1] - 2 * size  # the gates before the candidate: i and f, or i alone
    fresh = a.new_empty if batch_sizes is None else a.new_zeros
    gates, hs, cs = fresh(a.shape), fresh(*a.shape[:-1], size), fresh(*a.shape[:-1], size)
    for m in range(a.shape[0]):
        h, c, transposed = h0[m], c0[m], weight[m].mT
        into_inner, into_o = (None, None) if peephole is None else peephole[m].split([inner, size])
        scratch = torch.empty_like(c)
        for t, (a_t, gate, h_t, c_t) in enumerate(
            zip(a[m].unbind(0), gates[m].unbind(0), hs[m].unbind(0), cs[m].unbind(0), strict=True)
        ):
            if batch_sizes is not None:
                n = batch_sizes[t]
                a_t, gate, h_t, c_t, h, c, scratch = (v[:n] for v in (a_t, gate, h_t, c_t, h, c, scratch))
            torch.addmm(a_t, h, transposed, out=gate)
            before, g, o = gate.split([inner, size, size], -1)
            if into_inner is not None:
                before.addcmul_(into_inner, c.repeat(1, 2))
            before.sigmoid_()
            g.tanh_()
            torch.mul(gate[:, :size], g, out=c_t)
            if forgets:
                c_t.addcmul_(before[:, size:], c)
            else:
                c_t.add_(c)
            if into_o is not None:
                o.addcmul_(into_o, c_t)
            o.sigmoid_()
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
    peephole: Tensor | None,
    truncated: bool,
    batch_sizes: Sequence[int] | None,
    want_state_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    grad_h = torch.zeros_like(hs) if grad_h is None else grad_h
    grad_c = torch.zeros_like(cs) if grad_c is None else grad_c
    if batch_sizes is not None:
        mask = running_mask(batch_sizes, grad_h)
        grad_h, grad_c = grad_h * mask, grad_c * mask
    models, _, batch, size = hs.shape
    blocks = gates.shape[-1] // size
    d_a = torch.empty_like(gates)
    d_h = torch.empty_like(hs) if want_state_gradient else hs.new_empty(0)
    d_weight, d_h0, d_c0 = torch.empty_like(weight), torch.empty_like(h0), torch.empty_like(c0)
    d_peephole = hs.new_empty(0) if peephole is None else torch.empty_like(peephole)
    for m in range(models):
        i, *forget, g, o = gates[m].chunk(blocks, -1)
        tanh_c = cs[m].tanh()
        before = torch.cat([c0[m].unsqueeze(0), cs[m, :-1]])
        # How each gate's pre-activation moves c, how the output gate and c move h, and how c moves its successor: for
        # all steps in one go.
        forgotten = [before * f * (1 - f) for f in forget]
        into_c = torch.stack([g * i * (1 - i), *forgotten, i * (1 - g * g)], -2)  # (T, B, blocks - 1, H)
        o_into_h = tanh_c * o * (1 - o)
        c_into_h = o * (1 - tanh_c * tanh_c)
        c_into_c = forget[0] if forget else torch.ones_like(i)
        if peephole is not None:
            p_i, p_f, p_o = peephole[m].chunk(3)
            c_into_h = c_into_h + p_o * o_into_h
            c_into_c = c_into_c + p_i * into_c[:, :, 0] + p_f * into_c[:, :, 1]
        after: Tensor | None = None
        carried = torch.zeros_like(c0[m])
        g_t = torch.empty_like(h0[m])
        outs = d_h[m].unbind(0) if want_state_gradient else [g_t] * len(hs[m])
        rows = zip(
            grad_h[m].unbind(0),
            grad_c[m].unbind(0),
            outs,
            d_a[m].unflatten(-1, (blocks, size)).unbind(0),
            into_c.unbind(0),
            o_into_h.unbind(0),
            c_into_h.unbind(0),
            c_into_c.unbind(0),
            strict=True,
        )
        for from_h, from_c, g_t, d, into, o_slope, c_slope, kept in reversed(list(rows)):
            if after is None or truncated:
                g_t.copy_(from_h)
            else:
                torch.addmm(from_h, after, weight[m], out=g_t)
            carried.add_(from_c).addcmul_(g_t, c_slope)
            torch.mul(into, carried.unsqueeze(1), out=d[:, :-1])
            torch.mul(g_t, o_slope, out=d[:, -1])
            carried.mul_(kept)
            after = d.view(batch, blocks * size)
        first, rest = d_a[m, 0], d_a[m, 1:].flatten(0, 1)
        torch.mm(first.mT, h0[m], out=d_weight[m])
        d_weight[m].addmm_(rest.mT, hs[m, :-1].flatten(0, 1))
        d_h0[m] = 0 if truncated else first @ weight[m]
        d_c0[m] = carried
        if peephole is not None:
            d_i, d_f, _, d_o = d_a[m].chunk(4, -1)
            d_peephole[m] = torch.cat([(d * c).sum((0, 1)) for d, c in ((d_i, before), (d_f, before), (d_o, cs[m]))])
    return d_a, d_weight, d_h0, d_c0, d_peephole, d_h
