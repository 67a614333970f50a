"""A model that was only recorded -> a run that can be cut: the model runs once more, and all its ops need is kept.

The path of a recorded run is that of its example. What decided it is kept beside it: the numbers that the program read.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torchatlas.capturing import capture
from torchatlas.capturing.gradient_mode import running, wants_gradients
from torchatlas.capturing.recording import Recording
from torchatlas.capturing.restore import Restorer
from torchatlas.capturing.tensor_bytes import fingerprint
from torchatlas.errors import InvalidInputError, NotAvailableError
from torchatlas.graph import Graph
from torchatlas.graph.arguments import TensorRef
from torchatlas.inputs import argument_names, hiding_tensors, mapped_tensors, named_tensors
from torchatlas.interrupts import bracketed
from torchatlas.torch_private import dispatch_mode_stack, no_dispatch_modes

if TYPE_CHECKING:
    from torchatlas.execute.recorded_pieces import RecordedProgram

TENSOR = TensorRef(-1)  # stands for a tensor in the structure of inputs


@dataclass(frozen=True)
class Read:
    """Numbers that the program took out of a tensor past the operators, with `tolist()` say."""

    ops: int  # how many ran before
    storage: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    digest: bytes
    how: str


@dataclass(frozen=True, eq=False)
class CallStructure:
    """What a model was called with."""

    model: nn.Module = field(repr=False)
    structure: Any  # under the names the model has for it; TENSOR for each tensor
    aliases: dict[str, str]  # of tensors that were given more than once: a later name -> the first


@dataclass(frozen=True, eq=False)
class LiveRun:
    """One run with values="replay", and what only the live objects can tell."""

    graph: Graph
    call_structure: CallStructure
    result: Any  # what the model returned; references in place of tensors
    own: dict[int, list[tuple[str, torch.Tensor]]]  # the model's parameters and buffers, by the number of their storage
    held: frozenset[int]  # storages of other tensors that its modules hold
    reads: tuple[Read, ...]


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A model with an example, recorded. `graph` is the path that the example took."""

    model: nn.Module = field(repr=False)
    args: tuple[Any, ...] = field(repr=False)
    kwargs: dict[str, Any] = field(repr=False)
    graph: Graph
    attributes: tuple[tuple[nn.Module, dict[str, Any]], ...] = field(repr=False)  # plain ones, as they were then
    gradients: bool  # whether it was recorded with autograd on

    @cached_property
    def program(self) -> RecordedProgram:
        """Its operations as a program that runs, on the model's own parameters.

        Made when first asked for: the model runs once more, watched more closely, and what it uses is copied meanwhile.
        """
        from torchatlas.execute.recorded_pieces import program_of

        args, kwargs = _copied((self.args, self.kwargs))
        with running(self.gradients):
            live = _run_again(self.model, args, kwargs, self.attributes)
        if live.graph.hash != self.graph.hash:
            raise InvalidInputError(
                f"{type(self.model).__name__} takes another path than when it was partitioned: it, its weights, its "
                "example or the random numbers have changed. Partition it again."
            )
        return program_of(live.graph, live)


def record(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool | None = None
) -> RecordedRun:
    """Run a model once, as `atlas.capture` does, and remember how: later its pieces can run.

    In eval mode it runs as inference, unless `gradients` asks for autograd.
    """
    args, kwargs = _copied((args, kwargs))
    attributes = tuple((module, _plain_attributes(module)) for module in model.modules())
    wanted = wants_gradients(model, gradients)
    with running(wanted):
        return RecordedRun(model, args, kwargs, capture(model, *args, kwargs=kwargs), attributes, wanted)


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    """What a module holds beside its parameters, buffers, modules and hooks."""
    return {key: item for key, item in vars(module).items() if not key.startswith("_")}


def structure_of(model: nn.Module, named: dict[str, Any]) -> Any:
    """Arguments under the names the model has for them, those with a default too; TENSOR for each tensor."""
    parameters = inspect.signature(model.forward).parameters.values()
    defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
    return mapped_tensors({**defaults, **named}, lambda tensor: TENSOR)


