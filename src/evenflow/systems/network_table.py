"""The table of feed-forward networks."""

from __future__ import annotations

from dataclasses import dataclass

from evenflow.feedforward import MLP, FeedForward, ResNet, SpectralMLP, SpectralResNet
from evenflow.systems.system_table import SVD, ZHANG


@dataclass(frozen=True)
class Network:
    """One row of the table of feed-forward networks.

    >>> NETWORKS["mlp"].equation
    'h = f(W h + b), f = relu'
    """

    network: type[FeedForward]
    equation: str
    document: str


NETWORKS: dict[str, Network] = {
    "mlp": Network(MLP, "h = f(W h + b), f = relu", "Rumelhart et al. 1986"),
    "resnet": Network(ResNet, "h = h + W_2 f(W_1 h + b_1) + b_2, f = relu", "He et al. 2016"),
    "spectral-mlp": Network(SpectralMLP, f"h = f(W h + b), f = oplu, W = {SVD}", ZHANG),
    "spectral-resnet": Network(
        SpectralResNet,
        "h = h + W_2 f(W_1 h + b_1) + b_2, f = relu, W as above, |s_1 - 1| <= r, |s_2| <= r",
        ZHANG,
    ),
}
