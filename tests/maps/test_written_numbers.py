"""Numbers of a map that were written as if they were the matrix are noticed; all else goes without a warning."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from evenflow import create
from evenflow.maps import attach, make
from evenflow.systems import SYSTEMS

RECTANGLES = ["vprnn", "sgornn", "full-urnn", "arjovsky-urnn"]  # systems with numbers of two dimensions


@pytest.mark.parametrize("name", RECTANGLES)
def test_an_orthogonal_initialisation_by_name_warns_once(name):
    layer, x = create(name, 3, 8), torch.randn(2, 4, 3)
    for key, p in layer.named_parameters():
        if "weight_hh" in key:
            nn.init.orthogonal_(p)
    with pytest.warns(UserWarning, match="overwritten with an orthogonal matrix.*assign the matrix itself"):
        layer(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x)


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_is_usual_does_not_warn(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer, x = create(name, 3, 8), torch.randn(2, 4, 3)
        layer(x)
        other = create(name, 3, 8)
        other.load_state_dict(layer.state_dict())
        other(x)
        for key, p in other.named_parameters():
            if "parametrizations" not in key and "weight_hh" in key:
                nn.init.orthogonal_(p)
        other(x)


@pytest.mark.parametrize("name", ["exponential", "cayley", "householder", "svd", "factorized", "unitary"])
def test_assigning_does_not_warn(name):
    module = attach(nn.Linear(8, 8), "weight", make(name, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():
            module.weight = module.weight
        module.weight.sum().abs().backward()


@pytest.mark.parametrize("name", ["urnn", "ornn", "spectral", "sgornn"])
def test_a_matrix_in_place_of_the_numbers_is_refused(name):
    layer = create(name, 3, 8)
    raw = next(p for key, p in layer.named_parameters() if "weight_hh" in key)
    raw.data = torch.eye(8)
    with pytest.raises(ValueError, match=r"makes its matrix of free numbers of shape .*assign the matrix itself"):
        layer(torch.randn(2, 4, 3))
