"""Damage the folder of compiled code and plant code in it: a layer must give the same bits, and run nothing planted."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import evenflow
from evenflow.runtime import compile_c
from evenflow.runtime.compile_cache import DIGEST, UNFINISHED
from evenflow.scan import cpu
from harden.trials import Attack, Trials

PATIENCE = 120  # seconds for one process, which may have to compile
NOBODY = 65534  # another user
SAID = b"evenflow loads no compiled code from"


@dataclass(frozen=True)
class Answer:
    """What a process gave that ran a layer: its exit code, the bytes of outputs and gradients, and its warnings."""

    code: int
    numbers: bytes
    said: bytes


def damage_caches(trials: Trials) -> None:
    """Every damage of every file in turn."""
    try:
        compiler = compile_c.find_compiler()
    except compile_c.CompilationFailed as error:
        trials.notes.append(f"No compiled code was damaged: {error}.")
        return
    compile_c.FLAGS = compile_c.FLAGS.replace("-O3", "-O0")  # code that is compiled fast
    os.environ["CC"] = str(_remembering(compiler, trials.folder))
    good = trials.folder / "good"
    wanted = numbers_from(good)
    assert wanted.code == 0, wanted
    planted = _planted_library(compiler, trials.folder / "planted.so")
    while trials.running:
        for name, harm in HARMS.items():
            place = trials.folder / "damaged"
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(good, place)
            place.chmod(0o700)
            folder = place / "evenflow"
            folder.chmod(0o700)
            path = trials.chance.choice([each for each in sorted(folder.iterdir()) if each.is_file()])
            with trials.trial(f"{path.suffix} {name}"):
                harm(trials.chance, path, planted)
                found = numbers_from(place)
                assert found.code == 0, f"the process ended with {found.code}: {found.said[-300:]!r}"
                assert found.numbers == wanted.numbers, "the numbers are others"
                assert (SAID in found.said) == (name not in DAMAGED), f"it said {found.said[-300:]!r}"
            if not trials.running:
                break


REMEMBERING = """#!/bin/sh
# {compiler} that compiles each source once.
case "$*" in *" -o "*) ;; *) exec {compiler} "$@" ;; esac
for target; do :; done
source=$(mktemp) && cat > "$source"
kept={store}/$(sha256sum < "$source" | cut -c -64)
if [ ! -e "$kept" ]; then
    {compiler} "$@" < "$source" || exit 1
    cp "$target" "$kept.$$" && mv "$kept.$$" "$kept"
