"""The recipes that come with evenflow."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from evenflow.checks import unknown

from .schema import Recipe, read

HOME = Path(__file__).parent
DOCUMENTS = {
    "urnn": "uRNN: An Approach to Bounded Gradients (Lin, Wang)",
    "factorized": "On orthogonality and learning recurrent networks with long term dependencies (Vorontsov et al.)",
    "sgornn": "SGORNN: combining scalar gates and orthogonal constraints",
    "galvan": "On recurrent neural networks (Galvan)",
    "spectral": "Stabilizing gradients via efficient SVD parameterization (Zhang, Lei, Dhillon)",
}


def names() -> list[str]:
    """Every recipe as document/name, in the order of the documents."""
    return [f"{document}/{path.stem}" for document in DOCUMENTS for path in sorted((HOME / document).glob("*.toml"))]


def load(name: str) -> Recipe:
    """The recipe called ``document/name``; a figure that shares the runs of a table gives that table's recipe.

    >>> load("sgornn/figure-2").address
    'sgornn/table-1'
    """
    if name in names():
        return _read(name)
    others = {
        f"{document}/{other}": at for at in names() for document in [at.split("/")[0]] for other in _read(at).also
    }
    if name in others:
        return _read(others[name])
    raise ValueError(unknown("recipe", name, [*names(), *others]))


@cache
def _read(name: str) -> Recipe:
    recipe = read(HOME / f"{name}.toml")
    if recipe.address != name:
        raise ValueError(f"recipe {name}.toml must be called {name} inside, got {recipe.address}")
    return recipe
