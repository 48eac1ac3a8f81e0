"""Base of the estimators that are trained by `evenflow.fit`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state

from evenflow.checks import number, whole_number
from evenflow.lab.training import Settings, build
from evenflow.lab.training.fit import fit_settings
from evenflow.models import Predictor

from .sequence_estimator import Learned, SequenceEstimator
from .weighted_sequences import WeightedSequences

PARAMETERS = ("epochs", "lr", "batch_size", "optimizer", "patience", "seed")  # settings with a parameter of their own


class TrainedEstimator(SequenceEstimator):
    """A named system with a readout, trained in epochs, with the weights of the best validation.

    Args:
        system: a name of `evenflow.systems()`, or of a network without time such as "mlp".
        hidden_size: units of a layer.
        num_layers: layers on top of each other.
        epochs: passes over the training sequences to make at most.
        lr: learning rate.
        batch_size: sequences in a batch.
        optimizer: as in `evenflow.fit`, such as "adam", "rmsprop" or "sgd".
        validation: share of the sequences that are held out, drawn by `random_state` and stratified by class where
            that is possible. With 0 the training sequences themselves are validated on.
        patience: stop after this many epochs without a better validation; None makes all epochs.
        options: options of the layer and the readout, such as ``{"map": "cayley", "output_dropout": 0.1}``.
        settings: further settings of `evenflow.fit`, such as ``{"clip_norm": 1.0, "device": "cpu"}``.
        warm_start: `fit` continues with the weights and the scaling of the fit before.
        random_state: seed of starting weights, held-out sequences, batches and dropout.
        verbose: show a progress bar on a terminal, and print how the training ended.
    """

    def __init__(
        self,
        system: str = "rnn",
        hidden_size: int = 64,
        *,
        num_layers: int = 1,
        epochs: int = 100,
        lr: float = 0.01,
        batch_size: int = 32,
        optimizer: str = "adam",
        validation: float = 0.1,
        patience: int | None = 20,
        options: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.system = system
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.validation = validation
        self.patience = patience
        self.options = options
        self.settings = settings
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def _train(self, learned: Learned) -> Predictor:
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        number("validation", self.validation, least=0, below=1)
        parts = {name: learned.rows(rows) for name, rows in self._divide(learned, seed).items()}
        earlier = self._earlier(learned)
        schema = parts["training"].schema() if earlier is None else earlier.schema
        task = WeightedSequences(
            schema,
            {name: (part.inputs, part.targets) for name, part in parts.items()},
            {name: part.weights for name, part in parts.items()},
        )
        settings = self._settings(task, seed)
        model = self._build(task, seed) if earlier is None else copy.deepcopy(earlier.model)
        result = fit_settings(model, task, settings, progress=bool(self.verbose))
        self.history_ = result.history
        self.n_iter_ = result.steps // (task.epoch_steps(self.batch_size) or 1)
        if self.verbose:
            best = f"{task.metric_name} {result.best_metric:.4g}, loss {result.best_loss:.4g}"
            print(f"{type(self).__name__}: {self.n_iter_} epochs in {result.seconds:.1f} s, best validation: {best}")
        return result.predictor()

    def _divide(self, learned: Learned, seed: int) -> dict[str, np.ndarray]:
        """The numbers of the sequences to train on and to validate on."""
        every = np.arange(len(learned.inputs))
        held_out = max(1, round(self.validation * len(every)))
        if not self.validation or len(every) < 2:
            return {"training": every, "validation": every}
        strata = None
        if learned.kind == "classification":
            codes = np.concatenate(learned.targets)
            counts = np.bincount(codes)
            if counts.min() >= 2 and min(held_out, len(every) - held_out) >= len(counts):
                strata = codes
        training, validation = train_test_split(every, test_size=held_out, random_state=seed, stratify=strata)
        return {"training": training, "validation": validation}

    def _earlier(self, learned: Learned) -> Predictor | None:
        """The model to continue with, None to begin anew."""
        if not self.warm_start or not hasattr(self, "predictor_"):
            return None
        schema = self.predictor_.schema
        for what, now, before in (
            ("channels", learned.inputs[0].shape[1], len(schema.inputs)),
            ("horizon", learned.horizon, schema.horizon),
            ("classes", learned.labels, schema.labels),
            ("targets", 0 if learned.kind != "regression" else len(learned.targets[0]), len(schema.targets)),
        ):
            if now != before and (what != "targets" or learned.kind == "regression"):
                raise ValueError(f"warm_start needs the same {what} as the fit before, {before}, got {now}")
        return self.predictor_

    def _settings(self, task: WeightedSequences, seed: int) -> Settings:
        more = dict(self.settings or {})
        for name in more:
            if name in PARAMETERS:
                where = "random_state" if name == "seed" else name
                raise ValueError(f"settings must leave out {name}, which is the parameter {where}")
        whole_number("batch_size", self.batch_size, 1)
        epoch = task.epoch_steps(self.batch_size)
        own = {name: getattr(self, name) for name in PARAMETERS if name != "seed"}
        return Settings.from_dict({"log_every": epoch, **own, "seed": seed, **more})

    def _build(self, task: WeightedSequences, seed: int) -> Any:
        whole_number("hidden_size", self.hidden_size, 1)
        whole_number("num_layers", self.num_layers, 1)
        layers = {} if self.num_layers == 1 else {"num_layers": self.num_layers}
        system = {"name": self.system, "hidden_size": self.hidden_size, **layers, **(self.options or {})}
        return build(task, system, seed)
