from __future__ import annotations

import copy

import pytest
import torch

from evenflow import RNN, SequenceModel, create
from evenflow.maps import MAPS, attach
from evenflow.models.model_noise import ModelNoise
from evenflow.models.population import Population
from evenflow.systems import SYSTEMS

# The same sums in another order, float64, a few dozen steps.
ROUNDING = 1e-10
M, T, B, I, H, O = 3, 17, 4, 2, 6, 3


def models_of(make, **options):
    draws = [torch.Generator().manual_seed(seed) for seed in range(M)]
    return [SequenceModel(make(draw), O, generator=draw, **options).double() for draw in draws]


def random(*shape):
    return torch.randn(shape, dtype=torch.float64)


def gradients(models):
    found = [None if p.grad is None else p.grad.clone() for model in models for p in model.parameters()]
    for model in models:
        model.zero_grad()
    return found


def compare(models, inputs, state=None, lengths=None):
    """Outputs, states and all gradients, together and one by one."""
    together, end = Population(models)(inputs, state, lengths)
    weights = torch.randn_like(together)
    if lengths is not None and models[0].readout == "every":  # what comes after the end is not asked for
        weights = weights * (torch.arange(T)[None, :, None] < lengths[:, None])[..., None]
    (together * weights).sum().backward()
    joint = gradients(models)
    apart, ends = [], []
    for place, model in enumerate(models):
        given = (
            None
            if state is None
            else (state[place] if isinstance(state, torch.Tensor) else tuple(s[place] for s in state))
        )
        outputs, last = model(inputs[place], given, None if lengths is None else lengths[place])
        apart.append(outputs)
        ends.append(last)
    (torch.stack(apart) * weights).sum().backward()
    if lengths is not None and models[0].readout == "every":
        inside = torch.arange(T)[None, :, None] < lengths[:, None]
        together, apart = together[inside], torch.stack(apart)[inside]
    else:
        apart = torch.stack(apart)
    torch.testing.assert_close(together, apart, atol=ROUNDING, rtol=ROUNDING)
    if lengths is None:
        torch.testing.assert_close(end, _stacked(ends), atol=ROUNDING, rtol=ROUNDING)
    for a, b in zip(joint, gradients(models), strict=True):
        if a is None or b is None:
            assert a is b
            continue
        torch.testing.assert_close(a, b, atol=10 * ROUNDING, rtol=10 * ROUNDING)


def _stacked(states):
    if isinstance(states[0], torch.Tensor):
        return torch.stack(states)
    return tuple(torch.stack(member) for member in zip(*states, strict=True))


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_every_system_answers_as_its_members_do(name, engine):
    compare(models_of(lambda g: create(name, I, H, engine=engine, generator=g)), random(M, T, B, I))


@pytest.mark.parametrize("name", SYSTEMS)
def test_all_models_are_one_call_there_and_one_back(name, operators):
    def calls(count):
        models = models_of(lambda g: create(name, I, H, generator=g))[:count]
        return operators(lambda: Population(models)(random(count, T, B, I))[0].sum().backward())

    assert calls(M) == calls(1)
    assert calls(M)


@pytest.mark.parametrize("name", [name for name, map in MAPS.items() if "unitary" not in name])
def test_every_map_makes_all_matrices_at_once(name):
    compare(models_of(lambda g: RNN(I, H, map=name, generator=g)), random(M, T, B, I))


@pytest.mark.parametrize("readout", ["last", "every"])
def test_hidden_units_of_the_readout(readout):
    compare(models_of(lambda g: RNN(I, H, generator=g), readout=readout, readout_units=5), random(M, T, B, I))


@pytest.mark.parametrize("name", ["svd", "factorized"])
def test_maps_with_margins_of_their_own_are_one_product(name, monkeypatch):
    settings = iter([{"margin": 0.0}, {"margin": 0.5, "bound": "clip", "center": 1.2}, {"margin": None}])
    models = models_of(lambda g: RNN(I, H, map=name, **next(settings), generator=g))
    with torch.no_grad():
        for model in models:
            model.layer.parametrizations["weight_hh_l0"].original2.add_(0.3 * torch.randn(H))
    compare(models, random(M, T, B, I))
    population, made, matrix = Population(models), [], MAPS[name].matrix
    monkeypatch.setattr(MAPS[name], "matrix", lambda map, *raw: made.append(raw[0].shape[0]) or matrix(map, *raw))
    population(random(M, T, B, I))
    assert made == [M]


@pytest.mark.parametrize("margins", [(0.3, 0.3, 0.3), (0.0, 0.3, 0.5)])
def test_a_model_may_take_the_place_of_another(margins):
    given = iter([*margins, 0.3])
    *models, other = [SequenceModel(RNN(I, H, map="svd", margin=margin), O).double() for margin in given]
    for model in (*models, other):
        model.layer.parametrizations["weight_hh_l0"].original2.data.normal_()
    population = Population(models)
    population.models[0] = other
    inputs = random(M, T, B, I)
    expected = torch.stack([model(x)[0] for model, x in zip([other, *models[1:]], inputs, strict=True)])
    torch.testing.assert_close(population(inputs)[0], expected, atol=ROUNDING, rtol=ROUNDING)


def test_models_with_margins_of_their_own_can_be_moved():
    models = [SequenceModel(RNN(I, H, map="svd", margin=margin), O) for margin in (0.0, 0.3)]
    assert Population(models).to("meta")(torch.empty(2, T, B, I, device="meta"))[0].is_meta


class Doubled(MAPS["svd"]):
    def singular_values(self, *raw):
        return 2 * super().singular_values(*raw)


