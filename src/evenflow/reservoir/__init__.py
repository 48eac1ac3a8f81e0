"""Networks whose recurrence is drawn and left alone."""

from evenflow.reservoir.echo_state import EchoState
from evenflow.reservoir.readout import Reached
from evenflow.reservoir.ridge import Ridge

__all__ = ["EchoState", "Reached", "Ridge"]
