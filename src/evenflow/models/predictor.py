"""`Predictor`: a trained model with the description of its data, which predicts in the user's units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from evenflow.models.data_schema import DataSchema
from evenflow.models.flat_model import FlatModel
from evenflow.models.forecast import forecast
from evenflow.models.sequence_model import SequenceModel
from evenflow.models.user_sequences import UserBatch, UserSequences

# Bytes of the inputs and states of a batch, and its most sequences, by the type of the device. On a CPU a larger batch
# does not fit in the cache, on a GPU a smaller one leaves processors idle.
BUDGET = {"cpu": 1 << 26, "cuda": 1 << 31}
LARGEST = {"cpu": 128, "cuda": 1 << 14}
FREE_SHARE = 8  # a batch takes at most this part of a GPU's free memory

_Item = TypeVar("_Item")


class Predictor:
    """A model in use: it takes data in the user's units and answers in them. `evenflow.load` returns one.

    Sequences are an array ``(N, T, I)``, or ``(N, T)`` where the model reads one column; a list of N arrays of any
    lengths; or a table of pandas or polars with a row for each step and a column that tells the sequences apart. One
    long series in a table without that column is cut into pieces as in training.

    Args:
        model: a `SequenceModel` or a `FlatModel`, which is put in evaluation mode.
        schema: what it reads and what its outputs mean.

    >>> motion = SequenceModel(LSTM(2, 16), 2)
    >>> predictor = evenflow.fit(motion, (windows, activities), epochs=1, progress=False).predictor()
    >>> predictor.predict_proba(windows).shape, set(predictor.predict(windows)) <= {"resting", "walking"}
    ((30, 2), True)
    """

    def __init__(self, model: SequenceModel | FlatModel, schema: DataSchema) -> None:
        check_fits(model, schema)
        self.model, self.schema = model.eval(), schema

    def predict(self, x: Any) -> Any:
        """What the model predicts for each sequence, or for each step of each sequence.

        Returns:
            labels (classification), true and false (multilabel) or numbers in the user's units (regression; for kind
            "next" those of the next step, and nan after the last step if inputs are known ahead): ``(N,)`` with readout
            "last", ``(N, T)`` with "every", and one dimension more for several targets. With readout "every" a list of
            arrays if `x` is a list, and one row for each row of a table.
        """
        schema = self.schema
        if schema.kind == "classification":
            labels = np.array(schema.labels)
            return self._run(x, lambda y: y.argmax(-1), lambda positions: labels[positions])
        if schema.kind == "multilabel":
            return self._run(x, lambda y: y > 0)
        flat = schema.kind == "regression" and len(schema.targets) == 1
        columns = 0 if flat else slice(len(schema.predicted))
        return self._run(x, lambda y: schema.in_units(y)[..., columns], next_step=True)

    def predict_proba(self, x: Any) -> Any:
        """The probability of each label, in the order of ``schema.labels``: as `predict`, with the labels last."""
        if self.schema.kind == "multilabel":
            return self._run(x, lambda y: y.float().sigmoid())
        if self.schema.kind != "classification":
            raise ValueError(f"predict_proba needs a model that classifies, this one is for {self.schema.kind}")
        return self._run(x, lambda y: y.float().softmax(-1))

    @torch.no_grad()
    def forecast(self, x: Any, horizon: int, known: Any = None) -> np.ndarray:
        """The steps after the end of each sequence.

        A model of one step reads each prediction as the next step; one that predicts several steps at once gives them.

        Args:
            x: the sequences so far. Of a model trained on pieces of one long series, the last steps of each are read,
                as many as a piece has.
            horizon: how many steps to predict; at most ``schema.horizon`` of a model that predicts several at once.
            known: the inputs that are known ahead at these steps, in the order of ``schema.known``: ``(N, horizon, K)``
                or in another form of `x`. None for a model without such inputs.

        Returns:
            ``(N, horizon, O)`` in the user's units, or ``(N, horizon)`` if `x` has no dimension for its one column.
        """
        with parametrize.cached():
            return forecast(self.model, self.schema, x, horizon, known, self._batches)

    def to(self, device: torch.device | str) -> Predictor:
        """Move the model to a device, and return this predictor."""
        self.model.to(device)
        return self

    @torch.no_grad()
    def _run(
        self,
        x: Any,
        finish: Callable[[Tensor], Tensor],
        name: Callable[[np.ndarray], np.ndarray] = lambda answers: answers,
        next_step: bool = False,
    ) -> Any:
        """Run the model and put the answers in the order and form of `x`.

        Args:
            finish: what becomes of the outputs of a batch, on the model's device.
            name: what becomes of all answers.
            next_step: whether answers have the form of the inputs, for kind "next".
        """
        sequences = UserSequences(x, self.schema)
        every = self.schema.readout == "every"
        together: np.ndarray | None = None
        pieces: list[Any] = [None] * len(sequences)
        equal = bool((sequences.lengths == sequences.lengths[0]).all())
        with parametrize.cached():
            outputs = ((batch, self._outputs(batch)) for batch in self._batches(sequences))
            finished = ((batch, finish(y.transpose(0, 1) if every else y)) for batch, y in outputs)
            for batch, finished_batch in _one_late(finished):
                sequences.check(batch)
                rows, answers = batch.rows, finished_batch.cpu().numpy()
                if self.schema.known:  # of the step after the last one nothing is known
                    answers[np.arange(len(rows)), sequences.lengths[rows] - 1] = np.nan
                if equal:
                    if together is None:
                        together = np.empty((len(sequences), *answers.shape[1:]), answers.dtype)
                    together[rows] = answers
                else:
                    for row, answer in zip(rows.tolist(), answers, strict=True):
                        pieces[row] = answer[: sequences.lengths[row]] if every else answer
        if self.schema.kind == "next" and next_step and sequences.flat:
            together = None if together is None else together[..., 0]
            pieces = [each if each is None else each[..., 0] for each in pieces]
        result: Any = together if together is not None else pieces
        if not every:
            return name(np.asarray(result))
        if sequences.rows is not None:
            by_row = np.concatenate(list(result))
            ordered = np.empty_like(by_row)
            ordered[sequences.rows] = by_row
            return name(ordered)
        return [name(each) for each in result] if sequences.ragged else name(np.asarray(result))

    def _outputs(self, batch: UserBatch) -> Tensor:
        inputs, lengths = batch.inputs, batch.lengths
        if isinstance(self.model, FlatModel):
            size: int = self.model.network.input_size  # type: ignore[assignment]
            if lengths is not None or inputs.shape[0] * inputs.shape[2] != size:
                steps, got = size // inputs.shape[2], len(inputs)
                raise ValueError(f"X must have sequences of {steps} steps, all that this network reads, got {got}")
            return self.model(inputs)[0]
        return self.model(inputs, lengths=lengths)[0]

    def _batches(self, sequences: UserSequences) -> Iterator[UserBatch]:
        """Batches of a bounded size. Ragged sequences go by their length."""
        parameter = next(self.model.parameters())
        budget, largest = _batch_limits(parameter.device)
        equal = bool((sequences.lengths == sequences.lengths[0]).all())
        order = np.arange(len(sequences)) if equal else np.argsort(sequences.lengths, kind="stable")
        first, width = 0, model_sizes(self.model)["width"]
        while first < len(order):
            # Lengths ascend, so the last sequence of a batch is its longest: halve until the batch fits.
            count = min(largest, len(order) - first)
            while count > 1 and count * int(sequences.lengths[order[first + count - 1]]) * width * 4 > budget:
                count = -(-count // 2)
            batch = sequences.batch(order[first : first + count], parameter.device)
            # Positions of categories may be larger than half precision can hold; the model itself converts the rest.
            numbers = batch.finite is not None and not self.schema.embedded
            yield batch._replace(inputs=batch.inputs.to(parameter.dtype)) if numbers else batch
            first += count


def _batch_limits(device: torch.device) -> tuple[int, int]:
    """The bytes and the sequences that a batch may have on a device."""
    if device.type != "cuda":
        return BUDGET["cpu"], LARGEST["cpu"]
    free, _ = torch.cuda.mem_get_info(device)
    return min(BUDGET["cuda"], free // FREE_SHARE), LARGEST["cuda"]


def _one_late(items: Iterable[_Item]) -> Iterator[_Item]:
    """Each item once the next one is there: a GPU computes the next batch while the answers of one are stored."""
    before: list[_Item] = []
    for item in items:
        yield from before
        before = [item]
    yield from before


def check_fits(model: nn.Module, schema: DataSchema) -> None:
    """Raise a ValueError unless a schema describes the inputs and outputs of a model."""
    sizes = model_sizes(model)
    if not isinstance(schema, DataSchema):
        raise ValueError(f"schema must be a DataSchema, got {type(schema).__name__}")
    expected: dict[str, Any] = {"readout": schema.readout, "outputs": schema.outputs, "vocabulary": schema.vocabulary}
    expected["column_embeddings"] = schema.embedded
    if isinstance(model, SequenceModel) and schema.vocabulary is None:
        expected["inputs"] = schema.width
    for name, value in expected.items():
        if sizes[name] != value:
            raise ValueError(f"{name} of the schema must be those of the model, {sizes[name]!r}, got {value!r}")


def model_sizes(model: nn.Module) -> dict[str, Any]:
    """Readout, inputs, outputs and vocabulary of a model, and the numbers that one step of a sequence needs."""
    if isinstance(model, FlatModel):
        network = model.network
        size: int = network.input_size  # type: ignore[assignment]
        fixed = {"readout": "last", "inputs": None, "vocabulary": None, "column_embeddings": ()}
        return {**fixed, "outputs": network.output_size, "width": size}
    if not isinstance(model, SequenceModel):
        raise ValueError(f"model must be a SequenceModel or a FlatModel, got {type(model).__name__}")
    inputs: int = model.layer.input_size  # type: ignore[assignment]
    hidden: int = model.layer.hidden_size  # type: ignore[assignment]
    outputs = model.output.out_features
    return {
        "readout": model.readout,
        "inputs": inputs - (0 if model.columns is None else model.columns.added),
        "outputs": outputs,
        "vocabulary": None if model.embedding is None else model.embedding.num_embeddings,
        "column_embeddings": () if model.columns is None else model.columns.sizes,
        "width": 3 * inputs + 6 * hidden + outputs,  # float64 while scaling; pre-activations of gates, states
    }
