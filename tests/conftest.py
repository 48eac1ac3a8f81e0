"""Every test starts from the same random numbers, whichever tests ran before it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# A busy machine is no failure. In CI the examples are the same each time; by hand they vary, and may find more.
settings.register_profile("evenflow", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("evenflow")


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    torch.manual_seed(0)


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
