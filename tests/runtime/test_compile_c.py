"""The compiled library: made once, found again, done without where it cannot be had."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import evenflow
from evenflow import RNN
from evenflow.runtime import compile_c, compile_cache
from evenflow.scan import cpu

try:
    compile_c.find_compiler()
    COMPILER = True
except compile_c.CompilationFailed:
    COMPILER = False
PRODUCTS = cpu.PRODUCTS.read_text()
needs_compiler = pytest.mark.skipif(not COMPILER, reason="this machine has no C compiler")


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without optimisation: what is tested here is the making, not the made."""
    monkeypatch.setattr(compile_c, "FLAGS", compile_c.FLAGS.replace("-O3", "-O0"))


@pytest.fixture
def fresh(_quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A process that has not looked for the library yet, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("EVENFLOW_NATIVE", raising=False)
    cpu.library.cache_clear()
    yield tmp_path / "evenflow"
    cpu.library.cache_clear()


def script(path: Path, text: str) -> str:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def load(folder: Path) -> ctypes.CDLL:
    return compile_c.load(PRODUCTS, cpu.HEADERS, folder)


def runs_with_one_warning(match: str) -> None:
    layer, x = RNN(2, 6, activation="abs"), torch.randn(5, 3, 2)
    with pytest.warns(RuntimeWarning, match=match) as caught:
        output, _ = layer(x)
    assert len([w for w in caught if "evenflow" in str(w.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x)[0].sum().backward()
    layer.engine = "reference"
    torch.testing.assert_close(output, layer(x)[0])


@needs_compiler
def test_compiles_once_and_finds_it_again(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cpu.library() is not None
    made = sorted(fresh.iterdir())
    assert [path.suffix for path in made] == [".so", ".sha256"]
    cpu.library.cache_clear()

    def refuse(*_: object) -> Path:
        raise AssertionError("compiled twice")

    monkeypatch.setattr(compile_c, "_compile", refuse)
    assert cpu.library() is not None
    assert sorted(fresh.iterdir()) == made


@needs_compiler
@pytest.mark.usefixtures("_quick")
def test_several_at_once_leave_one_whole_file_and_its_digest(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        loaded = list(pool.map(load, [tmp_path] * 3))
    assert all(isinstance(one, ctypes.CDLL) for one in loaded)
    assert len(list(tmp_path.iterdir())) == 2


@needs_compiler
@pytest.mark.usefixtures("_quick")
def test_a_truncated_file_in_the_cache_is_replaced(tmp_path: Path) -> None:
    """In a process of its own, which a truncated library would end."""
    path = tmp_path / compile_c.library_name(PRODUCTS, cpu.HEADERS, compile_c.find_compiler())
    load(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    text = (
        "from pathlib import Path; from evenflow.runtime import compile_c; from evenflow.scan import cpu;"
        f"compile_c.FLAGS = {compile_c.FLAGS!r};"
        f"compile_c.load(cpu.PRODUCTS.read_text(), cpu.HEADERS, Path({str(tmp_path)!r})).gradient_float"
    )
    subprocess.run([sys.executable, "-c", text], check=True)
    assert path.read_bytes() == whole
    assert compile_cache.read_verified(path) == whole


@needs_compiler
@pytest.mark.usefixtures("_quick")
def test_an_unwritable_cache_falls_back_to_a_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert load(tmp_path / "file" / "evenflow").gradient_float


@needs_compiler
@pytest.mark.usefixtures("_quick")
def test_a_full_cache_falls_back_to_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, (compiler, *_) = tmp_path / "cache", compile_c.find_compiler()
    full = f'case "$*" in *{cache}*) echo "error: No space left on device" >&2; exit 1;; esac\nexec {compiler} "$@"\n'
    monkeypatch.setenv("CC", script(tmp_path / "compiler", full))
    monkeypatch.setattr(compile_c, "keep", lambda *_: False)
    assert load(cache).gradient_float
    assert list(cache.iterdir()) == []


@needs_compiler
@pytest.mark.usefixtures("_quick")
def test_a_cache_that_allows_no_programs_still_keeps_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk that is mounted with noexec."""
    cache, kept = tmp_path / "cache", ctypes.CDLL

    def refuse(name: str) -> ctypes.CDLL:
        if name.startswith(str(cache)):
            raise OSError("failed to map segment from shared object: Operation not permitted")
        return kept(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert load(cache).gradient_float
    monkeypatch.setattr(compile_c, "_compile", None)
    assert load(cache).gradient_float


@needs_compiler
@pytest.mark.usefixtures("_quick")
def test_a_compilation_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    waiting = script(tmp_path / "waiting", '[ "$1" = --version ] || sleep 60\n')
    text = (
        "from pathlib import Path; from evenflow.runtime import compile_c; from evenflow.scan import cpu;"
        f"compile_c.load('', cpu.HEADERS, Path({str(tmp_path / 'cache')!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", text], env={**os.environ, "CC": waiting}, start_new_session=True)
    while not (left := list((tmp_path / "cache").glob("*"))):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert left[0].name.startswith(compile_cache.UNFINISHED)
    load(tmp_path / "cache")
    assert sorted(p.suffix for p in (tmp_path / "cache").iterdir()) == [".sha256", ".so"]


def test_without_a_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setitem(sys.modules, "ziglang", None)  # as where the package is not installed
    runs_with_one_warning(
        r"no C compiler \(cc, gcc or clang\) was found; pip install \"evenflow\[compiler\]\" installs one"
    )


GRU = """
import sys, torch, evenflow
from evenflow.runtime import compile_c
from evenflow.scan import cpu
generator = torch.Generator().manual_seed(0)
layer, x = evenflow.GRU(3, 7, generator=generator), torch.randn(9, 5, 3, generator=generator)
y, _ = layer(x)
y.square().sum().backward()
assert cpu.library() is not None
torch.save([compile_c.find_compiler(), y.detach(), *(p.grad for p in layer.parameters())], sys.argv[1])
"""


@pytest.mark.slow
def test_the_package_ziglang_is_taken_where_no_compiler_is_found(tmp_path: Path) -> None:
    """In a process with an empty PATH, whose home folder cannot be written to: the first compilation by zig, and the
    outputs and gradients of a GRU against the reference loop.
    """
    pytest.importorskip("ziglang")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "file").write_text("")
    environment = {
        "PATH": str(tmp_path / "nothing"),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HOME": str(tmp_path / "file" / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache with a space"),
    }
    strict = [sys.executable, "-W", "error::RuntimeWarning", "-c", GRU, str(tmp_path / "found.pt")]
    subprocess.run(strict, env=environment, cwd=tmp_path, check=True)
    command, y, *gradients = torch.load(tmp_path / "found.pt")
    assert Path(command[0]).stem == "zig"
    kept = sorted((tmp_path / "cache with a space" / "evenflow").iterdir())
    assert {path.suffix for path in kept} == {".so", ".sha256", ""}
    assert [path.name for path in kept if not path.suffix] == [compile_c.ZIG_FILES]

    generator = torch.Generator().manual_seed(0)
    layer, x = evenflow.GRU(3, 7, generator=generator), torch.randn(9, 5, 3, generator=generator)
    layer.engine = "reference"
    wanted, _ = layer(x)
    wanted.square().sum().backward()
    torch.testing.assert_close([y, *gradients], [wanted.detach(), *(p.grad for p in layer.parameters())])


def test_with_a_compiler_that_does_not_exist(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -pipe")
    runs_with_one_warning("named by CC, 'no-such-compiler -pipe', was not found")


def test_with_a_compiler_that_cannot_be_read(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "gcc 'x")
    runs_with_one_warning('named by CC, "gcc \'x", cannot be read \\(No closing quotation\\)')


def test_with_a_compiler_that_fails(fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(
        "CC", script(tmp_path / "failing", '[ "$1" = --version ] && exit 0\necho "error: no" >&2; exit 3\n')
    )
    runs_with_one_warning("failing failed \\(error: no\\)")
    assert list(fresh.iterdir()) == []


def test_with_a_compiler_that_writes_nonsense(fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write = 'for out; do :; done\n[ "$1" = --version ] || echo nonsense > "$out"\n'
    monkeypatch.setenv("CC", script(tmp_path / "broken", write))
    runs_with_one_warning("cannot be loaded")


def test_can_be_turned_off(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENFLOW_NATIVE", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RNN(2, 6)(torch.randn(5, 3, 2))
    assert cpu.library() is None
    assert not fresh.exists()


def test_import_neither_compiles_nor_looks_for_a_compiler(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CC": "no-such-compiler"}
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", "import evenflow"]
    subprocess.run(command, env=environment, check=True)
    assert list(tmp_path.iterdir()) == []


def test_the_first_call_does_not_load_torchs_compiler() -> None:
    """It takes two seconds, and nothing here needs it."""
    text = (
        "import sys, torch, evenflow; evenflow.RNN(2, 4)(torch.randn(3, 2, 2))[0].sum().backward(); "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", text], env={**os.environ, "EVENFLOW_NATIVE": "0"}, check=True)


def test_no_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def gradient_float(self, _: object) -> int:
            return 1

    monkeypatch.setattr(cpu, "library", Full)
    with pytest.raises(MemoryError, match="gradient_float found no memory"):
        cpu.weight_gradient(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2), None)


def test_a_compiled_library_is_used_where_there_is_a_compiler() -> None:
    """So that a test run on a machine with a compiler cannot pass on the fallback alone."""
    if os.environ.get("EVENFLOW_NATIVE", "1") == "0":
        pytest.skip("EVENFLOW_NATIVE=0")
    assert cpu.accepts(torch.zeros(1)) == COMPILER
    assert not cpu.accepts(torch.zeros(1, dtype=torch.bfloat16))
    assert not cpu.accepts(torch.zeros(1), torch.zeros(1, dtype=torch.float64))


@needs_compiler
def test_the_caller_keeps_its_denormals() -> None:
    """Inside a call denormals count as zero; after it the caller's arithmetic is what it was."""
    if torch.set_flush_denormal(False) is False:
        pytest.skip("this processor cannot flush denormals")
    RNN(2, 64)(torch.randn(50, 20, 2))[0].sum().backward()
    assert (torch.tensor([1e-38]) * 0.01).item() > 0
