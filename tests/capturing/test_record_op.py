"""What is known of an operator before it runs, against what it does when it runs."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import ZOO, Specimen, leaves_of, loss_of

import torchatlas as atlas
from torchatlas.capturing.record_op import plan_for, recording_function
from torchatlas.capturing.recorder import Recorder
from torchatlas.capturing.row_schema import OpRow, flat_numbers
from torchatlas.operations.behaviour import HIDDEN_WRITES, OVERWRITES

every_specimen = pytest.mark.parametrize("specimen", ZOO, ids=str)


def train(specimen: Specimen) -> None:
    """Forward, backward and a step of SGD with momentum."""
    model, args, kwargs = specimen.build()
    result = model(*args, **kwargs)
    if specimen.trains:
        loss_of(result).backward()
        leaves = list(leaves_of(model, args, kwargs).values())
        torch.optim.SGD(leaves, lr=0.1, momentum=0.9).step()


def is_tensor(item: Any) -> bool:
    return isinstance(item, torch.Tensor)


def tensors(tree: Any) -> list[torch.Tensor]:
    return [item for item in pytree.tree_leaves(tree) if is_tensor(item)]


def content(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor's whole storage; None where it has no single one, or one without memory."""
    if tensor.layout is not torch.strided or isinstance(tensor, nn.parameter.UninitializedTensorMixin):
        return None
    if tensor.is_meta or tensor._is_zerotensor():
        return None
    return bytes_of(tensor.untyped_storage())


def bytes_of(storage: torch.UntypedStorage) -> bytes:
    return ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b""


# -- writes ----------------------------------------------------------------------------------------------------------


class Writes(TorchDispatchMode):
    """Compares every storage that goes into an op before and after, and lists what the schema did not announce."""

    def __init__(self) -> None:
        super().__init__()
        self.unannounced: set[str] = set()
        self.written: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        taken = tensors((args, kwargs or {}))
        before = [content(tensor) for tensor in taken]
        storages = [None if data is None else t.untyped_storage() for t, data in zip(taken, before, strict=True)]
        announced = {
            storage._cdata for t in announced_by(func, args, kwargs or {}) for storage in [t.untyped_storage()]
        }
        out = func(*args, **(kwargs or {}))
        for storage, data in zip(storages, before, strict=True):
            if storage is not None and bytes_of(storage) != data:
                self.written.add(func._schema.name)
                if storage._cdata not in announced:
                    self.unannounced.add(func._schema.name)
        return out


def announced_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    marked = [argument.alias_info is not None and argument.alias_info.is_write for argument in func._schema.arguments]
    found = [item for item, written in zip(args, marked, strict=False) if written]
    found += [
        kwargs[argument.name]
        for argument, written in zip(func._schema.arguments, marked, strict=True)
        if written and argument.name in kwargs
    ]
    return [tensor for tensor in tensors(found) if tensor.layout is torch.strided]


@every_specimen
def test_no_other_op_writes_unannounced(specimen: Specimen) -> None:
    with Writes() as watcher:
        train(specimen)
    assert {name.replace("::", ".") for name in watcher.unannounced} <= set(HIDDEN_WRITES)
    assert watcher.written or not specimen.trains or specimen.name == "output_is_input"


def test_native_batch_norm_writes_its_statistics_in_training_only() -> None:
    x, weight, bias = torch.randn(4, 3), torch.ones(3), torch.zeros(3)
    for training in (True, False):
        mean, variance = torch.zeros(3), torch.ones(3)
        version = mean._version
        with Writes() as watcher:
            torch.ops.aten.native_batch_norm(x, weight, bias, mean, variance, training, 0.1, 1e-5)
        assert watcher.unannounced == ({"aten::native_batch_norm"} if training else set())
        assert bool(mean.any()) is training
        assert mean._version == version  # nothing but the table knows


@pytest.mark.parametrize("name", HIDDEN_WRITES)
def test_hidden_writes_name_what_is_written_and_the_flag(name: str) -> None:
    operator = getattr(torch.ops.aten, name.removeprefix("aten.")).default
    hidden = plan_for(operator).hidden
    assert hidden is not None
    (positions, flag), arguments = hidden, operator._schema.arguments
    expected = ["running_mean", "running_var"] if "batch_norm" in name else ["workspace"]
    assert [arguments[position].name for position in positions] == expected
    assert arguments[flag].name in ("training", "train")
    assert not any(arguments[position].alias_info for position in positions)


# -- what is overwritten is not read ---------------------------------------------------------------------------------

