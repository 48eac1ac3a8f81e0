"""How good predictions for a file are: accuracy and confusion, or errors in the units of the file."""

from __future__ import annotations

import os

import numpy as np

from evenflow.lab.data.file_blocks import file_blocks
from evenflow.lab.data.table_blocks import Progress
from evenflow.models import Predictor
from evenflow.models.prediction_quality import Evaluation


def evaluate_file(
    predictor: Predictor, source: str | os.PathLike[str], *, progress: Progress | None = None
) -> Evaluation:
    """Compare predictions with the targets of a file, block by block.

    Args:
        predictor: what `evenflow.load` returns.
        source: a CSV or npz file in the layout of the training data, with its targets; for kind "next" the targets are
            the steps themselves.
        progress: called with the bytes read so far and those of the file.
    """
    schema = predictor.schema
    if schema.kind == "multilabel":
        raise ValueError("a file has one label or numbers in a row, and this model predicts labels that hold together")
    result = Evaluation(schema)
    numbers = [place for place, column in enumerate(schema.inputs) if column in schema.predicted]
    for block in file_blocks(source, schema, learned=True, progress=progress):
        result.sequences += len(block.inputs)
        if schema.kind == "classification":
            places = {label: place for place, label in enumerate(schema.labels)}
            predicted = np.concatenate([np.atleast_1d(each) for each in predictor.predict(block.inputs)])
            true = np.concatenate([np.atleast_1d(each) for each in block.targets or []])
            result.add_labels(true, np.array([places[label] for label in predicted.tolist()]))
        elif schema.kind == "next":
            longer = [each for each in block.inputs if len(each) > 1]
            if longer:
                if schema.known:  # read at the step after, too
                    predicted = np.concatenate([each[:-1] for each in predictor.predict(longer)])
                else:
                    predicted = np.concatenate(predictor.predict([each[:-1] for each in longer]))
                true = np.concatenate([each[1:] for each in longer])[:, numbers].astype(np.float64)
                known = ~np.isnan(true).any(1)  # a missing value is read, but is no target
                result.add_numbers(true[known], predicted[known])
        else:
            width = len(schema.targets)
            predicted = np.concatenate([np.reshape(each, (-1, width)) for each in predictor.predict(block.inputs)])
            result.add_numbers(
                np.concatenate([np.reshape(each, (-1, width)) for each in block.targets or []]), predicted
            )
    if not result.answers:
        raise ValueError(f"file {str(source)!r} has nothing to compare: predicting the next step needs two steps")
    return result
