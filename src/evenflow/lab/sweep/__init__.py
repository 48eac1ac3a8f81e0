"""Many runs for one task: sweeps with successive halving, and comparisons of systems."""

from __future__ import annotations

from .candidates import Axes
from .halving import Rules
from .search import SearchRules, search
from .search_space import Range, SearchSpace
from .study_record import SearchRecord
from .sweep import Sweep, sweep

__all__ = ["Axes", "Range", "Rules", "SearchRecord", "SearchRules", "SearchSpace", "Sweep", "search", "sweep"]