CALLS = {
    "bernoulli_": lambda x: x.bernoulli_(0.5),
    "cauchy_": lambda x: x.cauchy_(),
    "copy_": lambda x: x.copy_(torch.arange(4.0)),
    "exponential_": lambda x: x.exponential_(),
    "fill_": lambda x: x.fill_(3),
    "geometric_": lambda x: x.geometric_(0.5),
    "log_normal_": lambda x: x.log_normal_(),
    "normal_": lambda x: x.normal_(),
    "random_": lambda x: x.random_(),
    "set_": lambda x: x.set_(torch.arange(4.0)),
    "uniform_": lambda x: x.uniform_(),
    "zero_": lambda x: x.zero_(),
    "_foreach_copy_": lambda x: torch._foreach_copy_([x], [torch.arange(4.0)]),
    "_foreach_zero_": lambda x: torch._foreach_zero_([x]),
}


def test_every_overwriting_op_is_tried() -> None:
    assert {f"aten.{name}" for name in CALLS} == OVERWRITES


@pytest.mark.parametrize("name", CALLS)
def test_overwriting_ops_do_not_read_their_target(name: str) -> None:
    results = []
    for filling in (0.0, 7.0, float("nan")):
        torch.manual_seed(1)
        x = torch.full((4,), filling)
        with atlas.recording() as rec:
            CALLS[name](x)
        assert rec.graph.nodes[-1].operation.split(".")[1] == name
        results.append(x)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("out", [0.0, 7.0, float("nan")])
def test_out_is_not_read(out: float) -> None:
    target = torch.full((2, 2), out)
    torch.mm(torch.eye(2), torch.eye(2), out=target)
    assert torch.equal(target, torch.eye(2))


# -- reading arguments -----------------------------------------------------------------------------------------------


class Walk(TorchDispatchMode):
    """The tensors of every op by walking its arguments, as numbers of a recorder that runs beside."""

    def __init__(self, number_of: Any) -> None:
        super().__init__()
        self.number_of = number_of
        self.rows: list[tuple[str, list[int], list[int]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_position = [args[i] for i in range(len(args))]
        by_name = [(kwargs or {}).get(argument.name) for argument in func._schema.arguments[len(args) :]]
        taken = [self.number_of(tensor) for tensor in tensors([by_position, by_name])]
        out = func(*args, **(kwargs or {}))
        if not str(func).startswith("profiler."):
            self.rows.append((str(func), taken, [self.number_of(tensor) for tensor in tensors(out)]))
        return out


@every_specimen
def test_generated_readers_equal_a_walk(specimen: Specimen) -> None:
    """The numbers a recorder writes for an op are those a pytree walk of its arguments and results finds."""
    recorder = Recorder()
    walk = Walk(recorder.numbers.number_of)
    recorder.start()
    try:
        with walk:  # innermost: it sees what the recorder sees, just before it
            train(specimen)
    finally:
        recorder.stop()
    rows = list(read_rows(recorder))
    assert [name for name, _, _ in rows] == [name for name, _, _ in walk.rows]
    assert rows == walk.rows


def read_rows(recorder: Recorder) -> Any:
    at = 0
    while at < len(recorder.rows):
        if type(recorder.rows[at]) is not int:
            at += 1
            continue
        fixed = OpRow(*recorder.rows[at : at + len(OpRow._fields)])
        plan = recorder.plans[fixed.plan]
        entries, _, _, results, at = plan.tail(recorder.rows, at + len(OpRow._fields))
        if plan.readable:
            yield plan.name, flat_numbers(entries), flat_numbers([results])


@functools.cache
def all_operators() -> list[Any]:
    names = {
        name.partition("::")[2].partition(".")[0] for name in torch._C._dispatch_get_all_op_names() if "aten::" in name
    }
    packets = [getattr(torch.ops.aten, name, None) for name in sorted(names)]
    return [getattr(packet, overload) for packet in packets if packet is not None for overload in packet.overloads()]


def test_every_aten_operator_has_a_plan() -> None:
    unreadable = []
    environment = Recorder(guard=lambda target: None, keep=lambda out, written: None).environment
    for operator in all_operators():
        plan = plan_for(operator)
        assert plan.bookkeeping or callable(recording_function(plan, 0, environment))
        positions = [slot.position for slot in plan.slots if slot.position is not None]
        assert (
            sorted([*positions, *plan.others])
            == [i for i, argument in enumerate(operator._schema.arguments) if not argument.kwarg_only]
            or not plan.readable
        )
        if not plan.readable:
            unreadable.append(str(operator._schema))
    assert len(all_operators()) > 2000
    assert [schema for schema in unreadable if "Dict(" not in schema] == []
