"""A program ended because its optimizer was given no parameter: was a generator used up, or has the model none?"""

from __future__ import annotations

from types import FrameType, GeneratorType

from torchatlas.capturing.frames import is_installed, is_users, variables_of
from torchatlas.diagnosis.findings import Finding, Where
from torchatlas.diagnosis.history import raising_line

_REFUSAL = "optimizer got an empty parameter list"
_INIT = "__init__"


def empty_optimizer(error: BaseException) -> Finding | None:
    """The finding if torch refused to make an optimizer of nothing, and that ended the program."""
    line, called = raising_line(error)
    if line is None or not isinstance(error, ValueError) or _REFUSAL not in str(error):
        return None
    given = next((variables_of(frame).get("params") for frame in reversed(called) if _makes_optimizer(frame)), None)
    name = _variable(error, given) if isinstance(given, (GeneratorType, filter, map, zip)) else None
    if name is not None:
        why = f"{name} is a generator, and something before has gone through it: it gives each parameter once"
        fix = f"keep a list: {name} = list(model.parameters()); or call model.parameters() again"
    else:
        why = (
            "the model has no parameters: its layers are in a plain list or dict, are made later, or none was left by "
            "a filter"
        )
        fix = (
            "put layers into an nn.ModuleList or nn.ModuleDict, and make the optimizer after them; "
            "look at len(list(model.parameters()))"
        )
    return Finding("optimizer-misses", "the optimizer was given no parameter", (Where("made", line),), why, fix)


def _makes_optimizer(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "torch.optim.optimizer" and frame.f_code.co_name == _INIT


def _variable(error: BaseException, item: object) -> str | None:
    """The variable of the program that holds an object, on the way of an exception; the innermost."""
    found, trace = None, error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if is_users(file) and not is_installed(file):
            held = (name for name, value in variables_of(trace.tb_frame).items() if value is item)
            found = next(held, found)
        trace = trace.tb_next
    return found
