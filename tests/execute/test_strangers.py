"""Crafted files: a traced model or a recording that a stranger wrote cannot do more than compute with its tensors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest
import torch
from torch import nn
from zoo import ZOO, Specimen

import torchatlas as atlas
from torchatlas.errors import (
    AtlasError,
    CaptureError,
    FileFormatError,
    InvalidModelError,
    NotAvailableError,
)
from torchatlas.execute.program_file import FUNCTIONS, LARGEST
from torchatlas.execute.program_to_fx import argument_name, attribute_name
from torchatlas.execute.replay import replay
from torchatlas.graph import Graph

GLOBALS = "__class__.__init__.__globals__"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A traced model, as a file: y = relu(linear(x)) * 2, and a size."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            with torch.no_grad():
                shift = x.mean()
            return (self.linear(x).relu() * 2 + shift, x.shape[0] * 3)

    return atlas.trace(Model().eval(), torch.randn(2, 4)).save(tmp_path / "model.atlas")


def crafted(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The same file with another program in it."""
    graph = Graph.load(path)
    change(graph.metadata["program"])
    return graph.save(path.with_name("crafted.atlas"))


def calling(function: str, *args: Any) -> Callable[[dict[str, Any]], None]:
    """A change of the last call of a program that is no block: to another function, with other arguments."""

    def change(program: dict[str, Any]) -> None:
        call = next(one for one in reversed(program["variant"]["calls"]) if one[2] not in ("begin", "end"))
        call[2:] = [function, json.dumps([list(args), {}])]

    return change


def register_of(path: Path, function: str) -> int:
    calls = Graph.load(path).metadata["program"]["variant"]["calls"]
    return next(int(call[1]) for call in calls if call[2].startswith(function))


def run(path: Path) -> Any:
    return atlas.load(path)(torch.randn(2, 4))


# -- programs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "aten._reshape_alias.default",
        "aten._sparse_coo_tensor_unsafe.default",
        "aten._sparse_csr_tensor_unsafe.default",
        "aten.segment_reduce.default",
        "aten.from_file.default",
        "aten.set_.source_Tensor",
        "aten._nested_view_from_buffer.default",
        "aten._convert_indices_from_csr_to_coo.default",
        "prims.as_strided.default",
        "inductor.resize_storage_bytes_.default",
        "torchvision.roi_align.default",
        "quantized.linear.default",
    ],
)
def test_operators_that_trust_their_caller_are_refused_by_name(name: str, program: Path) -> None:
    path = crafted(program, calling(name, {"tensor": 0}))
    with pytest.raises(NotAvailableError, match=rf"{name} is not run: .* pass allow=\['{name}'\]"):
        atlas.load(path)


def test_constants_are_what_the_file_itself_holds(program: Path) -> None:
    def reads_globals(found: dict[str, Any]) -> None:
        register = next(iter(found["variant"]["constants"]))
        found["variant"]["constants"][register] = GLOBALS

    with pytest.raises(FileFormatError, match="which is no weight of the model"):
        atlas.load(crafted(program, reads_globals))


