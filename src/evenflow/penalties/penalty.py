"""The base class of penalties: a number to add to the loss, computed from a forward pass that it watches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from evenflow.checks import number
from evenflow.layers.layer_run import LayerRun
from evenflow.layers.recurrent import Recurrent
from evenflow.probes.model_layer import record_runs


class Watched:
    """A forward pass that a penalty watches; call it with the loss to get the number to add.

    Attributes:
        model: the model.
        runs: the recorded runs of evenflow's layers.
        states: for every recurrent layer its states ``(T, B, H)``, and which sequences still run at each step,
            ``(T, B)`` or None if all do; for torch's layers and gated feedback, those of the top layer.

    >>> with Stabilizer(50).watch(model) as watched:
    ...     loss = task.loss(model(batch.inputs)[0], batch.targets)
    >>> len(watched.runs)
    1
    """

    def __init__(self, model: nn.Module, penalty: Penalty, runs: list[LayerRun]) -> None:
        self.model, self.penalty, self.runs = model, penalty, runs
        self.other_states: list[tuple[Tensor, Tensor | None]] = []

    @property
    def states(self) -> list[tuple[Tensor, Tensor | None]]:
        return [(run.states, run.running()) for run in self.runs] + self.other_states

    def __call__(self, loss: Tensor) -> Tensor:
        return self.penalty.total(self, loss)

    def record_output(self, layer: nn.Module, _: Any, result: tuple[Any, Any]) -> None:
        """Add the output of a layer that records no runs to the states; a forward hook."""
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
    """A number added to the loss: ``strength`` times `value`.

    A penalty may depend on the weights only, on the states, or on ∂L/∂h_t; all are used the same way.

    >>> penalty = make("soft_orthogonality(1e-3)")
    >>> with penalty.watch(model) as extra:
    ...     loss = task.loss(model(batch.inputs)[0], batch.targets)
    ...     total = loss + extra(loss)
    >>> total.backward()

    Inside the block a map computes its matrix once, for the forward pass and for the penalty; do not change the
    weights inside it.

    Args:
        strength: a number of at least 0; None for `default_strength`.
    """

    name = ""
    equation = ""
    default_strength = 1.0
    reads_states = False
    reads_gradients = False  # ∂L/∂h_t

    def __init__(self, strength: float | None = None) -> None:
        strength = self.default_strength if strength is None else strength
        number(f"the strength of {self.name}", strength, least=0)
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
            if not self.reads_states:
                yield Watched(model, self, [])
                return
            watched = Watched(model, self, stack.enter_context(record_runs(model, taps=self.reads_gradients)))
            for module in model.modules():
                feedback = isinstance(module, Recurrent) and not module.layers_run_in_turn
                if isinstance(module, nn.RNNBase) or feedback:  # which `record_runs` leaves out
                    stack.callback(module.register_forward_hook(watched.record_output).remove)
            yield watched

    @property
    def key(self) -> str:
        """The text from which `make` builds this penalty."""
        return f"{self.name}({self.strength!r})"

    def __repr__(self) -> str:
        return self.key


class Sum(Penalty):
    """The sum of several penalties.

    Args:
        penalties: at least one.

    >>> penalty = Sum([SoftOrthogonality(1e-3), Stabilizer(50)])  # make("soft_orthogonality(1e-3) + stabilizer(50)")
    >>> with penalty.watch(model) as extra:
    ...     loss = task.loss(model(batch.inputs)[0], batch.targets)
    >>> bool(extra(loss) >= 0)
    True
    """

    def __init__(self, penalties: Sequence[Penalty]) -> None:
        self.penalties = tuple(penalties)
        if not self.penalties:
            raise ValueError("penalties must be at least one penalty, got none")
        self.reads_states = any(penalty.reads_states for penalty in self.penalties)
        self.reads_gradients = any(penalty.reads_gradients for penalty in self.penalties)

    def total(self, watched: Watched, loss: Tensor) -> Tensor:
        return torch.stack([penalty.total(watched, loss) for penalty in self.penalties]).sum()

    @property
    def key(self) -> str:
        return " + ".join(penalty.key for penalty in self.penalties)