fi
rm "$source"
exec cp "$kept" "$target"
"""


def _remembering(compiler: list[str], folder: Path) -> Path:
    """A compiler for `$CC`, so that a trial takes the time of a process and not of a compilation."""
    store, script = folder / "compiled", folder / "cc"
    store.mkdir()
    script.write_text(REMEMBERING.format(compiler=" ".join(compiler), store=store), encoding="utf-8")
    script.chmod(0o700)
    return script


def numbers_from(cache: Path) -> Answer:
    """Outputs and gradients of a layer in a forked process which keeps its code in `cache`."""
    cache.mkdir(parents=True, exist_ok=True)
    results = cache.parent / f"{cache.name}.numbers"
    log = cache.parent / f"{cache.name}.said"
    results.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(PATIENCE)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(output, 2)
            os.environ["XDG_CACHE_HOME"] = str(cache)
            warnings.simplefilter("always")
            results.write_bytes(_numbers())
            code = 0
        except BaseException as error:
            os.write(2, repr(error).encode())
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Answer(code, results.read_bytes() if results.exists() else b"", log.read_bytes())


def _numbers() -> bytes:
    generator = torch.Generator().manual_seed(0)
    layer = evenflow.create("rnn", 2, 3, generator=generator)
    x = torch.randn(4, 2, 2, generator=generator, requires_grad=True)
    y, _ = layer(x)
    y.square().sum().backward()
    tensors = [y, x.grad, *(p.grad for p in layer.parameters())]
    assert cpu.library() is not None
    return b"".join(t.detach().numpy().tobytes() for t in tensors if t is not None)


def _planted_library(compiler: list[str], path: Path) -> bytes:
    """A library that ends the process where it is loaded."""
    source = "int evenflow_library; __attribute__((constructor)) static void planted(void) { __builtin_trap(); }"
    subprocess.run(
        [*compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", path], input=source.encode(), check=True, timeout=PATIENCE
    )
    return path.read_bytes()


Harm = Callable[[random.Random, Path, bytes], None]


def _content(change: Callable[[random.Random, bytes], bytes]) -> Harm:
    """Change the content of a file."""

    def harm(chance: random.Random, path: Path, planted: bytes) -> None:
        path.write_bytes(change(chance, path.read_bytes()))

    return harm


def _flipped(chance: random.Random, content: bytes) -> bytes:
    at = chance.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


def _hole(chance: random.Random, content: bytes) -> bytes:
    """A block of zeros, as a file system may leave it after a power failure."""
    at = chance.randrange(len(content)) // 512 * 512
    return content[:at] + bytes(min(4096, len(content) - at)) + content[at + 4096 :]


def _swapped(chance: random.Random, path: Path, planted: bytes) -> None:
    other = chance.choice([each for each in path.parent.glob(f"*{path.suffix}") if each != path])
    path.write_bytes(other.read_bytes())


def _planted(then: Callable[[Path], object], without_digest: bool = False) -> Harm:
    """Put the planted library in the place of one, with its digest, and let `then` give it to somebody else."""

    def harm(chance: random.Random, path: Path, planted: bytes) -> None:
        library = path.with_name(path.name.removesuffix(DIGEST))
        library.write_bytes(planted)
        if not without_digest:
            digest = hashlib.sha256(library.name.encode() + b"\0" + planted).hexdigest()
            library.with_name(library.name + DIGEST).write_text(digest, encoding="ascii")
        then(path)

    return harm


def _linked(path: Path) -> None:
    """Move a file, or the whole folder, and leave a symbolic link in its place."""
    elsewhere = path.parent / f"elsewhere-{path.name}"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def _pipe(chance: random.Random, path: Path, planted: bytes) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _folder_instead(chance: random.Random, path: Path, planted: bytes) -> None:
    path.unlink()
    path.mkdir()
    (path / "something").write_bytes(planted)


def _left_over(chance: random.Random, path: Path, planted: bytes) -> None:
    """What an interrupted compilation leaves, beside a library that is gone."""
    rest = path.parent / f"{UNFINISHED}killed"
    rest.mkdir()
    (rest / path.name).write_bytes(path.read_bytes()[:100])
    path.unlink()


def _give_away(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY)


DAMAGED: dict[str, Harm] = {
    "truncated": _content(lambda chance, content: content[: chance.randrange(len(content))]),
    "with a flipped bit": _content(_flipped),
    "emptied": _content(lambda chance, content: b""),
    "with a block of zeros": _content(_hole),
    "longer": _content(lambda chance, content: content + chance.randbytes(64)),
    "swapped": _swapped,
    "removed": lambda chance, path, planted: path.unlink(),
    "replaced by another library": _planted(lambda path: None, without_digest=True),
    "replaced by a folder": _folder_instead,
    "gone, with an interrupted compilation": _left_over,
}
# What somebody else may have written; a warning says that it is not loaded.
DISTRUSTED: dict[str, Harm] = {
    "planted behind a symbolic link": _planted(_linked),
    "planted, others may write to the file": _planted(lambda path: path.chmod(0o666)),
    "planted, its group may write to the file": _planted(lambda path: path.chmod(0o620)),
    "planted, others may write to the folder": _planted(lambda path: path.parent.chmod(0o777)),
    "planted, its group may write to the folder": _planted(lambda path: path.parent.chmod(0o770)),
    "planted, others may replace the folder": _planted(lambda path: path.parent.parent.chmod(0o777)),
    "planted in a folder behind a symbolic link": _planted(lambda path: _linked(path.parent)),
    "replaced by a pipe": _pipe,
}
NEED_ROOT: dict[str, Harm] = {
    "planted by another user": _planted(_give_away),
    "planted in a folder of another user": _planted(lambda path: _give_away(path.parent)),
}
HARMS = DAMAGED | DISTRUSTED | (NEED_ROOT if os.geteuid() == 0 else {})

ATTACKS = (Attack("code-caches", "cached compiled code damaged or planted, then used", damage_caches, 2),)
