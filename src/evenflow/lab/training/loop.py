"""The loop: draw, step, now and then look, validate and save."""

from __future__ import annotations

import functools
import math
import time
import warnings
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from evenflow.lab.tasks import Batch, Position, Task

from . import checkpoint, evaluation, optimizers
from .best import Best
from .drawing import Drawing
from .event_log import open_events
from .judging import Judging
from .method import Outcome
from .methods import make_method
from .non_finite import NonFiniteLoss, refuse
from .probing import Probing
from .progress import ProgressBar
from .rows import Rows
from .run_folder import RunWriter
from .schedules import factor
from .seeds import derive, seed_global
from .settings import Settings
from .stopping import agreed

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Loop:
    """A run in the making. Everything it does at a step follows from the weights, the optimiser and the step's number.

    Batches and dropout masks come from generators seeded by (seed, purpose, step, rank). So the state to save is small,
    and a resumed run repeats the interrupted one to the last bit.

    Rows are written at multiples of `log_every`, at validations, at checkpoints and at the end, but not where a run is
    asked to stop; their loss and gradient norm are means over the updates since the row before.
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
        seed = functools.partial(derive, settings.seed, "train", rank=fabric.global_rank)
        on_gpu = fabric.device.type == "cuda"
        self._drawing = Drawing(task, settings.batch_size, self._generator, seed, on_gpu)
        self.rows, self.note = Rows(fabric.device, writer, open_events(settings, writer)), ""
        self._began = time.monotonic()
        self.step, self.seconds = 0, 0.0
        self.probing = Probing(derive(settings.seed, "directions"))
        self.best = Best(task, settings, writer)
        self.judging = Judging(self)
        self.restored = False
        self.test_loss = self.test_metric = math.nan
        # Where the sequences of the last batch ended, for tasks whose batches go on from there.
        self.state: Any = None

    def run(self, shown: bool) -> None:
        """Train from the present step to the end."""
        settings, device = self.settings, self.fabric.device
        self.resume_clock()
        bar = ProgressBar(settings.steps, self.step, shown and self.fabric.is_global_zero)
        # The caller's global generator is left as it was found.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            try:
                self.start()
                while self.running:
                    if (reason := agreed(self.fabric, self.step % settings.log_every == 0)) is not None:
                        self.leave()
                        raise reason
                    self._update()
                    self.look()
                    bar.update(self.step, self.note)
                self.test()
            finally:
                bar.close()

    def resume_clock(self) -> None:
        """Count the seconds on from where the run was interrupted."""
        self._began = time.monotonic() - self.seconds

    @property
    def running(self) -> bool:
        """Whether there is an update left to make."""
        return self.step < self.settings.steps and not self.best.stopped

    def start(self) -> None:
        """Look at and save what the run begins with."""
        self.module.train()
        if not self.restored:
            self._probe()
            self._save()

    def _update(self) -> None:
        self.seed_noise()
        batch = self.draw()
        self.absorb(self.method.update(batch, self.state, self.share))

    def draw(self) -> Batch:
        """The batch of the next update."""
        return self._drawing.batch(self.position())

    def seed_noise(self) -> None:
        """Dropout draws from a seed of its own at every update."""
        seed_global(derive(self.settings.seed, "noise", self.step, self.fabric.global_rank), self.fabric.device)

    @property
    def share(self) -> float:
        """What the schedule leaves of the learning rate at the next update."""
        return self._share(self.step)

    def _share(self, step: int) -> float:
        s = self.settings
        return factor(s.schedule, step, s.steps, s.decay, s.decay_every)

    def absorb(self, outcome: Outcome) -> None:
        """Take in what an update has found."""
        self.rows.sums[0] += outcome.loss
        self.rows.sums[1] += outcome.norm
        self.count(outcome.state)

    def count(self, state: Any) -> None:
        """Count an update whose loss and norm are in the sums."""
        if self.task.carries:
            self.state = evaluation.cut(state)
        self.rows.since += 1
        self.step += 1
        self.method.settle(self.step)

    @property
    def validating(self) -> bool:
        """Whether the present step is one that is validated."""
        return self.step == self.settings.steps or self.step % self.settings.validate_every == 0

    def look(self, found: tuple[float, float] | None = None) -> None:
        """Write a row, validate, probe and save where the present step is one for it.

        Args:
            found: loss and metric of the validation, where they are known already.
        """
        settings, last = self.settings, self.step == self.settings.steps
        saving = last or self.step % settings.checkpoint_every == 0
        if self.validating or saving or self.step % settings.log_every == 0:
            self._row(found)
        self._probe()
        if saving or self.best.stopped:
            self._save()

    def _row(self, found: tuple[float, float] | None) -> None:
        first = self.step - self.rows.since + 1
        loss, norm = self.read(self.rows.mean())
        row: dict[str, float | None] = {"step": self.step, "loss": loss, "gradient_norm": norm}
        row["lr"] = self.settings.lr * self._share(self.step - 1)
        finite = math.isfinite(loss) and math.isfinite(norm)
        valid = (found or self.judging.validate()) if self.validating and finite else None
        if valid is not None:
            row["valid_loss"], row["valid_metric"] = valid
        row["seconds"] = round(time.monotonic() - self._began, 3)
        self.rows.add(row)
        self.note, lr = f"loss {loss:.4g}", self.settings.lr
        if not finite:
            what = "gradient" if math.isfinite(loss) else "loss"
            refuse(what, f"between steps {first} and {self.step}", lr)
        if valid is not None:
            if not all(map(math.isfinite, valid)):
                refuse("validation loss", f"at step {self.step}", lr)
            self.best.judge(self.step, *valid, self.model)

    def test(self) -> None:
        """Look at the test part with the best weights, where the task has one."""
        found = self.judging.test(self.best.weights)
        if found is not None:
            self.test_loss, self.test_metric = found

    def _probe(self) -> None:
        """Record gradients over time and matrices, on one batch that stays the same."""
        every = self.settings.probe_every
        if every is None or self.step % every or not self.fabric.is_global_zero:
            return
        self.probing.look(self.step, self.model, self.drawn("probe", 0, rank=0), self.task.loss)

    def _save(self) -> None:
        # Also on the other ranks, so that all of them stop together.
        if not all(bool(torch.isfinite(p).all()) for p in self._trained):
            refuse("model's weights", f"by step {self.step}", self.settings.lr)
        if self.writer is None:
            return
        probes = self.probing.arrays()
        if probes is not None:
            self.writer.probes(probes)
        self.writer.flush()
        state = {
            "optimizer": self.optimizer.state_dict(),
            "processes": self.fabric.world_size,
            "seconds": time.monotonic() - self._began,
            "best": self.best.state(),
            **self.rows.state(),
        }
        if self.task.carries:
            state["carried"] = self.state
        saved = checkpoint.Checkpoint(self.step, checkpoint.weights_of(self.model), state)
        checkpoint.save(self.writer.checkpoints, saved)

    def leave(self) -> None:
        """Save the present step, whichever it is, where the run is asked to stop."""
        try:
            self._save()
        except (NonFiniteLoss, OSError) as error:
            warnings.warn(f"step {self.step} is not saved, the run goes on from one before: {error}", stacklevel=2)

    def restore(self, saved: checkpoint.Checkpoint, best: dict[str, Tensor] | None, origin: object) -> None:
        """Go back to a checkpoint; the caller restores the rows and the probes."""
        state: dict[str, Any] = dict(saved.state)
        checkpoint.load_weights(self.model, saved.weights, origin)
        optimizers.load(self.optimizer, state["optimizer"])
        self.seconds = state["seconds"]
        self.best.restore(state["best"], best)
        self.state = evaluation.move(state.get("carried"), self.fabric.device)
        self.rows.restore(state)
        self.step, self.restored = saved.step, True

    def drawn(self, purpose: str, step: int, rank: int | None = None) -> Batch:
        rank = self.fabric.global_rank if rank is None else rank
        self._generator.manual_seed(derive(self.settings.seed, purpose, step, rank))
        # What the run is judged by is never trained on, and is the task at its full difficulty.
        return self.task.held_out().batch(self.settings.batch_size, self._generator)

    def position(self) -> Position:
        order = derive(self.settings.seed, "order")
        return Position(self.step, self.settings.steps, order, self.fabric.global_rank, self.fabric.world_size)

    def read(self, values: Tensor) -> list[float]:
        """Numbers from the device, averaged over the processes: the one place where the loop waits."""
        if self.fabric.world_size > 1:
            values = cast(Tensor, self.fabric.all_reduce(values, reduce_op="mean"))
        return values.tolist()
