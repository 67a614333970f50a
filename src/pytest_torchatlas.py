"""The pytest plugin of torchatlas: the fixture `atlas_guard` and its options.

It is a module beside the package, since pytest loads it in every project where torchatlas is installed: it imports
torchatlas, and with it torch, when a test first uses the fixture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torchatlas.integrations.guard import Guard

FIXTURE = "atlas_guard"
FOLDER = "__atlas__"  # beside a test file, with a folder for each
_BEGINNING = b"torchatlas snapshot "
_REGISTERED = "torchatlas-snapshots"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torchatlas", "snapshots of models (torchatlas)")
    group.addoption(
        "--atlas-update",
        action="store_true",
        help="write the snapshots of tests that use atlas_guard, and remove those that no test uses any more",
    )
    group.addoption(
        "--atlas-report",
        metavar="DIR",
        help="where pages of the viewer go that show the graph of a failed test [default: pytest's temporary folder]",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Keep pytest from rewriting the assertions of torchatlas itself, as it would for all that comes with a plugin.

    Rewriting 100 modules takes longer than importing them, and the asserts in them are for mypy. pytest has no public
    way to say so but a word in the docstring of each module; where its attribute is gone, they are rewritten.
    """
    marked = getattr(early_config.pluginmanager.rewrite_hook, "_must_rewrite", None)
    if isinstance(marked, set):
        marked.discard("torchatlas")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Snapshots(config), _REGISTERED)


@pytest.fixture
def atlas_guard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guard]:
    """Assertions that fail when a model changes: unchanged, within, no_findings, same_outputs (see docs/ci.md)."""
    from torchatlas.integrations.guard import Guard, SnapshotFiles

    item, config = request.node, request.config

    def report_folder() -> Path:
        if (wanted := config.getoption("atlas_report")) is None:
            return tmp_path_factory.mktemp("atlas")
        folder = Path(config.invocation_params.dir, wanted)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    names = [node.name for node in item.listchain() if isinstance(node, (pytest.Class, pytest.Item))]
    update = bool(config.getoption("atlas_update"))
    files = SnapshotFiles(_folder(item.path), ".".join(names), item.nodeid, update, report_folder)
    yield Guard(files)
    snapshots = config.pluginmanager.get_plugin(_REGISTERED)
    assert isinstance(snapshots, Snapshots)
    snapshots.used.update(map(str, files.used))
    snapshots.written.update(map(str, files.written))


def _folder(test_file: Path) -> Path:
    return test_file.parent / FOLDER / test_file.stem


class Snapshots:
    """What the tests of a session did with snapshot files; of all processes, where pytest-xdist has several."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.used: set[str] = set()
        self.written: set[str] = set()
        self.tests: dict[str, set[str]] = {}  # of each test file, the tests that use the fixture
        self.partial: set[str] = set()  # test files of which not all tests run
        self.passed: set[str] = set()
        self.lost = False  # whether a worker crashed, and took along what its tests used

    # -- what runs ---------------------------------------------------------------------------------------------------

    def pytest_deselected(self, items: Iterable[pytest.Item]) -> None:
        self.partial.update(str(item.path) for item in items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if FIXTURE in getattr(item, "fixturenames", ()):
                self.tests.setdefault(str(item.path), set()).add(item.nodeid)
        some = any("::" in argument for argument in self.config.args)
        if some or self.config.getoption("lf", False):  # which leaves tests out without a word
            self.partial.update(self.tests)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    # -- what is left ------------------------------------------------------------------------------------------------

    def pytest_sessionfinish(self) -> None:
        """A worker of pytest-xdist tells the process that prints the summary."""
        if hasattr(self.config, "workeroutput") and self.tests:
            tests = {path: sorted(names) for path, names in self.tests.items()}
            self.config.workeroutput["torchatlas"] = {
                "used": sorted(self.used),
                "written": sorted(self.written),
                "tests": tests,
                "partial": sorted(self.partial),
            }

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        told = getattr(node, "workeroutput", {}).get("torchatlas")
        if told is None:
            self.lost = True
        else:
            self.used.update(told["used"])
            self.written.update(told["written"])
            self.partial.update(told["partial"])
            for path, names in told["tests"].items():
                self.tests.setdefault(path, set()).update(names)

    def unused(self) -> list[Path]:
        """Snapshots of test files that ran as a whole and passed, and of test files that are gone.

        A file that is gone counts only where a whole folder was asked for: else it would not have been collected.
        """
        if self.lost:
            return []
        found: list[Path] = []
        for path in map(Path, self.tests):
            if str(path) not in self.partial and self.tests[str(path)] <= self.passed:
                found += (file for file in _snapshots(_folder(path)) if str(file) not in self.used)
        for above in dict.fromkeys(Path(path).parent for path in self.tests):
            for folder in (above / FOLDER).glob("*/") if self._is_whole(above) else ():
                if not any(above.glob(f"{escape(folder.name)}.*")):
                    found += _snapshots(folder)
        return sorted(set(found))

    def _is_whole(self, folder: Path) -> bool:
        """Whether all test files of a folder were to be collected."""
        given = (Path(self.config.invocation_params.dir, argument) for argument in self.config.args)
        return any(path.is_dir() and folder.is_relative_to(path.resolve()) for path in given)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.tests or hasattr(self.config, "workerinput"):
            return
        unused, update = self.unused(), self.config.getoption("atlas_update")
        lines = [f"{len(self.written)} written"] if self.written else []
        kept = _remove(unused) if update else {}
        unused = [path for path in unused if path not in kept]
        if unused:
            lines.append(f"{len(unused)} {'removed, which' if update else 'that'} no test uses")
            lines[-1] += ":" if update else "; pytest --atlas-update removes them:"
        if self.lost and update:
            lines.append("none removed: a worker of pytest-xdist crashed, so it is not known which ones its tests use")
        if lines or kept:
            terminalreporter.section("snapshots of torchatlas", sep="-")
            for line in lines:
                terminalreporter.write_line(line)
            for path in unused:
                terminalreporter.write_line(f"  {path}")
            for path, error in kept.items():
                terminalreporter.write_line(f"no test uses {path}, and it cannot be removed: {error.strerror or error}")


def _remove(paths: Iterable[Path]) -> dict[Path, OSError]:
    """Remove files, and folders that are empty then; those that stay, and why."""
    kept: dict[Path, OSError] = {}
    for path in paths:
        try:
            path.unlink()
        except OSError as error:
            kept[path] = error
            continue
        with suppress(OSError):  # an empty folder is no harm
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
    return kept


def _snapshots(folder: Path) -> list[Path]:
    """The files of a folder that are ours; one that cannot be read is not known to be."""
    found = []
    for path in sorted(folder.glob("*.txt")):
        with suppress(OSError):
            if path.is_file() and _begins(path):
                found.append(path)
    return found


def _begins(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_BEGINNING)) == _BEGINNING
