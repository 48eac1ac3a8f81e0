"""What runs experiments: tasks, data, training, sweeps, reports, recipes and the command line.

It needs the packages of the extra ``lab``: ``pip install "evenflow[lab]"``.
"""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

ROOMS = ("cli", "data", "diagnosis", "estimators", "prediction", "recipes", "report", "sweep", "tasks", "training")

# One package stands for the extra: some rooms would work without the others, but none is meant to.
if find_spec("lightning_fabric") is None:
    raise ModuleNotFoundError(
        'evenflow.lab needs lightning_fabric, which is not installed: pip install "evenflow[lab]"',
        name="lightning_fabric",
    )


def __getattr__(name: str) -> ModuleType:
    """Load a subpackage when it is first used."""
    if name in ROOMS:
        return import_module(f"evenflow.lab.{name}")
    raise AttributeError(f"module 'evenflow.lab' has no attribute {name!r}")
