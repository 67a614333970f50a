"""Graph -> Snapshot -> text that reviews well, and back: totals, the structural hash, and one line per module.

A line has what the module did itself, without the modules below it, so that one change is one line of a diff:

    layer1.0.conv1 Conv2d in=float32[1,64,56,56] out=float32[1,64,56,56] forward=1:convolution parameters=36,864 ...

`forward=3:t,addmm*2` are three operations, counted by name. `id` changes with any argument, shape or stride of them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torchatlas import __version__
from torchatlas.analysis.module_figures import input_layouts, output_layouts, own_sums
from torchatlas.analysis.node_work import count
from torchatlas.errors import FileFormatError, NewerVersionError
from torchatlas.escapes import quoted
from torchatlas.graph import Graph, Layout, NodeKind
from torchatlas.graph.columns import KINDS, PHASES
from torchatlas.graph.names import short_name

FORMAT = 1
_OP = KINDS.index(NodeKind.OP)
TOTALS = ("ops", "parameters", "macs", "flops", "peak_bytes")
ROOT = "(root)"
_MOST_SHAPES = 8  # that a line shows; `id` covers all of them
_HEAD = re.compile(r"torchatlas snapshot (\d{1,9}), torchatlas ([\w.+-]+), torch ([\w.+-]+)\.(?: .*)?")
_REWRITE = "Rewritten by: pytest --atlas-update"
_TOKEN = re.compile(r'(?:(\w+)=)?("(?:[^"\\]|\\.)*"|[^\s"]+)(?:\s+|$)')
_PLAIN = re.compile(r"[\w.\-]+")  # a path or a class that needs no quotation marks
_BARE = re.compile(r'[^\s"\\]+')  # the same for what follows an equals sign


@dataclass(frozen=True)
class Snapshot:
    """What a snapshot file holds. A total is None where it is unknown."""

    torchatlas: str  # major and minor version of the torchatlas that wrote it
    torch: str
    hash: str
    totals: Mapping[str, int | None]
    uncosted: Mapping[str, int]  # operations without a cost formula, which are missing in macs and flops
    modules: Mapping[str, Mapping[str, str]] = field(repr=False)  # path -> what its line says, by name


def minor(version: str) -> str:
    """The first two numbers of a version.

    >>> minor("2.15.0+cpu"), minor("0.2.0")
    ('2.15', '0.2')
    """
    return ".".join(version.split("+")[0].split(".")[:2])


def snapshot_of(graph: Graph, torch_version: str) -> Snapshot:
    """The snapshot of a graph that was recorded with this version of torch."""
    macs, own_macs, own_uncosted, uncosted = _macs(graph)
    totals = {
        "ops": graph.scopes[""].operations,
        "parameters": graph.scopes[""].parameters,
        "macs": macs,
        "flops": None if macs is None else 2 * macs,
        "peak_bytes": graph.peak_bytes,
    }
    operations, ids = _operations(graph)
    taken, made = input_layouts(graph), output_layouts(graph)
    modules = {}
    for scope in graph.scopes.values():
        path = scope.path
        parameters = scope.parameters - sum(child.parameters for child in scope.children)
        fields = {
            "class": scope.type or str(graph.metadata.get("model") or "-" if not path else "-"),
            "calls": str(scope.calls) if scope.calls > 1 else "",
            "in": _shapes(taken.get(path, [])),
            "out": _shapes(made.get(path, [])),
            **{phase: _counted(names) for phase, names in operations.get(path, {}).items()},
            "parameters": f"{parameters:,}" if parameters else "",
            "flops": _flops(own_macs.get(path), own_uncosted.get(path, 0)),
            "id": ids.get(path, ""),
        }
        modules[path] = {name: text for name, text in fields.items() if text}
    return Snapshot(minor(__version__), minor(torch_version), graph.hash, totals, uncosted, modules)


def _macs(graph: Graph) -> tuple[int | None, dict[str, int], dict[str, int], dict[str, int]]:
    """Multiply-adds of the whole and of each module itself, and operations without a formula by module and by name."""
    if graph.source == "autograd":  # it has no arguments to cost
        return None, {}, {}, {}
    counts = count(graph)
    known = np.flatnonzero(counts.is_op & (counts.macs >= 0))
    unknown = np.flatnonzero(counts.is_op & (counts.macs < 0))
    paths = graph.index.paths
    own = dict(zip(paths, own_sums(graph, known, counts.macs[known]), strict=True))
    missing = dict(zip(paths, own_sums(graph, unknown, np.ones(len(unknown), np.int64)), strict=True))
    return sum(own.values()), own, missing, dict(sorted(counts.uncosted.items()))


def _flops(macs: int | None, uncosted: int) -> str:
    if macs is None:
        return ""
    if uncosted:
        return f"{2 * macs:,}+?"  # at least
    return f"{2 * macs:,}" if macs else ""


def _operations(graph: Graph) -> tuple[dict[str, dict[str, Counter[str]]], dict[str, str]]:
    """Per module its own operations by phase and name, and a digest of them with arguments, shapes and strides."""
    columns, tables, index = graph.columns, graph.tables, graph.index
    names = [operation.name for operation in tables.operations]
    arguments = [*tables.arguments, ""]
    layouts = [repr((one.shape, one.stride, one.dtype, one.kind)) for one in tables.layouts] + ["None"]
    layout = np.append(columns["value_layout"], -1)
    sides = [
        (columns[f"{side}_ptr"].tolist(), layout[columns[f"{side}_value"]].tolist()) for side in ("input", "output")
    ]
    call_index = [*columns["call_index"].tolist(), 0]
    counted: dict[str, dict[str, Counter[str]]] = {}
    digests: dict[str, Any] = {}
    is_op = columns["node_operation"] >= 0
    for node in np.flatnonzero(is_op & (columns["node_kind"] == _OP)).tolist():
        call = int(columns["node_call"][node])
        path = index.paths[int(index.path_of_call[call])]
        phase, name = str(PHASES[int(columns["node_phase"][node])]), names[int(columns["node_operation"][node])]
        counted.setdefault(path, {}).setdefault(phase, Counter())[short_name(name)] += 1
        shapes = [[layouts[one] for one in rows[ends[node] : ends[node + 1]]] for ends, rows in sides]
        row = (phase, name, arguments[int(columns["node_arguments"][node])], call_index[call], shapes)
        digests.setdefault(path, hashlib.blake2b(digest_size=4)).update(repr(row).encode("utf-8", "backslashreplace"))
    return counted, {path: digest.hexdigest() for path, digest in digests.items()}


def _counted(names: Counter[str]) -> str:
    listed = ",".join(name if times == 1 else f"{name}*{times}" for name, times in names.items())
    return f"{names.total()}:{listed}"


def _shapes(layouts: Iterable[Layout]) -> str:
    shown = [f"{one.dtype}[{','.join(map(str, one.shape))}]" for one in layouts]
    more = [f"and{len(shown) - _MOST_SHAPES}more"] if len(shown) > _MOST_SHAPES else []
    return ";".join([*shown[:_MOST_SHAPES], *more])


# -- text --------------------------------------------------------------------------------------------------------------


def to_text(snapshot: Snapshot) -> str:
    """The snapshot as the text of a file."""
    return "\n".join(_lines(snapshot)) + "\n"


def _lines(snapshot: Snapshot) -> Iterator[str]:
    yield f"torchatlas snapshot {FORMAT}, torchatlas {snapshot.torchatlas}, torch {snapshot.torch}. {_REWRITE}"
    yield f"hash {snapshot.hash}"
    totals = snapshot.totals.items()
    yield "total " + " ".join(f"{name}={'unknown' if number is None else f'{number:,}'}" for name, number in totals)
    if snapshot.uncosted:
        yield "uncosted " + " ".join(f"{_token(name, _PLAIN)} {times}" for name, times in snapshot.uncosted.items())
    yield ""
    for path, fields in snapshot.modules.items():
        more = [f"{name}={_token(text, _BARE)}" for name, text in fields.items() if name != "class"]
        yield " ".join([_token(path, _PLAIN) if path else ROOT, _token(fields["class"], _PLAIN), *more])


def _token(text: str, plain: re.Pattern[str]) -> str:
    """A word of a line; in quotation marks, in ASCII, where it could be taken for something else."""
    return text if plain.fullmatch(text) and text.isascii() else json.dumps(text)


def of_text(text: str, path: object) -> Snapshot:
    """The snapshot that a file holds.

    Raises:
        NewerVersionError: A newer torchatlas wrote it.
        FileFormatError: It is no snapshot, or damaged; the message names the line.
    """
    lines = text.splitlines()
    head = _HEAD.fullmatch(lines[0]) if lines else None
    if head is None:
        raise FileFormatError(f"{path}: its first line is not that of a snapshot of torchatlas.")
    if int(head[1]) > FORMAT:
        raise NewerVersionError(
            f"{path}: a snapshot in version {head[1]} of the format, written by torchatlas {head[2]}; this torchatlas "
            f"reads up to version {FORMAT}. Upgrade it: pip install --upgrade torchatlas"
        )
    header: dict[str, Any] = {"hash": "", "total": {}, "uncosted": {}}
    modules: dict[str, dict[str, str]] = {}
    body = False
    for number, line in enumerate(lines[1:], start=2):
        try:
            if not line.strip():
                body = True
            elif body:
                (_, module), (_, kind), *fields = _tokens(line)
                # in quotation marks, "(root)" is a module of that name
                modules["" if line.startswith(ROOT) else module] = {"class": kind, **{str(a): b for a, b in fields}}
            else:
                _read_head(header, line)
        except (ValueError, KeyError):
            raise FileFormatError(f"{path}, line {number}: cannot be read: {quoted(line)}") from None
    whole = text.endswith("\n")  # a file that was cut off ends within a line, but for a rare chance
    if not whole or not header["hash"] or set(header["total"]) != set(TOTALS) or "" not in modules:
        raise FileFormatError(f"{path}: not a whole snapshot: the hash, the totals or the modules are missing.")
    return Snapshot(head[2], head[3], header["hash"], header["total"], header["uncosted"], modules)


def _read_head(header: dict[str, Any], line: str) -> None:
    """One of the lines before the modules."""
    word, _, rest = line.partition(" ")
    if word == "hash":
        header["hash"] = rest.strip()
    elif word == "total":
        header["total"] = {str(name): _whole(text) for name, text in _tokens(rest)}
    elif word == "uncosted":
        texts = [text for _, text in _tokens(rest)]
        header["uncosted"] = {name: int(times) for name, times in zip(texts[::2], texts[1::2], strict=True)}
    else:
        raise ValueError(word)


def _whole(text: str) -> int | None:
    return None if text == "unknown" else int(text.replace(",", ""))


def _tokens(line: str) -> list[tuple[str | None, str]]:
    """The words of a line, each with the name before its equals sign. Raises ValueError."""
    words, at = list[tuple[str | None, str]](), 0
    while at < len(line):
        token = _TOKEN.match(line, at)
        if token is None:
            raise ValueError(line)
        words.append((token[1], json.loads(token[2]) if token[2].startswith('"') else token[2]))
        at = token.end()
    return words