@pytest.mark.parametrize("name", [GLOBALS, "linear.forward", "linear.__dict__", "secret", "linear.weight.data"])
def test_a_name_in_a_file_finds_only_tensors_of_the_model_it_is_given(name: str, tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        @property
        def secret(self) -> torch.Tensor:
            raise AssertionError("a file made a property run")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.linear(x)
            return out

    model = Model().eval()
    path = atlas.trace(model, torch.randn(2, 4)).save(tmp_path / "model.atlas", weights=False)

    def other_names(found: dict[str, Any]) -> None:
        held = found["held"].pop("linear.weight")
        found["held"][name] = held
        constants = found["variant"]["constants"]
        constants.update({key: name for key, held_name in constants.items() if held_name == "linear.weight"})

    with pytest.raises(InvalidModelError, match="has no"):
        atlas.load(crafted(path, other_names), model=model)


@pytest.mark.parametrize("name", ["_dynamo", "onnx"])
def test_a_file_imports_nothing_of_torch(name: str, program: Path) -> None:
    """torch imports some of its modules when somebody asks for an attribute of their name."""
    path = crafted(program, calling("aten._to_copy.default", {"dtype": name}))
    code = (
        "import sys, torchatlas as atlas\n"
        "try:\n    atlas.load(sys.argv[1])\n"
        "except atlas.errors.InvalidInputError:\n    print(f'torch.{sys.argv[2]}' in sys.modules)"
    )
    assert children.python(code, str(path), name).strip() == "False"


@pytest.mark.parametrize("device", ["cuda", "meta", "privateuseone"])
def test_a_generator_that_cannot_be_made_is_refused(device: str, program: Path) -> None:
    with pytest.raises(NotAvailableError, match=f"a generator of '{device}' cannot be made here"):
        atlas.load(crafted(program, calling("aten.relu.default", {"generator": device})))


def test_only_results_of_operators_are_indexed(program: Path) -> None:
    linear = register_of(program, "aten.linear")
    with pytest.raises(AtlasError, match="only one of several results"):
        run(crafted(program, calling("operator.getitem", {"tensor": linear}, 0)))
    with pytest.raises(AtlasError, match="only one of several results"):
        run(crafted(program, calling("operator.getitem", "abc", "x")))


@pytest.mark.parametrize(
    ("function", "args"),
    [
        ("operator.mod", ["%s", "x"]),
        ("operator.mul", ["A", 2 * 10**10]),
        ("operator.mul", [[0], 10**9]),
        ("operator.add", [[0], [1]]),
        ("operator.pow", [10, 10**9]),
        ("operator.pow", [2**63, 64]),
        ("operator.floordiv", [1, 0]),
        ("math.ceil", ["x"]),
        ("torch.sym_ite", [True, "a", "b"]),
        ("torch.sym_max", [{"int": str(2**200)}, 1]),
    ],
)
def test_sizes_are_numbers_of_bounded_size(function: str, args: list[Any], program: Path) -> None:
    with pytest.raises(AtlasError, match="failed at"):
        run(crafted(program, calling(function, *args)))


def test_arithmetic_on_sizes_is_that_of_python() -> None:
    for name, (python, bounded) in FUNCTIONS.items():
        if name != "operator.getitem":
            for args in ([7], [7, 2], [1, 7, 2]):
                try:
                    expected = python(*args)
                except (TypeError, AssertionError):
                    continue
                assert bounded(*args) == expected, name
    with pytest.raises(OverflowError):
        FUNCTIONS["operator.mul"][1](LARGEST, 2)


def blocks(program: dict[str, Any]) -> list[Any]:
    return [call for call in program["variant"]["calls"] if call[2] in ("begin", "end")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["variant"]["calls"].remove(blocks(p)[1]), "a block is begun and not ended"),
        (lambda p: p["variant"]["calls"].remove(blocks(p)[0]), "read before it is written"),
        (lambda p: p["variant"]["calls"].append([*blocks(p)[1][:1], 999, *blocks(p)[1][2:]]), "no register 999"),
        (lambda p: blocks(p)[0].__setitem__(3, '[["wrap_with_set_grad_enabled",{"tuple":[7]}],{}]'), "is none"),
        (lambda p: blocks(p)[0].__setitem__(3, '[["os.system",{"tuple":["true"]}],{}]'), "block that is none"),
        (lambda p: blocks(p)[0].__setitem__(1, p["variant"]["inputs"][0]), "written twice"),
        (lambda p: p["variant"].update(outputs=json.dumps([{"tensor": blocks(p)[0][1]}] * 2)), "does not compute"),
        (lambda p: p["variant"].update(outputs=json.dumps([[{"tensor": blocks(p)[0][1]}]] * 2)), "is not flat"),
        (lambda p: p["variant"].update(outputs="[]"), "does not return what its outputs hold"),
        (lambda p: p["variant"].update(outputs='{"tuple":[]}'), "it returns no list"),
        (lambda p: p["variant"]["inputs"].append(0), "written twice|does not take"),
        (lambda p: p["tensors"][0].__setitem__(1, [1] * 70), "has not the"),
        (lambda p: p["held"].update({"a." * 200 + "b": next(iter(p["held"].values()))}), "more than 100 modules"),
        (lambda p: p["held"].update({"forward.x": next(iter(p["held"].values()))}), "cannot be named so"),
        (lambda p: p["variant"].update(guards=["L['x'].size()[0] < (((9**8)**8)**8)**8"]), "no condition on sizes"),
        (lambda p: p["variant"].update(guards=["1 < " + "9" * 5000]), "no condition on sizes"),
        (lambda p: p["variant"].update(guards=["1 + " * 5000 + "1"]), "no condition on sizes"),
    ],
)  # fmt: skip
def test_states_that_are_begun_are_ended_and_registers_written_once(change: Any, message: str, program: Path) -> None:
    with pytest.raises(FileFormatError, match=message):
        atlas.load(crafted(program, change))
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    "guard",
    [
        "L['nobody'] == 1",
        "L['x'].size()[9] == 1",
        "1 // (L['x'].size()[0] - 2) == 1",
        "(L['x'].size() * 1000000000000)[0] > 0",  # a tuple of 16 TB
        "(L['flat_args'] * 2)[0].size()[0] == 2",
    ],
)
def test_a_condition_that_cannot_be_computed_says_so(guard: str, program: Path) -> None:
    traced = atlas.load(crafted(program, lambda found: found["variant"].update(guards=[guard])))
    with pytest.raises(AtlasError, match="what was assumed of the sizes cannot be computed"):
        traced(torch.randn(2, 4))


