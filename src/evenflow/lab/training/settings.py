"""The settings of a training run, and their checks; TOML files and the command line use the same names."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from evenflow import penalties
from evenflow.checks import one_of, unknown
from evenflow.lab.tasks.task import Task, check_options, option

from .given_parts import OWN
from .loggers import logger_names
from .matrix_clipping import MAPPED
from .optimizers import BASES, OPTIMIZERS, SCOPES, WEIGHT_DECAYS, WITH_EPS
from .schedules import DECAYING, SCHEDULES

PRECISIONS = ("32-true", "tf32", "64-true", "bf16-mixed", "bf16-true")
VALIDATION_BATCHES, VALIDATE_EVERY = 10, 100
LINE_SEARCH = "line-search"
OWN_METHODS = ("temporal-simplex", "hessian-free", LINE_SEARCH)
DEVICES = ("auto", "cpu", "cuda", "mps")
# What may be another when a run is resumed: its weights are in its checkpoint by then.
FREE = ("device", "logger", "start_from")
# Names that other libraries use for a setting; an unknown setting is answered with the name to use.
SYNONYMS = {"rate": "lr", "learning_rate": "lr", "smoothing": "alpha", "epsilon": "eps", "tensorboard": "logger"}


@dataclass(frozen=True)
class Settings:
    """The settings of a training run. Each field's help text is in ``field.metadata["help"]``.

    A setting that is None is off. `to_dict` leaves it out, because TOML has no None, and `from_dict` restores it.

        >>> Settings.from_dict(Settings(lr=0.01).to_dict()) == Settings(lr=0.01)
        True
    """

    steps: int = option(1000, "updates to make", whole=1)
    epochs: int | None = option(None, "passes over a data set to make, in place of steps", whole=1)
    batch_size: int = option(50, "sequences in a batch, in each process", whole=1)
    accumulate: int = option(
        1, "batches of an update in each process: the gradients are averaged, as if there were more processes", whole=1
    )
    optimizer: str = option(
        "adam",
        f"{', '.join((*OPTIMIZERS, *OWN_METHODS))}, or a class of your own as module:Class; "
        "for `fit` also the class or an optimizer",
    )
    lr: float = option(1e-3, "learning rate at the start; of line-search that of its first trial", above=0)
    momentum: float = option(0.0, "momentum of sgd and rmsprop", least=0, below=1)
    nesterov: bool = option(False, "look ahead along the momentum (sgd)")
    alpha: float = option(0.99, "decay of rmsprop's running mean of squares, per update", least=0, below=1)
    eps: float | None = option(
        None,
        "added to the root mean square that adam, rmsprop and their kin divide by; 1e-8 by default, adagrad 1e-10",
        above=0,
    )
    weight_decay: float | None = option(
        None,
        "pull of the weights towards zero, added to the gradient, by adamw and muon to the step; by default 0, adamw "
        "0.01, muon 0.1",
        least=0,
    )
    map_lr: float | None = option(
        None, "learning rate of the parameters of maps, lr by default; expRNN's authors take a tenth of it", above=0
    )
    bases: str = option(
        "sgd", "optimizer of the orthonormal bases of a factorized map, along geodesics: sgd or adam", choices=BASES
    )
    bases_lr: float | None = option(None, "learning rate of these bases; map_lr by default", above=0)
    psi: float | None = option(None, "gradient norm above which temporal-simplex uses the plain gradient", above=0)
    damping: float = option(0.1, "initial damping of hessian-free", above=0)
    structural: float = option(0.0, "weight of hessian-free's structural damping, on the change of the states", least=0)
    curvature_size: int | None = option(
        None, "sequences of the batch on which hessian-free measures the curvature; all by default", whole=1
    )
    penalty: str | None = option(None, "added to the loss: see `evenflow penalties`; several with a plus between them")
    schedule: str = option(
        "constant",
        "learning rate over time: constant, linear or cosine (to zero), exponential, step, plateau (of the validation "
        "loss), one-cycle, or module:function that makes a scheduler of torch; for `fit` also the function",
    )
    warmup: int = option(0, "updates in which the learning rate rises, before the schedule or in the cycle", whole=0)
    decay: float = option(0.5, "factor of the schedules exponential, step and plateau", above=0)
    decay_every: int = option(1000, "updates in which the learning rate is multiplied by decay once", whole=1)
    decay_patience: int = option(
        5, "validations without a lower loss after which plateau multiplies the learning rate by decay", whole=1
    )
    clip_norm: float | None = option(None, "largest norm of the gradient", above=0)
    clip_value: float | None = option(None, "largest absolute value of an entry of the gradient", above=0)
    clip_scope: str = option(
        "all",
        "what is clipped: all, the parameters of the recurrent matrices (recurrent), each tensor alone (each), or the "
        "gradient by each recurrent matrix that takes a map, before the map's own gradient (mapped)",
        choices=SCOPES,
    )
    log_every: int = option(10, "updates between two rows of metrics.csv", whole=1)
    validate_every: int | None = option(
        None,
        "updates between two validations; by default an epoch of a data set, else 100; the last is always validated",
        whole=1,
    )
    validation_batches: int | None = option(
        None,
        "batches in a validation, the same ones every time; by default 10, or all that a data set holds out",
        whole=1,
    )
    patience: int | None = option(None, "stop after this many validations without improvement", whole=1)
    stop_when_solved: bool = option(False, "stop at the first validation that solves the task")
    probe_every: int | None = option(None, "updates between two probes of the gradient over time", whole=1)
    logger: str | None = option(
        None,
        "tensorboard, wandb or mlflow: also log the run there; several with a plus between them; for `fit` also a "
        "logger of Lightning Fabric or a list",
    )
    start_from: str | None = option(
        None, "run folder whose best weights the run starts from; the model must have the same shapes"
    )
    checkpoint_every: int = option(1000, "updates between two checkpoints", whole=1)
    seed: int = option(0, "seed of all random draws", whole=0)
    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps")
    precision: str = option(
        "32-true",
        "32-true, tf32 (TF32 for inputs and readout on a GPU), 64-true, bf16-mixed or bf16-true",
        choices=PRECISIONS,
    )

    def __post_init__(self) -> None:
        check_options(self)
        for name, known in (("optimizer", (*OPTIMIZERS, *OWN_METHODS)), ("schedule", tuple(SCHEDULES))):
            if OWN not in str(getattr(self, name)):
                one_of(name, getattr(self, name), known)
        if self.start_from is not None:  # the full path, so that a run can be resumed from another working directory
            object.__setattr__(self, "start_from", str(Path(self.start_from).expanduser().absolute()))
        if self.penalty is not None:
            penalties.make(self.penalty)
        logger_names(self.logger)
        kind, colon, index = str(self.device).partition(":")
        if kind not in DEVICES or (colon and not (kind == "cuda" and index.isdigit())):
            raise ValueError(f"device must be auto, cpu, cuda, cuda:N or mps, got {self.device!r}")
        if self.momentum and self.optimizer not in ("sgd", "rmsprop"):
            raise ValueError(
                f"momentum goes with sgd and rmsprop, got momentum {self.momentum!r} with {self.optimizer}"
            )
        if self.epochs is not None and self.steps != type(self).__dataclass_fields__["steps"].default:
            raise ValueError(f"epochs stand in place of steps, got both, {self.epochs!r} and {self.steps!r}")
        if self.epochs is None and self.warmup >= self.steps:
            raise ValueError(f"warmup must be below the {self.steps} updates of the run, got {self.warmup!r}")
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        by_gradient = (
            *("accumulate", "weight_decay", "penalty", "clip_norm", "clip_value", "map_lr", "bases", "bases_lr"),
        )
        clipped = self.clip_norm is not None or self.clip_value is not None
        hessian_free, own_schedule = self.optimizer == "hessian-free", OWN in self.schedule
        finds_lr = self.optimizer in ("hessian-free", LINE_SEARCH)
        # A setting without any effect is an error.
        for names, used, needs in (
            (("alpha",), self.optimizer == "rmsprop", "optimizer rmsprop"),
            (("eps",), self.optimizer in WITH_EPS, f"optimizer {', '.join(WITH_EPS)}"),
            (by_gradient, self.optimizer not in OWN_METHODS, "an optimizer that follows the gradient"),
            (("psi",), self.optimizer == "temporal-simplex", "optimizer temporal-simplex"),
            (("damping", "structural", "curvature_size"), hessian_free, "optimizer hessian-free"),
            (("lr",), not hessian_free, "an optimizer other than hessian-free, which finds its own"),
            (("schedule", "warmup"), not finds_lr, "an optimizer other than hessian-free and line-search"),
            (("warmup",), not own_schedule, "a schedule that has a name"),
            (("decay",), self.schedule in DECAYING, "schedule exponential, step or plateau"),
            (("decay_every",), self.schedule in ("exponential", "step"), "schedule exponential or step"),
            (("decay_patience",), self.schedule == "plateau", "schedule plateau"),
            (("clip_scope",), clipped, "a clip_norm or clip_value"),
        ):
            for name in names:
                value = getattr(self, name)
                if not used and value != defaults[name] and (name, value) != ("weight_decay", 0.0):
                    raise ValueError(f"{name} goes with {needs}, got {getattr(self, name)!r} without it")
        if self.nesterov and not (self.optimizer == "sgd" and self.momentum):
            raise ValueError(
                f"nesterov needs sgd with a momentum above 0, got {self.optimizer} with momentum {self.momentum!r}"
            )

    @property
    def decay_of_weights(self) -> float:
        """The weight decay, by default that of the optimizer."""
        return WEIGHT_DECAYS.get(self.optimizer, 0.0) if self.weight_decay is None else self.weight_decay

    def _check_whole_batches(self, processes: int) -> None:
        """The gradient by a matrix is clipped in the backward pass, before gradients of other batches are added."""
        for name, count in (("accumulate", self.accumulate), ("processes", processes)):
            if self.clip_scope == MAPPED and count > 1:
                needs = f"clip_scope {MAPPED} clips the gradient of one batch"
                raise ValueError(f"{needs}, so {name} must be 1, got {count}")

    def for_task(self, task: Task, processes: int = 1) -> Settings:
        """The settings with epochs counted in updates of this task, and updates between validations."""
        self._check_whole_batches(processes)
        each = task.epoch_steps(self.batch_size, processes * self.accumulate)
        if self.validate_every is None:
            return dataclasses.replace(self, validate_every=each or VALIDATE_EVERY).for_task(task, processes)
        if self.epochs is None:
            return self
        if each is None:
            raise ValueError(f"epochs goes with a data set, got {self.epochs} with task {task.name}: give steps")
        return dataclasses.replace(self, steps=self.epochs * each, epochs=None)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Settings from a table; missing settings keep their defaults, an unknown one raises a ValueError."""
        hints = get_type_hints(cls)
        for name in values:
            if name in SYNONYMS:
                raise ValueError(f"unknown training setting {name!r}, did you mean {SYNONYMS[name]}?")
            if name not in hints:
                raise ValueError(unknown("training setting", name, hints))
        # People and TOML files write 1 for 1.0.
        floats = {name for name, hint in hints.items() if hint in (float, float | None)}
        try:
            converted: dict[str, Any] = {
                k: float(v) if k in floats and type(v) is int else v for k, v in values.items()
            }
        except OverflowError:
            name = next(k for k, v in values.items() if k in floats and type(v) is int and abs(v) > sys.float_info.max)
            raise ValueError(f"{name} must be a finite number, got one of more than 300 digits") from None
        return cls(**converted)

    def to_dict(self) -> dict[str, Any]:
        """All settings that are not None, in the order of the fields; with epochs, without steps."""
        without = None if self.epochs is None else "steps"
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None and k != without}

    def difference(self, other: Settings) -> str | None:
        """The first setting that differs and changes what is computed, and is not one of `FREE`."""
        for field in dataclasses.fields(self):
            name = "decay_of_weights" if field.name == "weight_decay" else field.name
            if name not in FREE and getattr(self, name) != getattr(other, name):
                return field.name
        return None


# The docstrings of `Settings` and `fit` list every setting with its help text, which the fields above hold.
SETTINGS_DOC = "\n".join(
    f"    {field.name}: {field.metadata['help']}." + ("" if field.default is None else f" Default: {field.default!r}.")
    for field in dataclasses.fields(Settings)
)
Settings.__doc__ = f"{inspect.cleandoc(Settings.__doc__ or '')}\n\nArgs:\n{SETTINGS_DOC}\n"
