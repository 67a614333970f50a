"""A model and example inputs -> a report: would it trace, which sizes stay free, how much memory its values take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from torchatlas.argument_errors import explains_arguments
from torchatlas.capturing import capture
from torchatlas.execute.traced import TracedModel
from torchatlas.graph.shown import Shown
from torchatlas.inputs import named_tensors
from torchatlas.sections import Facts, Lines, Section
from torchatlas.torch_private import UninitializedTensor
from torchatlas.units import format_bytes, format_count


@dataclass(frozen=True, repr=False)
class Compatibility(Shown):
    """What to know before a model is traced. True when it traces."""

    model: str  # its class
    traces: bool  # whether torch.export takes it
    reason: str  # why it does not trace; empty if it does
    training: bool | None  # None: what was given is not a module
    parameters: int
    devices: tuple[str, ...]  # where parameters and inputs lie
    dtypes: tuple[str, ...]  # the dtypes of parameters and inputs
    nodes: int | None  # how many nodes its graph has
    input_shapes: dict[str, tuple[int | str, ...]]  # with symbols for the sizes that may be others
    value_bytes: int | None  # what predict() keeps when it keeps all; None: unknown
    peak_bytes: int | None  # of a forward pass that keeps nothing, weights included
    memory_reason: str  # why the memory is unknown; empty if it is known
    notes: tuple[str, ...]

    def __bool__(self) -> bool:
        return self.traces

    def _sections(self) -> Iterator[Section]:
        yield Lines([f"{self.model} {'traces' if self.traces else 'does not trace'}"])
        mode = {True: "training: call model.eval() to trace what is served", False: "eval", None: "not a module"}
        rows = [
            ("model", f"{self.model}, {format_count(self.parameters)} parameters"),
            ("traces", "yes" if self.traces else f"no: {self.reason}"),
            ("mode", mode[self.training]),
            ("devices", ", ".join(self.devices) or "none"),
            ("dtypes", ", ".join(self.dtypes) or "none"),
        ]
        if self.traces:
            rows.append(("nodes", f"{self.nodes:,}"))
        for name, shape in self.input_shapes.items():
            rows.append((f"input {name}", f"({', '.join(map(str, shape))})"))
        rows.append(("every value kept", self.memory_reason or format_bytes(self.value_bytes)))
        rows.append(("peak of a forward pass", self.memory_reason or format_bytes(self.peak_bytes)))
        rows += [("note", note) for note in self.notes]
        yield Facts(rows)

    def to_dict(self) -> dict[str, Any]:
        """What JSON holds."""
        return asdict(self)


@explains_arguments
def check_compatibility(
    model: Any, *args: Any, kwargs: Mapping[str, Any] | None = None, **model_kwargs: Any
) -> Compatibility:
    """Try to trace a model and report whether it works and, if not, why. The model is left as it was.

    Args:
        model: The model.
        *args: Example inputs.
        kwargs: Keyword arguments of the model whose names are also names of this function.
        **model_kwargs: All other keyword arguments of the model.
    Returns:
        A Compatibility, which is true if the model traces: why not, which sizes may vary, how much memory it needs.
    Example:
        >>> import torch, torchatlas as atlas
        >>> report = atlas.check_compatibility(torch.nn.Linear(4, 2), torch.ones(3, 4))
        >>> report.traces, report.parameters, bool(atlas.check_compatibility("no model"))
        (True, 10, False)
    """
    named = {**(kwargs or {}), **model_kwargs}
    is_module = isinstance(model, nn.Module)
    own = [*model.parameters(), *model.buffers()] if is_module else []
    tensors = [*own, *(tensor for _, tensor in named_tensors((args, named)))]
    traced, reason = None, ""
    try:
        traced = TracedModel(model, args, kwargs=named)
    except Exception as error:  # also the model's own: that it fails is the answer
        reason = str(error) or type(error).__name__
    value_bytes, peak_bytes, memory_reason = _memory(model, args, named)
    made = [p for p in own if isinstance(p, nn.Parameter) and not isinstance(p, UninitializedTensor)]
    return Compatibility(
        model=type(model).__name__ if is_module else f"{type(model).__name__}, not a torch.nn.Module",
        traces=traced is not None,
        reason=reason,
        training=model.training if is_module else None,
        parameters=sum({id(p): p.numel() for p in made}.values()),
        devices=tuple(sorted({str(tensor.device) for tensor in tensors})),
        dtypes=tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})),
        nodes=None if traced is None else len(traced.graph),
        input_shapes={} if traced is None else traced.input_shapes,
        value_bytes=value_bytes,
        peak_bytes=peak_bytes,
        memory_reason=memory_reason,
        notes=() if traced is None else tuple(traced.notes),
    )


def _memory(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int | None, int | None, str]:
    """Bytes of all that ops make, and of the peak, without computing; or why they are unknown."""
    if not isinstance(model, nn.Module):
        return None, None, "unknown: not a module"
    try:
        graph = capture(model, *args, kwargs=kwargs, fake=True)
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        return None, None, f"unknown: it does not run without its data: {type(error).__name__}: {first}"
    columns = graph.columns
    made = (columns["storage_born"] >= 0) & (columns["storage_bytes"] >= 0)
    return int(columns["storage_bytes"][made].sum()), graph.peak_bytes, ""
