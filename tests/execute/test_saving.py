"""Traced models in files: they run without their code, and nothing in a file runs that should not."""

from __future__ import annotations

import copy
import json
import random
from collections import namedtuple
from pathlib import Path
from typing import Any

import children
import pytest
import torch
from support import sampled
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from zoo import ZOO, Specimen

import torchatlas as atlas
from torchatlas.errors import (
    AtlasError,
    CaptureError,
    FileFormatError,
    InputMismatchError,
    InvalidInputError,
    InvalidModelError,
    NewerVersionError,
    NotAvailableError,
    StateError,
)
from torchatlas.execute.program_file import NUMBERS_ONLY, condition
from torchatlas.graph import Graph

Pair = namedtuple("Pair", "one other")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 4, bias=False)
        self.tied = nn.Linear(4, 6, bias=False)
        self.tied.weight = self.first.weight
        self.register_buffer("shift", torch.arange(4.0))
        self.offset = nn.Parameter(torch.ones(4, dtype=torch.bfloat16), requires_grad=False)

    def forward(self, x: Tensor, *, scale: float = 2.0) -> dict[str, Any]:
        hidden = self.first(x).relu_() + self.tied(x)
        with torch.no_grad():
            mean = hidden.mean()
        out = self.last(hidden) * scale + self.shift + self.offset
        return {"out": Pair(out, [mean]), "size": x.shape[0]}


def saved(path: Path, *, model: nn.Module | None = None, **options: Any) -> tuple[atlas.TracedModel, Path]:
    torch.manual_seed(0)
    traced = atlas.trace(model or Model().eval(), torch.randn(1, 4))
    return traced, traced.save(path / "m.atlas", **options)


def assert_equal(one: Any, other: Any) -> None:
    for mine, theirs in zip(tree_leaves(one), tree_leaves(other), strict=True):
        if isinstance(theirs, Tensor):
            if theirs.layout is torch.strided and not theirs.is_nested:
                assert torch.allclose(mine, theirs, rtol=0, atol=0, equal_nan=True)
        else:
            assert mine == theirs


def test_a_loaded_model_computes_the_same_for_any_size(tmp_path: Path) -> None:
    traced, path = saved(tmp_path)
    loaded = atlas.load(path)
    assert isinstance(loaded, atlas.TracedModel)
    assert repr(loaded) == repr(traced)
    for batch in (1, 2, 7):
        x = torch.randn(batch, 4)
        found = loaded(x)
        assert isinstance(found["out"], Pair)
        assert_equal(found, traced(x))
    assert loaded.graph.identical(traced.graph)
    assert loaded.input_shapes == traced.input_shapes
    assert loaded.notes == traced.notes


def named_by_fx(program: Any) -> None:
    """Name registers and calls as torch.fx does, what is no node as well, like files of release 0.2."""
    variant = program["variant"]
    variant["names"] = {f"fx_{number}": name for number, name in enumerate(variant["registers"]) if name}
    variant["registers"] = [f"fx_{number}" for number in range(len(variant["registers"]))]
    for call in variant["calls"]:
        call[0] = "" if call[2] in ("begin", "end") else f"fx_{call[1]}"


@pytest.mark.parametrize("older", [False, True])
def test_values_edits_and_parts_of_a_loaded_model(tmp_path: Path, older: bool) -> None:
    traced, path = saved(tmp_path)
    loaded, x = atlas.load(edited(path, named_by_fx) if older else path), torch.randn(3, 4)
    one, other = loaded.predict(x), traced.predict(x)
    assert list(one) == list(other)
    for name in one:
        assert_equal(one[name].output, other[name].output)
        assert_equal(one[name].hyperparameters, other[name].hyperparameters)
    assert_equal(loaded.run(x, edit={"last": torch.zeros_like}), traced.run(x, edit={"last": torch.zeros_like}))
    assert_equal(loaded.run_between({"x": x}, "last"), traced.run_between({"x": x}, "last"))


