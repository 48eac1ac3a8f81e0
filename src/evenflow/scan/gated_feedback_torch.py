"""The recurrence of gated feedback in torch operations; see `gated_feedback` for the arguments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.scan.elman_torch import running_mask
from evenflow.scan.gated_feedback_weights import Gradients, gradients


def forward(
    a: Tensor,
    factors: Tensor | None,
    feedback: Tensor,
    gate: Tensor,
    own: Tensor | None,
    up: Tensor,
    bias: Tensor | None,
    shift: Tensor | None,
    h0: Tensor,
    c0: Tensor | None,
    batch_sizes: Sequence[int] | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    models, steps, batch, _ = a.shape
    L, H = feedback.shape[1:3]
    fresh = a.new_empty if batch_sizes is None else a.new_zeros
    h, gates = fresh(models, steps, batch, L * H), fresh(models, steps, batch, L * L)
    c = a.new_empty(0) if c0 is None else fresh(h.shape)
    units = a.new_empty(0) if own is None else fresh(models, steps, batch, 4 * L * H)
    for m in range(models):
        last, memory = h0[m], None if c0 is None else c0[m]
        for t in range(steps):
            n = batch if batch_sizes is None else batch_sizes[t]
            last, into = last[:n], a[m, t, :n]
            before = last.view(n, L, H).transpose(0, 1)
            fed = (before @ feedback[m]).view(L, n, L, H)  # U^{ij} h^i at [i, :, j]
            g = (last @ gate[m].mT).view(n, L, L)
            inside = None if own is None else before @ own[m].mT
            out = h[m, t, :n].view(n, L, H)
            for j in range(L):
                if j:
                    below = (
                        out[:, j - 1]
                        if factors is None
                        else out[:, j - 1] * factors[m, t, :n].view(n, L - 1, H)[:, j - 1]
                    )
                    into = below @ up[m, j - 1].mT
                    into = into if bias is None else into.add_(bias[m, j - 1])
                g[:, j] = (g[:, j] + into[:, -L:]).sigmoid_()
                q = torch.einsum("ni,inh->nh", g[:, j], fed[:, :, j])
                if inside is None:
                    torch.tanh(q.add_(into[:, :H]), out=out[:, j])
                    continue
                keep = units[m, t, :n].view(n, L, 4, H)[:, j]
                if memory is None:
                    r, z, candidate, u = keep.unbind(1)
                    torch.add(into[:, : 2 * H], inside[j], out=keep.view(n, 4 * H)[:, : 2 * H]).sigmoid_()
                    u.copy_(q if shift is None else q.add_(shift[m, j]))
                    torch.addcmul(into[:, 2 * H : 3 * H], r, u, out=candidate).tanh_()
                    torch.lerp(candidate, before[j], z, out=out[:, j])
                else:
                    i, f, candidate, o = keep.unbind(1)
                    torch.add(into[:, : 2 * H], inside[j, :, : 2 * H], out=keep.view(n, 4 * H)[:, : 2 * H]).sigmoid_()
                    torch.add(into[:, 2 * H : 3 * H], q, out=candidate).tanh_()
                    torch.add(into[:, 3 * H : 4 * H], inside[j, :, 2 * H :], out=o).sigmoid_()
                    now = c[m, t, :n].view(n, L, H)[:, j]
                    torch.mul(f, memory[:n].view(n, L, H)[:, j], out=now).addcmul_(i, candidate)
                    torch.mul(o, now.tanh(), out=out[:, j])
            gates[m, t, :n] = g.flatten(1)
            last, memory = h[m, t, :n], None if memory is None else c[m, t, :n]
    return h, c, units, gates


def backward(
    grad_h: Tensor | None,
    grad_c: Tensor | None,
    h: Tensor,
    c: Tensor,
    units: Tensor,
    gates: Tensor,
    factors: Tensor | None,
    feedback: Tensor,
    gate: Tensor,
    own: Tensor | None,
    up: Tensor,
    h0: Tensor,
    c0: Tensor | None,
    batch_sizes: Sequence[int] | None,
    want_state_gradient: bool,
) -> Gradients:
    models, steps, batch, _ = h.shape
    L, H = feedback.shape[1:3]
    blocks = 1 if own is None else 3 if c0 is None else 4
    given = [torch.zeros_like(h) if v is None else v for v in (grad_h, grad_c)]
    if batch_sizes is not None:
        mask = running_mask(batch_sizes, h)
        given = [v * mask for v in given]  # what follows is then zero beyond each sequence's end
    d = h.new_empty(models, steps, batch, L, blocks * H + L)
    d_states = torch.empty_like(h) if want_state_gradient else h.new_empty(0)
    d_h0, d_c0 = torch.empty_like(h0), h.new_empty(0) if c0 is None else torch.empty_like(c0)
    for m in range(models):
        back = feedback[m].view(L, H, L, H).permute(2, 3, 0, 1).reshape(L, H, L * H)  # U^{ij}, from j to all i
        by_h, by_c = (v[m].view(steps, batch, L, H) for v in given)
        states, g = h[m].view(steps, batch, L, H), gates[m].view(steps, batch, L, L)
        carried, memory = torch.zeros_like(states[0]), torch.zeros_like(states[0])
        for t in reversed(range(steps)):
            before = states[t - 1] if t else h0[m].view(batch, L, H)
            total, carried = carried.add_(by_h[t]), torch.zeros_like(carried)
            memory += by_c[t]
            for j in reversed(range(L)):
                G, share = total[:, j], d[m, t, :, j, : blocks * H]
                if own is None:
                    torch.mul(1 - states[t, :, j] ** 2, G, out=share)
                    q = share
                elif c0 is None:
                    r, z, n, u = units[m, t].view(batch, L, 4, H)[:, j].unbind(1)
                    d_n = (1 - z) * (1 - n * n) * G
                    q = d_n * r
                    torch.cat([q * u * (1 - r), (before[:, j] - n) * z * (1 - z) * G, d_n], -1, out=share)
                    carried[:, j] += torch.addmm(z * G, share[:, : 2 * H], own[m, j])
                else:
                    i, f, candidate, o = units[m, t].view(batch, L, 4, H)[:, j].unbind(1)
                    c_before = (c[m, t - 1] if t else c0[m]).view(batch, L, H)[:, j]
                    tanh_c = c[m, t].view(batch, L, H)[:, j].tanh()
                    C = torch.addcmul(memory[:, j], o * (1 - tanh_c * tanh_c), G)
                    parts = [candidate * i * (1 - i) * C, c_before * f * (1 - f) * C, i * (1 - candidate**2) * C]
                    parts.append(tanh_c * o * (1 - o) * G)
                    torch.cat(parts, -1, out=share)
                    q = parts[2]
                    carried[:, j] += torch.cat([*parts[:2], parts[3]], -1) @ own[m, j]
                    torch.mul(f, C, out=memory[:, j])
                fed = (q @ back[j]).view(batch, L, H)
                opened = g[t, :, j]
                torch.mul((fed * before).sum(-1), opened * (1 - opened), out=d[m, t, :, j, blocks * H :])
                carried.addcmul_(opened.unsqueeze(-1), fed)
                if j:
                    below = d[m, t, :, j] @ up[m, j - 1]
                    total[:, j - 1] += (
                        below if factors is None else below * factors[m, t].view(batch, L - 1, H)[:, j - 1]
                    )
            carried += (d[m, t, :, :, blocks * H :].reshape(batch, L * L) @ gate[m]).view(batch, L, H)
            if want_state_gradient:
                d_states[m, t] = total.flatten(1)
        d_h0[m] = carried.flatten(1)
        if c0 is not None:
            d_c0[m] = memory.flatten(1)
    return *gradients(d, h, units, gates, factors, h0, own is not None), d_h0, d_c0, d_states
