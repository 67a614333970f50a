"""What the fixture `atlas_guard` is: assertions on a model's graph, against snapshots that lie beside the test.

Nothing here needs pytest: a failure is an AssertionError, and the plugin says where files lie and whether they are
rewritten.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from torchatlas.analysis.fail_on import Condition, Figure, Violation, judged, parse_condition
from torchatlas.errors import AtlasError, FileFormatError, FileSystemError, InvalidInputError, NewerVersionError
from torchatlas.files import open_to_read, replacing
from torchatlas.graph import Graph
from torchatlas.graph.graph_like import as_graph
from torchatlas.integrations.snapshot_changes import changes_text
from torchatlas.integrations.snapshots import Snapshot, of_text, snapshot_of, to_text
from torchatlas.registry import did_you_mean

FIGURES = ("flops", "macs", "parameters", "ops", "peak_bytes")
_UNSAFE = re.compile(r"[^\w.,=+\[\]-]+")  # in the name of a file, on any system
_LONGEST = 120  # characters of a file's name
_FAILS = {"<=": ">", "<": ">=", ">=": "<", ">": "<=", "==": "!="}  # a bound -> the condition that breaks it


@dataclass
class SnapshotFiles:
    """Where the files of one test lie, and what became of them."""

    folder: Path  # that its snapshots lie in
    test: str  # its name: TestModels.test_small[16]
    node_id: str  # as pytest takes it
    update: bool  # whether snapshots are written
    report_folder: Callable[[], Path]  # where pages of the viewer go; asked when there is one
    used: set[Path] = field(default_factory=set)
    written: set[Path] = field(default_factory=set)


def file_name(test: str, name: str = "") -> str:
    """The name of a snapshot's file; what a file system may refuse is replaced, and a digest keeps names apart.

    >>> file_name("test_small[16-relu]"), file_name("test_small", "encoder")
    ('test_small[16-relu].txt', 'test_small@encoder.txt')
    """
    plain = test + (f"@{name}" if name else "")
    safe = _UNSAFE.sub("_", test) + (f"@{_UNSAFE.sub('_', name)}" if name else "")
    if safe != plain or len(safe) > _LONGEST:
        safe = f"{safe[:_LONGEST]}-{blake2b(plain.encode('utf-8', 'backslashreplace'), digest_size=4).hexdigest()}"
    return f"{safe}.txt"


class Guard:
    """Assertions that fail when a model changes. A test gets one by naming the fixture `atlas_guard`.

    A model is captured as `atlas.capture` does: everything it changes is put back. Options of capture, such as
    `backward=True` and `optimizer=torch.optim.AdamW`, make it a training step. Instead of a model and its inputs,
    `unchanged` and `within` take a ready graph, or whatever holds one. Snapshots are written by `pytest
    --atlas-update` alone.
    """

    def __init__(self, files: SnapshotFiles) -> None:
        self._files = files
        self._texts: dict[Path, str] = {}  # that this test wrote

    # -- assertions --------------------------------------------------------------------------------------------------

    def unchanged(self, model: Any, *args: Any, name: str = "", **options: Any) -> Graph:
        """Fail unless the graph has the structure of the snapshot: operations, arguments, shapes, dtypes, edges.

        Args:
            model: A model or function, or a graph, or what holds one: a file, a recording, a traced model.
            *args: The inputs of the model.
            name: Which snapshot, if a test has several.
            **options: Those of `atlas.capture`, and keyword arguments of the model.
        Returns:
            The graph.
        Raises:
            AssertionError: It differs, or there is no snapshot. The message lists the modules that differ.
            FileFormatError: The snapshot is damaged.
        """
        __tracebackhide__ = True
        graph = _graph(model, args, options)
        after = _snapshot(graph)
        before, path = self._before(after, name)
        if before.hash != after.hash:
            self._fail(f"the graph is not that of {_shown(path)}", before, after, graph, path)
        return graph

    def within(
        self,
        model: Any,
        *args: Any,
        flops: str | int | None = None,
        macs: str | int | None = None,
        parameters: str | int | None = None,
        ops: str | int | None = None,
        peak_bytes: str | int | None = None,
        name: str = "",
        **options: Any,
    ) -> Graph:
        """Fail if a figure of the graph leaves its bound.

        A bound is "+1%" (at most 1 % more than in the snapshot), "+1000" or "+16MiB" (at most that much more), 0 (as in
        the snapshot), or "<=4.2e9" and "<=80GB" (in itself; needs no snapshot). Less than in the snapshot is fine for
        a bound that begins with a plus.

        Args:
            model: As for `unchanged`.
            *args: The inputs of the model.
            flops: A bound of the FLOPs of matmul-like work, two per multiply-add.
            macs: A bound of the multiply-adds.
            parameters: A bound of the parameters, tied ones counted once.
            ops: A bound of the number of operations.
            peak_bytes: A bound of the memory that is alive at the peak.
            name: Which snapshot, if a test has several.
            **options: As for `unchanged`.
        Returns:
            The graph.
        Raises:
            AssertionError: A bound is left, or there is no snapshot.
            InvalidInputError: A bound cannot be read, or none is given.
            AnalysisError: A figure is unknown.
            FileFormatError: The snapshot is damaged.
        """
        __tracebackhide__ = True
        asked = dict(zip(FIGURES, (flops, macs, parameters, ops, peak_bytes), strict=True))
        bounds = {}
        for figure, bound in asked.items():
            if bound is not None:
                bounds[figure] = _bound(figure, bound)
        if not bounds:
            near = next((f" ({one}= is none{hint})" for one in options if (hint := did_you_mean(one, FIGURES))), "")
            raise InvalidInputError(f'within needs a bound{near}: guard.within(model, x, flops="+1%", parameters=0).')
        graph = _graph(model, args, options)
        after = _snapshot(graph)
        before, path = None, None
        if any(condition.signed for condition in bounds.values()):
            before, path = self._before(after, name)
        broken = []
        for figure, condition in bounds.items():
            violation = judged(condition, None if before is None else _figure(before, figure), _figure(after, figure))
            if violation is not None:
                broken.append(f"{figure}={asked[figure]!r}: {violation.what}{_exactly(violation)}")
        if broken:
            self._fail(
                "\n".join(["out of bounds:", *(f"  {one}" for one in broken)]), before, after, graph, path, False
            )
        return graph

    def no_findings(
        self,
        step: Callable[..., Any],
        *args: Any,
        model: Any = None,
        only: Iterable[str] | None = None,
        ignore: Iterable[str] = (),
        **kwargs: Any,
    ) -> None:
        """Run something under the doctor, and fail if it finds an error or a warning. Notes alone are no reason.

        Args:
            step: A function that trains for a step or more. It does what it does alone.
            *args: Its positional arguments.
            model: The model: names in findings are its names.
            only: The key of the fault to look for, or several; None looks for all.
            ignore: Keys of faults to leave out.
            **kwargs: Its keyword arguments.
        Raises:
            AssertionError: Something was found; the message is the doctor's report.
            UnknownNameError: There is no fault of that key.
            InvalidInputError: `step` is nothing that can be run.
        """
        __tracebackhide__ = True
        from torchatlas.diagnosis import doctor

        if not callable(step):
            raise InvalidInputError(f"no_findings takes a function to run, not {type(step).__name__}.")
        with doctor(model=model, only=only, ignore=ignore) as visit:
            step(*args, **kwargs)
        findings = visit.findings
        if findings.worst in ("error", "warning") or findings.failures:
            raise AssertionError(f"the doctor found something:\n{findings}")

    def same_outputs(
        self,
        old: Any,
        new: Any,
        *args: Any,
        tolerance: float | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **model_kwargs: Any,
    ) -> None:
        """Fail unless two versions of a model return the same for the same input, random numbers included.

        Args:
            old: The version to compare with: a model, a function, a traced model, or the file of one.
            new: The version whose outputs should be the same.
            *args: The inputs of both.
            tolerance: The relative and absolute difference up to which numbers count as the same. None asks for the
                same bits and dtypes.
            kwargs: Keyword arguments of the models whose names are also names of this function.
            **model_kwargs: All other keyword arguments of the models.
        Raises:
            AssertionError: They differ; the message names the first operation and module that does.
            InvalidInputError: One of them cannot be run.
        """
        __tracebackhide__ = True
        from torchatlas.integrations.outputs import difference, first_difference, outputs_of

        if tolerance is not None and (isinstance(tolerance, bool) or not 0 <= tolerance < float("inf")):
            raise InvalidInputError(f"tolerance={tolerance!r} is no number from 0 on.")
        named = {**(kwargs or {}), **model_kwargs}
        old, new = _runnable(old), _runnable(new)
        what = difference(outputs_of(old, args, named), outputs_of(new, args, named), tolerance)
        if not what:
            return
        where, comparison = first_difference(old, new, args, named, tolerance)
        pages = [] if comparison is None else [self._page(comparison)]
        raise AssertionError("\n".join([f"the outputs differ: {what}", *where, *pages]))

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def _before(self, after: Snapshot, name: str) -> tuple[Snapshot, Path]:
        """The snapshot to compare with, written first if that is wanted, and its file."""
        __tracebackhide__ = True
        path = self._files.folder / file_name(self._files.test, name)
        self._files.used.add(path)
        if self._files.update:
            self._write(path, to_text(after))
            return after, path
        try:
            text = _text(path)
        except FileNotFoundError:
            raise AssertionError(f"there is no snapshot {_shown(path)}.\n{self._advice('To write it')}") from None
        except OSError as error:
            raise FileSystemError(f"Cannot read {_shown(path)}: {error}.") from error
        try:
            return of_text(text, _shown(path)), path
        except NewerVersionError:
            raise
        except FileFormatError as error:
            raise FileFormatError(f"{error}\n{self._advice('To rewrite it')}") from None

    def _write(self, path: Path, text: str) -> None:
        __tracebackhide__ = True
        if self._texts.setdefault(path, text) != text:
            raise AssertionError(
                f"this test has two graphs for one snapshot, {_shown(path)}. Give one of them a name: "
                'guard.unchanged(model, x, name="decoder").'
            )
        try:
            if path.exists() and _text(path) == text:
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(text.encode())
        except OSError as error:
            raise FileSystemError(f"Cannot write {_shown(path)}: {error}.") from error
        self._files.written.add(path)

    def _fail(
        self, head: str, before: Snapshot | None, after: Snapshot, graph: Graph, path: Path | None, totals: bool = True
    ) -> None:
        __tracebackhide__ = True
        lines = [head]
        if before is not None:
            lines += [changes_text(before, after, totals=totals), *_versions(before, after)]
        lines.append(self._page(graph))
        if path is not None:
            lines.append(self._advice("If this is meant, rewrite the snapshot and commit it"))
        raise AssertionError("\n".join(line for line in lines if line))

    def _page(self, subject: Any) -> str:
        """Write a page of the viewer; the line that says where it is."""
        try:
            file = self._files.node_id.partition("::")[0].removesuffix(".py").replace("/", ".").strip(".")
            name = file_name(f"{file}.{self._files.test}").removesuffix(".txt")
            path = self._files.report_folder() / f"{name}.html"
            return f"to look at it: {subject.save(path, title=self._files.node_id)}"
        except (AtlasError, OSError) as error:
            return f"no page of the viewer could be written: {error}"  # the assertion is what the reader came for

    def _advice(self, purpose: str) -> str:
        return f"{purpose}: pytest --atlas-update {shlex.quote(self._files.node_id)}"


def _text(path: Path) -> str:
    with open_to_read(path) as file:
        return file.read().decode("utf-8", "replace")


def _shown(path: Path) -> str:
    """A path as short as it can be given from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _versions(before: Snapshot, after: Snapshot) -> list[str]:
    """What to know if another version wrote the snapshot."""
    notes = []
    if before.torch != after.torch:
        notes.append(
            f"The snapshot was written with torch {before.torch}, and this is torch {after.torch}: torch itself may "
            f"run other operations. Run this test with torch {before.torch} to know whether the model changed."
        )
    if before.torchatlas != after.torchatlas:
        notes.append(
            f"The snapshot was written by torchatlas {before.torchatlas}, and this is {after.torchatlas}: it may "
            "record or count otherwise; its CHANGELOG.md says so."
        )
    return notes