def test_a_loaded_model_trains_and_keeps_ties(tmp_path: Path) -> None:
    _, path = saved(tmp_path)
    loaded = atlas.load(path)
    names = dict(loaded.model.named_parameters(remove_duplicate=False))
    assert names["tied.weight"] is names["first.weight"]
    assert not names["offset"].requires_grad
    loaded(torch.randn(2, 4))["out"].one.sum().backward()
    assert names["first.weight"].grad is not None
    assert names["offset"].grad is None
    assert_equal(loaded.model(torch.ones(2, 4)), loaded(torch.ones(2, 4)))
    with torch.no_grad():
        loaded.model.get_buffer("shift").zero_()
    assert_equal(loaded(torch.zeros(2, 4))["out"].one[0], loaded(torch.zeros(1, 4))["out"].one[0])


def test_without_weights_a_model_gives_them(tmp_path: Path) -> None:
    traced, path = saved(tmp_path, weights=False)
    assert path.stat().st_size < saved(tmp_path)[1].stat().st_size
    _, path = saved(tmp_path, weights=False)
    with pytest.raises(StateError, match=r"the weights of this Model were not saved.*model=model"):
        atlas.load(path)
    other = Model().eval()
    x = torch.randn(5, 4)
    assert_equal(atlas.load(path, model=other)(x), other(x))
    with pytest.raises(InvalidModelError, match=r"this model has no first\.bias"):
        atlas.load(path, model=nn.Linear(4, 4))
    assert isinstance(traced, atlas.TracedModel)


def test_a_model_of_other_shapes_is_refused(tmp_path: Path) -> None:
    _, path = saved(tmp_path)
    other = Model()
    other.first = nn.Linear(4, 9)
    with pytest.raises(InvalidModelError, match=r"first\.bias has the shape \(9,\).*\(6,\)"):
        atlas.load(path, model=other)


def test_inputs_are_checked_as_before(tmp_path: Path) -> None:
    _, path = saved(tmp_path)
    loaded = atlas.load(path)
    with pytest.raises(InputMismatchError, match=r"has dtype torch\.float64"):
        loaded(torch.randn(2, 4).double())
    with pytest.raises(InputMismatchError, match="this trace fixes it to 4"):
        loaded(torch.randn(2, 5))
    with pytest.raises(
        InvalidInputError, match=r"traced with 1 input \(x\) and called with float32\[2, 4\], scale=float"
    ):
        loaded(torch.randn(2, 4), scale=3.0)


@pytest.mark.parametrize("entry", sampled(ZOO, 3), ids=str)
def test_the_zoo_comes_back(entry: Specimen, tmp_path: Path) -> None:
    model, args, kwargs = entry.build()
    if not isinstance(model, nn.Module):
        pytest.skip("no module")
    try:
        traced = atlas.trace(model, *args, kwargs=kwargs)
    except CaptureError:
        pytest.skip("torch.export cannot trace it")
    if entry.name == "forward_mode":
        with pytest.raises(NotAvailableError, match="which a file cannot hold"):
            traced.save(tmp_path / "m.atlas")
        return
    state = copy.deepcopy(model.state_dict())
    loaded = atlas.load(traced.save(tmp_path / "m.atlas"))
    torch.use_deterministic_algorithms(True)  # memory that nobody wrote is NaN then
    try:
        torch.manual_seed(1)
        found = loaded(*args, **kwargs)
        _, args, kwargs = entry.build()
        model.load_state_dict(state)
        torch.manual_seed(1)
        assert_equal(found, traced(*args, **kwargs))
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_fresh_process_needs_no_code_of_the_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).eval()
    path = atlas.trace(model, torch.randn(2, 4)).save(tmp_path / "m.atlas")
    program = (
        "import torch, torchatlas as atlas\n"
        f"print(atlas.load({str(path)!r})(torch.arange(12.).reshape(3, 4)).double().sum().item())"
    )
    assert float(children.python(program)) == model(torch.arange(12.0).reshape(3, 4)).double().sum().item()


