"""The native recorder, built once for all workers of a test run."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchatlas.capturing.native import build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache that holds a build of recorder.cpp."""
    if "TORCHATLAS_CI" not in os.environ and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("no C++ compiler")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "native-build"
    folder.mkdir(exist_ok=True)
    before = os.environ["TORCHATLAS_CACHE"]
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.environ["TORCHATLAS_CACHE"] = str(folder)
        build.forget()
        try:
            build.build()
        finally:
            os.environ["TORCHATLAS_CACHE"] = before
            build.forget()
    return folder


@pytest.fixture
def in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No native recorder, also where all tests use one: for those that count ops as a dispatch mode sees them.

    docs/native.md lists what differs.
    """
    monkeypatch.setenv("TORCHATLAS_CACHE", str(tmp_path / "no-builds"))
    build.forget()
    yield
    monkeypatch.undo()
    build.forget()


@pytest.fixture
def native(built: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The native recorder is there, and so it is what recordings use."""
    monkeypatch.setenv("TORCHATLAS_CACHE", str(built))
    build.forget()
    assert build.load() is not None, build.status()
    yield
    monkeypatch.undo()
    build.forget()
