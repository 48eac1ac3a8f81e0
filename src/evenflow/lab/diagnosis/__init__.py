"""The doctor: do a model's gradients vanish or explode, where, what does theory promise, and what to change?"""

from __future__ import annotations

from evenflow.lab.diagnosis.advice import Advice
from evenflow.lab.diagnosis.examination import doctor
from evenflow.lab.diagnosis.finding import Diagnosis

__all__ = ["Advice", "Diagnosis", "doctor"]
