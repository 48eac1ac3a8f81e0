"""Maps on torch's own modules."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import evenflow
from evenflow import init
from evenflow.maps import (
    SVD,
    Cayley,
    Exponential,
    Factorized,
    Free,
    Householder,
    Map,
    attach,
    detach,
    parameter_groups,
    residual,
)

ORTHOGONAL = 1e-5  # |WᵀW - I|, summed in float32
CLOSE = 1e-5  # two float32 ways to one output


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_free_leaves_a_plain_parameter() -> None:
    layer = attach(nn.Linear(4, 4), "weight", Free(4), generator=seeded())
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert torch.equal(layer.weight, init.orthogonal(4, generator=seeded()))


def test_numbers_are_trained_and_the_weight_stays_orthogonal() -> None:
    layer = attach(nn.Linear(6, 6), "weight", Exponential(6), generator=seeded())
    target = init.orthogonal(6, generator=seeded(3))
    target[0] *= torch.linalg.det(target).sign()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(200):
        loss = (layer.weight - target).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.01 * losses[0]
    assert residual(layer.weight) < ORTHOGONAL


def test_a_matrix_can_be_assigned() -> None:
    layer = attach(nn.Linear(5, 5), "weight", Householder(5))
    W = init.orthogonal(5, generator=seeded())
    layer.weight = W
    assert torch.allclose(layer.weight, W, atol=CLOSE)


@pytest.mark.parametrize(
    ("conv", "x"),
    [(nn.Conv1d(2, 6, 3), (1, 2, 9)), (nn.Conv2d(2, 8, 2), (1, 2, 5, 5)), (nn.Conv3d(1, 8, 2), (1, 1, 3, 3, 3))],
    ids=["1d", "2d", "3d"],
)
def test_convolution(conv: nn.Module, x: tuple[int, ...]) -> None:
    conv = copy.deepcopy(conv)
    shape = conv.weight.shape
    attach(conv, "weight", SVD(shape[0], shape[1:].numel(), margin=0.0))
    assert conv.weight.shape == shape
    assert residual(conv.weight.flatten(1)) < ORTHOGONAL
    conv(torch.randn(x, generator=seeded())).sum().backward()
    assert conv.parametrizations.weight.original0.grad.isfinite().all()
    assigned = init.orthogonal(shape[0], shape[1:].numel(), generator=seeded()).reshape(shape)
    conv.weight = assigned
    assert torch.allclose(conv.weight, assigned, atol=CLOSE)
    detach(conv, "weight")
    assert torch.allclose(conv.weight, assigned, atol=CLOSE)


def test_rnn_runs_with_the_map_and_learns() -> None:
    rnn, plain = nn.RNN(3, 4), nn.RNN(3, 4)
    attach(rnn, "weight_hh_l0", Cayley(4), generator=seeded())
    x = torch.randn(5, 2, 3, generator=seeded(1))
    for _ in range(2):
        with torch.no_grad():
            for name, weight in plain.named_parameters():
                weight.copy_(getattr(rnn, name))
        assert torch.allclose(rnn(x)[0], plain(x)[0], atol=CLOSE)
        rnn(x)[0].square().sum().backward()
        raw = rnn.parametrizations.weight_hh_l0.original
        assert raw.grad.abs().max() > 0
        with torch.no_grad():
            raw -= 0.1 * raw.grad  # the next pass must see the new weight
    with parametrize.cached():
        assert torch.allclose(rnn(x)[0], detach(rnn, "weight_hh_l0")(x)[0], atol=CLOSE)


@pytest.mark.parametrize(
    ("module", "blocks", "chosen"),
    [
        (nn.GRU(3, 4), "n", [2]),
        (nn.GRU(3, 4), [2], [2]),
        (nn.GRU(3, 4), "rzn", [0, 1, 2]),
        (nn.GRUCell(3, 4), ("z", "n"), [1, 2]),
        (nn.LSTM(3, 4), "g", [2]),
        (nn.LSTM(3, 4), ("o", "i"), [0, 3]),
    ],
    ids=["gru-n", "gru-index", "gru-all", "grucell-zn", "lstm-g", "lstm-oi"],
)
def test_gate_blocks(module: nn.Module, blocks: object, chosen: list[int]) -> None:
    module = copy.deepcopy(module)
    cell = isinstance(module, nn.GRUCell)
    name = "weight_hh" if cell else "weight_hh_l0"
    before = getattr(module, name).detach().clone()
    attach(module, name, Householder(4), blocks=blocks, generator=seeded())
    made = getattr(module, name).split(4)
    for i, (block, old) in enumerate(zip(made, before.split(4), strict=True)):
        if i in chosen:
            assert residual(block) < ORTHOGONAL
        else:
            assert torch.equal(block, old)
    if len(chosen) > 1:
        assert not torch.allclose(made[chosen[0]], made[chosen[1]])
    state = (torch.ones(2, 4),) if cell else ()
    out = module(torch.randn(2, 3, generator=seeded()), *state)
    (out[0] if isinstance(out, tuple) else out).square().sum().backward()
    for p in module.parametrizations[name].parameters():
        assert p.grad.abs().max() > 0
    W = getattr(module, name).detach().clone()
    setattr(module, name, W)
    assert torch.allclose(getattr(module, name), W, atol=CLOSE)
    assert torch.allclose(getattr(detach(module, name), name), W, atol=CLOSE)


LETTERS = {"gru": ["r", "z"], "gru-2014": ["r", "z"], "lstm": ["i", "f", "g", "o"], "lstm-peephole": ["f"]}


@pytest.mark.parametrize(("name", "gate"), [(name, gate) for name, gates in LETTERS.items() for gate in gates])
def test_a_spectrum_on_any_gate_of_a_layer_of_evenflow(name: str, gate: str) -> None:
    """In training the singular values of this gate stay within the margin, and those of the others leave it."""
    layer = evenflow.create(name, 3, 4, generator=seeded())
    attach(layer, "weight_hh_l0", SVD(4, margin=0.05), blocks=gate, generator=seeded())
    optimizer = torch.optim.SGD(layer.parameters(), 30.0)
    for seed in range(3):
        x = torch.randn(20, 8, 3, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        (layer(x)[0][-1] - 1).square().mean().backward()
        optimizer.step()
    gates = "rz" if name.startswith("gru") else "ifgo"
    spread = [float((torch.linalg.svdvals(block) - 1).abs().max()) for block in layer.weight_hh_l0.chunk(len(gates))]
    chosen = spread.pop(gates.index(gate))
    assert 1e-4 < chosen < 0.05 + 1e-5
    assert max(spread) > 0.06


def test_all_gates_of_a_layer_by_name() -> None:
    layer = evenflow.create("gru", 3, 8, map={"weight_hh": "svd", "weight_hh_n": "svd"}, margin=0.1)
    for block in (*layer.weight_hh_l0.chunk(2), layer.weight_hh_n_l0):
        assert (torch.linalg.svdvals(block) - 1).abs().max() < 1e-5
    assert len([n for n, _ in layer.named_parameters() if "parametrizations" in n]) == 6


def test_free_blocks_leave_a_plain_parameter() -> None:
    gru = attach(nn.GRU(3, 4), "weight_hh_l0", Free(4, init="identity"), blocks="n")
    assert not parametrize.is_parametrized(gru)
    assert torch.equal(gru.weight_hh_l0[8:], torch.eye(4))


def test_groups_see_through_blocks() -> None:
    gru = attach(nn.GRU(3, 4), "weight_hh_l0", Factorized(4, margin=0.25), blocks="n")
    rates = [(group["lr"], group["stiefel"], len(group["params"])) for group in parameter_groups(gru, 1.0)]
    assert sorted(rates) == [(1.0, False, 4), (1.0, True, 2), (2.0, False, 1)]
    assert sum(len(group["params"]) for group in parameter_groups(gru, 1.0)) == len(list(gru.parameters()))


@pytest.mark.parametrize(
    "map", [Exponential(6), Householder(6, reflectors=2), SVD(6)], ids=lambda map: type(map).__name__
)
def test_module_with_a_map_compiles_whole(map: Map) -> None:
    torch.compiler.reset()
    layer = attach(nn.Linear(6, 6), "weight", copy.deepcopy(map), generator=seeded())
    x = torch.randn(3, 6, generator=seeded(1))
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(x), layer(x), atol=CLOSE)
    compiled(x).square().sum().backward()
    got = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    layer(x).square().sum().backward()
    for g, p in zip(got, layer.parameters(), strict=True):
        assert torch.allclose(g, p.grad, atol=CLOSE)


def test_dtype_and_device_of_the_weight() -> None:
    layer = attach(nn.Linear(4, 4, dtype=torch.bfloat16), "weight", Exponential(4))
    assert layer.weight.dtype == torch.bfloat16
    assert layer.parametrizations.weight.original.dtype == torch.bfloat16
    layer.double()
    assert residual(layer.weight) < 1e-12


def test_deep_copy_is_independent() -> None:
    layer = attach(nn.Linear(4, 4), "weight", Exponential(4), generator=seeded())
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin.parametrizations.weight.original.add_(1)
    assert not torch.allclose(layer.weight, twin.weight)


@pytest.mark.parametrize(
    ("module", "name", "map", "blocks", "sentence"),
    [
        (nn.Linear(4, 4), "wait", Cayley(4), None, "Linear has no weight named 'wait' to attach a map to"),
        (nn.Linear(4, 4), "weight", "cayley", None, r"such as evenflow.maps.Cayley\(4\), got 'cayley'$"),
        (nn.GRU(3, 4), "weight_hh_l0", 3, None, r"such as evenflow.maps.Exponential\(4\), got 3$"),
        (nn.Linear(4, 4), "bias", Cayley(4), None, "Linear.bias must have at least two dimensions"),
        (nn.Linear(4, 6), "weight", Cayley(4), None, "map makes 4 x 4 matrices but Linear.weight is 6 x 4$"),
        (nn.GRU(3, 4), "weight_hh_l0", Cayley(4), None, "is 12 x 4; choose its gates with blocks="),
        (
            nn.GRU(3, 4),
            "weight_hh_l0",
            Cayley(4),
            "x",
            "blocks must be different indices from 0 to 2 or letters of 'rzn'",
        ),
        (nn.GRU(3, 4), "weight_hh_l0", Cayley(4), [3], "blocks must be different indices from 0 to 2"),
        (nn.GRU(3, 4), "weight_hh_l0", Cayley(4), "nn", "blocks must be different indices"),
        (nn.GRU(3, 4), "weight_hh_l0", Cayley(5), "n", "is 12 x 4, which is no stack of 5 x 5 blocks"),
    ],
    ids=["name", "map by name", "map by number", "vector", "size", "gates", "letter", "index", "twice", "stack"],
)
def test_bad_input(module: nn.Module, name: str, map: Map, blocks: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        attach(module, name, map, blocks=blocks)


def test_attach_twice_and_detach_twice() -> None:
    layer = attach(nn.Linear(4, 4), "weight", Cayley(4))
    with pytest.raises(ValueError, match=r"Linear\.weight has a map already; detach it first"):
        attach(layer, "weight", Cayley(4))
    detach(layer, "weight")
    with pytest.raises(ValueError, match=r"Linear\.weight has no map attached"):
        detach(layer, "weight")


def test_a_copy_loses_its_map_and_the_original_keeps_it():
    layer = attach(nn.Linear(4, 4), "weight", Exponential(4))
    twin = copy.deepcopy(layer)
    detach(twin, "weight")
    assert isinstance(twin.weight, nn.Parameter)
    assert type(twin) is nn.Linear
    torch.testing.assert_close(layer.weight, twin.weight)
    detach(layer, "weight")
    assert type(layer) is nn.Linear
