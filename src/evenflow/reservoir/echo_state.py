"""The echo state network: a random recurrence that is not trained, and a readout solved by least squares."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.activations import ActivationChoice
from evenflow.cells import Elman, ScalarGated
from evenflow.checks import number, whole_number
from evenflow.reservoir.readout import SolvedReadout
from evenflow.reservoir.sparse import Sparse


class EchoState(SolvedReadout):
    """``h_t = (1 - a) h_{t-1} + a f(W_ih x_t + b + W_hh h_{t-1})``, nothing trained; ``y_t = W_o (h_t, x_t) + b_o``.

    It has the signature of `torch.nn.RNN`, so it can also be the layer under a trained readout. Its own method `fit`
    solves for W_o and b_o directly.

    Shapes:
        x ``(T, B, I)``, ``(B, T, I)`` with `batch_first`, or ``(T, I)``; output ``(T, B, H)`` and state ``(1, B, H)``
        likewise; y ``(T, B, O)``.

    Args:
        input_size, hidden_size: I and H.
        radius: largest absolute eigenvalue of W_hh. Below 1 the initial state is forgotten, on most inputs.
        leak: a, above 0 and at most 1; small for slow series.
        density: the share of W_hh that is not zero.
        input_scaling, bias_scaling: s; W_ih and b are drawn from U(-s, s).
        washout: the number of steps at the start of each series that `fit` leaves out.
        ridge: λ, the penalty on W_o; see `Ridge`.
        activation: f, a name of `activations.ACTIVATIONS` or an activation.
        batch_first: inputs are ``(B, T, I)``.
        engine: the implementation of the scan, see `Recurrent`.
        generator: where weights are drawn from, instead of torch's global generator.
        device, dtype: of the weights.

    Starting value: W_ih and b as above; W_hh as in `Sparse`. All are buffers: saved and moved, but not trained.

    >>> esn = EchoState(1, 300).fit(series[:-1], series[1:])
    >>> outputs, state = esn.predict(series)
    >>> future, state = esn.run(100, state, outputs[-1])

    Reference: Jaeger 2001; Lukoševičius 2012.
    """

    gate_alpha_l0: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        radius: float = 0.9,
        leak: float = 1.0,
        density: float = 0.1,
        input_scaling: float = 1.0,
        bias_scaling: float = 0.1,
        washout: int = 100,
        ridge: float = 1e-6,
        activation: ActivationChoice = "tanh",
        batch_first: bool = False,
        engine: str = "auto",
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        number("radius", radius, above=0)
        number("leak", leak, above=0, most=1)
        number("density", density, above=0, most=1)
        number("input_scaling", input_scaling, least=0)
        number("bias_scaling", bias_scaling, least=0)
        number("ridge", ridge, least=0)
        whole_number("washout", washout, 0)
        # With a leak of 1 the equation is that of the plain cell, which is faster.
        cell = Elman(activation) if leak == 1 else ScalarGated(activation, gates="free", alpha=leak, beta=1 - leak)
        super().__init__(
            cell,
            input_size,
            hidden_size,
            map=lambda size: Sparse(size, radius, density),
            batch_first=batch_first,
            engine=engine,
            generator=generator,
            device="cpu",
            dtype=dtype,
        )
        self.radius, self.density = radius, density
        self.input_scaling, self.bias_scaling = input_scaling, bias_scaling
        for name, parameter in list(self.named_parameters()):
            delattr(self, name)
            self.register_buffer(name, parameter.detach())
        self._start_inputs(generator)
        self._start_readout(washout, ridge)
        if not self.weight_hh_l0.is_meta:  # some loaders create parameters without data
            self.to(device=torch.get_default_device() if device is None else device)

    def _start_inputs(self, generator: torch.Generator | None) -> None:
        """Write starting values into the input weights, the bias and the gates."""
        for name, scale in (("weight_ih_l0", self.input_scaling), ("bias_l0", self.bias_scaling)):
            weight = getattr(self, name)
            weight.copy_(scale * _uniform(weight.shape, generator))
        if isinstance(self.cell, ScalarGated):  # computed again in float64, so that a and 1 - a are exact
            for name, share in (("gate_alpha_l0", self.cell.alpha), ("gate_beta_l0", self.cell.beta)):
                getattr(self, name).copy_(torch.tensor(share, dtype=torch.float64, device="cpu").logit())

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw all weights anew, as a new network does, and forget the readout."""
        super().reset_parameters(generator)
        self._start_inputs(generator)
        self._start_readout(self.washout, self.ridge)

    @property
    def leak(self) -> float:
        """a, from the buffers."""
        return float(self.gate_alpha_l0.sigmoid()) if isinstance(self.cell, ScalarGated) else 1.0

    def extra_repr(self) -> str:
        shown = f"{super().extra_repr()}, radius={self.radius:g}, leak={self.leak:g}, density={self.density:g}"
        outputs = "none" if self.readout_weight is None else f"{len(self.readout_weight)} wide"
        return f"{shown}, readout={outputs}"


def _uniform(shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    """U(-1, 1)."""
    where = "cpu" if generator is None else generator.device
    return 2 * torch.rand(shape, generator=generator, dtype=torch.float64, device=where).cpu() - 1
