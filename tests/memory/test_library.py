"""Building the native library: once per version of the sources, in the user's cache."""

import pytest

from phantora.errors import UserError
from phantora.memory import library


def test_built_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls = []
    monkeypatch.setattr(library, "compile_library", lambda output: (calls.append(output), output.write_bytes(b"x")))
    first, second = library.build(), library.build()
    assert first == second and first.parent == tmp_path / "phantora"
    assert len(calls) == 1
    assert [path.name for path in first.parent.iterdir()] == [first.name]  # no scratch is left


def test_other_compiler_other_library(monkeypatch):
    before = library.source_hash()
    monkeypatch.setenv("CXX", "clang++")
    assert library.source_hash() != before


def test_a_missing_compiler_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="no-such-compiler"):
        library.compile_library(tmp_path / "allocator.so")


def test_errors_of_the_compiler_are_shown(tmp_path, monkeypatch):
    (tmp_path / "module.cpp").write_text("this is not C++")
    monkeypatch.setattr(library, "NATIVE", tmp_path)
    with pytest.raises(UserError, match="building the allocator failed"):
        library.compile_library(tmp_path / "allocator.so")
