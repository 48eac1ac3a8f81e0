"""Models saved and loaded: every system, cells of one's own, damaged and foreign files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import evenflow
from evenflow import SequenceModel, create
from evenflow.models import DataColumn, DataSchema, FlatModel
from evenflow.models.bundle import BUNDLE, FORMAT, WEIGHTS
from evenflow.systems import NETWORKS, SYSTEMS

CASES = {name: {} for name in SYSTEMS} | {
    "rnn, stacked": {"num_layers": 2, "bidirectional": True, "initial_state": "learned"},
    "rnn, leaky": {"activation": "leaky(0.3)", "leak": 0.5},
    "lstm, projected": {"proj_size": 4},
    "gru, cayley": {"map": {"weight_hh_n": "cayley"}},
}


@evenflow.cell(states=("y", "z"), matrices=("W", "V"))
def cornn(a, y, z, W, V, *, dt=0.05):
    z = z + dt * (torch.tanh(a + y @ W.mT + z @ V.mT) - y - z)
    return y + dt * z, z


@evenflow.activations.activation("a σ(p a)", start=lambda size, generator: torch.ones(size))
def swish(a, p):
    return a * torch.sigmoid(p * a)


def answer(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(x)[0]


@pytest.mark.parametrize("case", CASES)
def test_every_system_is_made_again(case, tmp_path):
    model = SequenceModel(create(case.split(",")[0], 3, 8, **CASES[case]), 2)
    evenflow.save(model, tmp_path / "saved")
    loaded = evenflow.load(tmp_path / "saved")
    x = torch.randn(5, 4, 3)
    assert torch.equal(answer(loaded.model, x), answer(model, x))
    assert type(loaded.model.layer).__name__ == type(model.layer).__name__


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_made_again(name, tmp_path):
    model = FlatModel(NETWORKS[name].network(12, 2, width=6, depth=2))
    evenflow.save(model, tmp_path / "saved")
    x = torch.randn(12, 4, 1)
    assert torch.equal(answer(evenflow.load(tmp_path / "saved").model, x), answer(model, x))


@pytest.mark.parametrize(
    "model",
    [
        SequenceModel(evenflow.Recurrent(cornn(dt=0.1), 3, 8, map=evenflow.maps.Cayley), 2, readout="every"),
        SequenceModel(evenflow.Recurrent(cornn, 3, 8), 2, readout_units=5, output_dropout=0.5),
        SequenceModel(evenflow.RNN(3, 8, activation=swish), 2),
        SequenceModel(evenflow.RNN(3, 8, activation=torch.sin), 2),
        SequenceModel(nn.LSTM(3, 8, num_layers=2, proj_size=4), 2),
        SequenceModel(nn.RNN(3, 8, nonlinearity="relu", bidirectional=True), 2),
        SequenceModel(evenflow.RNN(3, 8, dtype=torch.float64), 2),
    ],
    ids=["cell", "cell by default", "activation", "function", "torch LSTM", "torch RNN", "float64"],
)
def test_models_of_ones_own_are_made_again(model, tmp_path):
    evenflow.save(model, tmp_path / "saved")
    loaded = evenflow.load(tmp_path / "saved").model
    x = torch.randn(5, 4, 3, dtype=model.output.weight.dtype)
    assert torch.equal(answer(loaded, x), answer(model, x))


@pytest.mark.parametrize("name", [name for name in evenflow.cells.CELLS if name != "gated_feedback"])
def test_a_layer_of_any_cell_is_made_again(name, tmp_path):
    model = SequenceModel(evenflow.Recurrent(evenflow.cells.CELLS[name](), 3, 8), 2)
    evenflow.save(model, tmp_path / "saved")
    x = torch.randn(5, 4, 3)
    assert torch.equal(answer(evenflow.load(tmp_path / "saved").model, x), answer(model, x))


def test_a_vocabulary_is_kept(tmp_path):
    model = SequenceModel(create("gru", 4, 8), 7, readout="every", vocabulary=7)
    evenflow.save(model, tmp_path / "saved")
    x = torch.randint(7, (5, 4))
    assert torch.equal(answer(evenflow.load(tmp_path / "saved").model, x), answer(model, x))


def test_saving_leaves_the_model_and_the_random_numbers_alone(tmp_path):
    model = SequenceModel(create("exprnn", 3, 8), 2).train()
    state = torch.get_rng_state()
    evenflow.save(model, tmp_path / "saved")
    evenflow.load(tmp_path / "saved")
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


def test_a_copied_and_a_pickled_model_can_be_saved(tmp_path):
    import copy
    import pickle

    model = SequenceModel(create("exprnn", 3, 8), 2)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        evenflow.save(other, tmp_path / "saved")
        x = torch.randn(5, 4, 3)
        assert torch.equal(answer(evenflow.load(tmp_path / "saved").model, x), answer(model, x))


def test_another_process_reads_it(tmp_path):
    evenflow.save(SequenceModel(create("sgornn", 3, 8), 2), tmp_path / "saved")
    loads = f"evenflow.load({str(tmp_path / 'saved')!r})"
    code = f"import evenflow, numpy; print({loads}.predict(numpy.ones((1, 5, 3))).shape)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "(1, 2)", result.stderr


def test_a_cell_that_is_not_here(tmp_path, monkeypatch):
    evenflow.save(SequenceModel(evenflow.Recurrent(cornn, 3, 8), 2), tmp_path / "saved")
    monkeypatch.delitem(globals(), "cornn")
    sentence = (
        r"^the model of '.*saved' cannot be made again: the model needs 'cornn' of the module '.*test_bundle', which"
    )
    with pytest.raises(ValueError, match=sentence):
        evenflow.load(tmp_path / "saved")


def _with_map(layer: nn.Module, part: str, name: str, map: evenflow.maps.Map | None, **options) -> SequenceModel:
    """A model with a map attached to a weight after it was made; None detaches the one there was."""
    model = SequenceModel(layer, 2)
    module = model.get_submodule(part)
    if torch.nn.utils.parametrize.is_parametrized(module, name):
        evenflow.detach(module, name)
    if map is not None:
        evenflow.attach(module, name, map, **options)
    return model


MAPPED = {
    "the readout": lambda: _with_map(create("rnn", 3, 8), "output", "weight", evenflow.maps.SVD(2, 8, margin=0.3)),
    "another map": lambda: _with_map(create("exprnn", 3, 8), "layer", "weight_hh_l0", evenflow.maps.Cayley(8)),
    "no map": lambda: _with_map(create("exprnn", 3, 8), "layer", "weight_hh_l0", None),
    "a gate": lambda: _with_map(nn.GRU(3, 8), "layer", "weight_hh_l0", evenflow.maps.Exponential(8), blocks="n"),
    "two of two gates": lambda: _with_map(
        create("gru", 3, 8), "layer", "weight_hh_l0", evenflow.maps.Cayley(8), blocks=[0, 1]
    ),
}


@pytest.mark.parametrize("case", MAPPED)
def test_maps_attached_and_detached_later_are_made_again(case, tmp_path):
    model = MAPPED[case]()
    evenflow.save(model, tmp_path / "saved")
    loaded = evenflow.load(tmp_path / "saved").model
    x = torch.randn(5, 4, 3)
    assert torch.equal(answer(loaded, x), answer(model, x))
    assert loaded.state_dict().keys() == model.state_dict().keys()
    kinds = [str(each) for each in model.modules() if isinstance(each, evenflow.maps.Map)]
    assert [str(each) for each in loaded.modules() if isinstance(each, evenflow.maps.Map)] == kinds


def _normalised() -> SequenceModel:
    model = SequenceModel(create("rnn", 3, 8), 2)
    nn.utils.parametrizations.weight_norm(model.output)
    return model


def _replaced() -> SequenceModel:
    model = SequenceModel(create("rnn", 3, 8), 2)
    model.output = nn.Linear(8, 2, bias=False)
    return model


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            lambda: SequenceModel(evenflow.RNN(3, 8, activation=lambda a: a.tanh()), 2),
            ".*<lambda> of .*test_bundle, which",
        ),
        (
            _normalised,
            r"a part that cannot be made again \(output.weight is parametrized by _WeightNorm, and only maps of "
            r"`attach` are saved; torch.nn.utils.parametrize.remove_parametrizations leaves a plain weight\)$",
        ),
        (_replaced, "weights that were added or replaced later$"),
    ],
    ids=["a lambda", "a parametrization of torch", "another readout"],
)
def test_models_that_cannot_be_made_again(model, reason, tmp_path):
    with pytest.raises(
        ValueError, match=f"^model cannot be saved so that it can be made again: it was made with {reason}"
    ):
        evenflow.save(model(), tmp_path / "saved")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("model", "schema", "sentence"),
    [
        (nn.Linear(2, 2), None, "model must be a SequenceModel or a FlatModel, got Linear"),
        (
            SequenceModel(nn.GRU(3, 4), 2),
            DataSchema("regression", "last", (DataColumn("a"),), (DataColumn("y"), DataColumn("z"))),
            "inputs of the schema must be those of the model, 3, got 1",
        ),
    ],
    ids=["not a model", "another width"],
)
def test_a_schema_must_fit(model, schema, sentence, tmp_path):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        evenflow.save(model, tmp_path / "saved", schema=schema)


def test_only_a_bundle_is_replaced(tmp_path):
    model = SequenceModel(create("rnn", 3, 8), 2)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    with pytest.raises(ValueError, match=r"^path '.*photos' exists and holds no bundle: choose another name$"):
        evenflow.save(model, tmp_path / "photos")
    for _ in range(2):
        evenflow.save(evenflow.load(tmp_path / "saved") if _ else model, tmp_path / "saved")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "saved"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle") / "saved"
    columns = tuple(DataColumn(name, mean=2.0, deviation=3.0) for name in ("ax", "ay"))
    target = DataColumn("activity", "category", categories=("rest", "walk"))
    schema = DataSchema("classification", "last", columns, (target,), length=9)
    evenflow.save(SequenceModel(create("sgornn", 2, 6), 2), folder, schema=schema)
    return folder


def test_the_schema_comes_back(saved):
    schema = evenflow.load(saved).schema
    assert schema.labels == ("rest", "walk")
    assert (schema.length, schema.inputs[1]) == (9, DataColumn("ay", mean=2.0, deviation=3.0))
    assert DataSchema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda folder: shutil.rmtree(folder), r"there is no folder '.*'"),
        (lambda folder: (folder / BUNDLE).unlink(), r"folder '.*' holds no model: it has no bundle.json"),
        (
            lambda folder: (folder / WEIGHTS).unlink(),
            r"'.*' has no weights in weights.safetensors: the file is missing",
        ),
        (lambda folder: (folder / BUNDLE).write_text("[]"), r"bundle.json of '.*' is damaged or not of evenflow: .*"),
        (lambda folder: (folder / BUNDLE).write_text("{"), r"bundle.json of '.*' cannot be read: .*"),
        (lambda folder: (folder / BUNDLE).write_bytes(b"\xff\xfe"), r"bundle.json of '.*' cannot be read: .*"),
    ],
    ids=["no folder", "no bundle.json", "no weights", "a list", "not JSON", "not UTF-8"],
)
def test_foreign_and_damaged_folders(change, sentence, saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "copy")
    change(folder)
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        evenflow.load(folder)


def test_a_newer_version(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "copy")
    table = json.loads((folder / BUNDLE).read_text())
    (folder / BUNDLE).write_text(json.dumps(table | {"format": FORMAT + 1, "evenflow": "7.0"}))
    sentence = "has format 2, written by evenflow 7.0; this version reads formats up to 1: install a newer evenflow"
    with pytest.raises(ValueError, match=re.escape(sentence)):
        evenflow.load(folder)


def message_of(folder) -> str | None:
    """The message of the ValueError that loading raises; None if it loads."""
    try:
        evenflow.load(folder)
    except ValueError as error:
        return str(error)
    return None


def _places(value, path=()):
    """The path of every value inside a JSON value."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from _places(child, (*path, key))


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**12), st.floats(), st.text(max_size=5), st.just([]), st.just({}),
    st.sampled_from(["os:system", "builtins:eval", "evenflow:load", "torch.nn:LSTM", "evenflow:GRU", "a:b"]),
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_description_never_ends_in_a_trace(data, saved, tmp_path):
    table = json.loads((saved / BUNDLE).read_text())
    place = data.draw(st.sampled_from([path for path in _places(table) if path]))
    parent = table
    for key in place[:-1]:
        parent = parent[key]
    if data.draw(st.booleans()):
        parent[place[-1]] = data.draw(VALUES)
    else:
        del parent[place[-1]]
    folder = tmp_path / "changed"
    shutil.copytree(saved, folder, dirs_exist_ok=True)
    (folder / BUNDLE).write_text(json.dumps(table))
    message = message_of(folder)
    assert message is None or len(message.splitlines()) == 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_cut_and_changed_weights_are_noticed(data, saved, tmp_path):
    content = (saved / WEIGHTS).read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    changed = content[:place]
    if data.draw(st.booleans()):
        changed += bytes([content[place] ^ data.draw(st.integers(1, 255))]) + content[place + 1 :]
    folder = tmp_path / "changed"
    shutil.copytree(saved, folder, dirs_exist_ok=True)
    (folder / WEIGHTS).write_bytes(changed)
    message = message_of(folder)
    if message is None:  # a blank of the header may have become another blank
        before, after = (evenflow.load(each).model.state_dict() for each in (saved, folder))
        assert all(torch.equal(before[name], after[name]) for name in before), f"byte {place} was not noticed"
    else:
        assert len(message.splitlines()) == 1