def _graph(model: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Graph:
    """The graph that was given, or that of a model."""
    __tracebackhide__ = True
    ready = isinstance(model, (Graph, str, os.PathLike))
    if not ready and not args and not options:  # a recording, a report, a traced model
        ready = isinstance(getattr(model, "graph", None), Graph) and type(model).__module__.startswith("torchatlas.")
    if ready:
        if args or options:
            raise InvalidInputError("a ready graph takes no inputs and no options of capture.")
        return as_graph(model, "the guard")
    from torchatlas.capturing import capture

    # The recorder in C++ differs in named details: a snapshot has to be the same wherever it is built.
    return capture(model, *args, **{"native": False, **options})


def _snapshot(graph: Graph) -> Snapshot:
    import torch

    return snapshot_of(graph, str(graph.metadata.get("torch") or torch.__version__))


def _figure(snapshot: Snapshot, figure: str) -> Figure:
    return Figure(snapshot.totals[figure], snapshot.uncosted if figure in ("flops", "macs") else {})


def _exactly(violation: Violation) -> str:
    """The figures of a violation as they are, where rounding hides digits."""
    exact = [f"{number:,}" for number in (violation.before, violation.after) if number is not None]
    rounded = violation.what.partition(" (")[0].split(" -> ")
    return "" if exact == rounded else f"; exactly {' -> '.join(exact)}"


def _bound(figure: str, bound: str | int) -> Condition:
    """The condition that breaks a bound."""
    __tracebackhide__ = True
    wrong = f'{figure}={bound!r} is no bound. Write "+1%" or "+1000" for that much more than in the snapshot, 0 for no '
    wrong += 'change, or "<=4.2e9" for the figure itself.'
    if isinstance(bound, bool) or not isinstance(bound, (str, int, float)):
        raise InvalidInputError(wrong)
    if not isinstance(bound, str):
        if bound != 0:
            raise InvalidInputError(wrong)
        return parse_condition(f"{figure}!=+0")
    text = bound.strip()
    operator = next((one for one in ("<=", ">=", "==", "<", ">") if text.startswith(one)), "")
    if not operator and not text.startswith(("+", "-")):
        raise InvalidInputError(wrong)
    try:
        return parse_condition(f"{figure}{_FAILS.get(operator, '>')}{text.removeprefix(operator)}")
    except InvalidInputError as error:
        raise InvalidInputError(f"{wrong} ({error})") from None


def _runnable(model: Any) -> Any:
    if isinstance(model, (str, os.PathLike)):
        from torchatlas.execute.traced import TracedModel

        return TracedModel.load(model)
    if not callable(model) or isinstance(model, type):
        raise InvalidInputError(f"same_outputs takes models, functions or files of traced models, not {model!r:.80}.")
    return model
