"""Penalties on the weights: orthogonality, singular values near one, weight decay."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evenflow.penalties.matrices import LAYER_TYPES, matrices, singular_values
from evenflow.penalties.penalty import Penalty, Watched
from evenflow.runtime.torch_state import ieee_products


class SoftOrthogonality(Penalty):
    """``λ Σ_W |WᵀW - I|²``: recurrent matrices are pulled towards orthogonal ones, but need not be orthogonal.

    If W has more columns than rows, only its rows can be orthonormal, and the penalty is ``|WWᵀ - I|²``.

    Args:
        strength: λ, 0.001 by default.

    >>> with SoftOrthogonality(1.0).watch(model) as extra:
    ...     loss = task.loss(model(batch.inputs)[0], batch.targets)
    >>> float(extra(loss)) < 1e-6  # a free matrix starts orthogonal
    True

    Reference: Vorontsov et al. 2017.
    """

    name, equation = "soft_orthogonality", "λ Σ |WᵀW - I|²"
    default_strength = 1e-3

    def value(self, watched: Watched, loss: Tensor) -> Tensor:
        total = []
        for W in matrices(watched.model, self.name):
            with ieee_products(W):  # the difference from I is far below the precision of TF32
                gram = W.mH @ W if W.shape[-2] >= W.shape[-1] else W @ W.mH
                off = gram - torch.eye(gram.shape[-1], dtype=W.dtype, device=W.device)
            total.append((off * off.conj()).real.sum())
        return torch.stack(total).sum()


class SingularValuePrior(Penalty):
    """``λ Σ_W Σ_i (s_i - 1)²``: the negative logarithm of a Gaussian prior with mean one on the singular values.

    The maps ``svd`` and ``factorized`` have singular values as parameters; of any other matrix they are computed. λ is
    1/2v for a variance v.

    Args:
        strength: λ, 0.001 by default.

    >>> model = SequenceModel(RNN(2, 16, map="svd", margin=0.1), 1)
    >>> with SingularValuePrior(1.0).watch(model) as extra:
    ...     loss = task.loss(model(batch.inputs)[0], batch.targets)
    >>> float(extra(loss)) < 1e-6  # they start at one
    True

    Reference: Vorontsov et al. 2017.
    """

    name, equation = "singular_value_prior", "λ Σ (s - 1)²"
    default_strength = 1e-3

    def value(self, watched: Watched, loss: Tensor) -> Tensor:
        values = singular_values(watched.model, self.name)
        if values is None:
            values = [torch.linalg.svdvals(W) for W in matrices(watched.model, self.name)]
        return torch.stack([(s - 1).square().sum() for s in values]).sum()


class WeightDecay(Penalty):
    """``λ/2 Σ_W |W|²`` on the recurrent matrices themselves, not on the parameters of their maps.

    Its gradient by W is λ W, as with the weight decay of torch's SGD. The optimiser's own weight decay has no meaning
    for the bases of a factorized map or the angles of a rotation. |W|² is the sum of the squared singular values, which
    the maps ``svd`` and ``factorized`` have as parameters: for them no matrix is computed, and their bases, which
    cannot change |W|², have no gradient.

    Args:
        strength: λ, 0.0001 by default.

    >>> with WeightDecay(2.0).watch(model) as extra:
    ...     loss = task.loss(model(batch.inputs)[0], batch.targets)
    >>> round(float(extra(loss)), 4)  # |W|² of an orthogonal matrix of 16 units
    16.0

    Reference: Vorontsov et al. 2017.
    """

    name, equation = "weight_decay", "λ/2 Σ |W|²"
    default_strength = 1e-4

    def value(self, watched: Watched, loss: Tensor) -> Tensor:
        tensors = singular_values(watched.model, self.name) or matrices(watched.model, self.name)
        squares = [(each * each.conj()).real.sum() for each in tensors]
        return torch.stack(squares).sum() / 2


class MatrixDecay(WeightDecay):
    """``λ/2 Σ_W |W|²`` on all matrices of the model: those of the inputs, the recurrent ones and the readout's.

    Biases, embeddings and initial states are left alone. A recurrent matrix counts as in `WeightDecay`, with its map
    applied.

    Args:
        strength: λ, 0.0001 by default.

    >>> with MatrixDecay(2.0).watch(model) as extra:
    ...     loss = task.loss(model(batch.inputs)[0], batch.targets)
    >>> bool(extra(loss) > 16)  # |W|² of the recurrent matrix, and of the others
    True

    Reference: Vorontsov et al. 2017, whose code adds ``1e-4 Σ |W|²`` to the loss, a strength of 2e-4 here.
    """

    name, equation = "matrix_decay", "λ/2 Σ |W|² with inputs and readout"

    def value(self, watched: Watched, loss: Tensor) -> Tensor:
        total = super().value(watched, loss)
        if not any(isinstance(module, LAYER_TYPES) for module in watched.model.modules()):
            return total  # which is that of all linear layers
        others = [
            (p * p.conj()).real.sum()
            for module in watched.model.modules()
            if not isinstance(module, nn.Embedding)
            for name, p in module.named_parameters(recurse=False)
            if p.ndim == 2 and "weight" in name and not name.startswith("weight_hh")
        ]
        return total + torch.stack(others).sum() / 2 if others else total
