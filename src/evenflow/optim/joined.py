"""Several optimisers as one."""

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

    ``param_groups`` has the groups of all members, as the same dictionaries, so that a schedule that writes ``lr``
    reaches every member. `step`, `zero_grad`, `state_dict` and `load_state_dict` call those of every member.

    Args:
        optimizers: at least one. A parameter may be in one of them only.

    >>> model = SequenceModel(RNN(2, 16, map="factorized", margin=0.1), 1)
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
        # For the hooks of the base class; its groups and states are not used.
        super().__init__([{"params": group["params"]} for group in self._groups()], {})

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._groups()

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        pass  # the constructor of the base class sets an empty list

    @property
    def state(self) -> defaultdict[torch.Tensor, Any]:
        """The states of all parameters in a new dictionary: to add an entry, use the state of a member."""
        states: defaultdict[torch.Tensor, Any] = defaultdict(dict)
        for optimizer in self.optimizers:
            states.update(optimizer.state)
        return states

    @state.setter
    def state(self, value: Any) -> None:
        pass

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise a ValueError: a group has to be added to one of the members."""
        if any(param_group["params"] is group["params"] for group in self._groups()):
            return  # called by the constructor of the base class with a group that is there already
        raise ValueError("a group of parameters must be added to one of the joined optimizers, not to all of them")

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "optimizers": self.optimizers}  # members have the groups and states

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
            count = len(saved) if isinstance(saved, list) else "no list"
            raise ValueError(f"state_dict must hold the states of {len(self.optimizers)} optimizers, got {count}")
        for optimizer, state in zip(self.optimizers, saved, strict=True):
            optimizer.load_state_dict(state)

    def __repr__(self) -> str:
        return f"Joined({', '.join(type(optimizer).__name__ for optimizer in self.optimizers)})"


def divide(
    model: nn.Module, lr: float, stiefel_lr: float | None = None, map_lr: float | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the trained parameters in two lists of groups: ordinary ones, and those with orthonormal columns.

    Args:
        model: any module.
        lr: learning rate of ordinary parameters.
        stiefel_lr: learning rate of parameters with orthonormal columns. Default: `map_lr`.
        map_lr: learning rate of the other parameters of maps. Default: `lr`. The spectrum of a factorized map gets
            ``map_lr / 2r``.

    Either list may be empty. See `maps.parameter_groups`.

    >>> rest, stiefel = divide(SequenceModel(RNN(2, 16, map="factorized"), 1), lr=1e-3, stiefel_lr=1e-6)
    >>> [tuple(p.shape) for group in stiefel for p in group["params"]]
    [(16, 16), (16, 16)]
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
