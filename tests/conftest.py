"""Every test starts from the same random numbers, whichever tests ran before it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch.utils._python_dispatch import TorchDispatchMode

# A busy machine is no failure. In CI the examples are the same each time; by hand they vary, and may find more.
settings.register_profile("evenflow", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("evenflow")


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    torch.manual_seed(0)


@pytest.fixture
def operators() -> Callable[[Callable[[], object]], list[str]]:
    """Which of the library's operators a function calls, in order."""

    class Calls(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, op: Any, types: Any, given: Any = (), named: Any = None) -> Any:
            if op.namespace == "evenflow":
                self.names.append(op.name())
            return op(*given, **(named or {}))

    def called(run: Callable[[], object]) -> list[str]:
        with Calls() as calls:
            run()
        return calls.names

    return called


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder with the real data sets: $EVENFLOW_DATA, else ``shared/data`` beside the checkout."""
    given = os.environ.get("EVENFLOW_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the real data sets are not there ({folder} is no folder; EVENFLOW_DATA may name another)")
    return folder


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with small made files of every format."""
    from made_data import write

    return write(tmp_path_factory.mktemp("data"))
