"""The settings of the recipes, as resolved for a run, are those of the documents and of their released code."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from evenflow.lab.data import read_words
from evenflow.lab.recipes import load, names
from evenflow.lab.recipes.configs import config_of, plan
from evenflow.lab.recipes.map_cost import without_maps
from evenflow.lab.training import Settings, build
from evenflow.lab.training.optimizers import make_optimizer
from evenflow.models.sequence_model import SequenceModel
from evenflow.systems import create

ROUNDING = 1e-6


def configs(address: str, scale: str = "full"):
    recipe = load(address)
    return {row.label: config_of(recipe, row, scale) for row in recipe.rows_at(scale)}


def model_of(address: str, label: str, data: str | None = None):
    (job,) = next(iter(plan(load(address), "full", Path("runs"), rows=[label], seeds=1, data=data).attempts))[:1]
    return build(job.make_task(), job.config["system"], job.seed)


# sgornn


@pytest.mark.parametrize("address", ["sgornn/table-1", "sgornn/table-2", "sgornn/table-3"])
def test_sgornn_uses_the_rmsprop_of_keras(address):
    """Keras 2.3.1: rho 0.9, epsilon 1e-7, added to the root."""
    for config in configs(address).values():
        training = config["training"]
        assert (training["optimizer"], training["alpha"], training["eps"]) == ("rmsprop", 0.9, 1e-7)
    settings = Settings(optimizer="rmsprop", alpha=0.9, eps=1e-7, lr=0.01)
    layer = torch.nn.Linear(1, 1, bias=False)
    optimizer, w = make_optimizer(layer, settings), layer.weight.item()
    layer.weight.grad = torch.full((1, 1), 3e-7)
    optimizer.step()
    mean = 0.1 * 3e-7**2
    assert layer.weight.item() == pytest.approx(w - 0.01 * 3e-7 / (math.sqrt(mean) + 1e-7), abs=ROUNDING)


@pytest.mark.parametrize("label", ["FastRNN, T=500", "SGORNN, T=500"])
def test_the_gates_start_as_in_the_sgornn_script(label):
    """FastRNNCell: alpha_init -3.75 and beta_init 3 for both networks."""
    layer = model_of("sgornn/table-1", label).layer
    weights = {name.removesuffix("_l0"): p for name, p in layer.named_parameters()} | {"weight_hh": layer.weight_hh_l0}
    alpha, beta = layer.cell.scalars(weights)
    assert alpha.item() == pytest.approx(1 / (1 + math.exp(3.75)), abs=1e-4)
    assert beta.item() == pytest.approx(1 / (1 + math.exp(-3)), abs=1e-4)


def test_fastrnn_starts_as_keras_simple_rnn_cell():
    layer = model_of("sgornn/table-1", "FastRNN, T=500").layer
    U, W = layer.weight_hh_l0.detach(), layer.weight_ih_l0.detach()
    torch.testing.assert_close(U @ U.T, torch.eye(128), atol=1e-5, rtol=0)
    bound = math.sqrt(6 / (2 + 128))
    assert 0.9 * bound < W.abs().max() <= bound, "Glorot uniform"
    assert not layer.bias_l0.any()


def test_the_adding_table_says_which_rate_converged():
    recipe = load("sgornn/table-1")
    published = {row.label: row.published.get("learning rate") for row in recipe.rows}
    assert {label for label, rate in published.items() if rate == 0.01} == {
        "VPRNN, T=500",
        "SGORNN, T=500",
        "FastRNN, T=500",
        "SGORNN, T=1000",
        "SGORNN, T=5000",
    }
    assert published["VPRNN, T=1000"] == 0.001
    assert recipe.lrs == (0.01, 0.001, 0.0001)
    column = next(column for column in recipe.columns if column.name == "learning rate")
    assert (column.measure, column.better, column.tolerance) == ("lr", "same", 0)


def test_the_networks_of_har_2_have_the_printed_sizes(small_data):
    recipe = load("sgornn/table-2")
    for job in plan(recipe, "full", Path("runs"), seeds=1, task="har", data=str(small_data)).jobs():
        model = build(job.make_task(), job.config["system"], 1)
        assert sum(p.numel() for p in model.parameters()) == job.row.published["parameters"]


def test_har_2_is_trained_on_all_windows_and_selects_nothing_by_the_test_windows():
    recipe = load("sgornn/table-2")
    for config in configs("sgornn/table-2").values():
        task, training = config["task"], config["training"]
        assert (task["classes"], task["one_output"], task["validation"]) == (2, True, "test")
        assert (training["lr"], training["batch_size"], training["epochs"]) == (0.001, 100, 300)
        assert (training["schedule"], training["decay"], training["decay_every_epochs"]) == ("step", 0.1, 200)
    assert recipe.columns[0].measure == "final_metric"
    assert recipe.seeds == tuple(range(1, 11))


def test_the_words_of_the_sgornn_table():
    """100 streams of 300 words, no state carried, dropout on the embedding alone, as in the script."""
    for config in configs("sgornn/table-3").values():
        assert (config["task"]["length"], config["task"]["carry"], config["training"]["batch_size"]) == (
            300,
            False,
            100,
        )
        system = config["system"]
        assert (system["input_dropout"], system["embedding_range"]) == (0.3, 0.05)
        assert not {"score_dropout", "output_dropout"} & set(system)


# factorized


FACTORIZED = [name for name in names() if name.startswith("factorized/") and not name.endswith("table-5")]


@pytest.mark.parametrize("address", FACTORIZED)
def test_all_factorized_recipes_start_alike(address):
    """The released code: input weights uniform in ±0.01, a learned initial state, RMSprop 0.9 with 1e-6 in the root."""
    for label, config in configs(address).items():
        system, training = config["system"], config["training"]
        if not label.startswith("LSTM"):
            assert (system["input_range"], system["initial_state"]) == (0.01, "learned"), label
        if training["optimizer"] == "rmsprop":
            assert (training["alpha"], training["eps"]) == (0.9, 1e-3), label
        assert training["batch_size"] == 50
        if system["name"] == "factorized":
            assert training["bases_lr"] == 1e-6
    layer = model_of("factorized/figure-1", "T=200, m=0.1").layer
    assert 0.0099 < layer.weight_ih_l0.abs().max() <= 0.01
    assert not layer.h0_l0.any()
    assert layer.h0_l0.requires_grad


@pytest.mark.parametrize("address", FACTORIZED)
def test_weight_decay_is_on_all_matrices(address):
    """The released code adds 1e-4 Σ |W|² over input, recurrent and output matrices: λ/2 Σ |W|² with λ = 2e-4."""
    for label, config in configs(address).items():
        if address.endswith("figure-4") or "soft" in label:
            assert config["training"]["penalty"].endswith("+ matrix_decay(2e-4)"), label
        else:
            assert config["training"]["penalty"] == "matrix_decay(2e-4)", label


@pytest.mark.parametrize(("longest", "epoch"), [(75, 197), (300, 836)])
def test_the_characters_are_the_documents(data, longest, epoch):
    """49 symbols; 23 % and over 99 % of the lines; an embedding as wide as the 512 units, of deviation 0.01."""
    address = {75: "factorized/table-3", 300: "factorized/table-4"}[longest]
    job = next(plan(load(address), "full", Path("runs"), rows=["m=0.1"], seeds=1, data=str(data)).jobs())
    task, model = job.make_task(), build(job.make_task(), job.config["system"], 1)
    assert (task.vocabulary, task.longest, task.epoch_steps(50)) == (49, longest, epoch)
    assert job.config["training"]["validate_every"] == epoch
    assert model.embedding.weight.shape == (49, 512)
    assert model.embedding.weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert (job.config["training"]["clip_norm"], job.config["training"]["epochs"]) == (30.0, 200)


def test_the_claims_without_a_table_have_rows():
    for address in ("factorized/table-1", "factorized/table-2"):
        config = configs(address)["m=0, gain 1.05"]["system"]
        assert (config["margin"], config["gain"]) == (0.0, 1.05)
    pixels = configs("factorized/table-2")
    copying = configs("factorized/appendix-5.2")
    for margin in ("0", "0.001", "0.01", "0.1", "1"):
        for config in (pixels[f"OPLU, m={margin}"], copying[f"OPLU, m={margin}"]):
            assert (config["system"]["activation"], config["system"]["margin"]) == ("oplu", float(margin))
    plain, soft = copying["tanh, T=100"], copying["tanh, T=100, soft constraint"]
    assert plain["task"]["length"] == soft["task"]["length"] == 100
    assert plain["system"] == soft["system"]
    assert soft["training"]["penalty"].startswith("soft_orthogonality(")
    assert plain["training"] | {"penalty": ""} == soft["training"] | {"penalty": ""}


# urnn


@pytest.mark.parametrize("address", ["urnn/table-5", "urnn/table-7", "urnn/figure-3", "urnn/figure-4", "urnn/speed"])
def test_urnn_clips_the_gradient_by_the_matrix_itself(address):
    for config in configs(address).values():
        training = config["training"]
        assert (training["clip_value"], training["clip_scope"]) == (0.25, "mapped")
        assert (training["optimizer"], training["lr"]) == ("adam", 1e-4)


def test_the_dropout_of_table_7():
    drops = ("input_dropout", "output_dropout", "score_dropout")
    found = {label: [c["system"].get(name, 0) for name in drops] for label, c in configs("urnn/table-7").items()}
    document = [0, 0, 0.2]  # after the projection
    own = {"GRU, BPTT 35, dropped inside": [0.2, 0.2, 0], "GRU, BPTT 35, dropped before": [0.2, 0, 0]}
    own |= {"GRU, BPTT 35, dropped behind": [0, 0.2, 0], "GRU, BPTT 35, no dropout": [0, 0, 0]}
    assert found == dict.fromkeys(found, document) | own


def test_the_unigram_models_perplexity_beside_table_5(data):
    counts = np.bincount(read_words(data, "train"))
    perplexity = {}
    for part in ("valid", "test"):
        shares = counts[read_words(data, part)] / counts.sum()
        perplexity[part] = float(np.exp(-np.log(shares).mean()))
    note = next(note for note in load("urnn/table-5").notes if "unigram" in note)
    assert [int(n) for n in re.findall(r"\d+", note)] == [round(perplexity["valid"]), round(perplexity["test"])]
    rows = [row.published for row in load("urnn/table-5").rows]
    worse = sum(row["test perplexity"] > perplexity["test"] for row in rows)
    worse += sum(row["validation perplexity"] > perplexity["valid"] for row in rows)
    assert worse == 11, "eleven of the twelve published numbers, as the note says"


def test_the_map_is_what_ugru_and_its_twin_differ_in():
    model = model_of_words("uGRU over GRU, batch 20")
    twin = without_maps(model)
    assert "parametrizations" not in " ".join(name for name, _ in twin.named_parameters())
    x = torch.randint(0, 50, (4, 3))
    torch.testing.assert_close(model.eval()(x)[0], twin.eval()(x)[0])


def model_of_words(label: str):
    config = configs("urnn/speed")[label]
    system = {k: v for k, v in config["system"].items() if k not in ("embedding_range", "score_dropout", "name")}
    return SequenceModel(create(config["system"]["name"], 4, **system | {"hidden_size": 6}), 50, vocabulary=50)
