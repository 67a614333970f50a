"""Law 13: both recorders give the same graph, but for the differences that docs/native.md names.

Where a graph holds none of them, every column but times is the same. Else both are compared in a form in which the
named differences are gone: by rule, never by model. And what the native recorder recorded replays, bit for bit.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from corpus import Entry, loss_of, quick_numbers, seed, timm_models, torchvision_models, transformers_models
from zoo import ZOO, Specimen

import torchatlas as atlas
from torchatlas.graph.columns import COLUMNS

pytestmark = pytest.mark.usefixtures("native")
TIMES = {"node_start_ns", "node_time_ns", "node_time_spread_ns"}
TABLES = ("operations", "arguments", "sources", "layouts", "devices", "modules")


def record(specimen: Specimen, how: str, native: bool, values: str | None = None) -> atlas.Graph:
    model, args, kwargs = specimen.build()
    options: dict[str, Any] = {"kwargs": kwargs, "native": native, "values": values}
    if how == "training":
        options["backward"] = True
        if isinstance(model, torch.nn.Module) and any(p.requires_grad for p in model.parameters()):
            options["optimizer"] = lambda ps: torch.optim.SGD([p for p in ps if p.requires_grad], lr=0.1, momentum=0.9)
    torch.manual_seed(1)
    graph = atlas.capture(model, *args, **options)
    assert graph.metadata["recorder"] == ("native" if native else "python")
    return graph


# -- every column ------------------------------------------------------------------------------------------------------


def relative_numbers(graph: atlas.Graph) -> list[int]:
    """Autograd's numbers, counted in every thread from the first that was used: they go on from run to run."""
    numbers, threads = graph.columns["node_sequence_nr"], graph.columns["node_thread"]
    own = graph.columns["node_forward"] < 0  # a backward node has the number of its forward node, of whichever thread
    first = {t: min((n for n in numbers[own & (threads == t)] if n >= 0), default=0) for t in set(threads.tolist())}
    return [int(n - first[t]) if n >= 0 and o else -1 for n, t, o in zip(numbers, threads, own, strict=True)]


def names(graph: atlas.Graph) -> list[str]:
    """All names but those of composite operators, which only the native recorder sees: they come last."""
    composites = set(graph.columns["node_composites"].tolist())
    return [name for row, name in enumerate(graph.tables.names) if row not in composites]


def column_differences(one: atlas.Graph, other: atlas.Graph) -> list[str]:
    found = [
        name
        for name in COLUMNS
        if name not in TIMES | {"node_sequence_nr", "node_composites"}
        and not np.array_equal(one.columns[name], other.columns[name])
    ]
    found += [name for name in TABLES if list(getattr(one.tables, name)) != list(getattr(other.tables, name))]
    found += ["names"] * (names(one) != names(other))
    return found + ["node_sequence_nr"] * (relative_numbers(one) != relative_numbers(other))


# -- without the named differences ------------------------------------------------------------------------------------

UNSAFE = re.compile(r"aten\.(_unsafe_view|unsafe_split\w*)\.")  # "writes to views": what autograd takes for no view
ALIAS, DETACH = "aten._reshape_alias.default", "aten.detach.default"
SYNONYMS = {  # "ways that torch takes only with a dispatch mode": the name of both here
    "aten._index_put_impl.default": "aten.index_put.default",
    "aten.new_zeros.default": "zeros",
    "aten.zeros.default": "zeros",
}


@dataclass(frozen=True)
class Facts:
    """What else the columns hold of a node."""

    operation: str
    storages: tuple[int, ...]  # of what it makes
    roles: tuple[Any, ...]
    others: tuple[Any, ...]


def strides_that_count(value: Any) -> Any:
    """A sum in place keeps the strides of its first summand: in a dimension of size 1 any number will do."""
    if value.stride is None:
        return None
    return [step for size, step in zip(value.shape, value.stride, strict=True) if size != 1]


