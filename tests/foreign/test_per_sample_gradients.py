"""Each sequence's own gradient through `torch.func`, as private learning needs it."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, vmap

import evenflow


@pytest.mark.parametrize("name", ["rnn", "gru", "lstm", "sgornn", "urnn", "spectral"])
def test_gradients_of_single_sequences_add_up(name):
    model = evenflow.SequenceModel(
        evenflow.create(name, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), 2
    ).double()
    x = torch.randn(9, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.tensor([0, 1, 1, 0, 1])
    weights = dict(model.named_parameters())

    def loss_of(weights, one, label):
        return torch.nn.functional.cross_entropy(functional_call(model, weights, (one.unsqueeze(1),))[0], label[None])

    each = vmap(grad(loss_of), in_dims=(None, 1, 0))(weights, x, y)
    torch.nn.functional.cross_entropy(model(x)[0], y, reduction="sum").backward()
    for key, parameter in weights.items():
        if parameter.grad is not None:
            assert each[key].shape == (5, *parameter.shape)
            assert torch.allclose(each[key].sum(0), parameter.grad, atol=1e-10), key
