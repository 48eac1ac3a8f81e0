"""Base of the estimators: sequences in, a `Predictor` with the description of the data inside, predictions out."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite, check_array, check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from evenflow.models import DataColumn, DataSchema, Predictor
from evenflow.models.data_column import scaled_columns

from .sequence_input import checked_sequences, training_sequences, training_weights


class Learned(NamedTuple):
    """What an estimator learns from: sequences, targets and weights above zero.

    Shapes:
        inputs: arrays ``(T_n, C)``; targets: arrays ``(K)``, or ``(T_n, K)`` for kind "next", nan beyond the end;
        weights ``(N,)``.

    Attributes:
        kind, horizon: as in `DataSchema`.
        labels: of a classification.
    """

    kind: str
    inputs: list[np.ndarray]
    targets: list[np.ndarray]
    weights: np.ndarray
    labels: tuple[Any, ...] = ()
    horizon: int = 1

    def rows(self, rows: np.ndarray) -> Learned:
        """Some of the sequences."""
        inputs, targets = [self.inputs[row] for row in rows], [self.targets[row] for row in rows]
        return self._replace(inputs=inputs, targets=targets, weights=self.weights[rows])

    def schema(self) -> DataSchema:
        """The description of these sequences, whose means and deviations are those of the training data."""
        steps = np.repeat(self.weights, [len(x) for x in self.inputs])
        columns = [DataColumn(f"x{channel}") for channel in range(self.inputs[0].shape[1])]
        inputs = scaled_columns(columns, np.concatenate(self.inputs), steps)
        if self.kind == "next":
            return DataSchema(self.kind, "every", inputs, horizon=self.horizon)
        if self.kind == "classification":
            return DataSchema(self.kind, "last", inputs, (DataColumn("target", "category", categories=self.labels),))
        targets = np.stack(self.targets)
        columns = [DataColumn(f"y{output}") for output in range(targets.shape[1])]
        return DataSchema(self.kind, "last", inputs, scaled_columns(columns, targets, self.weights))


class SequenceEstimator(BaseEstimator):
    """What all estimators share. A subclass implements `_train`.

    Attributes:
        predictor_: the trained model with the description of its data; `evenflow.save` writes it.
        n_channels_in_: numbers at each step.
    """

    predictor_: Predictor

    @abstractmethod
    def _train(self, learned: Learned) -> Predictor:
        """Train a model."""

    def _predictor(self, x: Any) -> tuple[Predictor, Any]:
        """The trained model, and X in a form that it reads."""
        check_is_fitted(self, "predictor_")
        return self.predictor_, checked_sequences(self, x)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


class Classifies(ClassifierMixin):
    """`fit` and `predict` of estimators that answer with one of several classes. Stands before `SequenceEstimator`."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on sequences with a class each.

        Args:
            X: ``(N, T)`` for one channel, ``(N, T, C)``, or a list of N arrays ``(T_n, C)`` or ``(T_n,)``.
            y: the classes ``(N,)``, numbers or text.
            sample_weight: how much each sequence counts ``(N,)``; sequences of weight 0 are left out. Default: 1.
        """
        _require(self, y)
        inputs = training_sequences(self, X)
        y = column_or_1d(y, warn=True)
        check_consistent_length(inputs, y)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        weights = training_weights(sample_weight, len(y))
        kept = np.flatnonzero(weights)
        self.classes_, codes = np.unique(y[kept], return_inverse=True)
        inputs, targets = [inputs[row] for row in kept], [np.array([code]) for code in codes]
        learned = Learned("classification", inputs, targets, weights[kept], _labels(self.classes_))
        self.predictor_ = self._train(learned)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each sequence ``(N,)``."""
        best = self.predict_proba(X).argmax(-1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class ``(N, K)``, in the order of ``classes_``."""
        predictor, x = self._predictor(X)
        return predictor.predict_proba(x)


class Regresses(RegressorMixin):
    """`fit` and `predict` of estimators that answer with numbers. Stands before `SequenceEstimator`."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on sequences with a number, or several, each.

        Args:
            X: ``(N, T)`` for one channel, ``(N, T, C)``, or a list of N arrays ``(T_n, C)`` or ``(T_n,)``.
            y: the numbers ``(N,)`` or ``(N, K)``.
            sample_weight: how much each sequence counts ``(N,)``; sequences of weight 0 are left out. Default: 1.
        """
        _require(self, y)
        inputs = training_sequences(self, X)
        y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", estimator=self)
        check_consistent_length(inputs, y)
        self._single = y.ndim == 1
        weights = training_weights(sample_weight, len(y))
        kept = np.flatnonzero(weights)
        targets = list(y.reshape(len(y), -1)[kept])
        self.predictor_ = self._train(Learned("regression", [inputs[row] for row in kept], targets, weights[kept]))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The number of each sequence ``(N,)``, or ``(N, K)`` if y was two-dimensional."""
        predictor, x = self._predictor(X)
        predicted = predictor.predict(x)
        return predicted if self._single else predicted.reshape(len(predicted), -1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _require(estimator: BaseEstimator, y: Any) -> None:
    if y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")


def _labels(classes: np.ndarray) -> tuple[Any, ...]:
    """Classes as the description of the data holds them: whole numbers, or text."""
    if classes.dtype.kind in "iu":
        return tuple(classes.tolist())
    return tuple(str(label) for label in classes.tolist())
