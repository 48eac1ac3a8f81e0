from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from evenflow.lab.report.svg import minify

TURNED = '<text transform="rotate(-90 1 2)">a</text>'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param('<g id="a"><use href="#b"/></g>', '<use href="#b"/>', id="a group without a purpose"),
        pytest.param(
            '<path id="b" d="M 0 0 "/><use href="#b"/>', '<path id="b" d="M 0 0"/><use href="#b"/>', id="used"
        ),
        pytest.param('<g clip-path="url(#c)"><g> </g></g>', '<g clip-path="url(#c)"></g>', id="a group with one"),
        pytest.param(
            '<text x="1.23456" transform="rotate(-0 1 2)">a  b</text>', '<text x="1.23">a  b</text>', id="text"
        ),
        pytest.param(TURNED, TURNED, id="turned"),
        pytest.param('<path d="M 1 2 L 3 4 z " style="fill: none"/>', "", id="invisible"),
        pytest.param('<path d="M 1 2 L 3.14159 4 M 5 6 L 7 8 "/>', '<path d="M 1 2 3.14 4 M 5 6 7 8"/>', id="lines"),
        pytest.param('<path d="M 0 1 C 1 2 3 4 5 6 L 7 8 "/>', '<path d="M 0 1 C 1 2 3 4 5 6 L 7 8"/>', id="curves"),
    ],
)
def test_what_is_taken_out(before: str, after: str) -> None:
    assert minify(before) == after


def test_numbers_that_scale_an_image_keep_their_digits() -> None:
    image = '<image transform="matrix(0.123456789 0 0 1 0 0)" width="3.456789"/>'
    assert minify(image) == image


def test_groups_stay_balanced() -> None:
    body = '<g id="a"><g style="x"><g><path d="M 0 0"/></g></g><g id="c"/></g>'.replace('<g id="c"/>', "<g></g>")
    root = ElementTree.fromstring(f"<svg>{minify(body)}</svg>")
    assert [element.tag for element in root.iter()] == ["svg", "g", "path"]
    assert re.findall("<g>", minify(body)) == []
