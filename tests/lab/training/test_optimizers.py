from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from evenflow import RNN
from evenflow.lab.training.optimizers import BASES, OPTIMIZERS, WEIGHT_DECAYS, load, make_optimizer
from evenflow.lab.training.settings import Settings
from evenflow.maps import mapped
from evenflow.optim import GeodesicAdam, GeodesicSGD

# Equations below in float64 against torch's, ten steps.
ROUNDING = 1e-12


def trajectory(settings: Settings, steps: int = 10) -> list[float]:
    """Minimise (w - 3)²/2 from w = 0."""
    w = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = make_optimizer(nn.ParameterList([w]), settings)
    path = []
    for _ in range(steps):
        optimizer.zero_grad()
        ((w - 3) ** 2 / 2).backward()
        optimizer.step()
        path.append(w.item())
    return path


def written_out(step, steps: int = 10) -> list[float]:
    w, memory, path = 0.0, {}, []
    for t in range(1, steps + 1):
        w = step(w, w - 3, memory, t)
        path.append(w)
    return path


def sgd(w, g, memory, t):
    return w - 0.1 * g


def with_momentum(w, g, memory, t):
    memory["v"] = 0.9 * memory.get("v", 0.0) + g
    return w - 0.1 * memory["v"]


def with_nesterov(w, g, memory, t):
    memory["v"] = 0.9 * memory.get("v", 0.0) + g
    return w - 0.1 * (g + 0.9 * memory["v"])


def with_weight_decay(w, g, memory, t):
    return w - 0.1 * (g + 0.5 * w)


def rmsprop(w, g, memory, t):
    memory["s"] = 0.9 * memory.get("s", 0.0) + 0.1 * g * g
    return w - 0.1 * g / (memory["s"] ** 0.5 + 1e-8)


def adam(w, g, memory, t):
    memory["m"] = 0.9 * memory.get("m", 0.0) + 0.1 * g
    memory["s"] = 0.999 * memory.get("s", 0.0) + 0.001 * g * g
    return w - 0.1 * (memory["m"] / (1 - 0.9**t)) / ((memory["s"] / (1 - 0.999**t)) ** 0.5 + 1e-8)


def cautious_rmsprop(w, g, memory, t):
    memory["s"] = 0.9 * memory.get("s", 0.0) + 0.1 * g * g
    return w - 0.1 * g / (memory["s"] ** 0.5 + 0.5)


def cautious_adam(w, g, memory, t):
    memory["m"] = 0.9 * memory.get("m", 0.0) + 0.1 * g
    memory["s"] = 0.999 * memory.get("s", 0.0) + 0.001 * g * g
    return w - 0.1 * (memory["m"] / (1 - 0.9**t)) / ((memory["s"] / (1 - 0.999**t)) ** 0.5 + 0.5)


@pytest.mark.parametrize(
    ("options", "equation"),
    [
        ({"optimizer": "sgd"}, sgd),
        ({"optimizer": "sgd", "momentum": 0.9}, with_momentum),
        ({"optimizer": "sgd", "momentum": 0.9, "nesterov": True}, with_nesterov),
        ({"optimizer": "sgd", "weight_decay": 0.5}, with_weight_decay),
        ({"optimizer": "rmsprop", "alpha": 0.9}, rmsprop),
        ({"optimizer": "adam"}, adam),
        ({"optimizer": "rmsprop", "alpha": 0.9, "eps": 0.5}, cautious_rmsprop),
        ({"optimizer": "adam", "eps": 0.5}, cautious_adam),
    ],
    ids=["sgd", "momentum", "nesterov", "weight decay", "rmsprop", "adam", "rmsprop's epsilon", "adam's epsilon"],
)
def test_each_follows_its_equation(options, equation):
    assert trajectory(Settings(lr=0.1, **options)) == pytest.approx(written_out(equation), abs=ROUNDING)


