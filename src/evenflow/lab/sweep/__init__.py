"""Many runs for one task: sweeps with successive halving, and comparisons of systems."""

from __future__ import annotations

from .candidates import Axes
from .halving import Rules
from .sweep import Sweep, sweep

__all__ = ["Axes", "Rules", "Sweep", "sweep"]
