"""A recorded backward pass -> its steps, for the player."""

from __future__ import annotations

from torchatlas.errors import InvalidInputError
from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import Subject


@section("backward", "backward")
def backward(subject: Subject) -> Members:
    """`backward` is what atlas.record_backward returns, or one of its runs."""
    recording = subject.extras.get("backward")
    if recording is None:
        return {}
    from torchatlas.autograd.backward_steps import steps_of  # a graph alone is looked at without torch
    from torchatlas.autograd.record_backward import BackwardRecording, BackwardRun

    runs = recording.runs if isinstance(recording, BackwardRecording) else [recording]
    if not runs or not isinstance(runs[0], BackwardRun):
        what = "a recording in which nothing ran" if not runs else type(recording).__name__
        raise InvalidInputError(f"backward= takes what atlas.record_backward returns, not {what}.")
    if len(runs) > 1:
        subject.left_out.append(
            f"Of {len(runs):,} recorded runs of the autograd engine, this page plays the first: "
            "backward=recording.runs[1] plays the next."
        )
    steps = steps_of(runs[0], subject.graph)
    if len(subject.graph) and max(steps["nodes"], default=-1) < 0:
        subject.notes.append(
            "the recorded backward pass could not be matched with the nodes of this graph: record both in one process"
        )
    return {"backward.json": steps}
