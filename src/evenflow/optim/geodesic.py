"""Gradient descent on the Stiefel manifold, the matrices with orthonormal columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evenflow.checks import number
from evenflow.maps import residual
from evenflow.optim import stiefel
from evenflow.optim.step_graphs import StepGraphs
from evenflow.runtime.torch_state import ieee_products

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
# The largest |MᵀM - I| of a parameter that is accepted; that of a rounded float32 matrix is smaller.
NEAR = 1e-3
# Steps between two corrections of rounding errors, which grow by about 1e-7 a step. A correction costs two products.
POLISH_EVERY = 32

Carry = Callable[[Tensor, float], Tensor]  # transports a stored tangent to M and scales it, in place


class Step(NamedTuple):
    """What a step of parameters of one shape depends on besides the parameters and their gradients.

    Attributes:
        states: the state of each parameter, changed in place.
        group: the settings.
        shape: of one parameter.
        numbers: the scalars that change from step to step; the first is half of the learning rate.
    """

    states: list[dict[str, Any]]
    group: dict[str, Any]
    shape: torch.Size
    numbers: tuple[Any, ...]


class Geodesic(torch.optim.Optimizer):
    """The base class of the optimisers of orthonormal columns: it checks the parameters and loops over them.

    Parameters of one shape move together. Every `POLISH_EVERY` steps, counted in the saved state, `stiefel.polish`
    corrects rounding errors; nothing else is stored, so that a resumed run repeats the interrupted one. A captured step
    is replayed at all later steps, and so corrects them at every step.

    Args:
        params: parameters with orthonormal columns, or groups of them.
        defaults: the settings of a group that does not have its own, ``lr`` among them.

    Attributes:
        polishes: whether steps correct rounding errors. If False, the caller has to call `polish` now and then.
        captures: whether steps on a GPU are captured as CUDA graphs.
    """

    polishes = True
    captures = True

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
        group = self.param_groups.pop()  # appended again after the checks
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
            for members in _by_shape(p for p in group["params"] if p.grad is not None):
                self._move(members, group)
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

        with ieee_products(parameters[0]):  # TF32 is too coarse for an orthonormal column
            fixed = tuple(repr(group.get(name)) for name in self.defaults if name != "lr")
            M = self._graphs.replay(moved, parameters, grads, states, numbers, fixed) if self.captures else None
            if M is None:
                M = moved(grads, states, numbers)
            due = stiefel.in_capture(M) or any(state["step"] % POLISH_EVERY == 0 for state in states)
            if due and self.polishes:
                M = stiefel.polish(M)
        _put(M, parameters)

    @torch.no_grad()
    def polish(self) -> None:
        """Correct the rounding errors of all parameters."""
        for group in self.param_groups:
            for members in _by_shape(group["params"]):
                with ieee_products(members[0]):
                    _put(stiefel.polish(_stacked(members)), members)

    def _numbers(self, states: list[dict[str, Any]], group: dict[str, Any], like: Tensor) -> tuple[Any, ...]:
        """Return `Step.numbers`."""
        return (group["lr"] / 2,)

    def _moved(self, M: Tensor, G: Tensor, step: Step) -> Tensor:
        """Return M after a step; M and G are ``(B, n, p)``.

        A stored tangent V is transported to the new M by projection. For a square M the state is the skew S with
        V = M S instead, which needs no transport and half the products.
        """
        if M.shape[-2] == M.shape[-1]:
            S = self._half_step(stiefel.skew(M, G), Tensor.mul_, step)
            return stiefel.turned(M, S)
        tangent = stiefel.canonical_gradient(M, G)
        V = self._half_step(tangent, lambda V, share: stiefel.carry(M, V, share), step)
        return stiefel.tangent_step(M, V)

    def _half_step(self, gradient: Tensor, carry: Carry, step: Step) -> Tensor:
        """Return half of the tangent of the step, in new memory, from the tangent of the gradient and the state.

        `carry` transports the stored tangent to M and scales it, in place.
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
        params: parameters with orthonormal columns, or groups of them, such as those that `maps.parameter_groups`
            marks ``stiefel``.
        lr: η.
        momentum: μ, 0 for none. The velocity is a tangent, ``V ← μ V + A M``. From step to step it is projected on the
            tangents at the new M; for a square M, ``V = M S`` and S stays.
        clip_norm: an upper bound of the norm of every gradient, if gradients are clipped before a step; None if there
            is no bound. A CUDA graph cannot read the length of a step and takes the longest series; with this bound
            and without momentum it takes the shortest series that suffices. The result is nan if a gradient is longer
            than the bound, or if the learning rate is more than twice that of the capture (on a GPU: than
            ``initial_lr``).

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
        number("momentum", momentum, least=0, below=1)
        if clip_norm is not None:
            number("clip_norm", clip_norm, above=0)
        super().__init__(params, {"lr": lr, "momentum": momentum, "clip_norm": clip_norm})

    def _moved(self, M: Tensor, G: Tensor, step: Step) -> Tensor:
        if step.group["momentum"]:
            return super()._moved(M, G, step)
        most = _longest_step(step.group)
        if M.shape[-2] == M.shape[-1]:
            return stiefel.turned(M, stiefel.skew(M, G).mul_(step.numbers[0]), most)
        return stiefel.cayley_step(M, step.numbers[0] * G, most)  # computed without a tangent

    def _half_step(self, gradient: Tensor, carry: Carry, step: Step) -> Tensor:
        velocity = stacked_state(step.states, "velocity", gradient, step.shape)
        carry(velocity, step.group["momentum"]).add_(gradient)
        store_state(step.states, "velocity", velocity)
        return step.numbers[0] * velocity


