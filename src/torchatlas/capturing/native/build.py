"""recorder.cpp and its headers -> an extension module in the user's cache, for this torch, Python and source only.

The name of a build holds a hash of everything it depends on, so a build for another torch is never found, and the
module carries the same hash, so a file that was copied or renamed is never used. Nothing is built unless it is asked
for (`torchatlas native`), and a package that cannot build it works without.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torchatlas.errors import FileSystemError, NotAvailableError
from torchatlas.native_modules import native_recorders

SOURCE = Path(__file__).with_name("recorder.cpp")  # it includes the headers beside it
_NAME = "_recorder"
_COMPILERS = ("c++", "g++", "clang++")
# -DNDEBUG is not optional: without it, at::RecordFunction has another layout than inside of torch's libraries.
_FLAGS = ("-O2", "-DNDEBUG", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden")
_MOST_LINES = 12  # of a compiler's complaint
_LIMIT_SECONDS = 600


@dataclass(frozen=True)
class Status:
    """Whether the native recorder can be used here, and if not, why."""

    usable: bool
    path: str  # where the build is, or would be
    reason: str  # empty if it is usable

    def to_dict(self) -> dict[str, Any]:
        return {"usable": self.usable, "path": self.path, "reason": self.reason}

    def __str__(self) -> str:
        if self.usable:
            return f"The native recorder is built for torch {torch.__version__} and is used.\n{self.path}"
        return f"The native recorder is not used: {self.reason}"


def load() -> ModuleType | None:
    """The extension module if there is a build for this torch, this Python and this source; else None."""
    return _loaded()[0]


def status() -> Status:
    """Whether the native recorder can be used here."""
    module, reason = _loaded()
    return Status(module is not None, str(build_path()), reason)


def build(*, again: bool = False) -> Path:
    """Compile the native recorder into the user's cache, unless it is there already, and return its path.

    Raises:
        NotAvailableError: there is no compiler, it fails, or what it made cannot be loaded.
        FileSystemError: the cache cannot be written.
    """
    if not again and load() is not None:
        return build_path()
    target = build_path()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-")
    except OSError as error:
        raise FileSystemError(
            f"Cannot write the cache {target.parent}: {error.strerror or error}. "
            "Name another folder in the environment variable TORCHATLAS_CACHE."
        ) from error
    with scratch:
        made = Path(scratch.name) / target.name
        _compile(made)
        _try_in_a_child(made)
        os.replace(made, target)  # whole or not at all, also if two processes build at once
    forget()
    return target


def remove() -> list[Path]:
    """Delete all builds, those for other versions too. A process that has loaded one goes on using it."""
    builds = sorted(cache_folder().glob(f"{_NAME}-*"))
    for path in builds:
        path.unlink(missing_ok=True)
    forget()
    return builds


def forget() -> None:
    """Look anew for a build when one is next asked for."""
    _loaded.cache_clear()
    build_key.cache_clear()
    native_recorders.clear()


def cache_folder() -> Path:
    """Where builds are kept: TORCHATLAS_CACHE, or torchatlas/ in the user's cache."""
    if named := os.environ.get("TORCHATLAS_CACHE"):
        return Path(named) / "native"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchatlas" / "native"


def build_path() -> Path:
    """Where the build for this torch, this Python and this source is, or would be."""
    return cache_folder() / f"{_NAME}-{build_key()}{sysconfig.get_config_var('EXT_SUFFIX')}"


@functools.cache
def build_key() -> str:
    """A hash of what a build depends on."""
    parts = (
        *_source(),
        torch.__version__.encode(),
        str(torch.version.git_version).encode(),
        str(torch._C._GLIBCXX_USE_CXX11_ABI).encode(),
        str(sys.implementation.cache_tag).encode(),
        platform.machine().encode(),
        " ".join(_FLAGS).encode(),
    )
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:20]


def _source() -> Iterator[bytes]:
    """The text that is compiled: recorder.cpp, then the names and texts of the headers beside it."""
    yield SOURCE.read_bytes()
    for header in sorted(SOURCE.parent.glob("*.h")):
        yield header.name.encode()
        yield header.read_bytes()


