"""`ColumnEmbeddings`, trained vectors in place of the columns of an input that hold positions of categories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from evenflow.checks import whole_number


class ColumnEmbeddings(nn.Module):
    """Replaces columns of whole numbers by trained vectors, which take their places between the other columns.

    Shapes:
        input ``(..., I)``; output ``(..., I + sum of (size - 1))``.

    Args:
        columns: for each such column its place in the input, the number of different values, and the size of the
            vectors, in the order of the places.
        generator: where initial values are drawn from.

    Starting value: N(0, 1).

    >>> ColumnEmbeddings([(1, 50, 8)])(torch.tensor([[0.5, 49.0, -1.0]])).shape
    torch.Size([1, 10])
    """

    def __init__(self, columns: Sequence[Sequence[int]], generator: torch.Generator | None = None) -> None:
        super().__init__()
        places = []
        for column in columns:
            if not isinstance(column, list | tuple) or len(column) != 3:
                raise ValueError(f"column_embeddings must hold triples (place, values, size), got {column!r}")
            for name, value, least in zip(("place", "values", "size"), column, (0, 1, 1), strict=True):
                whole_number(f"{name} in column_embeddings", value, least)
            places.append(column[0])
        if places != sorted(set(places)):
            raise ValueError(f"column_embeddings must be in the order of their places, got places {places}")
        self.places = tuple(places)
        with torch.device("cpu"):
            starts = [torch.randn(values, size, generator=generator) for _, values, size in columns]
        self.tables = nn.ModuleList([nn.Embedding.from_pretrained(start, freeze=False) for start in starts])

    @property
    def added(self) -> int:
        """How many numbers more the output has than the input."""
        return sum(table.embedding_dim - 1 for table in self.tables)  # type: ignore[misc,operator]

    @property
    def sizes(self) -> tuple[tuple[int, int, int], ...]:
        """The place, the number of values and the size of the vectors of each column."""
        return tuple((place, *table.weight.shape) for place, table in zip(self.places, self.tables, strict=True))  # type: ignore[misc]

    def forward(self, x: Tensor) -> Tensor:
        parts: list[Any] = []
        first = 0
        for place, table in zip(self.places, self.tables, strict=True):
            vectors = table(x[..., place].long())
            parts += [x[..., first:place].to(vectors.dtype), vectors]
            first = place + 1
        return torch.cat([*parts, x[..., first:].to(parts[-1].dtype)], -1)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw all vectors anew."""
        with torch.no_grad(), torch.device("cpu"):
            for table in self.tables:
                table.weight.copy_(torch.randn(table.weight.shape, generator=generator))  # type: ignore[operator,arg-type]
