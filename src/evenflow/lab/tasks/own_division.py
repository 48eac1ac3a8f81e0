"""Choose the sequences of a user's own file that are for validation: by chance, by class, by group or by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .data_set import SPLIT_SEED, split

SPLITS = ("random", "stratified", "group", "time")


@dataclass(frozen=True)
class Division:
    """Which sequences are for validation.

    Args:
        share: the share of the sequences, at least one of them.
        how: "random"; "stratified", the same share of every class; "group", whole groups, so that no group is in both
            parts; "time", the last ones. Default: "group" if there are groups, "time" for one long series, "stratified"
            for classes after the last step, else "random".
        seed: of the random order.
    """

    share: float = 0.1
    how: str | None = None
    seed: int = SPLIT_SEED

    def count(self, sequences: int) -> int:
        """How many of so many sequences are for validation."""
        return max(1, int(sequences * self.share + 1e-9))

    def rows(
        self, count: int, classes: Sequence[int] | np.ndarray | None = None, groups: Sequence[str] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the sequences for training and for validation.

        Args:
            count: the number of sequences.
            classes: the class of each, for a classification after the last step.
            groups: the group of each; empty if there are none.
        """
        how = self.how or ("group" if groups else "stratified" if classes is not None else "random")
        if how == "group" and not groups:
            raise ValueError("split group needs the name of the column of groups, as in group=person")
        if groups and how != "group":
            raise ValueError(f"split must be group where a column of groups is named, got {how!r}")
        if how == "stratified" and classes is None:
            raise ValueError("split stratified needs classes that are learned after the last step")
        held_out = self.count(count)
        if how == "time":
            return np.arange(count - held_out), np.arange(count - held_out, count)
        if how == "group":
            return self._groups(groups, held_out)
        if how == "stratified" and classes is not None:
            return self._stratified(np.asarray(classes), held_out)
        return split(count, held_out, self.seed)

    def _groups(self, groups: Sequence[str], held_out: int) -> tuple[np.ndarray, np.ndarray]:
        """Groups in a random order, until there are enough sequences; one group is left to train on."""
        names, codes, sizes = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
        if len(names) < 2:
            raise ValueError(f"validation by group needs two groups, and every sequence is of {str(names[0])!r}")
        order = np.random.RandomState(self.seed).permutation(len(names))
        enough = int(np.searchsorted(np.cumsum(sizes[order]), held_out)) + 1
        chosen = np.isin(codes, order[: min(enough, len(names) - 1)])
        return np.flatnonzero(~chosen), np.flatnonzero(chosen)

    def _stratified(self, classes: np.ndarray, held_out: int) -> tuple[np.ndarray, np.ndarray]:
        """The share of each class, rounded down; the rest goes to the classes with the largest remainders."""
        labels, codes, sizes = np.unique(classes, return_inverse=True, return_counts=True)
        exact = held_out * sizes / len(classes)
        counts = exact.astype(int)
        # A class of one sequence comes last: there would be none to train on.
        order = sorted(range(len(labels)), key=lambda label: (sizes[label] < 2, counts[label] - exact[label]))
        counts[order[: held_out - counts.sum()]] += 1
        shuffled = np.random.RandomState(self.seed).permutation(len(classes))
        chosen = np.concatenate([shuffled[codes[shuffled] == label][:n] for label, n in enumerate(counts)])
        return np.setdiff1d(shuffled, chosen), np.sort(chosen)