def test_rmsprop_takes_momentum():
    assert trajectory(Settings(optimizer="rmsprop", momentum=0.9)) != trajectory(Settings(optimizer="rmsprop"))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_frozen_parameters_are_left_out(name):
    free, frozen = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2), requires_grad=False)
    (group,) = make_optimizer(nn.ParameterList([free, frozen]), Settings(optimizer=name)).param_groups
    assert group["params"] == [free]


def test_nothing_to_train():
    with pytest.raises(ValueError, match=r"^model has no parameter to train, at least one must require a gradient$"):
        make_optimizer(nn.ParameterList([]), Settings())


@pytest.mark.parametrize("bases", BASES)
def test_orthonormal_bases_have_an_optimiser_of_their_own(bases):
    layer = RNN(2, 6, map="factorized", margin=0.1)
    optimizer = make_optimizer(layer, Settings(optimizer="rmsprop", lr=1e-2, bases=bases, bases_lr=1e-4))
    lrs = {group["stiefel"]: group["lr"] for group in optimizer.param_groups if group["stiefel"]}
    assert lrs == {True: 1e-4}
    ordinary = sorted(group["lr"] for group in optimizer.param_groups if not group["stiefel"])
    assert ordinary == pytest.approx([1e-2, 1e-2 / 0.2])
    kinds = {"sgd": GeodesicSGD, "adam": GeodesicAdam}
    assert [type(member) for member in optimizer.optimizers] == [torch.optim.RMSprop, kinds[bases]]


def test_what_makes_a_matrix_may_have_a_rate_of_its_own():
    layer = RNN(2, 6, map="exponential")
    optimizer = make_optimizer(layer, Settings(lr=1e-2, map_lr=1e-3))
    lrs = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    own = {id(p) for p, _, _ in mapped(layer)}
    assert len(own) == 1
    assert lrs == {id(p): 1e-3 if id(p) in own else 1e-2 for p in layer.parameters()}


def test_a_rate_for_maps_holds_for_a_spectrum_and_its_bases():
    layer = RNN(2, 6, map="factorized", margin=0.1)
    optimizer = make_optimizer(layer, Settings(lr=1e-2, map_lr=1e-3))
    assert [group["lr"] for group in optimizer.param_groups if group["stiefel"]] == [1e-3]
    ordinary = sorted(group["lr"] for group in optimizer.param_groups if not group["stiefel"])
    assert ordinary == pytest.approx([1e-3 / 0.2, 1e-2])


@pytest.mark.parametrize("layer", [nn.RNN(2, 6), RNN(2, 6, map="exponential")], ids=["no map", "map at rest"])
def test_a_rate_for_maps_that_are_not_trained(layer):
    for p, _, _ in mapped(layer):
        p.requires_grad_(False)
    with pytest.raises(ValueError, match=r"^map_lr goes with a map, got a model in which no map has a parameter"):
        make_optimizer(layer, Settings(map_lr=1e-4))


@pytest.mark.parametrize(("name", "value"), [("bases_lr", 1e-4), ("bases", "adam")])
def test_a_way_for_bases_that_are_not_there(name, value):
    with pytest.raises(
        ValueError, match=rf"^{name} goes with a factorized map, got a model with no orthonormal bases$"
    ):
        make_optimizer(RNN(2, 6), Settings(**{name: value}))


