"""Lesson -> a page of the viewer, and the part of its link after # that opens it at the right moment."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from torchatlas.errors import CaptureError
from torchatlas.graph import OperationType, Phase
from torchatlas.learn.lesson import Kind, Lesson
from torchatlas.learn.runner import Runner, run_program, silenced


@dataclass(frozen=True)
class LessonPage:
    """The bytes of a page and where to open it."""

    data: bytes
    fragment: str  # "pane=backward&moment=3&select=n3"


def lesson_page(lesson: Lesson) -> LessonPage | None:
    """Run a lesson and make its page. None if the lesson has none."""
    from torchatlas.render.viewer.content import page_of, viewed

    if lesson.finds:
        graph, extras, node = _with_findings(lesson)
    elif lesson.page is not None:
        graph, extras, node = _with_backward(lesson)
    else:
        return None
    data = page_of(viewed(graph), title=lesson.title, **extras)
    return LessonPage(data, _fragment(graph, node, has_steps="backward" in extras))


def _with_backward(lesson: Lesson) -> tuple[Any, dict[str, Any], int | None]:
    """What the block `python page` sets, after all others have run."""
    runner = Runner(lesson)
    runner.run_all()
    assert lesson.page is not None
    outcome = runner.run(lesson.page)
    graph = runner.namespace.get("graph")
    if not outcome.as_expected or graph is None:
        raise CaptureError(f"The page of the lesson {lesson.name} could not be made: {outcome.printed.strip()}")
    backward, moment = (runner.namespace.get(name) for name in ("backward", "moment"))
    node = None if moment is None else graph[moment].id
    return graph, {} if backward is None else {"backward": backward}, node


def _with_findings(lesson: Lesson) -> tuple[Any, dict[str, Any], int | None]:
    """The broken program, with the doctor's findings pinned to its nodes."""
    from torchatlas.capturing import recording
    from torchatlas.diagnosis.doctor import doctor

    visit, record = doctor(), recording()
    with suppress(Exception), silenced(), record, visit:  # a broken program may raise: the graph up to there is shown
        run_program(lesson, lesson.step(Kind.BROKEN))
    if not visit.findings:
        raise CaptureError(f"The page of the lesson {lesson.name} could not be made: the doctor finds nothing.")
    return record.graph, {"findings": visit.findings}, _pinned(record.graph, visit.findings)


def _pinned(graph: Any, findings: Any) -> int | None:
    """The first node that a finding is pinned to."""
    from torchatlas.render.viewer.sections.findings import FindingNodes

    places = FindingNodes(graph)
    return next((node for finding in findings for node in places.nodes(finding)), None)


def _fragment(graph: Any, node: int | None, has_steps: bool) -> str:
    """A node is selected; the player stands there, or where its gradient is computed, if there is such a moment."""
    if node is None:
        return "pane=backward" if has_steps else ""
    computing = [each for each in graph.nodes[node].backward_nodes if each.operation_type is not OperationType.VIEW]
    played = has_steps or graph.nodes[node].phase in (Phase.BACKWARD, Phase.RECOMPUTE)
    moment = node if played else next((each.id for each in computing), None)
    at_moment = {} if moment is None else {"pane": "backward", "moment": moment}
    return urlencode({**at_moment, "select": f"n{node}"})