def facts_of(node: Any) -> Facts:
    memory = {value.storage.id: place for place, value in enumerate(node.inputs) if value.storage is not None}
    stored = [value for value in node.outputs if value.storage is not None]
    layouts = [(str(v.device), strides_that_count(v), v.offset) for v in node.outputs]
    lies_in = [(value.storage.bytes, memory.get(value.storage.id)) for value in stored]  # of which input, if of one
    return Facts(
        str(node.operation),
        tuple(value.storage.id for value in stored),
        tuple((value.role.value, value.parameter) for value in node.outputs),
        (node.writes, node.thread, layouts, lies_in),
    )


def canonical(graph: atlas.Graph) -> tuple[list[tuple[Any, ...]], list[Facts]]:
    """The nodes of a graph, each with what it takes and makes, in a form that hides the named differences."""
    renamed: dict[int, Any] = {}  # value -> what it is called here
    alike: dict[Any, Any] = {}  # of views that are the same, a later op may be said to take either
    columns = [graph.columns[f"value_{name}"] for name in ("storage", "layout", "offset", "version")]
    links = not any(UNSAFE.search(str(value.producer)) for node in graph.nodes for value in node.inputs)
    places: dict[int, int] = {}  # node -> its position here
    rows: list[tuple[Any, ...]] = []
    beside: list[Facts] = []  # of each row

    def name_of(value: Any) -> Any:
        if value.id not in renamed:
            renamed[value.id] = ("outside", value.role.value, value.parameter, tuple(value.shape))
        return renamed[value.id]

    for node in graph.nodes:
        operation = str(node.operation)
        if operation == DETACH:  # "a detach more or less"
            for output in node.outputs:
                renamed[output.id] = name_of(node.inputs[0])
            continue
        arguments = str(node.arguments)
        if operation == ALIAS:  # "a view by another name"
            operation, arguments = "aten.view.default", re.sub(r", \[[^\]]*\]\)$", ")", arguments)
        if operation == "aten._index_put_impl_.default":
            arguments = re.sub(r", True, True\)$", ", True)", arguments)
        operation = re.sub(r"^(aten\.\w+?)_\.", r"\1.", operation)  # "sums in place"
        operation = SYNONYMS.get(operation, operation)
        if operation == "aten.clone.default" and str(node.inputs[0].producer).find("aten._conj.default") > 0:
            renamed[node.outputs[0].id] = name_of(node.inputs[0])  # "copies of conjugated views"
            continue
        made = operation == "zeros"
        inputs = () if made else tuple(name_of(value) for value in node.inputs)
        place = places[node.id] = len(rows)
        for index, output in enumerate(node.outputs):
            renamed[output.id] = alike.setdefault(tuple(column[output.id] for column in columns), (place, index))
        layouts = tuple((tuple(v.shape), str(v.dtype)) for v in node.outputs)
        linked = links or node.phase.value != "backward"  # a backward op has module and line of its forward op
        forward = int(graph.columns["node_forward"][node.id])
        forward_place = None if forward < 0 else places.get(forward, "detached")
        beside.append(facts_of(node))
        rows.append(
            (
                operation,
                "" if made else arguments,
                inputs,
                layouts,
                node.phase.value,
                node.scope.path if linked else "",
                str(node.source) if linked else "",
                node.iteration,
            )
            + ((forward_place,) if links else ())
        )
    return rows, beside


def assert_same(python: atlas.Graph, native: atlas.Graph) -> None:
    if [str(n.operation) for n in python.nodes] == [str(n.operation) for n in native.nodes]:
        assert column_differences(python, native) == []
        return
    (one, facts), (other, native_facts) = canonical(python), canonical(native)
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        assert a == b, index
    assert len(one) == len(other)
    pairs = list(zip(one, facts, native_facts, strict=True))
    # "sums in place": the memory of the first summand becomes that of the gradient, and is no temporary.
    summed = {id for _, fact, in_place in pairs if fact.operation != in_place.operation for id in in_place.storages}
    for row, fact, native_fact in pairs:
        if fact.operation == native_fact.operation:  # else a named difference
            assert fact.others == native_fact.others, row
            assert fact.roles == native_fact.roles or summed.intersection(native_fact.storages), row


