from __future__ import annotations

import numpy as np
import pytest
from damage import answer_or_sentence, refusal, same_folder
from hypothesis import given
from hypothesis import strategies as st

from evenflow.lab.data.number_table import number_table


@pytest.mark.parametrize(
    "text",
    ["1,2.5\n-3,4e0\n", "1\t2.5\n-3\t4\n", "  1  2.5\r\n\r\n  -3 4", "1, 2.5 \n-3 ,4\n\n"],
    ids=["commas", "tabs", "blanks", "both"],
)
def test_ways_to_write_a_table(text):
    table, lines = number_table("a.txt", text)
    assert table.tolist() == [[1, 2.5], [-3, 4]]
    assert lines == ([1, 3] if "\r" in text else [1, 2])


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        pytest.param(" \n\n", "there are no rows in it", id="no rows"),
        pytest.param("1 2\n3 4 5\n", "line 2 has 3 values, the first row has 2", id="ragged"),
        pytest.param("1,2\n\n3\n", "line 3 has 1 values, the first row has 2", id="ragged behind an empty line"),
        pytest.param("1 2\n3 x\n", "line 2 holds 'x', which is not a number", id="not a number"),
        pytest.param(f"1 2\n3 {'y' * 99}\n", f"line 2 holds '{'y' * 20}', which is not a number", id="long token"),
        pytest.param("1 2\n3 nan\n", "line 2 holds 'nan', and only finite float32 numbers will do", id="nan"),
        pytest.param("1 -inf\n", "line 1 holds '-inf', and only finite float32 numbers will do", id="infinite"),
        pytest.param("1 2\n3 1e39\n", "line 2 holds '1e39', and only finite float32 numbers will do", id="too large"),
        pytest.param("1,2\n3,\n", "line 2 has a missing value", id="nothing"),
        pytest.param("1,2\n3,?\n", "line 2 has a missing value", id="question mark"),
    ],
)
def test_bad_rows(text, wrong):
    assert refusal(number_table, "a.txt", text) == f"cannot read 'a.txt': {wrong}"


@same_folder
@given(st.text(st.sampled_from(list("0123456789.,-+einfax_ \t\n\r\0#'\"\x0c\u2028é"))))
def test_the_quick_way_is_the_slow_way(text):
    """Whatever comes back is what Python's own numbers say, row by row."""
    found = answer_or_sentence(lambda: number_table("a.txt", text), "a.txt")
    if found is not None:
        table, lines = found
        separator = "," if "," in text else None
        rows = [text.split("\n")[line - 1].split(separator) for line in lines]
        np.testing.assert_array_equal(table, np.array([[float(token) for token in row] for row in rows]))
