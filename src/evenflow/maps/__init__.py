"""Maps: free numbers in, a constrained matrix out."""

from __future__ import annotations

from evenflow.maps.antisymmetric import Antisymmetric
from evenflow.maps.attach import attach, detach, map_of, mapped, move_bases, parameter_groups
from evenflow.maps.cayley import Cayley
from evenflow.maps.exponential import Exponential
from evenflow.maps.factorized import Factorized
from evenflow.maps.free import Free
from evenflow.maps.householder import Householder
from evenflow.maps.low_rank import LowRank
from evenflow.maps.make_map import MAPS, make, options_of
from evenflow.maps.map import Map
from evenflow.maps.matrix_operations import residual
from evenflow.maps.moving_exponential import MovingExponential
from evenflow.maps.rotations import Rotations
from evenflow.maps.schur import Schur
from evenflow.maps.svd import SVD
from evenflow.maps.symmetric_skew import SymmetricSkew
from evenflow.maps.thresholded import Thresholded
from evenflow.maps.unitary import Unitary
from evenflow.maps.unitary_product import UnitaryProduct
from evenflow.maps.unitary_scaled import ScaledUnitary

__all__ = [
    "MAPS",
    "SVD",
    "Antisymmetric",
    "Cayley",
    "Exponential",
    "Factorized",
    "Free",
    "Householder",
    "LowRank",
    "Map",
    "MovingExponential",
    "Rotations",
    "ScaledUnitary",
    "Schur",
    "SymmetricSkew",
    "Thresholded",
    "Unitary",
    "UnitaryProduct",
    "attach",
    "detach",
    "make",
    "map_of",
    "mapped",
    "move_bases",
    "options_of",
    "parameter_groups",
    "residual",
]
