"""The GRU recurrence in torch operations; see `gru` for the arguments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.scan.elman_torch import running_mask


def forward(
    a: Tensor, weight: Tensor, bias: Tensor | None, h0: Tensor, batch_sizes: Sequence[int] | None
) -> tuple[Tensor, Tensor]:
    size = h0.shape[-1]
    fresh = a.new_empty if batch_sizes is None else a.new_zeros
    states, kept = fresh(*a.shape[:-1], size), fresh(*a.shape[:-1], 4 * size)
    for m in range(a.shape[0]):
        h, gates, candidate = h0[m], weight[m, : 2 * size].mT, weight[m, 2 * size :].mT
        shift = torch.zeros_like(weight[m, 0]) if bias is None else bias[m]
        rows = zip(a[m].unbind(0), states[m].unbind(0), kept[m].unbind(0), strict=True)
        for t, (a_t, out, keep) in enumerate(rows):
            if batch_sizes is not None:
                a_t, out, keep, h = (v[: batch_sizes[t]] for v in (a_t, out, keep, h))
            gate, n, q = keep.split([2 * size, size, size], -1)
            torch.addmm(a_t[:, : 2 * size], h, gates, out=gate)
            torch.addmm(shift, h, candidate, out=q)
            r, z = gate.sigmoid_().chunk(2, -1)
            torch.addcmul(a_t[:, 2 * size :], r, q, out=n)
            torch.lerp(n.tanh_(), h, z, out=out)
            h = out
    return states, kept


def backward(
    grad: Tensor,
    states: Tensor,
    kept: Tensor,
    weight: Tensor,
    h0: Tensor,
    batch_sizes: Sequence[int] | None,
    want_state_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if batch_sizes is not None:
        grad = grad * running_mask(batch_sizes, grad)  # what follows is then zero beyond each sequence's end
    models, _, batch, size = states.shape
    d_a = states.new_empty(*states.shape[:-1], 3 * size)
    d_h, d_weight, d_h0 = torch.empty_like(states), torch.empty_like(weight), torch.empty_like(h0)
    d_bias = weight.new_empty(models, size)
    for m in range(models):
        r, z, n, q = kept[m].chunk(4, -1)
        before = torch.cat([h0[m].unsqueeze(0), states[m, :-1]])
        # How the pre-activations of r and z, and q, move h: for all steps in one go.
        n_into_h = (1 - z) * (1 - n * n)
        q_into_h = n_into_h * r
        into = torch.stack([q_into_h * q * (1 - r), (before - n) * z * (1 - z), q_into_h], -2)  # (T, B, 3, H)
        d_all = torch.empty_like(into)
        after: Tensor | None = None
        passed = torch.zeros_like(h0[m])
        rows = zip(grad[m].unbind(0), d_h[m].unbind(0), into.unbind(0), d_all.unbind(0), z.unbind(0), strict=True)
        for grad_t, g, slope, d, share in reversed(list(rows)):
            if after is None:
                g.copy_(grad_t)
            else:
                torch.addmm(grad_t, after, weight[m], out=g).add_(passed)
            torch.mul(slope, g.unsqueeze(1), out=d)
            torch.mul(share, g, out=passed)
            after = d.view(batch, 3 * size)
        # Everything that does not run through time: one product or one sum over all steps.
        d_a[m, ..., : 2 * size] = d_all[:, :, :2].flatten(-2)
        torch.mul(n_into_h, d_h[m], out=d_a[m, ..., 2 * size :])
        d_rows = d_all.flatten(-2)
        torch.mm(d_rows.flatten(0, 1).mT, before.flatten(0, 1), out=d_weight[m])
        torch.addmm(passed, d_rows[0], weight[m], out=d_h0[m])
        d_bias[m] = d_all[:, :, 2].sum((0, 1))
    return d_a, d_weight, d_bias, d_h0, d_h if want_state_gradient else states.new_empty(0)
