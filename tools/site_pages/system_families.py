"""The families in which the pages and the README group the systems."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Systems that keep their gradients, or fail to, in the same way.

    Attributes:
        title: heading of the family.
        about: what its systems have in common, in a sentence.
        systems: their names, in the order of the table of systems.
    """

    title: str
    about: str
    systems: tuple[str, ...]


FAMILIES = (
    Family(
        "Plain",
        "A free recurrent matrix, or one number a unit, and one activation. Nothing bounds the gradient.",
        ("rnn", "irnn", "indrnn"),
    ),
    Family(
        "Orthogonal",
        "A map keeps the recurrent matrix orthogonal, so that it neither shrinks nor stretches a gradient.",
        ("urnn", "exprnn", "dtriv", "scornn", "asrnn", "ornn", "vprnn"),
    ),
    Family(
        "Unitary",
        "The same with complex states and a unitary matrix.",
        ("arjovsky-urnn", "full-urnn", "scurnn"),
    ),
    Family(
        "Spectrum in a band",
        "A map keeps the singular values within a margin of one, or the moduli of the eigenvalues near one.",
        ("nnrnn", "factorized", "spectral"),
    ),
    Family(
        "Scalar gates",
        "A step adds a small change to the state, weighted by one or two numbers for the whole layer.",
        ("fastrnn", "sgornn", "antisymmetric", "antisymmetric-gated", "lipschitz"),
    ),
    Family(
        "Continuous time",
        "A step of a differential equation: oscillators, or time constants that are learned.",
        ("cornn", "unicornn", "lem", "ltc", "cfc"),
    ),
    Family(
        "GRU and relatives",
        "Gates of every unit decide how much of the state is kept.",
        ("gru", "gru-2014", "goru", "ugru", "mgu", "ugrnn", "fastgrnn"),
    ),
    Family(
        "LSTM and relatives",
        "A second state, to which gates add, carries the gradient.",
        ("lstm", "lstm-peephole", "lstm-1997", "slstm"),
    ),
    Family(
        "Linear in the state",
        "The step is linear in its state and diagonal, so that all steps can be computed at once.",
        ("lru", "s4d", "s5", "linoss", "rotrnn", "mingru", "minlstm", "rglru"),
    ),
    Family(
        "Other structures",
        "Slow context units, gates between layers, and a reservoir that is not trained.",
        ("scrn", "gated-feedback", "esn"),
    ),
)


def family_of(name: str) -> Family:
    """The family of a system."""
    (family,) = (family for family in FAMILIES if name in family.systems)
    return family
