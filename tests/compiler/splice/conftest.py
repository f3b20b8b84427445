"""Test helpers are plain modules of these folders. The tests run where there are stencils: on machines with AVX-512."""
from __future__ import annotations

import sys
from pathlib import Path

import pytest

for _folder in (Path(__file__).parent, Path(__file__).parent.parent / "kernels", Path(__file__).parent.parent):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))


@pytest.fixture(scope="session")
def stencils():
    from bcvm.compiler.splice.library import library
    from bcvm.compiler.target import host
    if not host().avx512:
        pytest.skip("stencils are made for AVX-512 only")
    return library()
