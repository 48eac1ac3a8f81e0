"""The classifier and the regressor by an echo state network, whose readout is solved for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from sklearn.utils import check_random_state
from torch import Tensor
from torch.nn import functional as F

from evenflow.checks import number
from evenflow.lab.tasks import Position
from evenflow.models import Predictor, SequenceModel
from evenflow.reservoir import EchoState, Ridge
from evenflow.runtime.shared_arguments import with_shared_arguments

from .sequence_estimator import Classifies, Learned, Regresses, SequenceEstimator
from .weighted_sequences import WeightedSequences

PIECE = 2**23  # numbers of state in memory at once
SHARPEST = 20.0  # largest factor on the scores of a classifier, whose targets are 0 and 1


class EchoStateEstimator(SequenceEstimator):
    """A random recurrence that is not trained; ridge regression from its last state to the targets.

    Args:
        hidden_size: units of the reservoir.
        radius: largest absolute eigenvalue of the recurrent matrix; near 1 remembers long.
        leak: share of the new state in each step, above 0 and at most 1; small for slow sequences.
        input_scaling: range of the input weights; small is nearly linear.
        ridge: penalty on the readout, λ of `evenflow.reservoir.Ridge`.
        options: further options of `evenflow.EchoState`, such as ``{"density": 0.05, "activation": "relu"}``.
        random_state: seed of the reservoir.
    """

    def __init__(
        self,
        hidden_size: int = 200,
        *,
        radius: float = 0.9,
        leak: float = 1.0,
        input_scaling: float = 0.5,
        ridge: float = 0.1,
        options: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.hidden_size = hidden_size
        self.radius = radius
        self.leak = leak
        self.input_scaling = input_scaling
        self.ridge = ridge
        self.options = options
        self.random_state = random_state

    @torch.no_grad()
    def _train(self, learned: Learned) -> Predictor:
        number("ridge", self.ridge, least=0)
        schema = learned.schema()
        task = WeightedSequences(schema, {"training": (learned.inputs, learned.targets)}, {"training": learned.weights})
        model = SequenceModel(self._reservoir(task.input_size), task.output_size)
        states, targets = self._last_states(model.layer, task, max(len(x) for x in learned.inputs))
        wanted, weights = targets[:, :-1], targets[:, -1].double()
        if schema.labels:
            wanted = F.one_hot(wanted[:, 0].long(), len(schema.labels))
        ridge = Ridge()
        ridge.add(states, wanted, weights)
        weight, bias = ridge.solve(self.ridge)
        factor = _sharpness(states @ weight.mT + bias, targets[:, 0].long(), weights) if schema.labels else 1.0
        model.output.weight.copy_(factor * weight)
        model.output.bias.copy_(factor * bias)
        return Predictor(model, schema)

    def _reservoir(self, inputs: int) -> EchoState:
        """The recurrence, in float64: answers then do not depend on how sequences are batched."""
        generator = torch.Generator().manual_seed(int(check_random_state(self.random_state).randint(2**31 - 1)))
        own = {name: getattr(self, name) for name in ("radius", "leak", "input_scaling")}
        options = dict(self.options or {})
        for name in options:
            if name in (*own, "hidden_size", "ridge"):
                raise ValueError(f"options must leave out {name}, which is a parameter of {type(self).__name__}")
        try:
            return EchoState(inputs, self.hidden_size, **own, **options, generator=generator, dtype=torch.float64)
        except TypeError as error:
            raise ValueError(f"the reservoir cannot be made with these options: {error}") from error

    def _last_states(self, layer: Any, task: WeightedSequences, longest: int) -> tuple[Tensor, Tensor]:
        """The last state of every sequence ``(N, H)``, and the targets with weights ``(N, K + 1)``."""
        size = max(1, PIECE // (longest * self.hidden_size))
        states, targets = [], []
        for batch in task.every_batch(size, Position(0, 1), torch.device("cpu")):
            h = layer(batch.inputs.double())[0]
            ends = torch.full((h.shape[1],), len(h) - 1) if batch.lengths is None else batch.lengths - 1
            states.append(h[ends, torch.arange(h.shape[1])])
            targets.append(batch.targets)
        return torch.cat(states), torch.cat(targets)


def _sharpness(scores: Tensor, labels: Tensor, weights: Tensor) -> float:
    """The factor on scores at which the cross entropy of their softmax is least, at most `SHARPEST`.

    Least squares makes scores near 0 and 1, whose softmax would never be sure. The entropy is convex in the factor.
    """
    chosen = scores.gather(-1, labels[:, None])[:, 0]

    def slope(factor: float) -> float:
        return float((weights * (((factor * scores).softmax(-1) * scores).sum(-1) - chosen)).sum())

    if slope(SHARPEST) <= 0:
        return SHARPEST
    return 1.0 if slope(1.0) >= 0 else float(brentq(slope, 1.0, SHARPEST, xtol=1e-13))


@with_shared_arguments
class EchoStateClassifier(Classifies, EchoStateEstimator):
    """Gives each sequence one of several classes, by an echo state network: fitted in one pass.

    Args:
        others: as in `EchoStateEstimator`.

    Attributes:
        classes_: the classes.
        predictor_: the model with the description of its data; `evenflow.save` writes it.
        n_channels_in_: numbers at each step.

    >>> EchoStateClassifier(300, random_state=0).fit(windows, activities).score(windows, activities) > 0.9
    True

    Reference: Jaeger 2001; Lukoševičius 2012.
    """


@with_shared_arguments
class EchoStateRegressor(Regresses, EchoStateEstimator):
    """Gives each sequence a number, or several, by an echo state network: fitted in one pass.

    Args:
        others: as in `EchoStateEstimator`.

    Attributes:
        predictor_: the model with the description of its data; `evenflow.save` writes it.
        n_channels_in_: numbers at each step.

    >>> EchoStateRegressor(300, leak=0.3, random_state=0).fit(windows, ages).score(windows, ages) > 0.9
    True

    Reference: Jaeger 2001; Lukoševičius 2012.
    """
