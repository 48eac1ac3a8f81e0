"""What a finished run answered: its best weights on the test or validation part, compared with the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from evenflow.lab.tasks import Batch
from evenflow.models.data_schema import DataSchema
from evenflow.models.prediction_quality import Evaluation

if TYPE_CHECKING:
    from collections.abc import Mapping

MISTAKES = 10  # sequences that are kept
STEPS, COLUMNS = 1000, 64  # of such a sequence
POINTS = 2000  # pairs of a predicted and a true number that are kept


class Mistake(NamedTuple):
    """A sequence with a wrong answer.

    Attributes:
        sequence: its number in its part, counted from 0.
        name: where it is from, see `DataSet.sequence_name`.
        step: of the answer; -1 for an answer after the last step.
        true, predicted: positions of labels.
        chance: the probability that the model gave the predicted label.
        true_chance: the probability that it gave the true one.
        inputs: the sequence ``(T, I)`` in the user's units.
    """

    sequence: int
    name: str
    step: int
    true: int
    predicted: int
    chance: float
    true_chance: float
    inputs: np.ndarray


class AnswerLog:
    """Collects answers batch by batch, in the user's units.

    Of classes it counts the confusion matrix and keeps the sequences whose wrong answers the model was most sure of; of
    numbers it sums the errors and keeps every n-th pair of a predicted and a true number.

    Args:
        schema: of the task, of kind "classification", "regression" or "next".
        name: the name of a sequence by its number.
    """

    def __init__(self, schema: DataSchema, name: Callable[[int], str] = lambda number: "") -> None:
        self.schema, self._name = schema, name
        self.evaluation = Evaluation(schema)
        self.mistakes: list[Mistake] = []
        self._pairs: list[np.ndarray] = []
        self._every = 1

    def add(self, batch: Batch, outputs: Tensor) -> bool:
        """Add the answers to the sequences that follow those of the batch before.

        Returns False, and adds nothing, if targets and outputs are not of the kind that the schema says.
        """
        outputs, targets = outputs.float().cpu(), batch.targets.cpu()
        classes = self.schema.kind == "classification"
        if classes == targets.is_floating_point() or outputs.shape[-1] != self.schema.outputs:
            return False
        if targets.shape != (outputs.shape[:-1] if classes else outputs.shape):
            return False
        if classes and int(targets.max()) >= self.schema.outputs:
            return False
        if self.schema.readout == "every":
            outputs, targets = outputs.transpose(0, 1), targets.transpose(0, 1)
        (self._add_classes if classes else self._add_numbers)(batch, outputs, targets)
        self.evaluation.sequences += batch.inputs.shape[1]
        return True

    def _add_classes(self, batch: Batch, outputs: Tensor, targets: Tensor) -> None:
        chances, predicted = outputs.softmax(-1).max(-1)
        known = targets >= 0  # PADDING, or another negative number that a chosen loss ignores
        self.evaluation.add_labels(targets[known].numpy(), predicted[known].numpy())
        wrong = known & (predicted != targets)
        sure = torch.where(wrong, chances, -1.0).reshape(len(targets), -1)  # (B, 1) or (B, T)
        most, at = sure.max(1)
        for row in most.argsort(descending=True, stable=True)[:MISTAKES].tolist():
            if most[row] < 0:
                break  # all further answers are right
            step = int(at[row]) if targets.dim() > 1 else -1
            place = (row, step) if targets.dim() > 1 else row
            true, answer = int(targets[place]), int(predicted[place])
            shares = float(most[row]), float(outputs[place].softmax(-1)[true])
            number = self.evaluation.sequences + row
            self.mistakes.append(
                Mistake(number, self._name(number), step, true, answer, *shares, self._inputs(batch, row))
            )
        self.mistakes = sorted(self.mistakes, key=lambda each: -each.chance)[:MISTAKES]

    def _add_numbers(self, batch: Batch, outputs: Tensor, targets: Tensor) -> None:
        width = len(self.schema.predicted)  # of several steps at once the next one
        answers, true = (self.schema.in_units(y)[..., :width].reshape(-1, width).numpy() for y in (outputs, targets))
        running = ~np.isnan(true).any(1)  # padding is nan
        before = self.evaluation.answers
        self.evaluation.add_numbers(true[running], answers[running])
        pairs = np.stack([true[running], answers[running]], 1)
        self._pairs.append(pairs[-before % self._every :: self._every])
        while sum(map(len, self._pairs)) > POINTS:
            self._every *= 2
            self._pairs = [np.concatenate(self._pairs)[::2]]

    def _inputs(self, batch: Batch, row: int) -> np.ndarray:
        x = batch.inputs[:, row] if batch.lengths is None else batch.inputs[: int(batch.lengths[row]), row]
        x = x.detach().cpu().reshape(len(x), -1)
        if self.schema.vocabulary is not None:
            return x.numpy()
        mean, deviation = self.schema.input_scale
        return x.double().numpy() * deviation + mean

    def arrays(self) -> Mapping[str, np.ndarray]:
        """The arrays of answers.npz, see `Run.answers`."""
        counts = {"sequences": self.evaluation.sequences, "answers": self.evaluation.answers}
        arrays = {"kind": np.array(self.schema.kind), **{name: np.array(count) for name, count in counts.items()}}
        if self.evaluation.confusion is None:
            columns = [column.name for column in self.schema.predicted]
            errors = [[row[name] for name in ("mae", "rmse", "r2")] for row in self.evaluation.errors]
            pairs = np.concatenate(self._pairs)
            return arrays | {"columns": np.array(columns), "errors": np.array(errors), "pairs": pairs}
        labels = np.array([str(label) for label in self.schema.labels])
        arrays |= {"labels": labels, "confusion": self.evaluation.confusion}
        if not self.mistakes:
            return arrays
        for name in Mistake._fields[:-1]:
            arrays[f"mistake_{name}"] = np.array([getattr(each, name) for each in self.mistakes])
        lengths = np.array([len(each.inputs) for each in self.mistakes])
        stride = -(-lengths // STEPS)
        shown = [each.inputs[::n, :COLUMNS] for each, n in zip(self.mistakes, stride.tolist(), strict=True)]
        return arrays | {
            "mistake_length": lengths,
            "mistake_stride": stride,
            "mistake_inputs": np.concatenate(shown).astype(np.float32),
            "inputs": np.array(self.schema.read_names),
        }
