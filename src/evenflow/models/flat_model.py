"""A feed-forward network in the place of a recurrent model: its input is the whole sequence."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from evenflow.runtime.constructor_call import Described


class FlatModel(Described, nn.Module):
    """``y = network([x_1, ..., x_T])``: the steps of a sequence concatenated to one row.

    It returns outputs and a state as `SequenceModel` does, so that it trains on the same tasks; the state is always
    None. All sequences must have the same length.

    Shapes:
        inputs ``(T, B, I)`` with ``T I`` the network's input size; outputs ``(B, O)``.

    Args:
        network: ``(B, T I)`` to ``(B, O)``, such as `SpectralMLP`.

        >>> model = FlatModel(SpectralMLP(784, 10, depth=100))
        >>> outputs, _ = model(torch.randn(28, 50, 28))
        >>> outputs.shape
        torch.Size([50, 10])
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor, state: Any = None, lengths: Tensor | None = None) -> tuple[Tensor, None]:
        """The outputs, and None in the place of a final state."""
        if lengths is not None and bool((lengths != len(inputs)).any()):
            raise ValueError("a network without time needs sequences of one length, got lengths that differ")
        return self.network(inputs.transpose(0, 1).flatten(1)), None

    def parameter_counts(self) -> dict[str, int]:
        """The number of trained parameters, all of them the network's."""
        count = sum(p.numel() for p in self.network.parameters() if p.requires_grad)
        return {"network": count, "total": count}
