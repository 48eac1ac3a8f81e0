"""Penalties of the weights alone."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.maps.differentiated import ieee_products
from evenflow.penalties.matrices import matrices, spectra
from evenflow.penalties.penalty import Penalty, Watched


class SoftOrthogonality(Penalty):
    """``λ Σ_W |WᵀW - I|²``: recurrent matrices are drawn towards orthogonal ones, and may leave them.

    Of a W that is wider than tall it is the rows that can be orthonormal, and ``|WWᵀ - I|²`` is taken.

    Args:
        strength: λ.

    Reference: Vorontsov et al. 2017.
    """

    name, equation = "soft_orthogonality", "λ Σ |WᵀW - I|²"

    def __init__(self, strength: float = 1e-3) -> None:
        super().__init__(strength)

    def value(self, watched: Watched, loss: Tensor) -> Tensor:
        total = []
        for W in matrices(watched.model, self.name):
            with ieee_products(W):  # what is left of an orthogonal matrix is far below TF32's last bit
                gram = W.mH @ W if W.shape[-2] >= W.shape[-1] else W @ W.mH
                off = gram - torch.eye(gram.shape[-1], dtype=W.dtype, device=W.device)
            total.append((off * off.conj()).real.sum())
        return torch.stack(total).sum()


class SingularValuePrior(Penalty):
    """``λ Σ_W Σ_i (s_i - 1)²``: the logarithm of a Gaussian prior with mean one on the singular values, negated.

    A map that has its singular values at hand (``svd``, ``factorized``) is asked for them; of any other matrix they are
    computed. λ is 1/2v for a variance v.

    Args:
        strength: λ.

    Reference: Vorontsov et al. 2017.
    """

    name, equation = "singular_value_prior", "λ Σ (s - 1)²"

    def __init__(self, strength: float = 1e-3) -> None:
        super().__init__(strength)

    def value(self, watched: Watched, loss: Tensor) -> Tensor:
        known = spectra(watched.model, self.name)
        if known is None:
            known = [torch.linalg.svdvals(W) for W in matrices(watched.model, self.name)]
        return torch.stack([(s - 1).square().sum() for s in known]).sum()


class WeightDecay(Penalty):
    """``λ/2 Σ_W |W|²`` on the recurrent matrices themselves, whatever numbers a map makes them from.

    Its gradient by W is λ W, as with the weight decay of torch's SGD. On the bases of a factorized map or the angles of
    a rotation, the optimiser's own weight decay would mean nothing. |W|² is the sum of the squares of the singular
    values, and a map that has these at hand (``svd``, ``factorized``) is asked for them: no matrix is made, and nothing
    pulls at its bases, which cannot change |W|².

    Args:
        strength: λ.

    Reference: Vorontsov et al. 2017.
    """

    name, equation = "weight_decay", "λ/2 Σ |W|²"

    def __init__(self, strength: float = 1e-4) -> None:
        super().__init__(strength)

    def value(self, watched: Watched, loss: Tensor) -> Tensor:
        known = spectra(watched.model, self.name) or matrices(watched.model, self.name)
        squares = [(each * each.conj()).real.sum() for each in known]
        return torch.stack(squares).sum() / 2
