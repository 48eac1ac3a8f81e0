"""Runs of several processes: on two nodes, with accumulated gradients, and after one of them was killed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from killed_runs import assert_same
from made_data import small_options
from sharded_fit import BATCH, fit
from two_processes import CONFIG

from evenflow.lab.training import Run, train_population
from evenflow.lab.training import train as train_run
from evenflow.lab.training.process_group import join_restarted_group

HERE = Path(__file__).parent
SOURCE = HERE.parents[2] / "src"
# Means of four and eight gradients taken in another order, over six updates in float32.
ROUNDING = 1e-5
PATIENCE = 300  # seconds after which processes that wait for each other in vain are given up
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{SOURCE}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def torchrun(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False, timeout=PATIENCE)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    done = torchrun(HERE / "killed_worker.py", folder, "none", 0)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.slow
def test_after_a_killed_worker_the_others_end_with_a_sentence_and_a_restart_resumes_to_the_same_bits(
    undisturbed, tmp_path
):
    folder = tmp_path / "run"
    killed = torchrun(HERE / "killed_worker.py", folder, 1, 5)
    assert killed.returncode == 1
    advice = f"`evenflow resume {folder}` continues from the last checkpoint"
    assert advice in killed.stderr
    assert "Connection closed by peer" not in killed.stderr, "no trace of the error in the collective"
    assert Run(folder).status["state"] in ("failed", "running")  # as it learned of it, or was ended by torchrun
    # The same command goes on under --max-restarts, also over another kill.
    done = torchrun("--max-restarts", 1, HERE / "killed_worker.py", folder, 0, 7)
    assert done.returncode == 0, done.stderr[-4000:]
    assert advice in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed-0-7", "killed-1-5", "run"]
    assert_same(undisturbed, folder)


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[str, list[list[str]]]]:
    """The address of the first of two nodes, and what stands before a command that runs on each of them.

    The nodes are network namespaces with a cable between them; where a process may not make these, both are this host.
    """
    names, cable = ["evenflow-a", "evenflow-b"], ["evenflow-0", "evenflow-1"]
    address = ["10.231.77.1", "10.231.77.2"]

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    made = shutil.which("ip") is not None
    try:
        if made:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", cable[0], "netns", names[0], "type", "veth", "peer", cable[1], "netns", names[1])
            for name, end, own in zip(names, cable, address, strict=True):
                ip("-n", name, "addr", "add", f"{own}/24", "dev", end)
                for device in (end, "lo"):
                    ip("-n", name, "link", "set", device, "up")
    except subprocess.CalledProcessError:
        made = False
    try:
        if made:
            yield address[0], [["ip", "netns", "exec", name] for name in names]
        else:
            yield "127.0.0.1", [[], []]
    finally:
        if shutil.which("ip") is not None:
            for name in names:
                subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


@pytest.fixture(scope="module")
def four(nodes, tmp_path_factory):
    """A folder with what four processes on two nodes have written."""
    folder = tmp_path_factory.mktemp("four")
    first, prefixes = nodes
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    agents = []
    try:
        for number, prefix in enumerate(prefixes):
            command = [*prefix, *TORCHRUN, "--nnodes", "2", "--nproc-per-node", "2", "--node-rank", str(number)]
            command += ["--master-addr", first, "--master-port", str(port), str(HERE / "sharded_fit.py"), str(folder)]
            # Without a name server a namespace cannot look up its own host name.
            cable = {"GLOO_SOCKET_IFNAME": f"evenflow-{number}"} if prefix else {}
            agents.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT | cable))
        for agent in agents:
            _, said = agent.communicate(timeout=PATIENCE)
            assert agent.returncode == 0, said[-4000:]
    finally:
        for agent in agents:
            agent.kill()
    return folder


def said(folder: Path, accumulate: int) -> list[dict]:
    return [json.loads((folder / f"said-{accumulate}-{rank}.json").read_text()) for rank in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_nodes_end_with_the_weights_of_one_process_that_accumulates(four, accumulate):
    alone, _ = fit(4 * accumulate)
    for rank in range(4):
        found = torch.load(four / f"weights-{accumulate}-{rank}.pt")
        for name, tensor in alone.model.state_dict().items():
            torch.testing.assert_close(found[name], tensor, rtol=ROUNDING, atol=ROUNDING)
    for each in said(four, accumulate):
        np.testing.assert_allclose(each["loss"], alone.history["loss"], rtol=ROUNDING)
        assert each["valid"] == pytest.approx(alone.valid_loss, rel=ROUNDING)
    assert [(each["node"], each["nodes"]) for each in said(four, accumulate)] == [("0", "2")] * 2 + [("1", "2")] * 2


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_no_sequence_is_read_twice_in_an_epoch_and_all_but_the_last_rest_are_read(four, accumulate):
    shares = [each["rows"] for each in said(four, accumulate)]
    assert len({len(share) for share in shares}) == 1
    updates = 41 // (4 * accumulate * BATCH)
    for epoch in range(3):
        begin, end = epoch * updates * accumulate, (epoch + 1) * updates * accumulate
        read = [row for share in shares for batch in share[begin:end] for row in batch]
        assert len(set(read)) == len(read) == updates * 4 * accumulate * BATCH
        assert set(read) <= set(range(41))


def test_accumulated_batches_are_those_of_as_many_processes(monkeypatch):
    """The weights are compared with those of four processes above; here, that it repeats and shares the order."""
    result, rows = fit(4)
    assert result.steps == 3 * (41 // (4 * BATCH))
    assert len(rows) == 4 * result.steps
    twice, again = fit(4)
    assert all(map(torch.equal, result.model.state_dict().values(), twice.model.state_dict().values()))
    assert rows == again
    for first in range(0, len(rows), 4):
        assert len({row for batch in rows[first : first + 4] for row in batch}) == 4 * BATCH


def test_where_batches_cannot_be_accumulated_it_says_so(small_data):
    training = {"accumulate": 2, "steps": 4, "device": "cpu"}
    with pytest.raises(ValueError, match=r"^accumulate goes with an optimizer that follows the gradient, got 2"):
        train_run(CONFIG | {"training": training | {"optimizer": "hessian-free"}})
    words = {"name": "ptb-words", **small_options("ptb-words", small_data)}
    with pytest.raises(ValueError, match=r"^accumulate must be 1 for task ptb-words, whose batches continue each"):
        train_run({"task": words, "system": CONFIG["system"], "training": training | {"batch_size": 2}})
    with pytest.raises(ValueError, match=r"^accumulate must be 1 in a population, got 2"):
        train_population([CONFIG | {"training": training}])


def test_restarts_on_several_machines_need_a_store_of_their_own(monkeypatch):
    for name, value in {
        "TORCHELASTIC_MAX_RESTARTS": "1", "TORCHELASTIC_USE_AGENT_STORE": "True", "GROUP_WORLD_SIZE": "2",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        join_restarted_group("cpu")


def test_a_data_loader_is_not_read_by_several_processes_alike(monkeypatch):
    import evenflow

    data = torch.utils.data.TensorDataset(torch.randn(8, 5, 2), torch.zeros(8, dtype=torch.long))
    model = evenflow.SequenceModel(evenflow.create("rnn", 2, 4), 2)
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="a DataLoader without a DistributedSampler gives every process the same"):
        evenflow.fit(model, loader, validation=loader, steps=2)
