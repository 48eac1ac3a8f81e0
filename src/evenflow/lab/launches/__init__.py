"""Launches: runs, or populations, that train in one process each, on this machine or on a Ray cluster."""

from __future__ import annotations

from .here import Here, Launch, LaunchPlace
from .on_ray import OnRay

__all__ = ["Here", "Launch", "LaunchPlace", "OnRay"]