@pytest.mark.parametrize("how", ["forward", "training"])
@pytest.mark.parametrize("specimen", ZOO, ids=str)
def test_same_graph(specimen: Specimen, how: str) -> None:
    if how == "training" and not specimen.trains:
        pytest.skip("does not train")
    record(specimen, how, False)  # what runs for the first time may differ from all others
    python, native = record(specimen, how, False), record(specimen, how, True)
    assert_same(python, native)


@pytest.mark.parametrize("specimen", ZOO, ids=str)
def test_what_was_recorded_replays(specimen: Specimen) -> None:
    graph = record(specimen, "training" if specimen.trains else "forward", True, values="replay")
    report = atlas.verify(graph)
    assert report, str(report)


# -- what changes a tensor without a word ------------------------------------------------------------------------------


def out_of_another_size() -> None:
    total = torch.empty(0)
    torch.add(torch.ones(3), 1, out=total)
    torch.add(torch.ones(2, 3), 1, out=total[:0])
    total.mul(2)


def laid_out_anew() -> None:
    x = torch.ones(2, 3)
    x.t_().add_(1)
    x.unsqueeze_(0).sum()
    x.resize_(4, 4).fill_(1).sum()


def other_data() -> None:
    x = torch.ones(3)
    x.mul_(2)
    x.data = torch.zeros(4)
    x.add_(1)
    x.data = x.detach()
    x.add_(1)


def storage_resized() -> None:
    x = torch.ones(3)
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(12)
    x.fill_(1).sum()


def without_a_storage() -> None:
    for _ in range(3):
        x = torch.ones(3, 3).to_mkldnn()
        y = x * 2
        del x
        torch.ones(2).add_(1)
        del y
        torch.ones(2).add_(1)


PROGRAMS = [out_of_another_size, laid_out_anew, other_data, storage_resized, without_a_storage]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized:UserWarning")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_same_columns_where_tensors_change(program: Callable[[], None]) -> None:
    graphs = []
    for native in (False, False, True):
        with atlas.recording(native=native) as rec:
            program()
        graphs.append(rec.graph)
    assert column_differences(graphs[1], graphs[2]) == []


# -- other people's models ---------------------------------------------------------------------------------------------

QUICK = {"resnet18", "shufflenet_v2_x0_5", "gpt2", "llama", "mixtral"}
OF_TIMM = list(timm_models.rounds())[: len(timm_models.families()) : 8]  # the first of every eighth family
MODELS = {**torchvision_models.MODELS, **transformers_models.MODELS}
MODELS |= {name: timm_models.MODELS[name] for name in OF_TIMM}
# Without gradients max_pool1d has a kernel of its own, which torch does not take in a dispatch mode.
del MODELS["canine"]


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning")
@pytest.mark.filterwarnings("ignore:must run observer before calling calculate_qparams:UserWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.script")
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "entry",
    [pytest.param(entry, marks=[pytest.mark.slow] * (name not in QUICK)) for name, entry in MODELS.items()],
    ids=str,
)
def test_same_graph_of_other_peoples_models(entry: Entry) -> None:
    with entry.world():
        seed()
        with quick_numbers():
            model, args, kwargs = entry.build()
        buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
        graphs = []
        for native in (False, False, True):  # what runs for the first time may differ from all others
            gc.collect()
            model.zero_grad(set_to_none=True)
            for buffer, contents in buffers:
                buffer.detach().copy_(contents)
            seed()
            with atlas.recording(model, native=native) as rec, torch.set_grad_enabled(entry.trains):
                loss = loss_of(model(*args, **kwargs))
                if entry.trains:
                    loss.backward()
            graphs.append(rec.graph)
    assert_same(*graphs[1:])
