"""What users pass to an estimator: sequences as arrays or ragged lists, and sample weights, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, validate_data

FLOATS = [np.float64, np.float32]  # others are converted to the first


def training_sequences(estimator: BaseEstimator, x: Any) -> list[np.ndarray]:
    """The sequences of X as arrays ``(T_n, C)``, and C as ``n_channels_in_`` of the estimator.

    Args:
        estimator: the one that is fitted. 2-D input sets its ``n_features_in_`` as in all of scikit-learn.
        x: ``(N, T)``, ``(N, T, C)``, or a list of arrays ``(T_n,)`` or ``(T_n, C)``.
    """
    given = checked_sequences(estimator, x, reset=True)
    if isinstance(given, np.ndarray):
        sequences = list(given[..., None] if given.ndim == 2 else given)
    else:
        sequences = [_steps(each, n) for n, each in enumerate(given)]
    widths = {sequence.shape[1] for sequence in sequences}
    if len(widths) > 1:
        raise ValueError(f"X must hold sequences with as many channels each, got {sorted(widths)}")
    estimator.n_channels_in_ = widths.pop()
    return sequences


def checked_sequences(estimator: BaseEstimator, x: Any, *, reset: bool = False) -> np.ndarray | list[Any]:
    """X as an array ``(N, T)`` or ``(N, T, C)`` of finite numbers, or as a list of arrays that is not checked.

    Args:
        reset: whether the estimator is being fitted. Otherwise 2-D input must have as many columns as in `fit` if that
            was 2-D too; sequences of other lengths are passed as ``X[..., None]`` or as a list.
    """
    if ragged(x):
        if reset:
            _forget_features(estimator)
        return list(x)
    return np.require(_checked_array(estimator, x, reset), requirements="W")  # torch warns of arrays that are read-only


def _checked_array(estimator: BaseEstimator, x: Any, reset: bool) -> np.ndarray:
    if (np.ndim(x) if isinstance(x, list | tuple) else getattr(x, "ndim", 2)) == 3:
        if reset:
            _forget_features(estimator)
        return check_array(x, dtype=FLOATS, allow_nd=True, estimator=estimator, input_name="X")
    if not reset and not hasattr(estimator, "n_features_in_"):
        return check_array(x, dtype=FLOATS, estimator=estimator, input_name="X")
    return validate_data(estimator, x, reset=reset, dtype=FLOATS)


def ragged(x: Any) -> bool:
    """Whether X is a list of arrays, or an array of arrays, and not one array of numbers."""
    if isinstance(x, np.ndarray):
        return x.dtype == object and x.ndim == 1 and bool(len(x)) and np.ndim(x[0]) > 0
    return isinstance(x, list | tuple) and bool(x) and all(hasattr(each, "shape") and np.ndim(each) > 0 for each in x)


def training_weights(sample_weight: Any, count: int) -> np.ndarray:
    """The weight of every sequence ``(N,)`` float64, not all of them zero; ones for None."""
    if sample_weight is None:
        return np.ones(count)
    weights = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if weights.shape != (count,):
        raise ValueError(f"sample_weight must have shape ({count},), one for each sequence, got {weights.shape}")
    if (weights < 0).any():
        raise ValueError(f"sample_weight must not be negative, got {weights.min():g}")
    if not weights.any():
        raise ValueError("sample_weight must have a weight above zero, got zero for all sequences")
    return weights


def _steps(x: Any, n: int) -> np.ndarray:
    """One array of a ragged list as ``(T, C)``."""
    array = np.asarray(x)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or not array.size or array.dtype.kind not in "fiub":
        raise ValueError(
            f"sequence {n} of X must be numbers of shape (T,) or (T, C), got {array.dtype} of shape {np.shape(x)}"
        )
    if not np.isfinite(array).all():
        step, channel = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ValueError(
            f"X must hold finite numbers, step {step} of sequence {n} has {array[step, channel]} in channel {channel}"
        )
    return array


def _forget_features(estimator: BaseEstimator) -> None:
    """Forget the columns of an earlier fit to 2-D input."""
    for name in ("n_features_in_", "feature_names_in_"):
        vars(estimator).pop(name, None)
