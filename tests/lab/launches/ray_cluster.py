"""A cluster of Ray with three nodes on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class SmallCluster:
    """A head of one core, and nodes that can be lost.

    Attributes:
        address: for `OnRay` and --address.
    """

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        self._nodes: dict[Any, int] = {}
        self.address: str = self._cluster.address

    def have(self, count: int, cores: int) -> None:
        """Add nodes until so many have so many cores. For the main thread alone: nodes end with theirs."""
        for _ in range(count - list(self._nodes.values()).count(cores)):
            self._nodes[self._cluster.add_node(num_cpus=cores)] = cores

    def lose_a_busy_one(self) -> None:
        """Kill a node on which a task runs, and all that is on it, at once."""
        from ray._private.state import available_resources_per_node

        while True:
            free = available_resources_per_node()
            for node, cores in self._nodes.items():
                if node.node_id in free and free[node.node_id].get("CPU", 0) < cores:
                    del self._nodes[node]
                    self._cluster.remove_node(node, allow_graceful=False)
                    return
            time.sleep(0.05)

    def shutdown(self) -> None:
        self._cluster.shutdown()


@contextmanager
def small_cluster() -> Iterator[SmallCluster]:
    """Start the cluster, and end all its processes after the block; the environment is as before then."""
    pytest.importorskip("ray")
    before = dict(os.environ)
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    cluster = SmallCluster()
    try:
        yield cluster
    finally:
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)
