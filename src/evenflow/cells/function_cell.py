"""The decorator `cell`, which makes a cell of a function of one step, written as on paper."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from evenflow.cells.cell import Cell, Matrix
from evenflow.checks import number, whole_number

MOST_STATES = 4
RESERVED = ("a", "bias", "weight_ih")  # names that every layer has


@dataclass(frozen=True)
class Parameter:
    """A trained vector of a cell.

    Args:
        start: the value of all its numbers in a new layer.
        per: ``"unit"``, H numbers, or ``"layer"``, one.

    >>> @evenflow.cell(parameters={"leak": Parameter(start=-2.0, per="layer")})
    ... def leaky(a, h, U, leak):
    ...     return h + torch.sigmoid(leak) * (torch.tanh(a + h @ U.mT) - h)
    >>> evenflow.Recurrent(leaky(), 2, 128).leak_l0
    Parameter containing:
    tensor([-2.], requires_grad=True)
    """

    start: float = 0.0
    per: str = "unit"

    def __post_init__(self) -> None:
        number("start", self.start)
        if self.per not in ("unit", "layer"):
            raise ValueError(f"per must be 'unit' or 'layer', got {self.per!r}")


def cell(
    *,
    states: Sequence[str] = ("h",),
    matrices: Sequence[str] | Mapping[str, int] = ("U",),
    parameters: Sequence[str] | Mapping[str, Parameter] = (),
    blocks: int = 1,
) -> Callable[[Callable[..., Tensor | tuple[Tensor, ...]]], CellMaker]:
    """Make a cell of a function of one step: ``step(a, *states, *matrices, *parameters, *, constants) -> states``.

    Args:
        states: names of one to four states; the first is the layer's output.
        matrices: names of the recurrent matrices, ``(H, H)`` each; or a mapping from names to numbers of such blocks,
            which are stacked in one matrix; or ``()`` where no unit reads another one.
        parameters: names of trained vectors, one number per unit, zero at the start; or a mapping from names to
            `Parameter`.
        blocks: the pre-activations `a` of one step are ``blocks * H`` numbers.

    Keyword arguments of the function are constants, which a call of the cell can change.

    >>> @evenflow.cell(states=("y", "z"), matrices=("W", "V"))
    ... def cornn(a, y, z, W, V, *, dt=0.05, gamma=1.0, epsilon=0.5):
    ...     z = z + dt * (torch.tanh(a + y @ W.mT + z @ V.mT) - gamma * y - epsilon * z)
    ...     return y + dt * z, z
    >>> layer = evenflow.Recurrent(cornn(dt=0.1), 2, 128, map="cayley")
    """
    for argument, value in (("states", states), ("matrices", matrices), ("parameters", parameters)):
        if isinstance(value, str) or not all(isinstance(name, str) and name.isidentifier() for name in value):
            raise ValueError(f"{argument} must be a tuple of names, such as ('h',), got {value!r}")
    if not 1 <= len(states) <= MOST_STATES:
        raise ValueError(f"states must be one to {MOST_STATES} names, got {len(states)}")
    if not len(matrices) and not len(parameters):
        raise ValueError("matrices or parameters must have at least one name: a step without weights is not trained")
    counts = dict(matrices) if isinstance(matrices, Mapping) else dict.fromkeys(matrices, 1)
    for name, count in counts.items():
        whole_number(f"the blocks of matrix {name}", count, 1)
    whole_number("blocks", blocks, 1)
    listed = dict(parameters) if isinstance(parameters, Mapping) else {name: Parameter() for name in parameters}
    for name, parameter in listed.items():
        if not isinstance(parameter, Parameter):
            raise ValueError(f"parameter {name} must be a Parameter, got {parameter!r}")
    names = [*states, *counts, *listed]
    for name in names:
        if names.count(name) > 1 or name in RESERVED or name in {f"{s}0" for s in states}:
            raise ValueError(f"a name of a state, matrix or parameter must be its own, got {name!r} twice or reserved")

    def decorate(step: Callable[..., Tensor | tuple[Tensor, ...]]) -> CellMaker:
        return CellMaker(step, tuple(states), counts, listed, blocks)

    return decorate


class CellMaker:
    """What the decorator `cell` returns: called with constants, it makes a cell.

    >>> @evenflow.cell()
    ... def leaky(a, h, U, *, dt=0.1):
    ...     return (1 - dt) * h + dt * torch.tanh(a + h @ U.mT)
    >>> leaky(dt=0.2).settings()
    {'cell': 'leaky', 'dt': 0.2}
    """

    def __init__(
        self,
        step: Callable[..., Tensor | tuple[Tensor, ...]],
        states: tuple[str, ...],
        matrices: Mapping[str, int],
        parameters: Mapping[str, Parameter],
        blocks: int,
    ) -> None:
        self.step, self.states, self.blocks = step, states, blocks
        self.matrices, self.parameters = matrices, parameters
        self.__name__, self.__qualname__, self.__module__ = step.__name__, step.__qualname__, step.__module__
        self.__doc__ = step.__doc__
        arguments = inspect.signature(step).parameters.values()
        self.constants = {p.name: p.default for p in arguments if p.kind is p.KEYWORD_ONLY}
        expected = ["a", *states, *matrices, *parameters]
        positional = [p.name for p in arguments if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if positional[1:] != expected[1:] or not positional:
            raise ValueError(
                f"{self.__name__} must take ({', '.join(expected)}), the pre-activation, its states, matrices and "
                f"parameters, got ({', '.join(positional)}); constants come after a *"
            )

    def __call__(self, **constants: Any) -> FunctionCell:
        for name in constants:
            if name not in self.constants:
                names = ", ".join(self.constants) or "none"
                raise ValueError(f"{self.__name__} has no constant {name!r}; it has {names}")
        for name, default in self.constants.items():
            if default is inspect.Parameter.empty and name not in constants:
                raise ValueError(f"{self.__name__} needs a value for its constant {name!r}")
        return FunctionCell(self, constants)

    def __repr__(self) -> str:
        constants = ", ".join(f"{name}={value!r}" for name, value in self.constants.items())
        return f"{self.__name__}({constants})"

    def __reduce__(self) -> str:
        return self.__qualname__  # by its name, as functions are


class FunctionCell(Cell):
    """A cell whose step is a function; see `cell`.

    >>> @evenflow.cell()
    ... def leaky(a, h, U, *, dt=0.1):
    ...     return (1 - dt) * h + dt * torch.tanh(a + h @ U.mT)
    >>> cell = leaky(dt=0.2)
    >>> cell.name, cell.states
    ('leaky', ('h',))
    """

    def __init__(self, maker: CellMaker, constants: Mapping[str, Any]) -> None:
        self.maker, self.constants = maker, dict(constants)
        self.states, self.blocks = maker.states, maker.blocks
        self.recurrent, self.parameters = tuple(maker.matrices), tuple(maker.parameters)
        self.equation = (maker.__doc__ or "").strip().splitlines()[0] if (maker.__doc__ or "").strip() else ""
        self.step = partial(maker.step, **self.constants)  # type: ignore[method-assign]

    @property
    def name(self) -> str:
        return self.maker.__name__

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        return tuple(Matrix(name, hidden_size, n, mapped=n == 1) for name, n in self.maker.matrices.items())

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        return {
            name: torch.full((hidden_size if p.per == "unit" else 1,), float(p.start))
            for name, p in self.maker.parameters.items()
        }

    def settings(self) -> dict[str, object]:
        return {"cell": self.name, **self.constants}

    def __reduce__(self) -> tuple[Any, ...]:
        return FunctionCell, (self.maker, self.constants)
