"""Echo state networks: the recurrence is random and not trained, the readout is solved by least squares."""

from evenflow.reservoir.echo_state import EchoState
from evenflow.reservoir.readout import SeriesPosition
from evenflow.reservoir.ridge import Ridge

__all__ = ["EchoState", "Ridge", "SeriesPosition"]
