"""Without gradients a matrix is computed once, and again after every kind of change to what it was computed from."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from evenflow.maps import MAPS, SVD, Exponential, Map, attach, make

N = 8
every_map = pytest.mark.parametrize("name", [name for name in MAPS if name != "free"])


def mapped(name: str) -> nn.Linear:
    return attach(nn.Linear(N, N), "weight", make(name, N))


def numbers(module: nn.Module) -> list[nn.Parameter]:
    return list(module.parametrizations["weight"].parameters(recurse=False))


def map_of(module: nn.Module) -> Map:
    return module.parametrizations["weight"][0]


def matrix(module: nn.Module) -> Tensor:
    with torch.no_grad():
        return module.weight


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Map]:
    """The maps that compute a matrix, in order."""
    calls: list[Map] = []
    plain = Map.compute

    def compute(self: Map, *raw: Tensor) -> Tensor:
        calls.append(self)
        return plain(self, *raw)

    monkeypatch.setattr(Map, "compute", compute)
    return calls


def shifted(value: Tensor) -> Tensor:
    """Other numbers, which are not a multiple of those before."""
    return value + torch.linspace(0.1, 0.5, value.numel(), dtype=value.dtype).view_as(value)


def write(module: nn.Module) -> None:
    with torch.no_grad():
        numbers(module)[0].copy_(shifted(numbers(module)[0]))


def write_data(module: nn.Module) -> None:
    numbers(module)[0].data.copy_(shifted(numbers(module)[0].data))


def replace_data(module: nn.Module) -> None:
    numbers(module)[0].data = shifted(numbers(module)[0].data)


def write_numpy(module: nn.Module) -> None:
    numbers(module)[0].detach().numpy()[:] = shifted(numbers(module)[0].detach())


def update(module: nn.Module) -> None:
    (module.weight * torch.rand(N, N)).abs().sum().backward()
    torch.optim.Adam(module.parameters(), lr=0.1).step()


def load(module: nn.Module, assign: bool = False) -> None:
    state = {key: shifted(value) if value.is_floating_point() else value for key, value in module.state_dict().items()}
    module.load_state_dict(state, assign=assign)


def load_assigned(module: nn.Module) -> None:
    load(module, assign=True)


def replace_parameter(module: nn.Module) -> None:
    chain = module.parametrizations["weight"]
    name = next(iter(chain._parameters))
    setattr(chain, name, nn.Parameter(shifted(chain._parameters[name].detach())))


def convert(module: nn.Module) -> None:
    module.double()


CHANGES: list[Callable[[nn.Module], None]] = [
    write, write_data, replace_data, write_numpy, update, load, load_assigned, replace_parameter, convert
]  # fmt: skip


@every_map
def test_a_matrix_is_computed_once(name, computed):
    module = mapped(name)
    computed.clear()
    first = matrix(module)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(module.weight, first)
    assert computed == [map_of(module)]


@every_map
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_every_change_is_seen(name, change):
    module = mapped(name)
    before = matrix(module)
    change(module)
    after = matrix(module)
    assert torch.equal(after, matrix(copy.deepcopy(module)))  # whose map has computed nothing yet
    assert after.dtype != before.dtype if change is convert else not torch.equal(after, before)


@every_map
def test_gradients_are_those_of_the_numbers(name):
    module = mapped(name)
    fresh = copy.deepcopy(module)
    matrix(module)
    x = torch.randn(3, N)
    for one in (module, fresh):
        (x.to(one.weight.dtype) @ one.weight.mT).abs().square().sum().backward()
    for ours, theirs in zip(numbers(module), numbers(fresh), strict=True):
        assert ours.grad is not None
        assert torch.equal(ours.grad, theirs.grad)


def test_a_frozen_map_serves_passes_with_gradients(computed):
    module = mapped("exponential")
    numbers(module)[0].requires_grad_(False)
    with torch.inference_mode():
        first = module.weight.clone()
    computed.clear()
    x = torch.randn(3, N, requires_grad=True)
    module(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(matrix(module), first)
    assert computed == []


@every_map
def test_writing_to_the_matrix_changes_nothing(name):
    module = mapped(name)
    before = matrix(module)
    with torch.no_grad():
        module.weight.zero_()
        module.weight.data.zero_()
    assert torch.equal(matrix(module), before)
    assert before.abs().max() > 0


@every_map
def test_copies_and_files_have_no_matrix(name, computed):
    module = mapped(name)
    wanted, keys = matrix(module), set(module.state_dict())
    assert set(mapped(name).state_dict()) == keys
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(map_of(module)))):
        computed.clear()
        with torch.no_grad():
            found = other.weight if isinstance(other, nn.Linear) else other(*numbers(module))
        assert torch.equal(found, wanted)
        assert len(computed) == 1


def test_settings_are_part_of_it():
    module = attach(nn.Linear(N, N), "weight", SVD(N, margin=0.1))
    with torch.no_grad():
        numbers(module)[-1].add_(1.0)
    before = matrix(module)
    map_of(module).spectrum.margin = 0.5
    assert not torch.equal(matrix(module), before)


def test_weights_of_a_caller_are_used():
    module = mapped("exponential")
    before = matrix(module)
    name = "parametrizations.weight.original"
    with torch.no_grad():
        other = torch.func.functional_call(module, {name: 2 * numbers(module)[0]}, (torch.eye(N),)) - module.bias
        assert not torch.allclose(other.mT, before, atol=1e-3)
        each = torch.vmap(lambda raw: map_of(module)(raw))(torch.stack([numbers(module)[0], 0 * numbers(module)[0]]))
    assert torch.allclose(each[0], before, atol=1e-6)
    assert torch.allclose(each[1], torch.eye(N), atol=1e-6)
    assert torch.equal(matrix(module), before)


def test_compiled_without_gradients():
    module = mapped("householder")
    compiled = torch.compile(lambda x: module(x), backend="aot_eager", fullgraph=True)
    x = torch.randn(3, N)
    with torch.no_grad():
        assert torch.allclose(compiled(x), module(x), atol=1e-6)
        write(module)
        assert torch.allclose(compiled(x), module(x), atol=1e-6)


def test_threads_with_different_numbers():
    map = Exponential(N)
    raws = [map.start(torch.Generator().manual_seed(seed))[0] for seed in range(4)]
    wanted = [map.compute(raw) for raw in raws]
    wrong: list[int] = []

    def run(index: int) -> None:
        for _ in range(200):
            if not torch.equal(map(raws[index]), wanted[index]):
                wrong.append(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