def test_a_state_stays_as_found_when_a_block_fails(program: Path) -> None:
    """The block is begun, and the operator in it raises."""

    def fails(found: dict[str, Any]) -> None:
        mean = next(call for call in found["variant"]["calls"] if call[2].startswith("aten.mean"))
        mean[2:] = ["aten.reshape.default", json.dumps([[{"tensor": found["variant"]["inputs"][0]}, [17]], {}])]

    with pytest.raises(AtlasError):
        run(crafted(program, fails))
    assert torch.is_grad_enabled()


# -- names that torch.fx writes into code ------------------------------------------------------------------------------


def canary(path: Path) -> str:
    """A name that, written between quotation marks into Python, makes a file."""
    return f'x", open(chr(47) + {str(path.relative_to("/"))!r}, "w"), "'


def test_the_name_of_a_weight_is_not_code(program: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    name = canary(mark)

    def named(found: dict[str, Any]) -> None:
        found["held"][name] = found["held"].pop("linear.weight")
        constants = found["variant"]["constants"]
        constants.update({key: name for key, held in constants.items() if held == "linear.weight"})

    path = crafted(program, named)
    torch.manual_seed(0)
    x = torch.randn(2, 4)
    traced = atlas.load(path)
    report = atlas.GraphPartitioner().partition(traced)
    whole = report.extract()
    assert torch.equal(whole(x)[0], atlas.load(program)(x)[0])
    assert not mark.exists()


def test_names_in_a_recording_are_not_code(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    graph = atlas.capture(model, torch.randn(2, 4), values="replay")
    hostile = {"0.weight": canary(mark), "input": f"x): open({str(mark)!r}, 'w') #"}
    graph.tables.names[:] = [hostile.get(name, name) for name in graph.tables.names]
    loaded = atlas.load(graph.save(tmp_path / "run.atlas"))
    whole = atlas.GraphPartitioner().partition(loaded).extract()
    assert whole is not None
    assert not mark.exists()


def test_names_for_torch_fx() -> None:
    taken = {"x"}
    assert argument_name("x", taken) == "x_1"
    assert argument_name("").isidentifier()
    assert argument_name("²").isidentifier()
    assert attribute_name("blocks.layer-1.weight", 3) == "blocks.layer-1.weight"
    for name in ('a"b', "a\\", "a\nb", "lambda.weight", "__class__", "graph.weight", "layer.forward", ""):
        assert attribute_name(name, 3) == "held_3"


# -- recordings --------------------------------------------------------------------------------------------------------


def recording(tmp_path: Path, change: Callable[[Graph], Any]) -> Graph:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2))
    graph = atlas.capture(model, torch.randn(1, 1, 8, 8), backward=True, values="replay")
    change(graph)
    found = atlas.load(graph.save(tmp_path / "recording.atlas"))
    assert isinstance(found, Graph)
    return found


def test_indices_of_a_recording_are_looked_at(tmp_path: Path) -> None:
    """The indices that a pooling layer saved become far ones: its backward kernel writes where they say."""

    def far(graph: Graph) -> None:
        ops = [node for node in graph.nodes if node.kind == "op"]
        at, pool = next(
            (n, op) for n, op in enumerate(ops) if op.operation.startswith("aten.max_pool2d_with_indices_b")
        )
        indices, kept = pool.inputs[-1], graph.metadata["replay"]
        content = np.full(indices.shape, 2**40).reshape(-1).view(np.uint8)
        graph.recorded[f"-1:patch/{len(kept['patches'])}"] = content
        kept["patches"].append([at, indices.storage.id, 0, len(content), "x"])

    with pytest.raises(CaptureError, match=r"backward.default is not run: .*indices from 1099511627776"):
        replay(recording(tmp_path, far))


