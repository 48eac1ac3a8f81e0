"""What every penalty is: a number to add to the loss, computed beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from evenflow.layers.layer_run import LayerRun
from evenflow.layers.recurrent import Recurrent
from evenflow.probes.model_layer import record_runs


class Watched:
    """A forward pass that a penalty has watched; called with the loss, it gives the number to add.

    Attributes:
        model: whose pass it was.
        runs: what each layer of evenflow did.
        states: of every recurrent layer, ``(T, B, H)`` and which sequences still run at each step ``(T, B)`` or None;
            of torch's own layers and of gated feedback, those of the top one.
    """

    def __init__(self, model: nn.Module, penalty: Penalty, runs: list[LayerRun]) -> None:
        self.model, self.penalty, self.runs = model, penalty, runs
        self.other_states: list[tuple[Tensor, Tensor | None]] = []

    @property
    def states(self) -> list[tuple[Tensor, Tensor | None]]:
        return [(run.states, run.running()) for run in self.runs] + self.other_states

    def __call__(self, loss: Tensor) -> Tensor:
        return self.penalty.total(self, loss)

    def note(self, layer: nn.Module, _: Any, result: tuple[Any, Any]) -> None:
        """The states of a layer that shows nothing but its output, from a forward hook."""
        output, running = result[0], None
        if isinstance(output, PackedSequence):
            output, lengths = pad_packed_sequence(output)
            running = (torch.arange(len(output)).unsqueeze(1) < lengths).to(output.device)
        elif output.dim() == 2:
            output = output.unsqueeze(1)
        elif getattr(layer, "batch_first", False):
            output = output.transpose(0, 1)
        self.other_states.append((output, running))


class Penalty:
    """A number added to the loss: ``strength`` times what `value` says.

    There are three kinds, all used the same way: of the weights alone, of the states, and of ∂L/∂h_t.

    >>> penalty = make("soft_orthogonality(1e-3)")
    >>> with penalty.watch(model) as extra:
    ...     loss = task.loss(model(batch.inputs)[0], batch.targets)
    ...     total = loss + extra(loss)
    >>> total.backward()

    Inside the block a map makes its matrix once, for the forward pass and for the penalty; the weights must not be
    changed there.

    Args:
        strength: of at least 0.
    """

    name = ""
    equation = ""
    listens = False  # whether it reads the states
    taps = False  # whether it reads ∂L/∂h_t

    def __init__(self, strength: float) -> None:
        if isinstance(strength, bool) or not isinstance(strength, int | float) or not 0 <= strength < math.inf:
            raise ValueError(f"the strength of {self.name} must be a number of at least 0, got {strength!r}")
        self.strength = float(strength)

    def value(self, watched: Watched, loss: Tensor) -> Tensor:
        """The penalty at strength one."""
        raise NotImplementedError

    def total(self, watched: Watched, loss: Tensor) -> Tensor:
        return self.strength * self.value(watched, loss)

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[Watched]:
        """Watch the model's forward pass inside the block."""
        with ExitStack() as stack:
            stack.enter_context(parametrize.cached())
            runs = stack.enter_context(record_runs(model, taps=self.taps)) if self.listens else []
            watched = Watched(model, self, runs)
            if self.listens:
                for part in model.modules():
                    # Torch's layers, and gated feedback, whose layers do not run one after the other.
                    own = isinstance(part, Recurrent) and not part.one_after_another
                    if isinstance(part, nn.RNNBase) or own:
                        stack.callback(part.register_forward_hook(watched.note).remove)
            yield watched

    @property
    def key(self) -> str:
        """The text that `make` turns into this penalty again."""
        return f"{self.name}({self.strength!r})"

    def __repr__(self) -> str:
        return self.key


class Sum(Penalty):
    """Several penalties as one."""

    def __init__(self, penalties: Sequence[Penalty]) -> None:
        self.penalties = tuple(penalties)
        if not self.penalties:
            raise ValueError("penalties must be at least one penalty, got none")
        self.listens = any(penalty.listens for penalty in self.penalties)
        self.taps = any(penalty.taps for penalty in self.penalties)

    def total(self, watched: Watched, loss: Tensor) -> Tensor:
        return torch.stack([penalty.total(watched, loss) for penalty in self.penalties]).sum()

    @property
    def key(self) -> str:
        return " + ".join(penalty.key for penalty in self.penalties)
