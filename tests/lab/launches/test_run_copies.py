"""Copies of run folders: whole at any moment, whenever the copying stops."""

from __future__ import annotations

import shutil
import threading

import pytest
import torch

from evenflow.lab.launches.run_copies import Sender, ahead_of, fetch, send
from evenflow.lab.launches.run_store import RunStore
from evenflow.lab.training import Run, resume, train, train_population
from evenflow.lab.training.loop import Loop


def config(seed=0, steps=40):
    training = {"steps": steps, "seed": seed, "batch_size": 4, "validate_every": 4, "validation_batches": 1}
    own = {"checkpoint_every": 4, "device": "cpu", "log_every": 4}
    system = {"name": "rnn", "hidden_size": 4}
    return {"task": {"name": "adding", "length": 6}, "system": system, "training": training | own}


def same(one, other):
    first, second = Run(one), Run(other)
    assert first.status == second.status
    for which in ("last", "best"):
        mine, theirs = first.weights(which), second.weights(which)
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items()), which


@pytest.fixture
def store(tmp_path):
    return RunStore(str(tmp_path / "store"))


def test_a_finished_run_comes_back_whole(tmp_path, store):
    train(config(), tmp_path / "run", progress=False)
    send(tmp_path / "run", "key", store)
    names = fetch("key", tmp_path / "back", store)
    assert "checkpoint/latest" in names
    same(tmp_path / "run", tmp_path / "back")
    assert not ahead_of(tmp_path / "back", "key", store)


def test_which_copy_is_further(tmp_path, store):
    assert not ahead_of(tmp_path / "run", "key", store)
    train(config(steps=8), tmp_path / "run", progress=False)
    assert ahead_of(tmp_path / "run", "key", store)
    send(tmp_path / "run", "key", store)
    assert not ahead_of(tmp_path / "run", "key", store)
    resume(tmp_path / "run", steps=16, progress=False)
    assert ahead_of(tmp_path / "run", "key", store)
    (tmp_path / "run" / "measured.json").write_text("{}")
    fetch("key", tmp_path / "run", store)  # back to the older one
    assert {path.name for path in (tmp_path / "run" / "checkpoint").glob("step-*")} == {
        "step-000000004",
        "step-000000008",
    }
    assert (tmp_path / "run" / "measured.json").exists()  # a file that the store does not have


class Cut(RunStore):
    """A store that is lost after so many files."""

    def __init__(self, address, left):
        super().__init__(address)
        self.left = left

    def write(self, key, name, content):
        if self.left == 0:
            raise OSError("lost")
        self.left -= 1
        super().write(key, name, content)


@pytest.mark.slow
@pytest.mark.parametrize("apart", [4, 8], ids=["one checkpoint apart", "two checkpoints apart"])
def test_a_copy_that_was_cut_off_resumes_to_the_same_bits(apart, tmp_path, store, monkeypatch, recwarn):
    """Of a population, whose runs must go on from a common step; cut off after every file of the second copy."""
    configs, keys = [config(seed, steps=24) for seed in range(2)], ["seed-0", "seed-1"]
    moments = {10: tmp_path / "early", 10 + apart: tmp_path / "late"}
    update = Loop.count_update

    def copied(loop, state):
        update(loop, state)
        if loop.settings.seed == 1 and loop.step in moments:
            shutil.copytree(tmp_path / "whole", moments[loop.step])

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "count_update", copied)
        train_population(configs, [tmp_path / "whole" / key for key in keys], progress=False)

    ended, left = False, 0
    while not ended:
        cut = Cut(str(tmp_path / f"store-{left}"), 1000)
        sender = Sender({key: tmp_path / "early" / key for key in keys}, cut, tmp_path / "held")
        sender.send()
        cut.left, sender.folders = left, {key: tmp_path / "late" / key for key in keys}
        try:
            sender.send()
            ended = True
        except OSError:
            pass
        back = [tmp_path / f"back-{left}" / key for key in keys]
        for key, folder in zip(keys, back, strict=True):
            fetch(key, folder, cut)
        train_population(configs, back, resume=True, progress=False)
        for key, folder in zip(keys, back, strict=True):
            same(tmp_path / "whole" / key, folder)
        left += 1
    assert left > 10
    assert not [str(each.message) for each in recwarn if "last bits" in str(each.message)]


def test_copies_of_a_run_under_way_can_be_resumed(tmp_path, store):
    """A thread copies all the time while a run saves every other update."""
    folder = tmp_path / "run"
    own = config(steps=60)
    own["training"] |= {"checkpoint_every": 2, "validate_every": 2}
    sender, over, copies = Sender({"key": folder}, store, tmp_path / "held"), threading.Event(), []

    def copy():
        while not over.is_set():
            sender.send()
            if store.read("key", "checkpoint/latest") is not None:
                copies.append(tmp_path / f"copy-{len(copies)}")
                fetch("key", copies[-1], store)

    thread = threading.Thread(target=copy)
    thread.start()
    train(own, folder, progress=False)
    over.set()
    thread.join()
    assert copies
    for back in copies[:: max(1, len(copies) // 4)]:
        resume(back, progress=False)
        same(folder, back)
