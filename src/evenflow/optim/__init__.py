"""Optimisers that torch does not have: along orthonormal columns, over time steps, with curvature, by line search."""

from __future__ import annotations

from evenflow.optim.conjugate_gradient import conjugate_gradient
from evenflow.optim.gauss_newton import GaussNewton
from evenflow.optim.geodesic import GeodesicSGD
from evenflow.optim.geodesic_adam import GeodesicAdam
from evenflow.optim.hessian_free import HessianFree, Progress
from evenflow.optim.joined import Joined, divide
from evenflow.optim.line_search import LineSearchDescent
from evenflow.optim.projunn import ProjUNN
from evenflow.optim.temporal_simplex import TemporalSimplex, simplex_weights

__all__ = [
    "GaussNewton",
    "GeodesicAdam",
    "GeodesicSGD",
    "HessianFree",
    "Joined",
    "LineSearchDescent",
    "Progress",
    "ProjUNN",
    "TemporalSimplex",
    "conjugate_gradient",
    "divide",
    "simplex_weights",
]
