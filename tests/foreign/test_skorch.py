"""A layer inside skorch and scikit-learn's grid search."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import evenflow

skorch = pytest.importorskip("skorch", reason="skorch is not installed")
selection = pytest.importorskip("sklearn.model_selection", reason="scikit-learn is not installed")


class Classifier(nn.Module):
    """The last output of a layer, read by a linear one."""

    def __init__(self, system: str = "rnn", hidden_size: int = 8) -> None:
        super().__init__()
        self.layer = evenflow.create(system, 1, hidden_size, batch_first=True)
        self.read = nn.Linear(hidden_size, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.read(self.layer(x)[0][:, -1])


def test_a_grid_search_over_systems():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 10, 1)).astype(np.float32)
    y = (x.sum((1, 2)) > 0).astype(np.int64)
    torch.manual_seed(0)
    network = skorch.NeuralNetClassifier(
        Classifier, criterion=nn.CrossEntropyLoss, optimizer=torch.optim.Adam, lr=0.02, max_epochs=15, verbose=0,
        train_split=None,
    )  # fmt: skip
    search = selection.GridSearchCV(network, {"module__system": ["sgornn", "gru"], "module__hidden_size": [4, 8]}, cv=2)
    search.fit(x, y)
    assert search.best_score_ > 0.7
    assert search.predict_proba(x).shape == (60, 2)
