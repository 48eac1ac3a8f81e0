"""The trained models that ship with evenflow: found by name, small, described, and as good as their cards say."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import evenflow
import make_pretrained
from evenflow import tasks
from evenflow.lab.training import train
from evenflow.models.bundle import BUNDLE, WEIGHTS
from evenflow.models.pretrained_bundles import BUNDLES, CARD, card_text

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(evenflow.pretrained())
LARGEST, LARGEST_OF_ALL = 2 * 10**6, 3 * 10**6  # bytes
ROUNDING = 2e-3  # of a metric: another processor may answer a few of thousands of sequences differently


def test_there_are_some() -> None:
    assert len(NAMES) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_a_bundle_is_found_by_its_name_and_answers(name: str) -> None:
    predictor, generator = evenflow.load(name), np.random.default_rng(0)
    words = predictor.schema.vocabulary
    x = (
        generator.random((3, 20, len(predictor.schema.inputs)))
        if words is None
        else generator.integers(words, size=(3, 20))
    )
    assert len(predictor.predict(x)) == 3
    assert sum(p.numel() for p in predictor.model.parameters()) == evenflow.pretrained()[name]["parameters"]


@pytest.mark.parametrize("name", NAMES)
def test_a_bundle_holds_the_model_and_its_card(name: str) -> None:
    files = {path.name: path.stat().st_size for path in (BUNDLES / name).iterdir()}
    assert set(files) == {BUNDLE, WEIGHTS, CARD}
    card = evenflow.pretrained()[name]
    assert card["bytes"] == files[BUNDLE] + files[WEIGHTS] < LARGEST
    settings = tomllib.loads((make_pretrained.SETTINGS / f"{name}.toml").read_text(encoding="utf-8"))
    for table, content in settings.items():
        assert (card if table == "card" else card[table]).items() >= content.items()
    written = card_text(card)
    for part in ("validation", "test"):
        assert f"{card['metric']} {card[part]['value']:.4g} on {card[part]['sequences']:,} sequences" in written


def test_all_together_are_small() -> None:
    assert sum(path.stat().st_size for path in BUNDLES.rglob("*") if path.is_file()) < LARGEST_OF_ALL


def test_the_page_has_every_model_with_its_number() -> None:
    page = (ROOT / "docs/pretrained.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^\| `([\w-]+)` \|.*\| \w+ ([\d.]+) \|", page, flags=re.MULTILINE))
    assert shown == {name: f"{card['test']['value']:.4g}" for name, card in evenflow.pretrained().items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_the_number_of_the_card_is_that_of_the_bundle(name: str, data: Path) -> None:
    card = evenflow.pretrained()[name]
    options = {key: value for key, value in card["task"].items() if key != "name"}
    on_data = hasattr(tasks.TASKS[card["task"]["name"]], "folder")
    task = tasks.make(card["task"]["name"], **options, **({"data": str(data)} if on_data else {}))
    test = task.test() or task
    found = make_pretrained.measure(evenflow.load(name).model, test, 2)
    assert found["sequences"] == card["test"]["sequences"]
    assert found["value"] == pytest.approx(card["test"]["value"], abs=ROUNDING)


def test_har_reads_raw_signals(data: Path, tmp_path: Path) -> None:
    """A bundle scales as its task did: raw windows get the labels that scaled ones get from the model alone."""
    tables = {"task": {"name": "har-rebuilt", "classes": 2, "data": str(data)}}
    train(
        {**tables, "system": {"name": "sgornn", "hidden_size": 8}, "training": {"steps": 1}},
        tmp_path / "run",
        progress=False,
    )
    task = tasks.make("har-rebuilt", classes=2, data=str(data)).test()
    batch = task.take(torch.arange(50))
    predictor = evenflow.load(tmp_path / "run")
    mean, deviation = predictor.schema.input_scale
    raw = batch.inputs.transpose(0, 1).double().numpy() * deviation + mean
    with torch.no_grad():
        wanted = predictor.model(batch.inputs)[0].argmax(-1)
    labels = np.array(predictor.schema.labels)
    assert (predictor.predict(raw) == labels[wanted.numpy()]).all()
    assert predictor.schema.inputs[0].name == "body_acc_x"


def test_a_misspelt_name_gets_one_sentence_with_the_names() -> None:
    with pytest.raises(ValueError) as error:
        evenflow.load("copy-exprn")
    assert str(error.value) == (
        "there is no folder 'copy-exprn', and unknown model 'copy-exprn', did you mean copy-exprnn? "
        f"(models that ship with evenflow: {', '.join(NAMES)})"
    )
    with pytest.raises(ValueError, match=r"^there is no folder 'runs/copy-exprnn'$"):
        evenflow.load("runs/copy-exprnn")


def test_a_folder_comes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = evenflow.SequenceModel(evenflow.RNN(3, 4), 2)
    evenflow.save(model, "copy-exprnn")
    assert len(evenflow.load("copy-exprnn").schema.inputs) == 3


def test_a_card_is_json_without_surprises() -> None:
    for name in NAMES:
        text = (BUNDLES / name / CARD).read_text(encoding="utf-8")
        assert json.loads(text)["limits"], name
        assert "/work" not in text
