"""The loop: draw, step, now and then look, validate and save."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from evenflow.tasks import Batch, Position, Task

from . import checkpoint, evaluation, metrics
from .methods import make_method
from .progress import ProgressBar
from .run_folder import RunWriter
from .schedules import factor
from .seeds import derive, seed_global
from .settings import VALIDATION_BATCHES, Settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from evenflow.model import SequenceModel


class NonFiniteLoss(RuntimeError):
    """The loss, the gradient or a weight became infinite or not a number."""


class Loop:
    """A run in the making. Everything it does at a step follows from the weights, the optimiser and the step's number.

    Batches and dropout masks come from generators seeded by (seed, purpose, step, rank). So the state to save is small,
    and a resumed run repeats the interrupted one to the last bit.

    Nothing in an update waits for the device: the loss and the gradient norm are summed there and read when a row is
    written. Rows are written at multiples of `log_every`, at validations, at checkpoints and at the end; their loss and
    gradient norm are means over the updates since the row before.
    """

    def __init__(
        self, fabric: Fabric, model: nn.Module, task: Task, settings: Settings, writer: RunWriter | None
    ) -> None:
        self.fabric, self.model, self.task, self.settings, self.writer = fabric, model, task, settings, writer
        model.zero_grad()  # what a caller's own backward pass has left
        self.module = fabric.setup_module(model)
        self.method = make_method(fabric, self.module, model, task, settings)
        self.optimizer = self.method.optimizer
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._generator = torch.Generator(fabric.device)
        self._loss_sum = torch.zeros((), device=fabric.device)
        self._norm_sum = torch.zeros((), device=fabric.device)
        self._since, self._note = 0, ""
        self._began = time.monotonic()
        self.step, self.seconds = 0, 0.0
        self.lines: list[str] = []
        self.probe_steps: list[int] = []
        self.probe_norms: list[np.ndarray] = []
        self.best_step: int | None = None
        self.best_metric = self.best_loss = math.nan
        self.best_weights: dict[str, Tensor] | None = None
        self.stale = 0
        self.stopped = False
        self.restored = False
        self.test_loss = self.test_metric = math.nan
        # Where the sequences of the last batch ended, for tasks whose batches go on from there.
        self._state: Any = None

    def run(self, shown: bool) -> None:
        """Train from the present step to the end."""
        settings, device = self.settings, self.fabric.device
        self._began = time.monotonic() - self.seconds
        bar = ProgressBar(settings.steps, self.step, shown and self.fabric.is_global_zero)
        # The caller's global generator is left as it was found.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            try:
                self.module.train()
                if not self.restored:
                    self._probe()
                    self._save()
                while self.step < settings.steps and not self.stopped:
                    self._update()
                    self._look()
                    bar.update(self.step, self._note)
                self._test()
            finally:
                bar.close()

    def _update(self) -> None:
        settings = self.settings
        batch = self._draw("train", self.step)
        seed_global(derive(settings.seed, "noise", self.step, self.fabric.global_rank), self.fabric.device)
        loss, norm, state = self.method.update(batch, self._state, self._share(self.step))
        if self.task.carries:
            self._state = evaluation.cut(state)
        self._loss_sum += loss
        self._norm_sum += norm
        self._since += 1
        self.step += 1

    def _look(self) -> None:
        settings, last = self.settings, self.step == self.settings.steps
        validating = last or self.step % settings.validate_every == 0
        saving = last or self.step % settings.checkpoint_every == 0
        if validating or saving or self.step % settings.log_every == 0:
            self._row(validating)
        self._probe()
        if saving or self.stopped:
            self._save()

    def _row(self, validating: bool) -> None:
        loss, norm = self._read(torch.stack((self._loss_sum, self._norm_sum)) / self._since)
        first = self.step - self._since + 1
        self._loss_sum.zero_()
        self._norm_sum.zero_()
        self._since = 0
        row: dict[str, float | None] = {"step": self.step, "loss": loss, "gradient_norm": norm}
        row["rate"] = self.settings.rate * self._share(self.step - 1)
        finite = math.isfinite(loss) and math.isfinite(norm)
        if validating and finite:
            row["valid_loss"], row["valid_metric"] = self._validate()
        row["seconds"] = round(time.monotonic() - self._began, 3)
        self.lines.append(metrics.to_line(row))
        if self.writer is not None:
            self.writer.append(self.lines[-1])
        self._note = f"loss {loss:.4g}"
        if not finite:
            self._refuse("loss" if not math.isfinite(loss) else "gradient", f"between steps {first} and {self.step}")
        if validating:
            assert row["valid_loss"] is not None
            assert row["valid_metric"] is not None
            self._judge(row["valid_loss"], row["valid_metric"])

    def _validate(self) -> tuple[float, float]:
        """Mean loss and metric over what is held out: all of a data set, or batches that are the same every time."""
        task, batches = self.task.held_out(), self.settings.validation_batches
        every = None if batches is not None else self._every(task)
        if every is None:
            every = (self._draw("validation", index) for index in range(batches or VALIDATION_BATCHES))
        return self._mean(task, every)

    def _test(self) -> None:
        """Mean loss and metric of the best weights over the test part, where the task has one."""
        task = self.task.test()
        every = None if task is None else self._every(task)
        if task is None or every is None or self.best_weights is None:
            return
        last = checkpoint.weights_of(self.model)
        checkpoint.load_weights(self.model, self.best_weights, "the best checkpoint")
        try:
            self.test_loss, self.test_metric = self._mean(task, every)
        finally:
            checkpoint.load_weights(self.model, last, "the last step")

    def _every(self, task: Task) -> Iterator[Batch] | None:
        size = self.settings.batch_size
        if not task.carries:
            size = max(size, evaluation.AT_LEAST)
        return task.every_batch(size, self._position(), self.fabric.device)

    def _mean(self, task: Task, batches: Iterable[Batch]) -> tuple[float, float]:
        loss, metric, weight = self._read(evaluation.sums(self.module, task, batches, self.fabric.device))
        return loss / weight, task.summary(metric / weight)

    def _judge(self, loss: float, metric: float) -> None:
        """Keep the best weights, by the metric and, where that is equal, by the loss; stop when patience runs out."""
        if not (math.isfinite(loss) and math.isfinite(metric)):
            self._refuse("validation loss", f"at step {self.step}")
        sign = 1 if self.task.higher_is_better else -1
        if self.best_step is None or (sign * metric, -loss) > (sign * self.best_metric, -self.best_loss):
            self.best_step, self.best_metric, self.best_loss, self.stale = self.step, metric, loss, 0
            self.best_weights = checkpoint.weights_of(self.model)
            if self.writer is not None:
                checkpoint.save_best(self.writer.checkpoints, self.best_weights)
        else:
            self.stale += 1
        out_of_patience = self.settings.patience is not None and self.stale >= self.settings.patience
        solved = self.settings.stop_when_solved and self.task.solved(metric)
        self.stopped = out_of_patience or solved

    def _probe(self) -> None:
        """The norm of ∂L/∂h_t over time, on one batch that stays the same."""
        every = self.settings.probe_every
        if every is None or self.step % every or not self.fabric.is_global_zero:
            return
        from evenflow.probes.gradient_flow import gradient_flow

        batch = self._draw("probe", 0, rank=0)
        dtype = self._trained[0].dtype
        inputs, targets = (t.to(dtype) if t.is_floating_point() else t for t in batch[:2])
        norms = gradient_flow(cast("SequenceModel", self.model), inputs, targets, self.task.loss, batch.lengths)
        self.probe_steps.append(self.step)
        self.probe_norms.append(norms)

    def _save(self) -> None:
        # Also on the other ranks, so that all of them stop together.
        if not all(bool(torch.isfinite(p).all()) for p in self._trained):
            self._refuse("model's weights", f"by step {self.step}")
        if self.writer is None:
            return
        if self.probe_steps:
            self.writer.probes(self.probe_steps, self.probe_norms)
        self.writer.flush()
        state = {
            "optimizer": self.optimizer.state_dict(),
            "processes": self.fabric.world_size,
            "seconds": time.monotonic() - self._began,
            **{name: getattr(self, name) for name in ("best_step", "best_metric", "best_loss", "stale", "stopped")},
        }
        if self.task.carries:
            state["carried"] = self._state
        saved = checkpoint.Checkpoint(self.step, checkpoint.weights_of(self.model), state)
        checkpoint.save(self.writer.checkpoints, saved)

    def restore(self, saved: checkpoint.Checkpoint, best: dict[str, Tensor] | None, origin: object) -> None:
        """Go back to a checkpoint; the caller restores the rows and the probes."""
        state: dict[str, Any] = dict(saved.state)
        if state["processes"] != self.fabric.world_size:
            raise ValueError(
                f"run {origin} was made by {state['processes']} processes and must be resumed by as many, "
                f"got {self.fabric.world_size}"
            )
        checkpoint.load_weights(self.model, saved.weights, origin)
        self.optimizer.load_state_dict(state["optimizer"])
        for name in ("best_step", "best_metric", "best_loss", "stale", "stopped", "seconds"):
            setattr(self, name, state[name])
        self._state = evaluation.move(state.get("carried"), self.fabric.device)
        self.step, self.restored = saved.step, True
        # Weights of a later best are found again at the same step, so the file may run ahead of the checkpoint.
        self.best_weights = best if self.best_step is not None else None

    def _draw(self, purpose: str, step: int, rank: int | None = None) -> Batch:
        rank = self.fabric.global_rank if rank is None else rank
        self._generator.manual_seed(derive(self.settings.seed, purpose, step, rank))
        if purpose == "train":
            return self.task.training_batch(self.settings.batch_size, self._position(), self._generator)
        # What the run is judged by is never trained on, and is the task at its full difficulty.
        return self.task.held_out().batch(self.settings.batch_size, self._generator)

    def _position(self) -> Position:
        order = derive(self.settings.seed, "order")
        return Position(self.step, self.settings.steps, order, self.fabric.global_rank, self.fabric.world_size)

    def _share(self, step: int) -> float:
        """What the schedule leaves of the learning rate."""
        s = self.settings
        return factor(s.schedule, step, s.steps, s.decay, s.decay_every)

    def _read(self, values: Tensor) -> list[float]:
        """Numbers from the device, averaged over the processes: the one place where the loop waits."""
        if self.fabric.world_size > 1:
            values = cast(Tensor, self.fabric.all_reduce(values, reduce_op="mean"))
        return values.tolist()

    def _refuse(self, what: str, when: str) -> None:
        raise NonFiniteLoss(
            f"the {what} became infinite or not a number {when}: try a smaller rate than "
            f"{self.settings.rate:g} or a clip_norm"
        )
