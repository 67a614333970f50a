"""Building and loading the native recorder: what is not exactly right is never loaded, and says why."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from torchatlas.capturing.native import build
from torchatlas.cli.native import command
from torchatlas.errors import FileSystemError, NotAvailableError

TINY = """
#include <Python.h>
static int fill(PyObject* module) { return PyModule_AddStringConstant(module, "key", TORCHATLAS_KEY); }
static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void*)fill}, {0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_recorder", nullptr, 0, nullptr, slots};
PyMODINIT_FUNC PyInit__recorder() {
  %s
  return PyModuleDef_Init(&definition);
}
"""

pytestmark = pytest.mark.skipif(
    "TORCHATLAS_CI" not in os.environ and not any(map(shutil.which, ("c++", "g++", "clang++"))),
    reason="no C++ compiler",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and a source that compiles within a second instead of half a minute."""
    monkeypatch.setenv("TORCHATLAS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    use_source(TINY % "", tmp_path, monkeypatch)
    yield tmp_path / "cache" / "native"
    build.forget()


def use_source(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder / "recorder.cpp"
    source.write_text(text)
    monkeypatch.setattr(build, "SOURCE", source)
    build.forget()


def test_built_once_then_loaded(cache: Path) -> None:
    assert build.load() is None
    assert not build.status().usable
    assert "torchatlas native" in build.status().reason
    path = build.build()
    assert path.parent == cache
    assert build.load() is not None
    assert build.status() == build.Status(True, str(path), "")
    before = path.stat().st_mtime_ns
    assert build.build() == path
    assert path.stat().st_mtime_ns == before
    assert [file.name for file in cache.iterdir()] == [path.name], "nothing else stays behind"
    assert build.remove() == [path]
    assert build.load() is None


def test_another_source_or_torch_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.build()
    use_source(TINY % "/* changed */", tmp_path, monkeypatch)
    assert build.build_path() != first
    assert build.load() is None
    shutil.copy(first, build.build_path())  # renamed by somebody
    build.forget()
    assert build.load() is None
    assert "another torch, Python or source" in build.status().reason


def test_a_changed_header_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = tmp_path / "part.h"
    header.write_text("// a part\n")
    use_source('#include "part.h"\n' + TINY % "", tmp_path, monkeypatch)
    first = build.build()
    assert build.load() is not None
    header.write_text("// a changed part\n")
    build.forget()
    assert build.build_path() != first
    assert build.load() is None


def test_a_build_depends_on_all_that_is_included() -> None:
    folder = Path(build.__file__).parent
    headers = sorted(path.name for path in folder.glob("*.h"))
    files = [folder / "recorder.cpp", *(folder / name for name in headers)]
    included = [name for file in files for name in re.findall(r'#include "(.+)"', file.read_text("utf-8"))]
    assert sorted(included) == headers, "each header beside recorder.cpp once, and nothing from elsewhere"


def test_a_version_of_torch_changes_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    here = build.build_path()
    monkeypatch.setattr("torch.__version__", "9.9.9")
    build.build_key.cache_clear()
    assert build.build_path() != here


def test_a_build_that_others_can_write_is_not_loaded() -> None:
    path = build.build()
    path.chmod(0o777)
    build._loaded.cache_clear()
    assert build.load() is None
    assert "can be written by everybody" in build.status().reason


def test_a_damaged_build_is_not_loaded() -> None:
    path = build.build_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a library")
    assert build.load() is None
    assert "cannot be loaded" in build.status().reason
    build.build()
    assert build.load() is not None


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NotAvailableError, match=r"no C\+\+ compiler.*works without it"):
        build.build()


@pytest.mark.parametrize(
    ("compiler", "words"),
    [("false", "said nothing"), ("no-such-compiler", "cannot be run"), ("c++ -DBROKEN", "broken")],
)
def test_a_compiler_that_fails(
    compiler: str, words: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_source("#ifdef BROKEN\n#error it is broken\n#endif\n" + TINY % "", tmp_path, monkeypatch)
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(NotAvailableError, match=words):
        build.build()
    assert list(cache.iterdir()) == []
    assert build.load() is None


def test_a_build_that_crashes_takes_nobody_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_source("#include <cstdlib>\n" + TINY % "std::abort();", tmp_path, monkeypatch)
    with pytest.raises(NotAvailableError, match="does not load with this torch"):
        build.build()
    assert build.load() is None


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHATLAS_CACHE", str(tmp_path / "file"))
    with pytest.raises(FileSystemError, match="TORCHATLAS_CACHE"):
        build.build()


def test_no_headers_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(NotAvailableError, match="python3-dev"):
        build.build()


def test_the_verb() -> None:
    run = CliRunner().invoke
    assert '"usable": false' in run(command, ["--status", "--json"]).output
    assert "is built for torch" in run(command, []).output
    assert '"usable": true' in run(command, ["--status", "--json"]).output
    assert "removed" in run(command, ["--remove"]).output
    assert "There is none" in run(command, ["--remove"]).output
    assert run(command, ["--again", "--remove"]).exit_code == 2
