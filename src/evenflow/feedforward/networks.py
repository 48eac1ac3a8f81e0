"""Plain deep networks: MLP and ResNet."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from evenflow import init
from evenflow.activations import ActivationChoice, make
from evenflow.checks import number, whole_number
from evenflow.runtime.constructor_call import Described

Linear = Callable[[str, int, int, torch.Generator | None], nn.Linear]


def free_linear(place: str, columns: int, rows: int, generator: torch.Generator | None) -> nn.Linear:
    """Return an `nn.Linear` with a Glorot uniform weight and a zero bias."""
    layer = nn.Linear(columns, rows, device="meta")  # where it draws nothing from torch's global generator
    layer.weight = nn.Parameter(init.glorot_uniform(rows, columns, generator=generator))
    layer.bias = nn.Parameter(torch.zeros(rows))
    return layer


class FeedForward(Described, nn.Module):
    """The base class of the networks: an input layer, `depth` layers of one width, a readout.

    Shapes:
        x ``(B, input_size)``, with any number of leading dimensions; result ``(B, output_size)``.

    Args:
        input_size, output_size: number of inputs and of outputs.
        width: size of each hidden layer. Default: 128.
        depth: number of layers after the input layer. Default: 30.
        activation: a name or an `Activation`. Default: ``"relu"``.
        linear: function that returns the input layer and the hidden layers, from the place (``"input"``,
            ``"hidden"``, or ``"first"`` and ``"second"`` in a block), the two sizes and a generator. Default:
            `free_linear`.
        dropout: share of the units that is dropped after each activation, in training. Default: 0.
        generator: source of the initial weights. Default: torch's global generator.
        device, dtype: of the parameters.

    >>> SpectralMLP(16, 3, width=32, depth=10)(torch.randn(8, 16)).shape  # a subclass
    torch.Size([8, 3])
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        width: int = 128,
        depth: int = 30,
        activation: ActivationChoice = "relu",
        linear: Linear | None = None,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        sizes = {"input_size": input_size, "output_size": output_size, "width": width, "depth": depth}
        for name, value in sizes.items():
            whole_number(name, value, 1)
        self.input_size, self.output_size, self.width, self.depth = input_size, output_size, width, depth
        self.activation = make(activation)
        number("dropout", dropout, least=0, below=1)
        self.drop = nn.Dropout(dropout)
        make_linear = linear or free_linear
        with torch.device("cpu"):  # initial values are drawn on the CPU, whatever the default device
            self.input = make_linear("input", input_size, width, generator)
            self.hidden = nn.ModuleList(make_linear(place, width, width, generator) for place in self._places())
            self.output = free_linear("output", width, output_size, generator)
            # The parameters of the activation, one set for each of its uses.
            self.activation_numbers = nn.ParameterList(self._starts(generator))
        self.to(dtype=dtype)
        if not any(p.is_meta for p in self.parameters()):  # some loaders create parameters without data
            self.to(device=torch.get_default_device() if device is None else device)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw all weights anew, as a new network does; the parameters stay the same objects."""
        with torch.no_grad(), torch.device("cpu"):
            for place, layer in zip(("input", *self._places()), (self.input, *self.hidden), strict=True):
                self._reset_linear(place, layer, generator)
            self._reset_linear("output", self.output, generator)
            for numbers, start in zip(self.activation_numbers, self._starts(generator), strict=True):
                numbers.copy_(start)

    def _reset_linear(self, place: str, layer: nn.Module, generator: torch.Generator | None) -> None:
        """Draw the weights of a linear layer anew; layers that the user's `linear` made do so themselves."""
        if type(layer) is nn.Linear:
            layer.load_state_dict(free_linear(place, layer.in_features, layer.out_features, generator).state_dict())
        else:
            layer.reset_parameters()  # type: ignore[operator]

    def _starts(self, generator: torch.Generator | None) -> list[Tensor]:
        """Return the initial parameters of the activation for each of its uses; none if it has no parameters."""
        starts = [self.activation.start(self.width, generator) for _ in range(self._activations())]
        return [start for start in starts if start is not None]

    def _places(self) -> list[str]:
        """Return the place of each hidden layer."""
        return ["hidden"] * self.depth

    def _activations(self) -> int:
        """Return the number of uses of the activation."""
        return self.depth + 1

    def _f(self, a: Tensor, index: int) -> Tensor:
        return self.drop(self.activation(a, self._numbers(index)))

    def _numbers(self, index: int) -> Tensor | None:
        """Return the parameters of the activation in one of its uses."""
        return self.activation_numbers[index] if self.activation.trained else None

    def _enter(self, x: Tensor) -> Tensor:
        if not isinstance(x, Proxy) and (x.dim() == 0 or x.shape[-1] != self.input_size):
            raise ValueError(f"x must be (B, I) with I = {self.input_size}, got {tuple(x.shape)}")
        return self.input(x)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.output_size}, width={self.width}, depth={self.depth}, {self.activation}"


class MLP(FeedForward):
    """``h_0 = f(W_in x + b_in)``, ``h_l = f(W_l h_{l-1} + b_l)`` for l = 1 to L, ``y = W_out h_L + b_out``.

    Numbers: ``n(I + 1) + L n(n + 1) + O(n + 1)`` for a width of n, and L + 1 times those of the activation.

    Args:
        input_size, output_size: I and O.
        width: n. Default: 128.
        depth: L, the number of hidden layers after the input layer. Default: 30.
        activation: f, a name or an `Activation`. Default: ``"relu"``.
        linear: function that returns the input layer and the hidden layers, see `FeedForward`.
        dropout: share of the units that is dropped after each activation, in training. Default: 0.
        generator: source of the initial weights. Default: torch's global generator.
        device, dtype: of the parameters.

    Starting value: weights Glorot uniform, biases zero.

    >>> MLP(784, 10, depth=30)(torch.randn(64, 784)).shape
    torch.Size([64, 10])

    Reference: Rumelhart, Hinton and Williams 1986; for dropout Srivastava et al. 2014.
    """

    def forward(self, x: Tensor) -> Tensor:
        h = self._f(self._enter(x), 0)
        for index, layer in enumerate(self.hidden, 1):
            h = self._f(layer(h), index)
        return self.output(h)


class ResNet(FeedForward):
    """``h_0 = W_in x + b_in``, ``h_k = h_{k-1} + W_k2 f(W_k1 h_{k-1} + b_k1) + b_k2`` for k = 1 to L/2, then a readout.

    Blocks have two layers, so L is even; ``y = W_out h_{L/2} + b_out``. Numbers: as in `MLP`, with L/2 times those of
    the activation.

    Args:
        depth: L, twice the number of blocks. Default: 30.
        input_size, output_size, width, activation, linear, dropout, generator, device, dtype: as in `MLP`.

    Starting value: as in `MLP`.

    >>> ResNet(784, 10, depth=30)(torch.randn(64, 784)).shape
    torch.Size([64, 10])

    Reference: He et al. 2016.
    """

    def _places(self) -> list[str]:
        if self.depth % 2:
            raise ValueError(f"depth must be even, as blocks have two layers each, got {self.depth}")
        return ["first", "second"] * (self.depth // 2)

    def _activations(self) -> int:
        return self.depth // 2

    def forward(self, x: Tensor) -> Tensor:
        h = self._enter(x)
        for block in range(self.depth // 2):
            first, second = self.hidden[2 * block], self.hidden[2 * block + 1]
            h = h + second(self._f(first(h), block))
        return self.output(h)
