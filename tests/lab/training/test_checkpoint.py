from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import pickle
import shutil
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import evenflow
from evenflow import RNN
from evenflow.lab.training import checkpoint, resume, train
from evenflow.lab.training.checkpoint import Checkpoint


def made(step: int) -> Checkpoint:
    weights = {"w": torch.full((3,), float(step)), "n": torch.tensor(step)}
    state = {"optimizer": {"state": {0: {"m": torch.arange(step)}}}, "best_step": None, "seconds": 0.5}
    return Checkpoint(step, weights, state)


def latest(folder) -> int:
    return checkpoint.load(folder, checkpoint.find(folder)).step


def test_round_trip(tmp_path):
    assert checkpoint.find(tmp_path) is None
    checkpoint.save(tmp_path, made(7))
    found = checkpoint.load(tmp_path, checkpoint.find(tmp_path))
    assert found.step == 7
    assert found.state["best_step"] is None
    assert torch.equal(found.state["optimizer"]["state"][0]["m"], torch.arange(7))
    assert torch.equal(found.weights["w"], torch.full((3,), 7.0))
    assert found.weights["n"].item() == 7


def test_two_versions_are_kept(tmp_path):
    for step in (0, 10, 20, 30):
        checkpoint.save(tmp_path, made(step))
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-000000020", "step-000000030"]
    assert latest(tmp_path) == 30


def test_a_half_written_version_is_never_picked_up(tmp_path):
    checkpoint.save(tmp_path, made(10))
    half = tmp_path / ".writing-step-000000020"
    half.mkdir()
    (half / "weights.safetensors").write_bytes(b"half")
    assert latest(tmp_path) == 10
    # Renamed, but the power went before `latest` was replaced: complete or not, it is not asked for.
    half.rename(tmp_path / "step-000000020")
    assert latest(tmp_path) == 10
    checkpoint.save(tmp_path, made(20))
    assert latest(tmp_path) == 20


@pytest.mark.parametrize("file", ["weights.safetensors", "state.pt"])
@pytest.mark.parametrize("damage", ["changed", "cut", "missing"])
def test_a_damaged_version_gives_way_to_the_one_before(tmp_path, file, damage):
    checkpoint.save(tmp_path, made(10))
    checkpoint.save(tmp_path, made(20))
    spoil(tmp_path / "step-000000020" / file, damage)
    with pytest.warns(UserWarning, match=r"step-000000020 is damaged, resuming from step-000000010"):
        assert latest(tmp_path) == 10
    # The next save of the same step heals it.
    checkpoint.save(tmp_path, made(20))
    assert latest(tmp_path) == 20


def test_no_good_version_is_one_sentence(tmp_path):
    checkpoint.save(tmp_path, made(10))
    spoil(tmp_path / "step-000000010" / "weights.safetensors", "changed")
    with pytest.raises(ValueError, match=r"^checkpoint .*step-000000010 is damaged and there is no older one, so the"):
        checkpoint.find(tmp_path)
    shutil.rmtree(tmp_path / "step-000000010")
    with pytest.raises(ValueError, match=r"^checkpoint .*step-000000010 is damaged"):
        checkpoint.find(tmp_path)


def spoil(path, damage):
    content = path.read_bytes()
    if damage == "changed":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.unlink()


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"\xff\xfe", b"../elsewhere\n"], ids=["empty", "blank", "bytes", "path"]
)
def test_a_damaged_pointer_is_named(tmp_path, content):
    checkpoint.save(tmp_path, made(10))
    (tmp_path / "latest").write_bytes(content)
    named = "^file .*latest, which names the checkpoint, is damaged"
    with pytest.warns(UserWarning, match=f"{named}, resuming from step-000000010$"):
        assert latest(tmp_path) == 10
    shutil.rmtree(tmp_path / "step-000000010")
    with pytest.raises(ValueError, match=f"{named} and there is no good version, so the run cannot be resumed$"):
        checkpoint.find(tmp_path)


def test_a_full_disk_names_the_file_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, made(10))

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left on device: '.*/step-000000020'"):
            checkpoint.save(tmp_path, made(20))
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-000000010"]
    assert latest(tmp_path) == 10


