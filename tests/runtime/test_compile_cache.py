"""The folder of compiled code: what is kept and made again, and whose files are trusted."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from evenflow.runtime import compile_cache as cache

posix = pytest.mark.skipif(os.name != "posix", reason="rights of other systems are not looked at")


@pytest.fixture(autouse=True)
def warned_anew() -> Iterator[None]:
    cache._warn_once.cache_clear()
    yield
    cache._warn_once.cache_clear()


@pytest.fixture
def made() -> list[int]:
    return []


@pytest.fixture
def content(tmp_path: Path, made: list[int]) -> Callable[[], bytes]:
    """The content of one cached file, which is made where the cache has none."""

    def make() -> bytes:
        made.append(1)
        return b"code" * 1000

    return lambda: cache.cached_bytes(tmp_path / "cache" / "kernel.cubin", make)


def test_what_is_made_is_kept_for_the_user_alone(tmp_path: Path, content: Callable[[], bytes], made: list[int]) -> None:
    assert [content() for _ in range(3)] == [b"code" * 1000] * 3
    assert len(made) == 1
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["kernel.cubin", "kernel.cubin.sha256"]
    assert os.name != "posix" or stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


@pytest.mark.parametrize("file", ["kernel.cubin", "kernel.cubin.sha256"])
@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "longer", "missing"])
def test_a_damaged_file_is_made_again(
    tmp_path: Path, content: Callable[[], bytes], made: list[int], file: str, damage: str
) -> None:
    content()
    path = tmp_path / "cache" / file
    whole = path.read_bytes()
    damaged = {"empty": b"", "truncated": whole[:-9], "flipped": whole[:5] + b"!" + whole[6:], "longer": whole + b"!"}
    path.unlink() if damage == "missing" else path.write_bytes(damaged[damage])
    assert content() == b"code" * 1000
    assert len(made) == 2
    assert path.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert cache.cached_bytes(tmp_path / "file" / "kernel.cubin", lambda: b"code") == b"code"


@posix
def test_the_folder_of_an_earlier_version_is_closed_to_others(tmp_path: Path, content: Callable[[], bytes]) -> None:
    (tmp_path / "cache").mkdir(mode=0o755)
    content()
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def open_to_a_group(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder.chmod(0o770)
    return r"since other users may write to it \(mode 770\)"


def link(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")
    return "since it is a symbolic link"


def of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    return r"since it belongs to another user \(number \d+\)"


def in_an_open_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder.parent.chmod(0o777)
    return "since everyone may replace it"


@posix
@pytest.mark.parametrize("change", [open_to_a_group, link, of_another_user, in_an_open_folder])
def test_a_folder_that_others_control_is_not_used(
    tmp_path: Path,
    content: Callable[[], bytes],
    made: list[int],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path, pytest.MonkeyPatch], str],
) -> None:
    content()
    why = change(tmp_path / "cache", monkeypatch)
    with pytest.warns(RuntimeWarning, match=f"evenflow loads no compiled code from folder '.*', {why}") as warned:
        assert [content(), content()] == [b"code" * 1000] * 2
    assert len(warned) == 1
    assert len(made) == 3


@posix
@pytest.mark.parametrize("change", [open_to_a_group, link])
@pytest.mark.parametrize("file", ["kernel.cubin", "kernel.cubin.sha256"])
def test_a_file_that_others_control_is_made_again(
    tmp_path: Path,
    content: Callable[[], bytes],
    made: list[int],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path, pytest.MonkeyPatch], str],
    file: str,
) -> None:
    content()
    why = change(tmp_path / "cache" / file, monkeypatch)
    with pytest.warns(RuntimeWarning, match=f"from '.*{file}', {why}"):
        content()
    assert len(made) == 2
    content()
    assert len(made) == 2
    assert not (tmp_path / "cache" / file).is_symlink()


def test_what_interrupted_work_leaves_is_removed(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), cache.unfinished(tmp_path) as folder:
        (folder / "half").write_text("")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    (tmp_path / f"{cache.UNFINISHED}left").mkdir()  # as a killed process leaves it
    with cache.unfinished(tmp_path) as mine, cache.unfinished(tmp_path) as other:
        assert sorted(tmp_path.iterdir()) == sorted([mine, other])


def test_a_relative_folder_and_an_unknown_home_are_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", "~")
    assert not cache.cache_folder().is_absolute()
    assert not cache.trusted_folder(cache.cache_folder())
    assert list(tmp_path.iterdir()) == []
