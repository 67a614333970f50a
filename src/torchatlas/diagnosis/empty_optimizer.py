"""A program ended because its optimizer was given no parameter: was a generator used up, or has the model none?"""

from __future__ import annotations

from types import FrameType, GeneratorType

from torch import nn

from torchatlas.capturing.frames import variables_of
from torchatlas.diagnosis.findings import Finding, Where
from torchatlas.diagnosis.history import raised_at

_REFUSAL = "optimizer got an empty parameter list"
_INIT = "__init__"


def empty_optimizer(error: BaseException) -> Finding | None:
    """The finding if torch refused to make an optimizer of nothing, and that ended the program."""
    raised = raised_at(error)
    if raised.line is None or not isinstance(error, ValueError) or _REFUSAL not in str(error):
        return None
    frame = next((frame for frame in reversed(raised.called) if _makes_optimizer(frame)), None)
    if frame is None:
        return None
    params = variables_of(frame).get("params")
    variables = {name: value for frame in raised.frames for name, value in variables_of(frame).items()}
    is_used_up = isinstance(params, (GeneratorType, filter, map, zip))
    name = next((name for name, value in variables.items() if value is params), None) if is_used_up else None
    parameters = [
        parameter
        for model in variables.values()
        if isinstance(model, nn.Module) and "_modules" in vars(model)  # not one that is being made
        for parameter in nn.Module.parameters(model)
    ]
    if name is not None:
        why = f"{name} is a generator, and something before has gone through it: it gives each parameter once"
        fix = f"keep a list: {name} = list(model.parameters()); or call model.parameters() again"
    elif parameters and not any(parameter.requires_grad for parameter in parameters):
        why = f"all {len(parameters):,} parameters are frozen: requires_grad is False for each of them"
        fix = "unfreeze what is to be trained, after all freezing and before the optimizer is made"
    else:
        why = "the model has no parameters: its layers are in a plain list or dict, or are made later"
        fix = (
            "put layers into an nn.ModuleList or nn.ModuleDict, and make the optimizer after them; "
            "look at len(list(model.parameters()))"
        )
    return Finding("optimizer-misses", "the optimizer was given no parameter", (Where("made", raised.line),), why, fix)


def _makes_optimizer(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "torch.optim.optimizer" and frame.f_code.co_name == _INIT
