"""The maps by name, and `make`, which makes one from its name, its class or a function of its size."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from evenflow.checks import unknown
from evenflow.maps.antisymmetric import Antisymmetric
from evenflow.maps.cayley import Cayley
from evenflow.maps.exponential import Exponential
from evenflow.maps.factorized import Factorized
from evenflow.maps.free import Free
from evenflow.maps.householder import Householder
from evenflow.maps.low_rank import LowRank
from evenflow.maps.map import Map
from evenflow.maps.moving_exponential import MovingExponential
from evenflow.maps.rotations import Rotations
from evenflow.maps.schur import Schur
from evenflow.maps.svd import SVD
from evenflow.maps.symmetric_skew import SymmetricSkew
from evenflow.maps.thresholded import Thresholded
from evenflow.maps.unitary import Unitary
from evenflow.maps.unitary_product import UnitaryProduct
from evenflow.maps.unitary_scaled import ScaledUnitary

MAPS: dict[str, type[Map]] = {
    "free": Free,
    "exponential": Exponential,
    "moving_base": MovingExponential,
    "cayley": Cayley,
    "householder": Householder,
    "rotations": Rotations,
    "svd": SVD,
    "factorized": Factorized,
    "unitary": Unitary,
    "unitary_product": UnitaryProduct,
    "unitary_scaled": ScaledUnitary,
    "schur": Schur,
    "antisymmetric": Antisymmetric,
    "symmetric_skew": SymmetricSkew,
    "low_rank": LowRank,
    "sparse": Thresholded,
}


def options_of(map: str | type[Map] | Callable[..., Map]) -> list[str] | None:
    """Return the options of a named map or a class besides its size, or None for a function.

    >>> options_of("householder")
    ['reflectors', 'precision']
    """
    kind = MAPS.get(map) if isinstance(map, str) else map
    if not isinstance(kind, type):
        return None
    return [name for name in inspect.signature(kind).parameters if name not in ("rows", "columns")]


def make(map: str | type[Map] | Callable[..., Map], rows: int, columns: int | None = None, **options: Any) -> Map:
    """Return a map of ``(rows, columns)`` matrices.

    Args:
        map: a name in `MAPS`, a `Map` class, or a function of the size that returns a map.
        rows, columns: size of the matrix; `columns` defaults to `rows`.
        options: of that map, such as ``reflectors=16``; none for a function.

    >>> make("householder", 8, reflectors=2)
    Householder(8, reflectors=2)
    """
    if isinstance(map, str):
        if map not in MAPS:
            raise ValueError(unknown("map", map, MAPS))
        map = MAPS[map]
    if isinstance(map, Map):
        raise ValueError(f"map must be a name, a class or a function of the size, got one finished map {map!r}")
    if not callable(map):
        raise ValueError(f"map must be a name, a class or a function of the size, got {map!r}")
    known = options_of(map)
    if isinstance(map, type) and known is not None:
        for name in options:
            if name not in known:
                raise ValueError(f"{map.__name__} has no option {name!r}; it takes {', '.join(known) or 'none'}")
    elif options:
        raise ValueError(f"options go with a named map; a function gets the size alone, not {', '.join(options)}")
    made = map(rows, columns, **options) if columns is not None else map(rows, **options)
    if not isinstance(made, Map):
        raise ValueError(f"map must return an evenflow Map, got {type(made).__name__}")
    return made