def test_best_weights(tmp_path):
    assert checkpoint.load_best(tmp_path) is None
    checkpoint.save_best(tmp_path, {"w": torch.ones(2)}, 10)
    checkpoint.save_best(tmp_path, {"w": torch.zeros(2), "n": torch.tensor(3), "none": torch.zeros(0, 2)}, 20)
    found = checkpoint.load_best(tmp_path)
    assert found.step == 20
    assert torch.equal(found.weights["w"], torch.zeros(2))
    assert os.listdir(tmp_path) == ["best.safetensors"]


@pytest.mark.parametrize("damage", ["changed", "cut"])
def test_damaged_best_weights_are_refused(tmp_path, damage):
    checkpoint.save_best(tmp_path, {"w": torch.ones(2)}, 10)
    spoil(tmp_path / "best.safetensors", damage)
    with pytest.raises(ValueError, match=r"^best weights .*best.safetensors are damaged: "):
        checkpoint.load_best(tmp_path)


def test_best_weights_from_before_their_step_was_noted(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "best.safetensors")
    found = checkpoint.load_best(tmp_path)
    assert found.step is None
    assert torch.equal(found.weights["w"], torch.ones(2))


@pytest.mark.parametrize("map", ["free", "exponential", "householder"])
def test_weights_return_bit_for_bit(map):
    model, other = RNN(2, 6, map=map), RNN(2, 6, map=map)
    weights = checkpoint.weights_of(model)
    checkpoint.load_weights(other, weights, "here")
    for name, tensor in other.state_dict().items():
        assert torch.equal(tensor, weights[name])
    x = torch.randn(5, 3, 2)
    assert torch.equal(model(x)[0], other(x)[0])


def test_weights_are_a_copy():
    model = nn.Linear(2, 2)
    weights = checkpoint.weights_of(model)
    with torch.no_grad():
        model.weight.zero_()
    assert weights["weight"].abs().sum() > 0


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ({"weight": torch.zeros(2, 2)}, "bias is missing"),
        (
            {"weight": torch.zeros(2, 2), "bias": torch.zeros(2), "more": torch.zeros(1)},
            "more is not one of the model's",
        ),
        ({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}, r"weight has shape \(2, 3\), the model needs \(2, 2\)"),
    ],
    ids=["missing", "extra", "shape"],
)
def test_weights_that_do_not_fit(weights, sentence):
    with pytest.raises(ValueError, match=f"^weights in here do not fit the model: {sentence}$"):
        checkpoint.load_weights(nn.Linear(2, 2), weights, "here")


def test_without_a_pointer_the_newest_intact_version_is_taken(tmp_path):
    for step in (10, 20):
        checkpoint.save(tmp_path, made(step))
    (tmp_path / "latest").unlink()
    with pytest.warns(UserWarning, match=r"^file .*latest, .* is missing, resuming from step-000000020$"):
        assert latest(tmp_path) == 20
    spoil(tmp_path / "step-000000020" / "state.pt", "cut")
    with pytest.warns(UserWarning, match=r"is missing, resuming from step-000000010$"):
        assert latest(tmp_path) == 10
    spoil(tmp_path / "step-000000010" / "state.pt", "cut")
    with pytest.raises(ValueError, match=r"is missing and there is no good version, so the run cannot be resumed$"):
        checkpoint.find(tmp_path)


def test_a_step_that_was_edited_is_noticed(tmp_path):
    checkpoint.save(tmp_path, made(10))
    checkpoint.save(tmp_path, made(20))
    manifest = tmp_path / "step-000000020" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step": 20', '"step": 30'))
    with pytest.warns(UserWarning, match="step-000000020 is damaged, resuming from step-000000010"):
        assert latest(tmp_path) == 10
    # Name and manifest agree, but the state is that of another step.
    (tmp_path / "step-000000020").rename(tmp_path / "step-000000030")
    (tmp_path / "latest").write_text("step-000000030\n")
    with pytest.raises(ValueError, match=r"^checkpoint .*030 cannot be used: its content is that of step 20$"):
        latest(tmp_path)


def test_a_checkpoint_names_the_config_and_the_versions(tmp_path):
    config = {"task": {"name": "adding"}, "training": {"lr": 0.1, "widths": [1, 2]}}
    checkpoint.save(tmp_path, Checkpoint(3, made(3).weights, made(3).state, config))
    found = checkpoint.load(tmp_path, "step-000000003")
    assert found.config == config
    assert found.versions == {"evenflow": evenflow.__version__, "torch": torch.__version__}
    assert checkpoint.ORIGIN not in found.state


