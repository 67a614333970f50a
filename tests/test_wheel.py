"""What is built for an index: the wheel holds all that is needed and nothing else; the sdist builds it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import torchatlas

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "torchatlas"

pytestmark = pytest.mark.slow
pytest.importorskip("build", reason="a tool of `make dist`")
pytest.importorskip("hatchling", reason="a tool of `make dist`")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(next(built.glob("*.whl")))


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    expected = {path.relative_to(PACKAGE.parent).as_posix() for path in files} | {"pytest_torchatlas.py"}
    info = f"torchatlas-{torchatlas.__version__}.dist-info/"
    names = {name for name in wheel.namelist() if not name.startswith(info)}
    assert names == expected
    for needed in (
        "torchatlas/py.typed",
        "torchatlas/operations/loadable_operators.txt",
        "torchatlas/render/viewer/asset/viewer.js",
        "torchatlas/render/viewer/asset/viewer.css",
        "torchatlas/render/fonts/Inter-Regular.otf",
    ):
        assert needed in names
    ours = ("selftest.py", "pytest_torchatlas.py")
    assert not [name for name in names if "test" in name.rpartition("/")[2] and not name.endswith(ours)]


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    info = f"torchatlas-{torchatlas.__version__}.dist-info"
    metadata = wheel.read(f"{info}/METADATA").decode()
    head, _, description = metadata.partition("\n\n")
    assert f"\nVersion: {torchatlas.__version__}\n" in head
    assert description.strip() == (ROOT / "README.md").read_text("utf-8").strip()
    for extra in ("pandas", "parquet", "networkx", "jupyter"):
        assert f"\nProvides-Extra: {extra}\n" in head
    assert "torchatlas = torchatlas.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
    assert wheel.read(f"{info}/WHEEL").decode().count("py3-none-any") == 1


def test_the_sdist_holds_the_tests_and_no_build_products(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("Makefile", "constraints.txt", "tests/conftest.py", "tests/test_wheel.py", "viewer/src", "docs"):
        assert any(name == needed or name.startswith(f"{needed}/") for name in names), needed
    made = ("node_modules", "__pycache__", ".venv", ".mypy_cache", ".pytest_cache")
    assert not [name for name in names if any(part in made for part in name.split("/"))]
