"""Compiling CUDA at first use: the cache on disk, and what NVRTC reports. No GPU is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenflow.runtime import compile_cuda as build
from evenflow.runtime import cuda_libraries as libraries
from evenflow.runtime.compile_cache import fingerprint


def test_what_is_compiled_is_kept(tmp_path: Path) -> None:
    made = []

    def make() -> bytes:
        made.append(1)
        return b"code"

    path = tmp_path / "new" / "kernel.cubin"
    assert [build.cached_bytes(path, make) for _ in range(3)] == [b"code"] * 3
    assert len(made) == 1
    assert [p.name for p in path.parent.iterdir()] == ["kernel.cubin"]
    path.write_bytes(b"")  # as a full disk leaves it
    assert build.cached_bytes(path, make) == b"code"
    assert path.read_bytes() == b"code"


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert build.cached_bytes(tmp_path / "file" / "kernel.cubin", lambda: b"code") == b"code"


def test_the_fingerprint_follows_the_text_the_gpu_and_the_versions() -> None:
    assert len({fingerprint(*of) for of in (("a", "sm_90"), ("b", "sm_90"), ("a", "sm_100"))}) == 3


def test_what_nvrtc_says_is_shown() -> None:
    try:
        libraries.nvrtc_version()
    except libraries.CudaError as error:
        pytest.skip(str(error))
    with pytest.raises(libraries.CudaError) as raised:
        libraries.compile_source("nonsense", "sm_90")
    assert "for sm_90: " in str(raised.value)
    assert "nonsense" in str(raised.value)