def replaced(version, **files):
    """Replace files of a version and the digests in its manifest, as somebody could who wants it to be read."""
    manifest = json.loads((version / "manifest.json").read_text())
    for name, content in {name.replace("_", "."): content for name, content in files.items()}.items():
        (version / name).write_bytes(content)
        manifest["sha256"][name] = hashlib.sha256(content).hexdigest()
    (version / "manifest.json").write_text(json.dumps(manifest))


def packed(content):
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


class Planted:
    def __reduce__(self):
        return os.mkdir, ("planted",)


def bomb():
    """A file of torch.save whose tensor expands to a gigabyte."""
    content, buffer = packed({"x": torch.zeros(4)}), io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info.filename, bytes(1 << 24) if info.filename.endswith("data/0") else old.read(info))
    return buffer.getvalue()


HOSTILE = {
    "pickle": {"state_pt": pickle.dumps(Planted())},
    "planted": {"state_pt": packed({"optimizer": Planted()})},
    "no mapping": {"state_pt": packed([1, 2])},
    "another origin": {"state_pt": packed({"origin": 5})},
    "text": {"state_pt": b"junk"},
    "empty": {"state_pt": b""},
    "bomb": {"state_pt": bomb()},
    "stride 0": {"state_pt": packed({"x": torch.zeros(1).expand(1 << 40)})},
    "weights": {"weights_safetensors": b"\xff" * 100},
    "no weights": {"weights_safetensors": b""},
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_content_with_right_digests_is_one_sentence(tmp_path, content, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint.save(tmp_path, made(10))
    replaced(tmp_path / "step-000000010", **content)
    assert checkpoint.find(tmp_path) == "step-000000010"
    with pytest.raises(ValueError, match=r"^checkpoint .*step-000000010 cannot be (read|used): ") as no:
        latest(tmp_path)
    assert "\n" not in str(no.value)
    assert not (tmp_path / "planted").exists()


STATES = {
    "nothing": lambda state: state.clear(),
    "no best": lambda state: state.update(best=None),
    "best of a kind": lambda state: state["best"].update(step="four"),
    "no processes": lambda state: state.pop("processes"),
    "text for a time": lambda state: state.update(seconds="long"),
    "groups": lambda state: state["optimizer"].update(param_groups=[{"params": [0]}]),
    "no state": lambda state: state["optimizer"].pop("state"),
    "shapes": lambda state: state["optimizer"]["state"][0].update(exp_avg=torch.ones(9, 9)),
    "kinds": lambda state: state["optimizer"]["state"].update({0: {"step": "four", "exp_avg": [1], "exp_avg_sq": {}}}),
    "sums": lambda state: state.update(since=3, sums=[1.0]),
    "callbacks": lambda state: state.update(callbacks=3),
}


@pytest.mark.parametrize("change", STATES.values(), ids=STATES)
def test_a_state_that_does_not_fit_the_run_is_one_sentence(tmp_path, change):
    training = {"steps": 4, "batch_size": 2, "validation_batches": 1, "checkpoint_every": 2, "device": "cpu"}
    config = {"task": {"name": "adding", "length": 5}, "system": {"name": "rnn", "hidden_size": 3}}
    train(config | {"training": training}, tmp_path / "run", progress=False)
    place = tmp_path / "run" / "checkpoint"
    shutil.rmtree(place / "step-000000004")
    (place / "latest").write_text("step-000000002\n")
    state = torch.load(place / "step-000000002" / "state.pt", weights_only=True)
    change(state)
    state["origin"] = {"step": 2}
    replaced(place / "step-000000002", state_pt=packed(state))
    with pytest.raises(ValueError, match=r"(step-000000002|of step 2) cannot be resumed|by None processes") as no:
        resume(tmp_path / "run", progress=False)
    assert "\n" not in str(no.value)


@pytest.mark.parametrize("how", ["large", "a folder", "long"])
def test_latest_that_is_no_name(tmp_path, how):
    """It was read whole, whatever its size."""
    name = checkpoint.save(tmp_path, made(3))
    latest = tmp_path / "latest"
    if how == "a folder":
        latest.unlink()
        latest.mkdir()
    elif how == "large":
        os.truncate(latest, 1 << 40)  # a hole: no disk is used
    else:
        latest.write_text(name * 20)
    with pytest.warns(UserWarning, match=rf"latest, which names the checkpoint, is damaged, resuming from {name}$"):
        assert checkpoint.find(tmp_path) == name
