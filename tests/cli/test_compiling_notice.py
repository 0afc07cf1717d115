"""Compiling is announced when it takes long, once, and never when machine code comes from the cache."""

import numba
import pytest

from omstore import compiling
from omstore.compiling import announce_compiling


def slow_to_compile():
    @numba.njit
    def function(x):
        return [x * i for i in range(3)]

    return function


def test_long_compiling_is_said_once(monkeypatch):
    monkeypatch.setattr(compiling, "_PATIENCE", 0.0)
    said = []
    with announce_compiling(said.append):
        slow_to_compile()(1)
        slow_to_compile()(1.0)
    assert said == ["compiling kernels, once per machine; this may take a minute ..."]


def test_short_compiling_is_not(monkeypatch):
    monkeypatch.setattr(compiling, "_PATIENCE", 1000.0)
    said = []
    with announce_compiling(said.append):
        slow_to_compile()(1)
    assert said == []


@pytest.mark.parametrize("patience", [0.0])
def test_nothing_is_said_where_nothing_is_compiled(monkeypatch, patience):
    monkeypatch.setattr(compiling, "_PATIENCE", patience)
    function = slow_to_compile()
    function(1)
    said = []
    with announce_compiling(said.append):
        function(1)
    assert said == []
