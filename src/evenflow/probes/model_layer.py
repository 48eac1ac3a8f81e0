"""Find the recurrent layers of a model, evenflow's or torch's, and observe what they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from evenflow.layers.layer_run import LayerRun
from evenflow.layers.named import GRU, LSTM, RNN
from evenflow.layers.recurrent import Recurrent
from evenflow.models.residual_stack import ResidualStack

Layer = Recurrent | nn.RNN | nn.GRU | nn.LSTM
LAYER_TYPES = (Recurrent, nn.RNN, nn.GRU, nn.LSTM)


def find_layers(model: nn.Module) -> dict[str, Layer]:
    """Every recurrent layer of a model by its name in `model.named_modules()`; the model itself has the name ``""``."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LAYER_TYPES)}


def find_stack(model: nn.Module) -> Layer | ResidualStack:
    """The only stack of residual blocks of a model, or its only recurrent layer; see `find_layer`."""
    stacks = [module for module in model.modules() if isinstance(module, ResidualStack)]
    if len(stacks) == 1 and len(find_layers(model)) == len(stacks[0].layers):
        return stacks[0]
    return find_layer(model)


def layers_of(stack: Layer | ResidualStack) -> list[Layer]:
    """The layers of a stack of residual blocks, the first block first, or the layer itself."""
    return stack.layers if isinstance(stack, ResidualStack) else [stack]  # type: ignore[return-value]


def find_layer(model: nn.Module) -> Layer:
    """The only recurrent layer of a model; a ValueError if it has none, or more than one."""
    layers = find_layers(model)
    if len(layers) != 1:
        which = f"{len(layers)}: {', '.join(layers)}" if layers else "none"
        raise ValueError(
            f"model must hold one recurrent layer, of evenflow or torch's RNN, GRU or LSTM, "
            f"got {type(model).__name__} with {which}"
        )
    return next(iter(layers.values()))


def as_evenflow_layer(layer: Layer) -> Recurrent:
    """The layer itself, or for a module of torch an evenflow layer with a copy of its weights and the same outputs.

    torch computes all steps in one call that does not return the states in between; evenflow's layers can record them.
    """
    if isinstance(layer, Recurrent):
        return layer
    if not isinstance(layer, LAYER_TYPES):
        kind = type(layer).__name__
        raise ValueError(f"layer must be a recurrent one, of evenflow or torch's RNN, GRU or LSTM, got {kind}")
    if getattr(layer, "proj_size", 0):
        raise ValueError(f"layer must be an LSTM without proj_size to be probed, got proj_size {layer.proj_size}")
    like = layer.weight_hh_l0
    assert isinstance(like, Tensor)
    options: dict[str, Any] = {
        name: getattr(layer, name) for name in ("num_layers", "bias", "batch_first", "dropout", "bidirectional")
    }
    make: Callable[..., Recurrent] = GRU if isinstance(layer, nn.GRU) else LSTM
    if isinstance(layer, nn.RNN):
        make, options["activation"] = RNN, layer.nonlinearity
    copied = make(
        layer.input_size,
        layer.hidden_size,
        **options,
        generator=torch.Generator(),  # so that torch's global generator does not move; every weight is overwritten
        device=like.device,
        dtype=like.dtype,
    )
    with torch.no_grad():
        for suffix in copied.suffixes:
            for name, value in _torch_weights(layer, suffix).items():
                getattr(copied, name + suffix).copy_(value)
    return copied.train(layer.training).requires_grad_(False)


def _torch_weights(layer: nn.Module, suffix: str) -> dict[str, Tensor]:
    """The weights of a torch module under evenflow's names; two bias vectors that are only added become one."""
    weights = {"weight_ih": getattr(layer, f"weight_ih{suffix}"), "weight_hh": getattr(layer, f"weight_hh{suffix}")}
    H = weights["weight_hh"].shape[-1]
    if layer.bias:
        first, second = getattr(layer, f"bias_ih{suffix}"), getattr(layer, f"bias_hh{suffix}")
        if isinstance(layer, nn.GRU):
            weights["bias"] = first + torch.cat([second[: 2 * H], torch.zeros_like(second[2 * H :])])
            weights["bias_hh_n"] = second[2 * H :]
        else:
            weights["bias"] = first + second
    if isinstance(layer, nn.GRU):
        weights["weight_hh"], weights["weight_hh_n"] = weights["weight_hh"].split([2 * H, H])
    return weights


@contextmanager
def tap_states(layer: Layer) -> Iterator[list[Tensor]]:
    """`Recurrent.taps` for torch's modules too: inside the block an evenflow copy computes their outputs."""
    copied = as_evenflow_layer(layer)
    with copied.taps() as taps, ExitStack() as stack:
        if copied is not layer:
            hook = layer.register_forward_hook(lambda _, args, kwargs, __: copied(*args, **kwargs), with_kwargs=True)
            stack.callback(hook.remove)
        yield taps


@contextmanager
def record_runs(model: nn.Module, *, taps: bool = False) -> Iterator[list[LayerRun]]:
    """Record what every evenflow layer in `model` computes inside the block, in the order the layers run.

    Gated feedback stacks are left out: their layers do not run one after another.

    Args:
        taps: also record ∂L/∂h_t, see `Recurrent.taps`.

    >>> with record_runs(model) as runs:
    ...     outputs, _ = model(inputs)
    >>> runs[0].states.shape
    """
    runs: list[LayerRun] = []
    with ExitStack() as stack:
        for layer in model.modules():
            if isinstance(layer, Recurrent) and layer.layers_run_in_turn:
                if taps:
                    stack.enter_context(layer.taps())
                stack.enter_context(layer.record_runs(runs))
        yield runs


def need_plain_steps(runs: list[LayerRun], user: str) -> None:
    """Raise a ValueError unless each step of the runs can be computed from h_{t-1} alone."""
    if not runs:
        raise ValueError(f"{user} needs a recurrent layer of evenflow other than gated feedback, got none that ran")
    for run in runs:
        cell = run.layer.cell
        if cell.state_size != 1:
            raise ValueError(f"{user} needs a cell whose state is one vector, got {cell.name} with two")
        if run.layer.bidirectional:
            raise ValueError(f"{user} needs layers that run one way, got a bidirectional one")


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, with gradients enabled; restore the mode of every module afterwards."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        # cuDNN has no backward pass in evaluation mode.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            yield
    finally:
        for module, mode in training.items():
            module.training = mode


def outputs_of(model: nn.Module, inputs: Any, lengths: Tensor | None = None) -> Any:
    """Run a model and return its outputs: the first item where it returns a tuple, such as (outputs, state)."""
    answer = model(inputs) if lengths is None else model(inputs, lengths=lengths)
    return answer[0] if isinstance(answer, tuple) and not isinstance(answer, PackedSequence) else answer


def need_sequences(name: str, x: Tensor) -> None:
    """Raise a ValueError for a batch without sequences, or of sequences without steps: it has no mean."""
    if x.dim() == 3 and 0 in x.shape[:2]:
        raise ValueError(
            f"{name} must hold at least one sequence of at least one time step, got shape {tuple(x.shape)}"
        )
