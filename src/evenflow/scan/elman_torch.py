"""The Elman and scalar-gated recurrence in torch operations; see `elman` for the arguments.

Per step the forward pass is one product and one activation, the backward pass one product and one slope. It runs on any
device and dtype, also on a GPU, where it is bound by launches.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow import activations
from evenflow.scan import chunked


def forward(
    a: Tensor,
    weight: Tensor,
    h0: Tensor,
    alpha: Tensor | None,
    beta: Tensor | None,
    parameter: Tensor | None,
    activation: str,
    batch_sizes: Sequence[int] | None,
) -> tuple[Tensor, Tensor]:
    f = activations.make(activation)
    gated = alpha is not None
    linear = f.name == "identity" and not gated and batch_sizes is None
    if linear and chunked.pays(a) and (side_by_side := chunked.scan(a, weight, h0)) is not None:
        return side_by_side, a.new_empty(0)
    states = torch.empty_like(a) if batch_sizes is None else torch.zeros_like(a)
    # The pre-activation, or a mark of it, is kept where the slope, or the gate's own gradient, cannot do without it.
    dtype = f.kept_as(gated, a.dtype)
    kept = None if dtype is None else torch.empty_like(states, dtype=dtype)
    marked = dtype == torch.int8
    if kept is not None and batch_sizes is not None:
        kept.zero_()
    for m in range(a.shape[0]):
        h, transposed = h0[m], weight[m].mT
        p = None if parameter is None else parameter[m]
        shares = (float(alpha[m]), float(beta[m])) if alpha is not None and beta is not None else (1.0, 0.0)
        outs = states[m].unbind(0)
        pres = outs if kept is None else kept[m].unbind(0)
        for t, (a_t, pre, out) in enumerate(zip(a[m].unbind(0), pres, outs, strict=True)):
            if batch_sizes is not None:
                n = batch_sizes[t]
                h, a_t, out = h[:n], a_t[:n], out[:n]
                pre = out if kept is None else pre[:n]
            if marked:
                marks, pre = pre, torch.addmm(a_t, h, transposed)
                marks.copy_(f.mark(pre))
            else:
                torch.addmm(a_t, h, transposed, out=pre)
            f.write(pre, p, out)
            if gated:
                out.mul_(shares[0]).add_(h, alpha=shares[1])
            h = out
    return states, a.new_empty(0) if kept is None else kept


def backward(
    grad: Tensor,
    states: Tensor,
    kept: Tensor,
    weight: Tensor,
    h0: Tensor,
    alpha: Tensor | None,
    beta: Tensor | None,
    parameter: Tensor | None,
    activation: str,
    batch_sizes: Sequence[int] | None,
    want_state_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    f = activations.make(activation)
    gated = alpha is not None
    models, steps, _, _ = states.shape
    if f.name == "identity" and not gated and batch_sizes is None and chunked.pays(grad):
        back = chunked.scan(grad.flip(1), weight.mT.contiguous(), torch.zeros_like(h0))
        if back is not None:
            return _linear_backward(back.flip(1), states, weight, h0, want_state_gradient)
    if batch_sizes is not None:
        grad = grad * running_mask(batch_sizes, grad)  # what follows is then zero beyond each sequence's end
    d_a = torch.empty_like(states)
    keep_g = gated or want_state_gradient or f.trained
    d_h = torch.empty_like(states) if keep_g else d_a
    d_weight, d_h0 = torch.empty_like(weight), torch.empty_like(h0)
    d_alpha, d_beta, d_parameter = (
        states.new_empty(0) if value is None else torch.empty_like(value) for value in (alpha, beta, parameter)
    )
    for m in range(models):
        share, carry = (float(alpha[m]), float(beta[m])) if alpha is not None and beta is not None else (1.0, 0.0)
        # The loop runs on D / α against α W, and α is put back once for all steps.
        w = weight[m] * share if gated else weight[m]
        p = None if parameter is None else parameter[m]
        values = f(kept[m], p) if gated else states[m]
        known = values if f.reads_output else kept[m].to(states.dtype)
        slopes = f.slopes(known, p)
        rows: Sequence[Tensor | None] = [None] * steps if slopes is None else slopes.unbind(0)
        after: Tensor | None = None
        g_after: Tensor | None = None
        for slope, grad_t, g, d in reversed(
            list(zip(rows, grad[m].unbind(0), d_h[m].unbind(0), d_a[m].unbind(0), strict=True))
        ):
            if after is None:
                g.copy_(grad_t)
            else:
                torch.addmm(grad_t, after, w, out=g)
            if gated and g_after is not None:
                g.add_(g_after, alpha=carry)
            if slope is not None:
                f.pull(g, slope, out=d)
            elif keep_g:
                d.copy_(g)
            after, g_after = d, g
        # Everything that does not run through time: one product or one sum over all steps.
        first, rest = d_a[m, 0], d_a[m, 1:].flatten(0, 1)
        torch.mm(first, w, out=d_h0[m])
        if gated:
            d_a[m].mul_(share)
        torch.mm(first.mT, h0[m], out=d_weight[m])
        d_weight[m].addmm_(rest.mT, states[m, :-1].flatten(0, 1))
        if alpha is not None:
            g_all = d_h[m]
            d_h0[m].add_(g_all[0], alpha=carry)
            d_alpha[m] = (values * g_all).sum()
            d_beta[m] = (h0[m] * g_all[0]).sum() + (states[m, :-1] * g_all[1:]).sum()
        if p is not None:
            d_parameter[m] = share * f.parameter_gradient(known, d_h[m])
    d_states = d_h if want_state_gradient else states.new_empty(0)
    return d_a, d_weight, d_h0, d_alpha, d_beta, d_parameter, d_states


def _linear_backward(
    d: Tensor, states: Tensor, weight: Tensor, h0: Tensor, want_state_gradient: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of a linear recurrence from D_t = G_t, which the loop found going back."""
    before = torch.cat([h0.unsqueeze(1), states[:, :-1]], 1)
    d_weight = torch.bmm(d.flatten(1, 2).mT, before.flatten(1, 2))
    none = states.new_empty(0)
    return d, d_weight, torch.bmm(d[:, 0], weight), none, none, none, d.clone() if want_state_gradient else none


def running_mask(batch_sizes: Sequence[int], like: Tensor) -> Tensor:
    """One where a sequence still runs, ``(T, B, 1)``."""
    sizes = torch.tensor(batch_sizes, device=like.device)
    return (torch.arange(like.shape[-2], device=like.device) < sizes.unsqueeze(1)).to(like.dtype).unsqueeze(-1)
