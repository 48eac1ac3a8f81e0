"""Weights & Biases and MLflow as loggers of Lightning Fabric, several runs at a time in one process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning_fabric.loggers import Logger

if TYPE_CHECKING:
    from .loggers import RunLoggers

PROJECT = "evenflow"  # or what the environment variable of the service says
MLFLOW_LENGTH = 6000  # characters of a parameter's value that MLflow takes


class WandbRun(Logger):
    """A run of Weights & Biases.

    Lightning's own logger takes the run that is open in the process, and so would join the seeds of a population.

    Args:
        run: what to log besides the rows.
        identifier: of the run to continue; None starts one.

    Attributes:
        identifier: of the run.
    """

    def __init__(self, run: RunLoggers, identifier: str | None) -> None:
        import wandb

        # The service that writes the files may be another process's, in another current folder.
        folder = None if run.folder is None else run.folder.absolute()
        try:
            self.experiment = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=run.name,
                id=identifier,
                resume="allow",
                config=run.settings,
                tags=[tag[:64] for tag in run.tags],
                dir=folder,
                reinit="create_new",
                settings=wandb.Settings(silent=True),
            )
        except wandb.errors.Error as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise ValueError(
                f"logger wandb cannot start: {reason}; set WANDB_MODE=offline to log into files, or run `wandb login`"
            ) from error
        self.identifier = str(self.experiment.id)

    @property
    def name(self) -> str:
        return str(self.experiment.name)

    @property
    def version(self) -> str:
        return self.identifier

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.experiment.log(dict(metrics), step=step)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self.experiment.config.update(dict(params), allow_val_change=True)

    def finalize(self, status: str) -> None:
        self.experiment.finish(exit_code=int(status != "success"))


class MLflowRun(Logger):
    """A run of MLflow, in the experiment that MLFLOW_EXPERIMENT_NAME names.

    Args:
        run: what to log besides the rows.
        identifier: of the run to continue; None starts one.

    Attributes:
        identifier: of the run.
    """

    def __init__(self, run: RunLoggers, identifier: str | None) -> None:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        self._name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        try:
            self.experiment = MlflowClient()
            if identifier is None:
                experiment = self.experiment.get_experiment_by_name(self._name)
                place = experiment.experiment_id if experiment else self.experiment.create_experiment(self._name)
                tags = {"evenflow.tags": ", ".join(run.tags)}
                if run.settings["git_revision"]:
                    tags["mlflow.source.git.commit"] = str(run.settings["git_revision"])
                identifier = self.experiment.create_run(place, run_name=run.name, tags=tags).info.run_id
                self.log_hyperparams(run.settings, identifier=identifier)
            else:
                self.experiment.update_run(identifier, status="RUNNING")
        except (MlflowException, ImportError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise ValueError(f"logger mlflow cannot start: {reason}") from error
        self.identifier = str(identifier)

    @property
    def name(self) -> str:
        return self._name

    @property
    def version(self) -> str:
        return self.identifier

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        for name, value in metrics.items():
            self.experiment.log_metric(self.identifier, name, value, step=step)

    def log_hyperparams(self, params: Any, *args: Any, identifier: str | None = None, **kwargs: Any) -> None:
        for name, value in dict(params).items():
            self.experiment.log_param(identifier or self.identifier, name, str(value)[:MLFLOW_LENGTH])

    def finalize(self, status: str) -> None:
        states = {"success": "FINISHED", "interrupted": "KILLED"}
        self.experiment.set_terminated(self.identifier, states.get(status, "FAILED"))
