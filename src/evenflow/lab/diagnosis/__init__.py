"""The doctor: whether a model's gradients vanish or explode, what theory guarantees, and what to change."""

from __future__ import annotations

from evenflow.lab.diagnosis.advice import Advice
from evenflow.lab.diagnosis.diagnose import doctor
from evenflow.lab.diagnosis.diagnosis import Diagnosis

__all__ = ["Advice", "Diagnosis", "doctor"]
