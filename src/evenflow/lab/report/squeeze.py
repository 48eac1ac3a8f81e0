"""The same drawing in half the bytes: what matplotlib writes into an SVG and no reader needs is taken out."""

from __future__ import annotations

import re

_SPARE_DIGITS = re.compile(r"(\.\d\d)\d+")  # a hundredth of a unit is finer than any screen


def smaller(body: str) -> str:
    """Elements without ids that nothing refers to, groups without a purpose, turns by nothing and invisible shapes.

    >>> smaller('<g id="a"> <path d="M 1.23456 2 L 3 4 L 5 6 " style="fill: none; stroke: red"/> </g>')
    '<path d="M 1.23 2 3 4 5 6" style="fill: none; stroke: red"/>'
    """
    used = set(re.findall(r'href="#([^"]*)"', body)) | set(re.findall(r"url\(#([^)]*)\)", body))
    body = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", body)
    body = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", body)
    body = re.sub(r'<path d="[^"]*" style="fill: none"/>', "", body)
    body = re.sub(r'(?<= d=")[^"]*', lambda match: _path(match[0]), body)
    body = re.sub(r' [xy]="[^"]*"', lambda match: _SPARE_DIGITS.sub(r"\1", match[0]), body)
    return re.sub(r"> +<", "><", _without_bare_groups(body)).strip()


def _path(d: str) -> str:
    d = _SPARE_DIGITS.sub(r"\1", d).strip()
    # Pairs that follow a move are lines anyway.
    return d if set(re.findall("[A-Za-z]", d)) - set("MLz") else d.replace(" L ", " ")


def _without_bare_groups(body: str) -> str:
    """Drop `<g>` elements that have no attributes, and keep what is in them."""
    kept: list[bool] = []

    def tag(match: re.Match[str]) -> str:
        if match[0] == "</g>":
            return match[0] if kept.pop() else ""
        kept.append(match[0] != "<g>")
        return match[0] if kept[-1] else ""

    return re.sub(r"<g(?: [^>]*)?>|</g>", tag, body)