def _copied(tree: Any) -> Any:
    """A copy of the example, which no run may write into; a tensor that is in it twice stays one."""
    known: dict[int, torch.Tensor] = {}

    def clone(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in known:
            with no_dispatch_modes(), torch.no_grad():
                known[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return known[id(tensor)]

    return rebuilt(tree, clone)


def rebuilt(tree: Any, change: Callable[[Any], Any]) -> Any:
    """A structure of the same classes with every tensor, and every reference to one, replaced."""
    if isinstance(tree, (torch.Tensor, TensorRef)):
        return change(tree)
    if isinstance(tree, Mapping):
        parts = {key: rebuilt(part, change) for key, part in tree.items()}
        if type(tree) is dict:
            return parts
        made: Any = copy.copy(tree)
        for key, part in parts.items():
            made[key] = part
        return made
    if isinstance(tree, tuple) and hasattr(tree, "_make"):  # so that PackedSequence takes what is no tensor
        return tree._make(rebuilt(part, change) for part in tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)(rebuilt(part, change) for part in tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        made = copy.copy(tree)
        for one in dataclasses.fields(tree):
            object.__setattr__(made, one.name, rebuilt(getattr(tree, one.name), change))
        return made
    return tree


# -- running it once more ----------------------------------------------------------------------------------------------


def _run_again(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    attributes: tuple[tuple[nn.Module, dict[str, Any]], ...],
) -> LiveRun:
    """Run a model once more with the attributes it had then, as it may have cached something since."""
    ops = [0]

    def count(plan: Any, results: list[Any]) -> None:
        ops[0] += 1

    named, first = argument_names(model, args, kwargs), dict[int, str]()
    shared = {name: first.setdefault(id(tensor), name) for name, tensor in named_tensors(named)}
    aliases = {name: one for name, one in shared.items() if name != one}
    call_structure = CallStructure(model, structure_of(model, named), aliases)
    _refuse_hidden(named, f"{type(model).__name__} takes")
    with Restorer(model, (args, kwargs)) as restorer:
        for module, then in attributes:
            for key in _plain_attributes(module).keys() - then.keys():
                del vars(module)[key]
            vars(module).update(then)
        session = Recording(model, values="replay", only_inputs=True, guard=restorer, after_op=count)
        reads: list[Read] = []
        try:
            with session, _noting(session, ops, reads):
                made = model(*args, **kwargs)
                _refuse_hidden(made, f"{type(model).__name__} returns")
                result = rebuilt(made, _Numbered())
                _refuse_state(attributes)
                own, held = _own(model, session), _held(model, session)
                del made
        finally:
            restorer.after_run(session)
    return LiveRun(session.graph, call_structure, result, own, held, tuple(reads))


def _refuse_hidden(tree: Any, what: str) -> None:
    """Refuse opaque objects that hold tensors: pieces would return the tensors of the recorded run."""
    if (other := next(hiding_tensors(tree), None)) is not None:
        raise NotAvailableError(
            f"{what} a {type(other).__name__}, which holds tensors and cannot be made anew. Have it pass tensors, "
            "lists, tuples, dictionaries and dataclasses (models of transformers: use_cache=False)."
        )


class _Numbered:
    """Numbers tensors in the order in which they come."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, tensor: Any) -> TensorRef:
        self.count += 1
        return TensorRef(self.count - 1)


def _refuse_state(before: tuple[tuple[nn.Module, dict[str, Any]], ...]) -> None:
    """Refuse a model that goes on from a tensor of its last run: one that is an attribute and no buffer."""
    for module, then in before:
        now = dict(named_tensors(_plain_attributes(module)))
        for name, tensor in named_tensors(then):
            if name in now and now[name] is not tensor and now[name].shape == tensor.shape:
                raise NotAvailableError(
                    f"{type(module).__name__} puts another tensor in the place of its {name} in every run, so that a "
                    "second run differs from the first, and pieces always begin where the first began."
                )


def _own(model: nn.Module, session: Recording) -> dict[int, list[tuple[str, torch.Tensor]]]:
    by_storage: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for named in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            if (number := session.storage_id(tensor)) is not None:
                by_storage.setdefault(number, []).append((name, tensor))
    return by_storage


def _held(model: nn.Module, session: Recording) -> frozenset[int]:
    """Storages of tensors that are plain attributes of modules, also in lists and dictionaries: they outlive a run."""
    storages = set()
    for module in model.modules():
        for _, tensor in named_tensors(_plain_attributes(module)):
            if (number := session.storage_id(tensor)) is not None:
                storages.add(number)
    return frozenset(storages)


def _readers() -> tuple[tuple[Any, str, tuple[int, ...]], ...]:
    """Functions that read the numbers of an argument outside of any operator: owner, name, and which arguments."""
    return (
        (torch.Tensor, "tolist", (0,)),
        (torch.Tensor, "numpy", (0,)),
        (torch.Tensor, "__dlpack__", (0,)),
        (torch.Tensor, "tensor_split", (1,)),
        (torch, "tensor_split", (1,)),
        (torch, "ctc_loss", (2, 3)),
    )


@bracketed
def _noting(session: Recording, ops: list[int], reads: list[Read]) -> Iterator[None]:
    """Note what a program reads past the operators.

    Not by a mode of __torch_function__: while one is on, torch's attention layers take another path.
    """
    undo: list[Callable[[], None]] = []

    def watched(function: Any, name: str, positions: tuple[int, ...]) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            for position in positions:
                item = args[position] if position < len(args) else None
                if isinstance(item, torch.Tensor) and dispatch_mode_stack():  # else it is the recording that reads
                    _note(session, ops[0], item, name, reads)
            return function(*args, **kwargs)

        return call

    try:
        for owner, name, positions in _readers():
            own, before = name in vars(owner), getattr(owner, name)
            setattr(owner, name, watched(before, name, positions))
            undo.append(lambda o=owner, n=name, b=before, own=own: setattr(o, n, b) if own else delattr(o, n))  # type: ignore[misc]
        yield
    finally:
        for one in reversed(undo):
            one()


def _note(session: Recording, ops: int, tensor: torch.Tensor, how: str, reads: list[Read]) -> None:
    number = session.storage_id(tensor)
    if number is None or tensor.layout is not torch.strided:  # no op has met it: it is no result
        return
    with no_dispatch_modes(), torch.no_grad():
        made = fingerprint(tensor)
    view = (tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
    reads.append(Read(ops, number, *view, made, how))