# -- what cannot be saved ----------------------------------------------------------------------------------------------


def test_what_cannot_be_saved_is_said_and_nothing_is_written(tmp_path: Path) -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if x.sum() > 0 else x

    class Chooses(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    followed = atlas.trace(Branch(), torch.ones(2), fallback="capture")
    with pytest.raises(NotAvailableError, match="runs its own Python code"):
        followed.save(tmp_path / "m.atlas")
    with pytest.raises(NotAvailableError, match=r"calls cond, which a file cannot hold"):
        atlas.trace(Chooses().eval(), torch.ones(2)).save(tmp_path / "m.atlas")
    with pytest.raises(InvalidInputError, match=r"saved as \.atlas or \.onnx, not 'm\.pt'"):
        followed.save(tmp_path / "m.pt")
    assert list(tmp_path.iterdir()) == []


def test_a_graph_is_no_traced_model(tmp_path: Path) -> None:
    path = atlas.capture(nn.Linear(2, 2), torch.ones(1, 2)).save(tmp_path / "g.atlas")
    assert isinstance(atlas.load(path), Graph)
    with pytest.raises(FileFormatError, match="a graph and no traced model"):
        atlas.TracedModel.load(path)
    _, path = saved(tmp_path)
    assert isinstance(Graph.load(path), Graph)


# -- hostile files -----------------------------------------------------------------------------------------------------


def edited(path: Path, change: Any) -> Path:
    graph = Graph.load(path)
    change(graph.metadata["program"])
    return graph.save(path.with_name("edited.atlas"))


def calls(program: Any) -> list[Any]:
    found: list[Any] = program["variant"]["calls"]
    return found


@pytest.mark.parametrize(
    ("function", "call", "message"),
    [
        ("aten.from_file.default", '[["/tmp/x",true,8],{}]', "from_file.default is not run: it is not on the list"),
        ("aten._reshape_alias.default", "[[],{}]", "not on the list"),
        ("os.system", '[["true"],{}]', "os.system is not run: it is not on the list"),
        ("builtins.eval", '[["1"],{}]', "not on the list"),
        ("operator.methodcaller", "[[],{}]", "not on the list"),
        ("torch.load", "[[],{}]", "not on the list"),
        ("higher_order.cond", "[[],{}]", "cannot be replayed"),
        ("aten.__class__.default", "[[],{}]", "not on the list"),
        ("aten.mul.Tensor", '[[{"tensor":9999}],{}]', "refers to tensor 9999, and there are"),
        ("aten.mul.Tensor", '[[{"opaque":"os.system"}],{}]', "is not in the graph"),
        ("aten.mul.Tensor", "][", "is no argument"),
        ("aten.mul.Tensor", '[[{"dtype":"__class__"}],{}]', "has no dtype named"),
    ],
)
def test_a_call_that_is_not_allowed_is_refused_by_name(function: str, call: str, message: str, tmp_path: Path) -> None:
    def change(program: Any) -> None:
        calls(program)[2][2:] = [function, call]

    with pytest.raises(AtlasError, match=message):
        atlas.load(edited(saved(tmp_path)[1], change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.update(version=99), "version 99"),
        (lambda p: p.pop("variant"), "is damaged"),
        (lambda p: p["tensors"][0].__setitem__(1, [10**9]), "has not the"),
        (lambda p: p["tensors"][0].__setitem__(0, "Tensor"), "no dtype named"),
        (lambda p: p["held"]["shift"].update(tensor=77), "a weight is missing"),
        (lambda p: p["held"].update({"__class__": p["held"]["shift"]}), "cannot be named so"),
        (lambda p: p["variant"]["calls"].pop(1), "read before it is written"),
        (lambda p: p["variant"]["names"].update(zzz="nobody"), "has no node 'nobody'"),
        (lambda p: p["variant"].update(registers=["x"] * 99, names={"x": "x"}), "two registers have the name 'x'"),
        (lambda p: p["variant"].update(out_spec=["os:system", None, ["*"]]), "import os first"),
        (lambda p: p["variant"].update(out_spec=["namedtuple", "os:system", ["*"]]), "import os first"),
        (lambda p: p["variant"].update(out_spec=["dict", ["a"], []]), "not as many keys"),
        (lambda p: p["variant"].update(guards=["__import__('os').system('true')"]), "no condition on sizes"),
        (lambda p: p["signature"][0].__setitem__(0, "not a name"), "'not a name' cannot be the name of a parameter"),
        (lambda p: p["signature"][0].__setitem__(0, ""), "'' cannot be the name of a parameter"),
    ],
)
def test_damaged_programs_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((FileFormatError, NotAvailableError, InvalidInputError), match=message):
        atlas.load(edited(saved(tmp_path)[1], change))