def test_a_storage_cannot_shrink_under_a_tensor(tmp_path: Path) -> None:
    """A patch gives a storage another size while an op still has a tensor there."""

    def shrink(graph: Graph) -> None:
        kept = graph.metadata["replay"]
        weight = next(v for v in graph.values if v.parameter == "0.weight")
        position = len(kept["patches"])
        ops = [node.operation for node in graph.nodes if node.kind == "op"]
        kept["patches"].append([ops.index("aten.convolution_backward.default"), weight.storage.id, 0, 0, "x"])
        graph.recorded[f"-1:patch/{position}"] = graph.recorded["-1:digests"].reshape(-1)[:0]

    with pytest.raises(CaptureError, match="reaches outside of its storage of 0 bytes"):
        replay(recording(tmp_path, shrink))


def test_a_storage_cannot_shrink_under_a_tensor_that_is_filed_under_another(tmp_path: Path) -> None:
    """A view is said to lie in another storage than its base; a patch empties that storage, and the base is read."""

    class Views(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = x * 2
            return y.view(-1) + 1, y + 1

    x = torch.randn(300, 300)
    graph = atlas.capture(Views(), x, values="replay")
    kept, names = graph.metadata["replay"], [node.name for node in graph.nodes if node.kind == "op"]
    other = graph["add_1"].outputs[0].storage.id
    graph.columns["value_storage"][graph["view"].outputs[0].id] = other
    kept["patches"].append([names.index("add_1"), other, 0, 0, "x"])
    graph.recorded["-1:patch/0"] = np.empty(0, np.uint8)
    loaded = atlas.load(graph.save(tmp_path / "recording.atlas"))
    assert isinstance(loaded, Graph)
    assert torch.equal(replay(loaded).outputs[0][1], x * 2 + 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: kept["settings"][0][1].update(dtype="int64"),
        lambda kept: kept["settings"][0][1].update(deterministic=9),
        lambda kept: kept["settings"][0][1].update(matmul="fast"),
        lambda kept: kept["settings"][0][1].update(threads=100_000),
        lambda kept: kept.update(generators=[["nowhere", True]]),
    ],
)
def test_settings_of_a_recording_are_checked_before_they_are_set(change: Any, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    with pytest.raises((FileFormatError, NotAvailableError)):
        atlas.verify(recording(tmp_path, lambda graph: change(graph.metadata["replay"])))
    assert torch.get_num_threads() == threads
    assert torch.get_default_dtype() is torch.float32


# -- what people save every day needs no permission --------------------------------------------------------------------

NEEDS_PERMISSION = {
    "forward_mode": "aten._has_same_storage_numel.default",
    "sparse_gradient": "aten._sparse_coo_tensor_with_dims_and_tensors.default",
    "transformer_layer_fast_path": "aten._transformer_encoder_layer_fwd.default",
}


@pytest.mark.parametrize("entry", ZOO, ids=str)
def test_recordings_of_the_zoo_are_verified_from_a_file(entry: Specimen, tmp_path: Path) -> None:
    model, args, kwargs = entry.build()
    graph = atlas.capture(model, *args, backward=entry.trains, values="replay", kwargs=kwargs)
    try:
        own = atlas.verify(graph)
    except NotAvailableError as error:
        pytest.skip(f"cannot be replayed at all: {error}")
    loaded = atlas.load(graph.save(tmp_path / "run.atlas"))
    allow = ()
    if entry.name in NEEDS_PERMISSION:
        with pytest.raises(NotAvailableError, match=NEEDS_PERMISSION[entry.name]):
            atlas.verify(loaded)
        allow = ("aten", "prims")
    assert atlas.verify(loaded, allow=allow) == own


def test_a_graph_is_its_own_only_in_the_process_that_recorded_it(tmp_path: Path) -> None:
    graph = atlas.capture(nn.Linear(2, 2), torch.ones(1, 2), values="replay")
    assert graph.own
    assert not atlas.load(graph.save(tmp_path / "run.atlas")).own
    assert not graph.subgraph(scope="").own
