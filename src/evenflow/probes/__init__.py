"""What the gradients do: measurements that leave the model as it was."""

from evenflow.probes.gradient_flow import gradient_flow

__all__ = ["gradient_flow"]