def test_a_map_of_ones_own_is_made_by_itself():
    models = models_of(lambda g: RNN(I, H, generator=g))
    for model, margin in zip(models, (0.0, 0.3, 0.5), strict=True):
        attach(model.layer, "weight_hh_l0", Doubled(H, margin=margin))
    models = [model.double() for model in models]
    assert list(Population(models)._bare.values()) == [None]
    compare(models, random(M, T, B, I))


class Offset(RNN):
    """A layer for which `init` is more than where its numbers began."""

    def __init__(self, init):
        super().__init__(I, H)
        self.init = init


def test_what_a_layer_calls_init_may_be_a_setting():
    with pytest.raises(
        ValueError, match="models must be equal except for their parameters, got another kind at place 1"
    ):
        Population([SequenceModel(Offset(init), O) for init in (0.0, 1.0)])


def test_where_a_map_began_is_no_setting():
    starts = iter(["orthogonal", "identity", "glorot_normal"])
    models = models_of(lambda g: RNN(I, H, map="factorized", margin=None, init=next(starts), generator=g))
    assert list(Population(models)._shared.values()) == [True]
    compare(models, random(M, T, B, I))


def test_maps_with_other_settings_are_made_one_by_one():
    precisions = iter([None, "float64", None])
    models = models_of(lambda g: RNN(I, H, map="svd", precision=next(precisions), generator=g))
    assert list(Population(models)._bare.values()) == [None]
    compare(models, random(M, T, B, I))


@pytest.mark.parametrize("readout", ["last", "every"])
def test_sequences_of_different_lengths(readout):
    lengths = torch.randint(1, T + 1, (M, B))
    inputs = random(M, T, B, I)
    compare(models_of(lambda g: create("sgornn", I, H, generator=g), readout=readout), inputs, lengths=lengths)


def test_stacked_layers_symbols_and_a_given_state():
    models = models_of(lambda g: create("lstm", I, H, num_layers=2, generator=g), readout="every", vocabulary=5)
    state = tuple(random(M, 2, B, H) for _ in range(2))
    compare(models, torch.randint(5, (M, T, B)), state)


@pytest.mark.parametrize("name", ["sgornn", "lstm", "gated-feedback"])
def test_layers_that_keep_few_states_alone(name):
    models = models_of(lambda draw: create(name, I, H, generator=draw, checkpoint_every=5))
    with pytest.warns(RuntimeWarning, match="checkpoint_every saves no memory"):
        compare(models, random(M, T, B, I))


def test_dropout_masks_differ_between_the_models():
    model = SequenceModel(RNN(I, H, num_layers=2, dropout=0.5), O)
    population = Population([model, model])
    inputs = torch.randn(1, T, B, I).expand(2, -1, -1, -1)
    first, second = population(inputs)[0]
    assert not torch.equal(first, second)
    first, second = population.eval()(inputs)[0]
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        (lambda: [], "models must be at least one model, got none"),
        (lambda: [RNN(2, 3)], "models must be SequenceModels, got RNN at place 0"),
        (lambda: [RNN(2, 3, bidirectional=True)], "models must have layers that run one way"),
        (
            lambda: [RNN(2, 3), RNN(2, 4)],
            "models must be equal except for their parameters, got another kind at place 1",
        ),
        (
            lambda: [RNN(2, 3), RNN(2, 3, activation="relu")],
            "models must be equal except for their parameters, got another kind at place 1",
        ),
    ],
)
def test_what_is_no_population(models, sentence):
    made = models()
    if "SequenceModels" not in sentence:
        made = [SequenceModel(layer, 1) for layer in made]
    with pytest.raises(ValueError, match=f"^{sentence}"):
        Population(made)


@pytest.mark.parametrize("shape", [(2, T, B, I), (T, B, I)])
def test_inputs_of_another_number_of_models(shape):
    with pytest.raises(ValueError) as error:
        Population(models_of(lambda draw: RNN(I, H, generator=draw)))(random(*shape))
    assert str(error.value) == f"inputs must have {M} as first dimension, one for each model, got {shape}"


def test_what_a_map_has_recorded_is_no_setting() -> None:
    one = SequenceModel(create("urnn", 2, 4), 1)
    other = copy.deepcopy(one)
    other.load_state_dict(one.state_dict())
    assert all(Population([one, other])._shared.values())


def test_masks_drawn_from_generators_are_those_of_the_models_alone():
    models = models_of(lambda draw: create("lstm", I, H, num_layers=2, dropout=0.4, generator=draw), output_dropout=0.3)
    inputs = random(M, T, B, I)
    generators = [torch.Generator().manual_seed(seed) for seed in (4, 5, 6)]
    together, _ = Population(models)(inputs, generators=generators)
    for m, seed in enumerate((4, 5, 6)):
        torch.manual_seed(seed)
        torch.testing.assert_close(together[m], models[m](inputs[m])[0], atol=ROUNDING, rtol=ROUNDING)


def test_draws_of_stacked_models_come_from_their_own_generators():
    def draws(x):
        return (
            torch.nn.functional.dropout(x, 0.4),
            torch.rand(3, 4),
            torch.randn(5),
            torch.rand_like(x),
            torch.randn_like(x),
            torch.bernoulli(x.sigmoid()),
            torch.empty_like(x).bernoulli_(0.3),
            torch.empty_like(x).uniform_(2, 3),
            torch.empty_like(x).normal_(5, 2),
        )

    x = torch.randn(3, 6, 7)
    generators = [torch.Generator().manual_seed(seed) for seed in (4, 5, 4)]
    with ModelNoise(generators) as noise:
        together = torch.func.vmap(draws, randomness="different")(x)
    assert noise.drawn == len(together)
    for m, seed in enumerate((4, 5, 4)):
        torch.manual_seed(seed)
        for stacked, alone in zip(together, draws(x[m]), strict=True):
            torch.testing.assert_close(stacked[m], alone, rtol=0, atol=0)
