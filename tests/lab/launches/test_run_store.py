"""Stores: a folder, an object store, and what the user gets to read if neither is there."""

from __future__ import annotations

import pytest
from local_s3 import bucket_on

from evenflow.lab.launches.run_store import RunStore


@pytest.fixture(params=["path", "file", "s3"])
def store(request, tmp_path):
    if request.param == "s3":
        with bucket_on() as address:
            yield RunStore(address + "/runs")
    else:
        yield RunStore(("file://" if request.param == "file" else "") + str(tmp_path / "runs"))


def test_files_come_back_as_they_were_written(store):
    store.check()
    assert store.names("a/seed-0") == []
    assert store.read("a/seed-0", "config.toml") is None
    store.write("a/seed-0", "config.toml", b"one")
    store.write("a/seed-0", "config.toml", b"two")
    store.write("a/seed-0", "checkpoint/step-000000004/weights.safetensors", b"\x00" * 1000)
    store.write("a/seed-1", "config.toml", b"other")
    assert sorted(store.names("a/seed-0")) == ["checkpoint/step-000000004/weights.safetensors", "config.toml"]
    assert store.read("a/seed-0", "config.toml") == b"two"
    store.remove("a/seed-0", ["config.toml", "never there"])
    assert store.names("a/seed-0") == ["checkpoint/step-000000004/weights.safetensors"]
    assert store.names("a/seed-1") == ["config.toml"]


def test_a_store_that_is_not_there_is_one_sentence(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with bucket_on() as address, pytest.raises(ValueError, match=r"^storage 's3://none/runs' cannot be used: [^\n]+$"):
        RunStore(address.rpartition("/")[0] + "/none/runs").check()
    with pytest.raises(ValueError, match=r"^storage '.*notes.txt' cannot be used: [^\n]+$"):
        RunStore(str(tmp_path / "notes.txt")).check()
    with pytest.raises(ValueError, match=r"^storage 'nowhere://runs' cannot be used: Protocol not known: nowhere"):
        RunStore("nowhere://runs")
