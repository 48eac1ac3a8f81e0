from __future__ import annotations

import pytest
import torch

from evenflow.feedforward import MLP
from evenflow.lab.training import train
from evenflow.models.flat_model import FlatModel
from evenflow.systems import NETWORKS


def test_the_steps_stand_side_by_side():
    network = MLP(6, 2, width=4, depth=2)
    inputs = torch.randn(3, 5, 2)
    outputs, state = FlatModel(network)(inputs)
    assert state is None
    for b in range(5):
        torch.testing.assert_close(outputs[b], network(torch.cat([inputs[t, b] for t in range(3)])))


def test_sequences_of_different_lengths_are_refused():
    model = FlatModel(MLP(6, 2, width=4, depth=2))
    inputs = torch.randn(3, 2, 2)
    assert torch.equal(model(inputs, lengths=torch.tensor([3, 3]))[0], model(inputs)[0])
    with pytest.raises(ValueError, match=r"^a network without time needs sequences of one length"):
        model(inputs, lengths=torch.tensor([3, 2]))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_trains_by_name(name, tmp_path, small_data):
    config = {
        "task": {"name": "multilabel", "data": str(small_data)},
        "system": {"name": name, "hidden_size": 8, "depth": 4},
        "training": {"steps": 30, "batch_size": 10, "lr": 0.02, "device": "cpu"},
    }
    result = train(config, tmp_path / "run", progress=False)
    assert result.loss < result.history["loss"][0]
    assert result.model.parameter_counts()["total"] == sum(p.numel() for p in result.model.parameters())


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ({"name": "copy"}, "it is answered at every step or embeds its input"),
        ({"name": "recall-first"}, "it is answered at every step or embeds its input"),
        ({"name": "xor"}, "its sequences differ in length"),
    ],
    ids=lambda value: value.get("name") if isinstance(value, dict) else None,
)
def test_tasks_that_need_time(task, why):
    with pytest.raises(ValueError, match=f"^task {task['name']} needs a recurrent system: {why}$"):
        train({"task": task, "system": {"name": "mlp", "hidden_size": 8}}, progress=False)
