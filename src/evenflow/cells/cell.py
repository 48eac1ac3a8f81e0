"""`Cell`, the base of all cells: the equations of one time step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from evenflow import init
from evenflow.runtime.constructor_call import Described
from evenflow.step import Untranslatable, hoisted, program_text, translate

Weights = Mapping[str, Tensor]
State = tuple[Tensor, ...]
Change = Callable[..., Tensor]  # what a regulariser does to a tensor inside a step, see `Regularised`
# The sizes of the pre-activations, the states, the matrices and the parameters.
Sizes = tuple[int, tuple[int, ...], tuple[tuple[int, int], ...], tuple[int | None, ...]]


@dataclass(frozen=True)
class Matrix:
    """One recurrent matrix of a cell, ``(blocks * size, size)``; its name begins with ``weight_hh``.

    Args:
        mapped: whether the layer's map makes it; a matrix of several blocks is always free.

    >>> cells.GRUStep().matrices(128)[0]
    Matrix(name='weight_hh', size=128, blocks=2, mapped=False)
    """

    name: str
    size: int
    blocks: int = 1
    mapped: bool = True


class Cell(Described):
    """One time step as a pure function of tensors; the layer owns the tensors, the scan runs over time.

    Shapes:
        x: ``(T, B, I)``; the pre-activations a, which `project` computes of all steps at once: ``(T, B, blocks * H)``;
        each state ``(B, H)``, the first of them the layer's output.

    Attributes:
        revision: how often a setting was assigned; what is computed for a cell is valid for one revision of it.
        states: names of the states.
        recurrent: names of the matrices that `step` takes, among those that `prepare` returns.
        parameters: names of the vectors that `step` takes after them; a layer may lack some of these weights.

    Weights:
        weight_ih ``(blocks * H, I)``, Glorot uniform by block; bias ``(blocks * H)``, zero; those of `extra`; and the
        recurrent matrices that `matrices` lists, by default weight_hh ``(blocks * H, H)`` unless `recurrent` is empty.

    >>> class Leaky(cells.Cell):
    ...     def step(self, a, h, U):
    ...         return 0.9 * h + 0.1 * torch.tanh(a + h @ U.mT)
    >>> Recurrent(Leaky(), 2, 128)(torch.randn(100, 8, 2))[0].shape
    torch.Size([100, 8, 128])
    """

    blocks = 1
    states: tuple[str, ...] = ("h",)
    recurrent: tuple[str, ...] = ("weight_hh",)
    parameters: tuple[str, ...] = ()
    takes_complex = False  # whether its matrices may be complex
    timed = False  # whether its step takes the time since the step before as a last column of a, see `without_gap`
    letters: ClassVar[Mapping[str, str]] = {}  # letters of the blocks of a matrix by its name, for `maps.attach`
    equation = ""
    programs: dict[Sizes, str | Untranslatable]  # by sizes, what `program` returned
    revision: int

    def __new__(cls, *args: Any, **options: Any) -> Self:
        cell = super().__new__(cls)
        cell.__dict__.update(programs={}, revision=0)
        return cell

    @property
    def name(self) -> str:
        """The cell's name in messages."""
        return type(self).__name__.removesuffix("Step")

    @property
    def core(self) -> Cell:
        """The cell without its regularisers."""
        return self

    @property
    def state_size(self) -> int:
        """The number of states."""
        return len(self.states)

    def state_sizes(self, hidden_size: int) -> tuple[int, ...]:
        """The numbers in each state; the first is the size of the layer's output."""
        return (hidden_size,) * len(self.states)

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        """The recurrent matrices, whose starting values the layer sets."""
        if not self.recurrent:
            return ()
        return (Matrix("weight_hh", hidden_size, self.blocks, mapped=self.blocks == 1),)

    def start(
        self, input_size: int, hidden_size: int, bias: bool, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        """First values of every weight but the recurrent matrices."""
        weights = {
            "weight_ih": torch.cat(
                [init.glorot_uniform(hidden_size, input_size, generator=generator) for _ in range(self.blocks)]
            )
        }
        if bias:
            weights["bias"] = torch.zeros(self.blocks * hidden_size)
        return weights | self.extra(hidden_size, generator)

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Weights that only this cell has."""
        return {}

    def prepare(self, weights: Weights) -> Weights:
        """The tensors that `project` and `step` read, computed once per call instead of at every step."""
        return weights

    def project(self, x: Tensor, weights: Weights) -> Tensor:
        """The input's share of every step in one product."""
        return torch.nn.functional.linear(x, weights["weight_ih"], weights.get("bias"))

    @property
    def draws(self) -> bool:
        """Whether a pass in training draws random numbers."""
        return False

    @property
    def fed_back(self) -> tuple[str, ...]:
        """The weights that weight dropout drops numbers of."""
        return self.recurrent

    def normalised(self, hidden_size: int) -> int:
        """How many numbers layer normalisation normalises in one step."""
        return self.blocks * hidden_size

    def settings(self) -> dict[str, object]:
        """The cell's settings in the `repr` of a layer."""
        return {}

    def step(self, a: Tensor, *arguments: Any, **regularisers: Any) -> Tensor | tuple[Tensor, ...]:
        """The new states from one step of the pre-activations, the states before, the matrices and the parameters.

        In torch operations on ``(B, size)`` tensors; ``docs/cells.md`` lists those that can be compiled. A step with
        the keyword argument `read` calls it on the state that the matrices multiply, for recurrent dropout; one with
        `normal` calls it on pre-activations, and the number of gates in them, for layer normalisation.
        """
        raise NotImplementedError

    def arguments(self, weights: Weights) -> tuple[list[Tensor], list[Tensor | None]]:
        """The matrices and the parameters of `step`."""
        return [weights[name] for name in self.recurrent], [weights.get(name) for name in self.parameters]

    def advance(self, a: Tensor, state: State, weights: Weights) -> State:
        """The new states as a tuple, from those before and the weights that `prepare` gave."""
        matrices, parameters = self.arguments(weights)
        new = self.step(a, *state, *matrices, *parameters)
        return new if isinstance(new, tuple) else (new,)

    def program(self, a: int, states: Sequence[int], weights: Weights) -> str | Untranslatable:
        """The text of the step's program at some sizes, or why there is none.

        Args:
            a, states: sizes of the pre-activations and of each state.
            weights: as `prepare` gave them; their shapes count.
        """
        sizes = step_sizes(a, states, *self.arguments(weights))
        return self.programs.get(sizes) or self.translate(sizes)

    def translate(self, sizes: Sizes) -> str | Untranslatable:
        """Translate the step for these sizes and keep the result in `programs`."""
        program = _translated(self, sizes)
        if not torch.compiler.is_compiling():  # a changed `programs` would make the compiler compile again
            self.programs[sizes] = program
        return program

    def check(self, hidden_size: int, shapes: Mapping[str, torch.Size]) -> None:
        """Raise an error if the step returns something else than its states, before the first batch.

        Args:
            shapes: of the weights of one layer and direction, by name.
        """
        if type(self).project is not Cell.project:
            return
        weights = self.prepare({name: torch.empty(shape, device="meta") for name, shape in shapes.items()})
        self.program(weights["weight_ih"].shape[0], self.state_sizes(hidden_size), weights)

    def __setattr__(self, name: str, value: Any) -> None:
        self.programs.clear()  # they are those of the step as it was
        self.__dict__["revision"] += 1
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("programs", "revision")}


def unchanged(x: Tensor, blocks: int = 1) -> Tensor:
    """x itself: what a step calls where there is no regulariser."""
    return x


def without_gap(a: Tensor, size: int) -> tuple[Tensor, Tensor | float]:
    """The `size` pre-activations of a step, and the time gap ``(B, 1)`` that may stand behind them, by default 1."""
    return (a, 1.0) if a.shape[-1] == size else tuple(a.split([size, 1], -1))


def step_sizes(a: int, states: Sequence[int], matrices: Sequence[Tensor], parameters: Sequence[Tensor | None]) -> Sizes:
    """The sizes for which a step is translated."""
    shapes = tuple((m.shape[-2], m.shape[-1]) for m in matrices)
    return a, tuple(states), shapes, tuple(None if p is None else p.shape[-1] for p in parameters)


def _translated(cell: Cell, key: Sizes) -> str | Untranslatable:
    try:
        with _disable_current_modes():  # under a tracer or fake tensors the step would be theirs to note
            return program_text.write(hoisted(translate(cell.step, *key, cell.name)))
    except Untranslatable as why:
        return why


# As `torch.compiler.assume_constant_result` does, which would load the compiler: the text is a constant to it.
_translated._dynamo_marked_constant = True  # type: ignore[attr-defined]
