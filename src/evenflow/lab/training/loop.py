"""The training loop: draw a batch, update, and at certain steps log, validate, probe and save.

The file is past 300 lines because it is one class: everything that an update, a checkpoint and a resumed run share.
"""

from __future__ import annotations

import functools
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from evenflow.lab.tasks import Batch, Position, Task
from evenflow.maps import move_bases

from . import checkpoint, evaluation, optimizers
from .batch_source import BatchSource
from .callbacks import RunCallbacks
from .common_start import POPULATION
from .evaluation import BestValidation, RunEvaluator
from .given_parts import GivenParts
from .loggers import RunLoggers
from .metrics import MetricsLog
from .probing import Probing
from .progress import ProgressBar
from .recovery import state_fits
from .run_writer import RunWriter
from .schedules import RunSchedule
from .seeds import derive, seed_global
from .settings import Settings
from .special_methods import make_method
from .stopping import NonFiniteLoss, stop_consensus

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Loop:
    """A run under way. What it does at a step depends on the weights, the optimiser and the number of the step alone.

    Batches and dropout masks come from generators seeded by (seed, purpose, step, rank). So there is little state to
    save, and a resumed run is bit-identical to an uninterrupted one.

    Rows of metrics.csv are written at multiples of `log_every`, at validations, at checkpoints and at the last update.
    Their loss and gradient norm are means over the updates since the row before.

    Args:
        fabric: device, precision and processes.
        model: trained in place.
        writer: of the run folder; None keeps the run in memory.
        loggers: also get every row of the metrics.
    """

    def __init__(
        self,
        fabric: Fabric,
        model: nn.Module,
        task: Task,
        settings: Settings,
        writer: RunWriter | None,
        given: GivenParts,
        loggers: RunLoggers,
    ) -> None:
        self.fabric, self.model, self.task, self.settings, self.writer = fabric, model, task, settings, writer
        self.loggers = loggers
        model.zero_grad()  # gradients of a backward pass by the caller
        self.module = fabric.setup_module(model)
        self.method = make_method(fabric, self.module, model, task, settings, given)
        self.optimizer = self.method.optimizer
        self.schedule = RunSchedule(settings, given, self.optimizer)
        self._generator = torch.Generator(fabric.device)
        self._batches = [self._batch_source(part) for part in range(settings.accumulate)]
        self.log = MetricsLog(fabric.device, writer)
        self.evaluator, self.best = RunEvaluator(self), BestValidation(self)
        self.probing = None if settings.probe_every is None else Probing(derive(settings.seed, "directions"))
        self.step, self.seconds = 0, 0.0
        self.restored = self._unproven = False
        self.population: list[str] = []  # of a run in a population: the folders of all, seen from its own
        self.stopping = False  # whether a callback has asked to end the run
        self.last_lr, self.last_loss = settings.lr, torch.full((), math.nan, device=fabric.device)  # of the last update
        self.callbacks = RunCallbacks(given.callbacks, self)
        self.state: Any = None  # final state of the last batch, for tasks whose batches continue its sequences
        self.note = self._validated = ""  # text beside the progress bar, and its part about the last validation
        self.test_loss = self.test_metric = math.nan
        self._start_time = time.monotonic()

    def run(self, progress: bool) -> None:
        """Train from the present step to the end."""
        bar = ProgressBar(self.settings.steps, self.step, progress and self.fabric.is_global_zero)
        with torch.random.fork_rng([self.fabric.device] if self.fabric.device.type == "cuda" else []):
            try:
                self.start()
                while self.running:
                    self._check_stop()
                    self.update()
                    self.record()
                    bar.update(self.step, self.note)
                self.test()
            finally:
                bar.close()

    def start(self) -> None:
        """Start the clock; a new run probes and saves its starting weights."""
        self._start_time = time.monotonic() - self.seconds
        self.module.train()
        self.loggers.start(self.step)
        if not self.restored:
            self._probe()
            self._save()
        elif self.best.lost:
            self.best.replace()

    @property
    def running(self) -> bool:
        """Whether there is an update left to make."""
        return self.step < self.settings.steps and not self.best.stopped

    def _check_stop(self) -> None:
        if (reason := stop_consensus(self.fabric, self.step % self.settings.log_every == 0)) is not None:
            self.save_before_stop()
            raise reason

    def update(self) -> None:
        """Draw a batch and change the weights once."""
        with self.fits():
            if self.settings.accumulate == 1:
                self.seed_noise()
                result = self.method.update(self.next_batch(), self.state, self.next_lr_factor())
            else:
                result = self.method.accumulate(self._parts(), self.settings.accumulate, self.next_lr_factor())
        self.log.sums[0] += result.loss
        self.log.sums[1] += result.norm
        self.last_loss = result.loss
        self.count_update(result.state)
        self.callbacks.after_update()

    def fits(self) -> AbstractContextManager[None]:
        """Around an update: the first one after resuming shows whether the state of the checkpoint fits the run."""
        unproven, self._unproven = self._unproven, False
        return state_fits(f"the checkpoint of step {self.step}") if unproven else nullcontext()

    def seed_noise(self, part: int = 0) -> None:
        """Seed dropout, anew for every batch."""
        seed_global(self.noise_seed(part), self.fabric.device)

    def noise_seed(self, part: int = 0) -> int:
        """The seed of the dropout of a batch of the next update."""
        return derive(self.settings.seed, "noise", self.step, self._share(part))

    def next_batch(self, part: int = 0) -> Batch:
        """A batch of the next update: with `accumulate` the first, or number `part` of them."""
        processes = self.fabric.world_size * self.settings.accumulate
        return self._batches[part].batch(self.position()._replace(rank=self._share(part), processes=processes))

    def _parts(self) -> Iterator[Batch]:
        """All batches of the next update, the dropout of each seeded before it is given out."""
        for part in range(self.settings.accumulate):
            self.seed_noise(part)
            yield self.next_batch(part)

    def _share(self, part: int) -> int:
        """The rank of the process that would draw this batch if there were `accumulate` times as many processes."""
        return self.fabric.global_rank * self.settings.accumulate + part

    def _batch_source(self, part: int) -> BatchSource:
        seed = functools.partial(derive, self.settings.seed, "train", rank=self._share(part))
        on_gpu = self.fabric.device.type == "cuda"
        return BatchSource(self.task, self.settings.batch_size, self._generator, seed, on_gpu)

    def next_lr_factor(self) -> float | None:
        """The schedule's factor on the learning rate at the next update."""
        self.last_lr = self.schedule.lr(self.step)
        return self.schedule.factor(self.step)

    def count_update(self, state: Any) -> None:
        """Count an update whose loss and norm are in the sums of the log."""
        if self.task.carries:
            self.state = evaluation.detach_state(state)
        self.log.since += 1
        self.step += 1
        self.method.after_update(self.step)
        move_bases(self.model, self.step)
        self.schedule.after_update()

    @property
    def validating(self) -> bool:
        """Whether the present step is validated."""
        return (
            self.stopping
            or self.step == self.settings.steps
            or self.step % cast(int, self.settings.validate_every) == 0
        )

    def record(self, validation: tuple[float, float] | None = None) -> None:
        """Write a row, validate, probe and save if one of them is due at the present step.

        Args:
            validation: loss and metric of the validation, if they are known already.
        """
        saving = self.step == self.settings.steps or self.step % self.settings.checkpoint_every == 0
        if self.validating or saving or self.step % self.settings.log_every == 0:
            self._write_row(validation)
        self._probe()
        self.best.stopped |= self.stopping
        if saving or self.best.stopped:
            self._save()

    def _write_row(self, validation: tuple[float, float] | None) -> None:
        first, lr = self.step - self.log.since + 1, self.settings.lr
        loss, norm = self.read(self.log.mean())
        loss *= self.task.loss_unit
        finite = math.isfinite(loss) and math.isfinite(norm)
        row: dict[str, float | None] = {"step": self.step, "loss": loss, "gradient_norm": norm}
        row["lr"] = self.last_lr
        if self.validating and finite:
            validation = validation or self.evaluator.validate()
            row["valid_loss"], row["valid_metric"] = validation
        else:
            validation = None
        row["seconds"] = round(time.monotonic() - self._start_time, 3)
        self.log.add(row)
        self.loggers.log(row)
        if validation is not None:
            self._validated = f", validation {self.task.metric_name} {validation[1]:.4g}"
        self.note = f"loss {loss:.4g}{self._validated}"
        if not finite:
            what = "gradient" if math.isfinite(loss) else "loss"
            raise NonFiniteLoss.of(what, f"between steps {first} and {self.step}", lr)
        if validation is not None:
            if not all(map(math.isfinite, validation)):
                raise NonFiniteLoss.of("validation loss", f"at step {self.step}", lr)
            self.best.update(self.step, *validation)
            self.schedule.after_validation(validation[0])
            self.callbacks.after_validation(*validation)

    def _probe(self) -> None:
        """Record gradients over time and matrices, on one batch that stays the same."""
        if self.probing is None or self.step % cast(int, self.settings.probe_every) or not self.fabric.is_global_zero:
            return
        self.probing.look(self.step, self.model, self.held_out_batch("probe", 0, rank=0), self.task.loss)

    def _save(self) -> None:
        # Checked on all ranks, so that all of them stop together.
        if not all(bool(torch.isfinite(p).all()) for p in self.model.parameters() if p.requires_grad):
            raise NonFiniteLoss.of("model's weights", f"by step {self.step}", self.settings.lr)
        if self.writer is None:
            return
        if self.probing is not None and (probes := self.probing.arrays()) is not None:
            self.writer.probes(probes)
        self.writer.flush()
        state = {
            "optimizer": self.optimizer.state_dict(),
            "processes": self.fabric.world_size,
            "seconds": time.monotonic() - self._start_time,
            "best": self.best.state(),
            "schedule": self.schedule.state_dict(),
            "callbacks": self.callbacks.state(),
            "loggers": self.loggers.state(),
            **self.log.state(),
        }
        if self.task.carries:
            state["carried"] = self.state
        if self.population:
            state[POPULATION] = self.population
        weights = checkpoint.weights_of(self.model)
        saved = checkpoint.Checkpoint(self.step, weights, state, self.writer.read_config())
        checkpoint.save(self.writer.checkpoints, saved)
        self.callbacks.after_checkpoint()

    def save_before_stop(self) -> None:
        """Save the present step, whichever it is, when the run is asked to stop."""
        try:
            self._save()
        except (NonFiniteLoss, OSError) as error:
            warnings.warn(f"step {self.step} is not saved, the run goes on from one before: {error}", stacklevel=2)

    def restore(self, saved: checkpoint.Checkpoint, best: dict[str, Tensor] | None, origin: object) -> None:
        """Go back to a checkpoint; the caller restores the rows and the probes."""
        state: dict[str, Any] = dict(saved.state)
        checkpoint.load_weights(self.model, saved.weights, origin)
        with state_fits(f"the checkpoint of step {saved.step}"):
            optimizers.load(self.optimizer, state["optimizer"])
            self.schedule.load_state_dict(state.get("schedule", {}))
            self.loggers.restore(state.get("loggers", {}))
            self.seconds = float(state["seconds"])
            self.best.restore(state["best"], best)
            self.state = self.fabric.to_device(state.get("carried"))
            self.log.restore(state)
            callbacks = list(state.get("callbacks", []))
        self.callbacks.restore(callbacks)
        self.step, self.restored, self._unproven = saved.step, True, True

    def test(self) -> None:
        """Evaluate the best weights on the test set, if the task has one, and save what they answer."""
        result = self.evaluator.test(self.best.weights)
        if result is not None:
            self.test_loss, self.test_metric = result

    def held_out_batch(self, purpose: str, index: int, rank: int | None = None) -> Batch:
        """A batch that is never trained on, of the task at its full difficulty; the same at every step."""
        rank = self.fabric.global_rank if rank is None else rank
        self._generator.manual_seed(derive(self.settings.seed, purpose, index, rank))
        return self.task.held_out().batch(self.settings.batch_size, self._generator)

    def position(self) -> Position:
        """The present step, and the seed of the order in which a data set is read."""
        order = derive(self.settings.seed, "order")
        return Position(self.step, self.settings.steps, order, self.fabric.global_rank, self.fabric.world_size)

    def read(self, values: Tensor) -> list[float]:
        """Numbers from the device, averaged over the processes; only here does the loop wait for the device."""
        if self.fabric.world_size > 1:
            values = cast(Tensor, self.fabric.all_reduce(values, reduce_op="mean"))
        return values.tolist()
