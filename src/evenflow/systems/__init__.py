"""Forty years of recurrent networks in one table: each system is a layer, a map and an activation.

>>> layer = create("sgornn", 2, 128)
>>> output, h_n = layer(torch.randn(1000, 50, 2))
"""

from evenflow.system import System
from evenflow.systems.named_system import GROUP, create, find_system, system_name, systems
from evenflow.systems.network_table import NETWORKS, Network
from evenflow.systems.system_table import SYSTEMS

__all__ = ["GROUP", "NETWORKS", "SYSTEMS", "Network", "System", "create", "find_system", "system_name", "systems"]
