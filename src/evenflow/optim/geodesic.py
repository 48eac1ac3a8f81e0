"""Descent along the matrices with orthonormal columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evenflow.maps import residual
from evenflow.optim import stiefel
from evenflow.optim.step_graphs import StepGraphs
from evenflow.runtime.torch_state import ieee_products

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
# How far from orthonormal a parameter may be when it is handed over: a rounded float32 matrix is nearer.
NEAR = 1e-3
# Steps after which rounding is taken back. Its cost is two products, its need grows by about 1e-7 a step.
POLISH_EVERY = 32

Carry = Callable[[Tensor, float], Tensor]  # a kept tangent, in its place, to a share of it at M


class Step(NamedTuple):
    """What a step of parameters of one shape depends on besides them and their gradients.

    Attributes:
        states: one for each parameter, changed in place.
        group: the settings.
        shape: of one parameter.
        numbers: what changes from step to step and is no tensor; first half of the rate.
    """

    states: list[dict[str, Any]]
    group: dict[str, Any]
    shape: torch.Size
    numbers: tuple[Any, ...]


class Geodesic(torch.optim.Optimizer):
    """What the optimisers of orthonormal columns share: which parameters they take, and the loop over them.

    Parameters of one shape are moved together. Every `POLISH_EVERY` steps, counted in the saved state, rounding is
    taken back by `stiefel.polish`; nothing else is remembered, so that a resumed run repeats the interrupted one. A
    recording is made at one step and runs at all that follow, so it does so each time.

    Attributes:
        polishes: whether steps take rounding back; where not, somebody has to call `polish` now and then.
    """

    polishes = True

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        if not 0 <= defaults["lr"] < float("inf"):
            raise ValueError(f"lr must be a number of at least 0, got {defaults['lr']!r}")
        super().__init__(params, defaults)
        self._graphs = StepGraphs()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._graphs = StepGraphs()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups.pop()  # put back once it is known to be one of ours
        for p in group["params"]:
            shape = tuple(p.shape)
            if p.dim() < 2 or shape[-2] < shape[-1]:
                raise ValueError(
                    f"{type(self).__name__} moves matrices with at least as many rows as columns, "
                    f"got a parameter of shape {shape}"
                )
            if p.dtype not in DTYPES:
                raise ValueError(f"{type(self).__name__} needs float32 or float64 parameters, got {p.dtype}")
            off = float(residual(p.detach()).max())
            if not off <= NEAR:
                raise ValueError(
                    f"{type(self).__name__} moves matrices with orthonormal columns, got a parameter of shape {shape} "
                    f"with |MᵀM - I| up to {off:.2g}"
                )
        self.param_groups.append(group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for alike in _alike(p for p in group["params"] if p.grad is not None):
                self._move(alike, group)
        return loss

    def _move(self, parameters: list[torch.nn.Parameter], group: dict[str, Any]) -> None:
        states = [self.state[p] for p in parameters]
        for state in states:
            state["step"] = state.get("step", 0) + 1
        grads: list[Tensor] = [p.grad for p in parameters]  # type: ignore[misc]
        numbers = self._numbers(states, group, parameters[0])

        def moved(grads: list[Tensor], states: list[dict[str, Any]], numbers: tuple[Any, ...]) -> Tensor:
            step = Step(states, group, parameters[0].shape, numbers)
            return self._moved(_stacked(parameters), _stacked(grads), step)

        with ieee_products(parameters[0]):  # TF32, where the user has allowed it, cannot hold an orthonormal column
            fixed = tuple(repr(group.get(name)) for name in self.defaults if name != "lr")
            M = self._graphs.replay(moved, parameters, grads, states, numbers, fixed)
            if M is None:
                M = moved(grads, states, numbers)
            due = stiefel.in_capture(M) or any(state["step"] % POLISH_EVERY == 0 for state in states)
            if due and self.polishes:
                M = stiefel.polish(M)
        _put(M, parameters)

    @torch.no_grad()
    def polish(self) -> None:
        """Take back the rounding of all parameters."""
        for group in self.param_groups:
            for alike in _alike(group["params"]):
                with ieee_products(alike[0]):
                    _put(stiefel.polish(_stacked(alike)), alike)

    def _numbers(self, states: list[dict[str, Any]], group: dict[str, Any], like: Tensor) -> tuple[Any, ...]:
        """Those of `Step`."""
        return (group["lr"] / 2,)

    def _moved(self, M: Tensor, G: Tensor, step: Step) -> Tensor:
        """M after a step; M and G are ``(B, n, p)``.

        A tangent at M is kept as itself and carried along by projection. At a square M it is kept as the skew S with
        V = M S, which needs no carrying and half the products.
        """
        if M.shape[-2] == M.shape[-1]:
            S = self._half_step(stiefel.skew(M, G), Tensor.mul_, step)
            return stiefel.turned(M, S)
        tangent = stiefel.canonical_gradient(M, G)
        V = self._half_step(tangent, lambda V, share: stiefel.carry(M, V, share), step)
        return stiefel.tangent_step(M, V)

    def _half_step(self, gradient: Tensor, carry: Carry, step: Step) -> Tensor:
        """Half of the tangent to step along, in new memory, from that of the gradient and what is kept.

        `carry` brings a share of the latter to M, in its place.
        """
        raise NotImplementedError


class GeodesicSGD(Geodesic):
    """Gradient descent with ``M ← (I + η/2 A)⁻¹ (I - η/2 A) M``, ``A = G Mᵀ - M Gᵀ``, G = ∂L/∂M.

    The columns of M stay orthonormal: within 1e-5 after 100,000 steps in float32.

    Shapes:
        each parameter ``(..., n, p)``, p <= n; leading dimensions are independent models. A step costs O(n p²) where
        2p < n, and elsewhere two to four products of n x n matrices, or one product and one elimination, at two to
        three more, once η|A| is above about 0.03; see `benchmarks/geodesic.py`.

    Args:
        params: parameters with orthonormal columns, or groups of them, such as the ones `maps.parameter_groups` marks
            ``stiefel``.
        lr: η.
        momentum: μ. The velocity is a tangent, ``V ← μ V + A M``, carried from step to step by projection on the
            tangents at the new M, or at a square M with M, ``V = M S`` and S stays; 0 for none.
        clip_norm: what no parameter's gradient is longer than, where gradients are clipped before a step; None where
            they may have any length. A CUDA graph cannot look how long a step is and takes the longest series; with
            this, and without momentum, as short a one as will do. Where a gradient is longer after all, or the rate
            is more than twice that of the recording, or than its ``initial_lr`` on a GPU, the result is nan.

    >>> M = nn.Parameter(init.orthogonal(8))
    >>> optimizer = GeodesicSGD([M], lr=0.1)
    >>> (M - torch.eye(8)).square().sum().backward()
    >>> optimizer.step()
    >>> bool(residual(M) < 1e-6)
    True

    Note on the direction: equation 9 of the factorized document lacks the product with M, and its released code has
    Gᵀ M - Mᵀ G on the left, which does not descend; `test_one_step_descends` holds this one to it.

    References: Wen and Yin 2013; Vorontsov et al. 2017; Li et al. 2020 (momentum).
    """

    def __init__(self, params: Any, lr: float, momentum: float = 0.0, clip_norm: float | None = None) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {momentum!r}")
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm must be above 0, or None, got {clip_norm!r}")
        super().__init__(params, {"lr": lr, "momentum": momentum, "clip_norm": clip_norm})

    def _moved(self, M: Tensor, G: Tensor, step: Step) -> Tensor:
        if step.group["momentum"]:
            return super()._moved(M, G, step)
        most = _longest_step(step.group)
        if M.shape[-2] == M.shape[-1]:
            return stiefel.turned(M, stiefel.skew(M, G).mul_(step.numbers[0]), most)
        return stiefel.cayley_step(M, step.numbers[0] * G, most)  # no tangent is needed

    def _half_step(self, gradient: Tensor, carry: Carry, step: Step) -> Tensor:
        velocity = kept(step.states, "velocity", gradient, step.shape)
        carry(velocity, step.group["momentum"]).add_(gradient)
        keep(step.states, "velocity", velocity)
        return step.numbers[0] * velocity


def _longest_step(group: dict[str, Any]) -> float | None:
    """What η/2 |A| is never above with clipped gradients, |A| being the root of the sum of all squares; None: unknown.

    |A| is at most twice the length of the gradient, and there is room for a rate of twice the first.
    """
    clip, rate = group.get("clip_norm"), group["lr"]
    if isinstance(rate, Tensor):  # its value is the GPU's business, but a schedule remembers the first
        rate = group.get("initial_lr")
    return 2 * clip * rate if clip is not None and isinstance(rate, int | float) else None


def kept(states: list[dict[str, Any]], name: str, like: Tensor, shape: Iterable[int]) -> Tensor:
    """The states called `name` as ``(B, ., .)``, to be changed in place and put back by `keep`; zeros at the start."""
    for state in states:
        if name not in state:
            state[name] = like.new_zeros(tuple(shape))
    return _stacked([state[name] for state in states])


def keep(states: list[dict[str, Any]], name: str, values: Tensor) -> None:
    """Put each parameter's part of `values` into its state, in its place, where a recording will look for it."""
    if len(states) > 1 or values.data_ptr() != states[0][name].data_ptr():  # else they are the state itself
        _put(values, [state[name] for state in states])


def _stacked(members: list[Any]) -> Tensor:
    """Tensors of one shape as one ``(B, ., .)``; a single one without a copy."""
    if len(members) > 1:
        return torch.stack(members).flatten(0, -3)
    (member,) = members
    return member.flatten(0, -3) if member.dim() > 2 else member.unsqueeze(0)


def _put(values: Tensor, members: Sequence[Tensor]) -> None:
    """`_stacked` undone: copy each member's part of `values` into it."""
    for member, value in zip(members, values.view(len(members), *members[0].shape), strict=True):
        member.copy_(value)


def _alike(parameters: Iterable[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    """Parameters of one shape, dtype and device, in the order they are first met."""
    found: dict[Any, list[torch.nn.Parameter]] = {}
    for p in parameters:
        found.setdefault((p.shape, p.dtype, p.device), []).append(p)
    yield from found.values()