def test_a_newer_program_says_so(tmp_path: Path) -> None:
    with pytest.raises(NewerVersionError, match="Update it"):
        atlas.load(edited(saved(tmp_path)[1], lambda program: program.update(version=2)))


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    _, path = saved(tmp_path)
    whole = path.read_bytes()
    for part in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:part])
        with pytest.raises(FileFormatError):
            atlas.load(path)


STRANGE = [None, -1, 10**12, 1.5, "", "x", [], {}, [[]], True, "[[],{}]", {"a": 1}]


def scramble(data: Any, chance: random.Random) -> None:
    """Put something strange somewhere into nested lists and dictionaries."""
    while True:
        key = chance.choice(list(data)) if isinstance(data, dict) else chance.randrange(len(data))
        inner = data[key]
        if isinstance(inner, (dict, list)) and inner and chance.random() < 0.85:
            data = inner
            continue
        data[key] = chance.choice(STRANGE)
        return


def test_whatever_a_program_says_loading_it_fails_clearly_or_not_at_all(tmp_path: Path) -> None:
    _, path = saved(tmp_path)
    graph, chance = Graph.load(path), random.Random(0)
    text, refused = json.dumps(graph.metadata["program"]), 0
    for _ in range(400):
        program = json.loads(text)
        scramble(program, chance)
        graph.metadata["program"] = program
        try:
            atlas.TracedModel.of_graph(graph, path)
        except AtlasError:
            refused += 1
    assert refused > 200


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "L['x'].__class__",
        "L.size()",
        "L['x'].size().__class__",
        "(lambda: 1)()",
        "[L for L in ()]",
        "torch.load('x')",
        "math.factorial(10**9)",
        "9**9**9 == 1",
        "'a' * 10",
        "L[L['x']]",
        "max(1, *L['x'])",
        "L['x'].size(dim=0)",
        "1 if L['x'] else 2",
        "f'{L}'",
        "x == 1",
        "1 ==",
        "(" * 500 + ")" * 500,
    ],
)
def test_what_is_no_condition_on_sizes_is_never_compiled(text: str) -> None:
    with pytest.raises(FileFormatError, match="no condition on sizes"):
        condition(text)


def test_conditions_on_sizes_are_computed() -> None:
    given = {
        "L": {"x": torch.ones(6, 4), "y": [torch.ones(3)]},
        "math": __import__("math"),
        "torch": torch,
        **NUMBERS_ONLY,
    }
    for text, holds in {
        "L['x'].size()[0] == 2*L['y'][0].size()[0]": True,
        "(2 + 2*(((-1) + L['x'].size()[1]) // 2)) != L['x'].size()[1]": False,
        "max(1, (-2) + L['x'].size()[0]) < 3**2 and not L['x'].stride()[0] == 3": True,
        "math.floor(L['x'].size()[0] / 4) == 1 or torch.sym_max(1, 2) == 1": True,
    }.items():
        assert eval(condition(text), given) is holds
