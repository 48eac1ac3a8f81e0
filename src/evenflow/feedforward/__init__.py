"""Deep networks without time: plain ones, and ones whose weights have singular values within a margin."""

from evenflow.feedforward.networks import MLP, FeedForward, ResNet
from evenflow.feedforward.spectral import SpectralMLP, SpectralResNet
from evenflow.feedforward.spectral_linear import SpectralLinear

NETWORKS: dict[str, type[FeedForward]] = {
    "mlp": MLP,
    "resnet": ResNet,
    "spectral-mlp": SpectralMLP,
    "spectral-resnet": SpectralResNet,
}

__all__ = ["MLP", "NETWORKS", "FeedForward", "ResNet", "SpectralLinear", "SpectralMLP", "SpectralResNet"]