@pytest.mark.parametrize("name", ["adam", "rmsprop", "sgd"])
def test_what_was_remembered_on_a_gpu_goes_on_elsewhere(name):
    """There rates and counts are tensors and steps are counted on the device; here they are not."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    ends = []
    for moved in (False, True):
        one = copy.deepcopy(model)
        optimizer = make_optimizer(one, Settings(optimizer=name, momentum=0.0 if name == "adam" else 0.5))
        for step in range(4):
            if step == 2 and moved:
                saved = copy.deepcopy(optimizer.state_dict())
                for group in saved["param_groups"]:
                    group["lr"] = torch.tensor(group["lr"])
                    group.update({way: True for way in ("capturable", "fused") if way in group})
                optimizer = make_optimizer(one, Settings(optimizer=name, momentum=0.0 if name == "adam" else 0.5))
                load(optimizer, saved)
                assert all(isinstance(group["lr"], float) for group in optimizer.param_groups)
                assert not any(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)
            optimizer.zero_grad()
            one(torch.ones(1, 3)).square().sum().backward()
            optimizer.step()
        ends.append([p.detach().clone() for p in one.parameters()])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("clipping", "known"),
    [
        ({}, None),
        ({"clip_norm": 3.0}, 3.0),
        ({"clip_norm": 3.0, "clip_scope": "each"}, 3.0),
        ({"clip_norm": 3.0, "clip_scope": "recurrent"}, None),
        ({"clip_value": 3.0}, None),
        ({"clip_norm": 3.0, "schedule": "exponential", "decay": 1.5}, None),
    ],
)
def test_bases_know_how_long_their_gradients_can_be(clipping, known):
    optimizer = make_optimizer(RNN(2, 4, map="factorized"), Settings(bases_lr=1e-6, **clipping))
    assert [group["clip_norm"] for group in optimizer.optimizers[1].param_groups] == [known]


def test_what_bases_know_of_their_gradients_is_their_own_and_not_a_checkpoints():
    clipped, free = (
        make_optimizer(RNN(2, 4, map="factorized"), Settings(bases_lr=1e-6, clip_norm=norm)) for norm in (3.0, None)
    )
    saved = clipped.state_dict()
    load(free, saved)
    assert free.optimizers[1].param_groups[0]["clip_norm"] is None
    del saved["optimizers"][1]["param_groups"][0]["clip_norm"]  # as it was saved before
    load(clipped, saved)
    assert clipped.optimizers[1].param_groups[0]["clip_norm"] == 3.0


def test_adamw_shrinks_the_weights_themselves():
    def adamw(w, g, memory, t):
        return adam(w * (1 - 0.1 * 0.5), g, memory, t)

    assert trajectory(Settings(lr=0.1, optimizer="adamw", weight_decay=0.5)) == pytest.approx(
        written_out(adamw), abs=ROUNDING
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_default_weight_decays(name):
    (group,) = make_optimizer(nn.ParameterList([nn.Parameter(torch.zeros(2))]), Settings(optimizer=name)).param_groups
    assert group["weight_decay"] == WEIGHT_DECAYS.get(name, 0.0)
    settings = Settings(optimizer=name, weight_decay=0.3)
    (group,) = make_optimizer(nn.ParameterList([nn.Parameter(torch.zeros(2))]), settings).param_groups
    assert group["weight_decay"] == 0.3


@pytest.mark.parametrize(
    ("name", "kind"),
    [("nadam", "NAdam"), ("radam", "RAdam"), ("adamax", "Adamax"), ("adagrad", "Adagrad")],
)
def test_the_others_are_torchs_with_its_defaults(name, kind):
    w = nn.Parameter(torch.zeros((), dtype=torch.float64))
    expected = getattr(torch.optim, kind)([w], lr=0.1).param_groups[0]
    (group,) = make_optimizer(nn.ParameterList([w]), Settings(optimizer=name, lr=0.1)).param_groups
    assert {key: group[key] for key in expected if key != "params"} == {
        key: value for key, value in expected.items() if key != "params"
    }


@pytest.mark.skipif("muon" not in OPTIMIZERS, reason="this torch has no Muon")
@pytest.mark.parametrize(
    ("map", "moved"), [("free", {"weight_ih_l0", "weight_hh_l0"}), ("exponential", {"weight_ih_l0"})]
)
def test_muon_moves_the_matrices_of_layers_and_adamw_the_rest(map, moved):
    layer = RNN(2, 6, map=map)
    optimizer = make_optimizer(layer, Settings(optimizer="muon"))
    (muon,) = (member for member in optimizer.optimizers if isinstance(member, torch.optim.Muon))
    names = {id(p): name for name, p in layer.named_parameters()}
    assert {names[id(p)] for group in muon.param_groups for p in group["params"]} == moved
    every = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert every == set(names)
