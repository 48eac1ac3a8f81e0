"""Damaged and hostile versions of files: bytes changed at random, and formats written anew around changed contents."""

from __future__ import annotations

import gzip
import io
import json
import random
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

MOST = 6  # changes of one file
WHOLE = 0.5  # chance that a file is changed as bytes, not written anew with right checksums around changed contents
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1)
TEXTS = (
    b"-inf", b"1e999", b"-0", b"9" * 30, b"1_000", b"0x10", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf",
    b'"', b"'", b",", b";", b"\t", b"\n", b"\r", b"\r\n", b"\n\n", b"[", b"]", b"{", b"}", b"[" * 3000,
    b"=", b":", b"@", b"../..", b"/dev/zero", b"-", b"#", b"1" + b"0" * 400, b"\xf0\x9f\xa6\x8a", b"a" * 5000,
    b"," * 2000, b"null", b"nan", b"", b"inf",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    0, 1, -1, 2, 10**9, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, float("inf"), float("nan"), True, False, "",
    "x", "relu", "svd", "../..", "\0", "a" * 5000, "<b>", "no_module:name", [], [0], [[]], [1] * 2000, {}, {"x": 1},
    {"name": "x"},
)  # fmt: skip


def mutant(chance: random.Random, path: Path, good: bytes) -> bytes:
    """Another version of a file; how it is written anew follows from its name."""
    rewrite = FORMATS.get(path.suffix)
    if rewrite is None or chance.random() < WHOLE:
        return changed_bytes(chance, good)
    return rewrite(chance, good)


def changed(chance: random.Random, path: Path, content: bytes) -> bytes:
    """Another version of any content, also where it has not the format of its name."""
    try:
        return mutant(chance, path, content)
    except Exception:  # every parser has errors of its own
        return changed_bytes(chance, content)


def changed_bytes(chance: random.Random, good: bytes) -> bytes:
    """Some bytes flipped, replaced, left out, repeated, moved or added."""
    data = bytearray(good)
    for _ in range(chance.randint(1, MOST) if chance.random() < 0.7 else 1):
        chance.choice(CHANGES)(chance, data)
    return bytes(data)


def _flip(chance: random.Random, data: bytearray) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _replace(chance: random.Random, data: bytearray) -> None:
    if data:
        data[chance.randrange(len(data))] = chance.randrange(256)


def _number(chance: random.Random, data: bytearray) -> None:
    """A size or count that is at the end of its range, as binary formats have them."""
    size = chance.choice((1, 2, 4, 8))
    if len(data) >= size:
        at = chance.randrange(min(len(data), 4096) - size + 1) if chance.random() < 0.5 else _place(chance, data, size)
        number = chance.choice(NUMBERS) % (1 << 8 * size)
        data[at : at + size] = number.to_bytes(size, chance.choice(("little", "big")))


def _text(chance: random.Random, data: bytearray) -> None:
    """Something that text formats may not expect, in place of a few bytes."""
    start = _place(chance, data, 0)
    data[start : start + chance.choice((0, 0, 1, 3, 8))] = chance.choice(TEXTS)


def _cut(chance: random.Random, data: bytearray) -> None:
    del data[_place(chance, data, 0) :]


def _hole(chance: random.Random, data: bytearray) -> None:
    start, end = _stretch(chance, data)
    del data[start:end]


def _twice(chance: random.Random, data: bytearray) -> None:
    start, end = _stretch(chance, data)
    data[end:end] = data[start:end]


def _move(chance: random.Random, data: bytearray) -> None:
    start, end = _stretch(chance, data)
    piece = bytes(data[start:end])
    del data[start:end]
    at = _place(chance, data, 0)
    data[at:at] = piece


def _noise(chance: random.Random, data: bytearray) -> None:
    at = _place(chance, data, 0)
    data[at : at + chance.randrange(9)] = chance.randbytes(chance.randrange(9))


CHANGES = (_flip, _flip, _replace, _number, _text, _text, _cut, _hole, _twice, _move, _noise)


def _place(chance: random.Random, data: bytearray, size: int) -> int:
    return chance.randrange(max(len(data) - size, 0) + 1)


def _stretch(chance: random.Random, data: bytearray) -> tuple[int, int]:
    start = _place(chance, data, 0)
    return start, min(len(data), start + int(2 ** chance.uniform(0, 12)))


def changed_value(chance: random.Random, value: Any) -> Any:
    """A nested value of tables, lists and plain values with one part replaced, left out or repeated."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key, table = chance.choice(list(value)), dict(value)
        match chance.randrange(8):
            case 0:
                del table[key]
            case 1:
                table[chance.choice(("x", "", "name", key * 2))] = table[key]
            case _:
                table[key] = changed_value(chance, value[key])
        return table
    if isinstance(value, list) and value and chance.random() < 0.85:
        at = chance.randrange(len(value))
        new = [changed_value(chance, value[at])] if chance.randrange(4) else [value[at]] * chance.choice((0, 2))
        return [*value[:at], *new, *value[at + 1 :]]
    return chance.choice(VALUES)


def _json(chance: random.Random, good: bytes) -> bytes:
    value = json.loads(good)
    for _ in range(chance.choice((1, 1, 2))):
        value = changed_value(chance, value)
    return json.dumps(value).encode()


def _toml(chance: random.Random, good: bytes) -> bytes:
    value = changed_value(chance, tomllib.loads(good.decode()))
    try:
        return tomli_w.dumps(value).encode()
    except (TypeError, AttributeError, ValueError):  # what TOML cannot say
        return changed_bytes(chance, good)


def _gz(chance: random.Random, good: bytes) -> bytes:
    return gzip.compress(changed_bytes(chance, gzip.decompress(good)), 1, mtime=0)


def _npz(chance: random.Random, good: bytes) -> bytes:
    """One member changed, left out, renamed or there twice, with right checksums."""
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = chance.choice(list(members))
    match chance.randrange(8):
        case 0:
            del members[name]
        case 1:
            members[chance.choice(("x.npy", "../x.npy", ".npy", name.removesuffix(".npy")))] = members.pop(name)
        case 2:
            members[name] = members[chance.choice(list(members))]
        case 3 | 4:  # in the header, which says the type and the shape
            head = bytearray(members[name][:128])
            chance.choice(CHANGES)(chance, head)
            members[name] = bytes(head) + members[name][128:]
        case _:
            members[name] = changed_bytes(chance, members[name])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for each, content in members.items():
            archive.writestr(each, content)
    return packed.getvalue()


FORMATS: dict[str, Callable[[random.Random, bytes], bytes]] = {
    ".json": _json,
    ".toml": _toml,
    ".gz": _gz,
    ".npz": _npz,
}
