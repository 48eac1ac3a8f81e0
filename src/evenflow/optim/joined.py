"""Several optimisers that look like one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from evenflow.maps import parameter_groups


class Joined(Optimizer):
    """Several optimisers, each with its own parameters, as one.

    ``param_groups`` are the groups of all of them, the same dictionaries, so that a schedule that writes ``lr`` reaches
    each; `step`, `zero_grad`, `state_dict` and `load_state_dict` do theirs for every one.

    Args:
        optimizers: at least one; no parameter may be in two of them.

    >>> rest, stiefel = divide(model, lr=1e-4, stiefel_lr=1e-6)
    >>> optimizer = Joined([torch.optim.RMSprop(rest, alpha=0.9), GeodesicSGD(stiefel, lr=1e-6)])
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = tuple(optimizers)
        if not self.optimizers:
            raise ValueError("optimizers must be at least one optimiser, got none")
        counts: dict[int, int] = defaultdict(int)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for p in group["params"]:
                    counts[id(p)] += 1
        if any(count > 1 for count in counts.values()):
            raise ValueError("optimizers must not share a parameter, got one that is in two of them")
        # For the hooks and habits of the base class; the groups and states it makes are replaced by the members' own.
        super().__init__([{"params": group["params"]} for group in self._groups()], {})

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._groups()

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        pass  # the base class begins with an empty list of its own

    @property
    def state(self) -> defaultdict[torch.Tensor, Any]:
        """Every parameter's state; a new dictionary, so entries are changed in a member's own."""
        states: defaultdict[torch.Tensor, Any] = defaultdict(dict)
        for optimizer in self.optimizers:
            states.update(optimizer.state)
        return states

    @state.setter
    def state(self, value: Any) -> None:
        pass

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused after construction: add it to the member it belongs to."""
        if any(param_group["params"] is group["params"] for group in self._groups()):
            return  # the base class's constructor, handing over what is there already
        raise ValueError("a group of parameters must be added to one of the joined optimizers, not to all of them")

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "optimizers": self.optimizers}  # groups and states are the members'

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict.get("optimizers")
        if not isinstance(saved, list) or len(saved) != len(self.optimizers):
            found = len(saved) if isinstance(saved, list) else "no list"
            raise ValueError(f"state_dict must hold the states of {len(self.optimizers)} optimizers, got {found}")
        for optimizer, state in zip(self.optimizers, saved, strict=True):
            optimizer.load_state_dict(state)

    def __repr__(self) -> str:
        return f"Joined({', '.join(type(optimizer).__name__ for optimizer in self.optimizers)})"


def divide(
    model: nn.Module, lr: float, stiefel_lr: float | None = None, map_lr: float | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The trained parameters of `model` in two lists of groups: the ordinary ones, and those with orthonormal columns.

    Args:
        lr: of the ordinary ones.
        stiefel_lr: of the others, `map_lr` by default.
        map_lr: of the ordinary ones that make a map's matrix, `lr` by default; the spectrum of a factorized map has
            ``map_lr / 2m``.

    Either list may be empty. See `maps.parameter_groups`.
    """
    ordinary: list[dict[str, Any]] = []
    orthonormal: list[dict[str, Any]] = []
    maps = lr if map_lr is None else map_lr
    for group in parameter_groups(model, lr, map_lr):
        params = [p for p in group["params"] if p.requires_grad]  # type: ignore[attr-defined]
        if params and group["stiefel"]:
            orthonormal.append({**group, "params": params, "lr": maps if stiefel_lr is None else stiefel_lr})
        elif params:
            ordinary.append({**group, "params": params})
    return ordinary, orthonormal