def _longest_step(group: dict[str, Any]) -> float | None:
    """Return an upper bound of η/2 |A| (Frobenius norm) for clipped gradients, or None if there is none.

    |A| is at most twice the norm of the gradient, and the learning rate may double.
    """
    clip, rate = group.get("clip_norm"), group["lr"]
    if isinstance(rate, Tensor):  # on a GPU; a schedule keeps the initial value
        rate = group.get("initial_lr")
    return 2 * clip * rate if clip is not None and isinstance(rate, int | float) else None


def stacked_state(states: list[dict[str, Any]], name: str, like: Tensor, shape: Iterable[int]) -> Tensor:
    """Return the states `name` as ``(B, ., .)``, initially zeros, for changes in place and `store_state`."""
    for state in states:
        if name not in state:
            state[name] = like.new_zeros(tuple(shape))
    return _stacked([state[name] for state in states])


def store_state(states: list[dict[str, Any]], name: str, values: Tensor) -> None:
    """Copy each parameter's part of `values` into its state, at the address from which a captured step reads it."""
    if len(states) > 1 or values.data_ptr() != states[0][name].data_ptr():  # else they are the state itself
        _put(values, [state[name] for state in states])


def _stacked(members: list[Any]) -> Tensor:
    """Stack tensors of one shape to ``(B, ., .)``; a single tensor is not copied."""
    if len(members) > 1:
        return torch.stack(members).flatten(0, -3)
    (member,) = members
    return member.flatten(0, -3) if member.dim() > 2 else member.unsqueeze(0)


def _put(values: Tensor, members: Sequence[Tensor]) -> None:
    """Copy each member's part of `values` into it: the inverse of `_stacked`."""
    for member, value in zip(members, values.view(len(members), *members[0].shape), strict=True):
        member.copy_(value)


def _by_shape(parameters: Iterable[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    """Yield lists of parameters of one shape, dtype and device, in their order."""
    groups: dict[Any, list[torch.nn.Parameter]] = {}
    for p in parameters:
        groups.setdefault((p.shape, p.dtype, p.device), []).append(p)
    yield from groups.values()