# -- loading -----------------------------------------------------------------------------------------------------------


@functools.cache
def _loaded() -> tuple[ModuleType | None, str]:
    """The module, or None and why there is none."""
    path = build_path()
    try:
        file_stat = path.stat()
    except OSError:
        return None, "it is not built for this torch and Python. Run: torchatlas native"
    if (refusal := _refusal(file_stat)) is not None:
        return None, f"{path} {refusal}. Run: torchatlas native --again"
    try:
        return _import(path), ""
    except ImportError as error:
        # A process keeps the library that it once opened under a name, also when the file has been replaced.
        return None, f"{path} cannot be loaded ({error}). Run: torchatlas native --again, then start anew"


def _refusal(file_stat: os.stat_result) -> str | None:
    """Loading it runs code: nobody else may have been able to write it."""
    if hasattr(os, "getuid") and file_stat.st_uid not in (os.getuid(), 0):
        return "belongs to somebody else"
    if file_stat.st_mode & 0o002:
        return "can be written by everybody"
    return None


def _import(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(path))
    spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    if getattr(module, "key", None) != build_key():
        raise ImportError("it was built for another torch, Python or source")
    native_recorders[:] = [module]
    return module


# -- compiling ---------------------------------------------------------------------------------------------------------


def _compile(target: Path) -> None:
    command = _command(target)
    try:
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_SECONDS)
    except OSError as error:
        raise NotAvailableError(f"The compiler {command[0]} cannot be run: {error.strerror or error}.") from error
    except subprocess.TimeoutExpired as error:
        raise NotAvailableError(f"The compiler {command[0]} did not end within {_LIMIT_SECONDS} seconds.") from error
    if ran.returncode != 0:
        lines = [line for line in ran.stderr.splitlines() if "error" in line.lower()] or ran.stderr.splitlines()
        shown = "\n".join(lines[:_MOST_LINES]) or f"exit code {ran.returncode}, and it said nothing"
        raise NotAvailableError(
            f"The compiler {command[0]} could not build the native recorder:\n{shown}\n"
            "Recording works without it. Name another compiler in the environment variable CXX."
        )


def _command(target: Path) -> list[str]:
    if sys.platform == "win32":
        raise NotAvailableError("The native recorder is not built on Windows. Recording works without it.")
    include, libraries = Path(torch.__file__).parent / "include", Path(torch.__file__).parent / "lib"
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        raise NotAvailableError(
            f"Python's headers are not in {headers}. On Debian and Ubuntu: apt-get install python3-dev"
        )
    return [
        *_compiler(),
        *_FLAGS,
        f'-DTORCHATLAS_KEY="{build_key()}"',
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        f"-isystem{include}",
        f"-isystem{headers}",
        str(SOURCE),
        "-o",
        str(target),
        f"-L{libraries}",
        "-lc10",
        "-ltorch_cpu",
        "-ltorch_python",
        *(["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []),
    ]


def _compiler() -> list[str]:
    """The compiler of CXX, which may hold options as well, or the first one that is installed."""
    if named := shlex.split(os.environ.get("CXX", "")):
        return named
    for name in _COMPILERS:
        if path := shutil.which(name):
            return [path]
    raise NotAvailableError(
        "There is no C++ compiler: the native recorder cannot be built, and recording works without it. "
        "On Debian and Ubuntu: apt-get install g++"
    )


def _try_in_a_child(made: Path) -> None:
    """Load a fresh build in a process of its own: one that crashes must not take the user's process with it."""
    code = (
        "import sys, torch; from importlib import machinery, util\n"
        f"loader = machinery.ExtensionFileLoader({_NAME!r}, sys.argv[1])\n"
        f"loader.exec_module(util.module_from_spec(util.spec_from_loader({_NAME!r}, loader)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(made)], capture_output=True, text=True, timeout=_LIMIT_SECONDS
    )
    if ran.returncode != 0:
        said = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
        raise NotAvailableError(f"The native recorder was built but does not load with this torch: {said}")
