"""What the doctor found -> findings with the nodes that they belong to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from torchatlas.errors import InvalidInputError
from torchatlas.escapes import encodable
from torchatlas.graph import Graph, Role
from torchatlas.graph.columns import ROLES
from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import Subject

_WORDS = re.compile(r"[^\s,;:'\"()`]+")
_MOST_NODES = 1_000  # of one finding: a line in a loop may have run a million times


@section("findings", "findings")
def findings(subject: Subject) -> Members:
    """`findings` is what atlas.doctor returns: a visit, or its findings."""
    reported = subject.extras.get("findings")
    if reported is None:
        return {}
    from torchatlas.diagnosis.findings import Finding  # a graph alone is looked at without torch

    listed = list(reported) if isinstance(reported, Iterable) else [reported]
    if wrong := [item for item in listed if not isinstance(item, Finding)]:
        raise InvalidInputError(f"findings= takes what atlas.doctor returns, not {type(wrong[0]).__name__}.")
    places = FindingNodes(subject.graph)
    rows: list[dict[str, Any]] = []

    def add(finding: Finding, cause: int | None) -> None:
        number = len(rows)
        rows.append(_row(finding, cause, places))
        for consequence in finding.follows:
            add(consequence, number)

    for finding in listed:
        add(finding, None)
    return {"findings.json": rows}


def _row(finding: Any, cause: int | None, places: FindingNodes) -> dict[str, Any]:
    lines = [place.source for place in finding.where if place.source is not None]
    return {
        "key": finding.key,
        "severity": str(finding.severity),
        "title": encodable(finding.what),
        "message": encodable(finding.why),
        "fix": encodable(finding.fix),
        "where": [encodable(str(place)) for place in finding.where],
        "file": encodable(lines[0].file) if lines else None,
        "line": lines[0].line if lines else None,
        "times": finding.times,
        "cause": cause,  # which finding of this list explains it
        "nodes": places.nodes(finding),
    }


class FindingNodes:
    """Finds the nodes that a finding is about."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._rows: dict[tuple[str, int], list[int]] = {}  # file and line -> rows of the table of sources
        for row, source in enumerate(graph.tables.sources):
            self._rows.setdefault((source.file, source.line), []).append(row)

    def nodes(self, finding: Any) -> list[int]:
        """The nodes that it names; else those of its lines; else those that take a parameter it names."""
        known = self.graph.index.by_name
        # The doctor writes "made by layer.add": the last word is the node. Others may be plain English, as is "sum".
        ends = [place.what.rpartition(" ")[2] for place in finding.where]
        named = [known[name] for name in dict.fromkeys(ends) if name in known]
        at_lines = self._at([place.source for place in finding.where if place.source is not None])
        if at_lines and named:  # the same name may be of another op, in the doctor's own recording
            named = [node for node in named if node in set(at_lines)] or at_lines
        texts = [finding.what, *(place.what for place in finding.where)]
        words = {word.rstrip(".") for text in texts for word in _WORDS.findall(text)}
        return sorted(set(named or at_lines or self._takers(words)))[:_MOST_NODES]

    def _at(self, lines: list[Any]) -> list[int]:
        rows = [row for line in lines for row in self._rows.get((line.file, line.line), [])]
        nodes: list[int] = np.flatnonzero(np.isin(self.graph.columns["node_source"], rows)).tolist() if rows else []
        return nodes

    def _takers(self, words: set[str]) -> list[int]:
        """Nodes that take a parameter or buffer that is named."""
        columns = self.graph.columns
        rows = [row for row, name in enumerate(self.graph.tables.names) if name in words]
        roles = [ROLES.index(Role.PARAMETER), ROLES.index(Role.BUFFER)]
        values = np.isin(columns["value_parameter"], rows) & np.isin(columns["value_role"], roles)
        nodes: list[int] = self.graph.index.node_of_input[values[columns["input_value"]]].tolist()
        return nodes
