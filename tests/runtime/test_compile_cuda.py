"""Compiling CUDA at first use: names of cached files, and what NVRTC reports. No GPU is needed."""

from __future__ import annotations

import pytest

from evenflow.runtime import cuda_libraries as libraries
from evenflow.runtime.compile_cache import fingerprint


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
