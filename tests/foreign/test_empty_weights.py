"""Models made without memory and filled later, as Hugging Face's loaders and FSDP do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import evenflow
from evenflow.systems import NETWORKS, SYSTEMS

I, H = 3, 8
Maker = Callable[..., nn.Module]


def layer(name: str, **options) -> nn.Module:
    return evenflow.create(name, I, H, generator=torch.Generator().manual_seed(1), **options)


def network(name: str, **options) -> nn.Module:
    draw = torch.Generator().manual_seed(1)
    return NETWORKS[name].network(I, 2, width=H, depth=4, activation="prelu", generator=draw, **options)


def model(name: str) -> nn.Module:
    return evenflow.SequenceModel(layer(name), 2, vocabulary=5)


LAYERS: dict[str, Maker] = {name: functools.partial(layer, name) for name in SYSTEMS}
LAYERS |= {name: functools.partial(network, name) for name in NETWORKS}
MODULES = LAYERS | {f"model of {name}": functools.partial(model, name) for name in SYSTEMS}
every = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES.keys())


def value(module: nn.Module) -> torch.Tensor:
    """The output for fixed input."""
    words = isinstance(module, evenflow.SequenceModel)
    draw = torch.Generator().manual_seed(2)
    x = torch.randint(5, (6, 2), generator=draw) if words else torch.randn(6, 2, I, generator=draw)
    output = module(x)
    return output[0] if isinstance(output, tuple) else output


def memory(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def spoil(module: nn.Module) -> None:
    """Fill parameters and buffers as uninitialised memory may be filled."""
    with torch.no_grad():
        for tensor in memory(module):
            tensor.fill_(torch.nan if tensor.is_floating_point() else 2**40)


def empty(make: Maker) -> nn.Module:
    """A module that was made on no device and then moved to one, with garbage in every tensor."""
    with torch.device("meta"):
        module = make()
    assert all(tensor.is_meta for tensor in memory(module))
    module = module.to_empty(device="cpu")
    spoil(module)
    return module


@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
@every
def test_a_state_dict_leaves_no_garbage(make: Maker, assign: bool):
    whole, module = make(), empty(make)
    module.load_state_dict(whole.state_dict(), assign=assign)
    assert torch.equal(value(module), value(whole))


@every
def test_resetting_every_part_leaves_no_garbage(make: Maker):
    module = empty(make)
    for part in module.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    assert value(module).isfinite().all()


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS.keys())
def test_resetting_gives_what_a_new_module_has(make: Maker):
    module = empty(make)
    module.reset_parameters(torch.Generator().manual_seed(1))
    wanted = make().state_dict()
    assert module.state_dict().keys() == wanted.keys()
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, wanted[name]), name


@pytest.mark.parametrize("buffers", [False, True], ids=["parameters", "buffers too"])
@every
def test_accelerate_makes_modules_without_memory(make: Maker, buffers: bool):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    whole = make()
    with accelerate.init_empty_weights(include_buffers=buffers):
        module = make()
    assert all(p.is_meta for p in module.parameters())
    module.load_state_dict(whole.state_dict(), assign=True)
    assert torch.equal(value(module), value(whole))


@every
def test_accelerate_fills_a_module_from_a_file(make: Maker, tmp_path: Path):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    whole = make()
    save_file(
        {name: t.contiguous() for name, t in whole.state_dict().items()},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    with accelerate.init_empty_weights():
        module = make()
    module = accelerate.load_checkpoint_and_dispatch(
        module, str(tmp_path / "model.safetensors"), device_map={"": "cpu"}
    )
    assert torch.equal(value(module), value(whole))


@pytest.mark.parametrize(
    "kind",
    [evenflow.RNN, evenflow.GRU, evenflow.LSTM, evenflow.SCRN, evenflow.ComplexRNN, evenflow.ScalarGatedRNN,
     evenflow.GatedFeedbackRNN, evenflow.EchoState, evenflow.MLP, evenflow.ResNet, evenflow.SpectralMLP,
     evenflow.SpectralResNet, evenflow.SpectralLinear],
)  # fmt: skip
def test_torch_skips_initial_values(kind: type[nn.Module]):
    whole = kind(I, H)
    module = torch.nn.utils.skip_init(kind, I, H)
    spoil(module)
    module.load_state_dict(whole.state_dict())
    assert torch.equal(value(module), value(whole))
