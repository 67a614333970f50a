"""The laws of docs/laws.md, each over the whole zoo."""

from __future__ import annotations

import gc
import os
import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from zoo import ZOO, Specimen, leaves_of, loss_of, specimens, tensors_in

import torchatlas as atlas
from torchatlas.graph.consistency import faults

optimizer_module = sys.modules[Optimizer.__module__]
every_specimen = pytest.mark.parametrize("specimen", ZOO, ids=lambda specimen: specimen.name)
every_trained = pytest.mark.parametrize("specimen", specimens(trains=True), ids=lambda specimen: specimen.name)


def optimizer_for(model: Any, args: Any, kwargs: Any) -> Optimizer | None:
    leaves = [leaf for leaf in leaves_of(model, args, kwargs).values() if leaf.is_leaf]
    return torch.optim.SGD(leaves, lr=0.01, momentum=0.9) if leaves else None


def captured(specimen: Specimen) -> atlas.Graph:
    model, args, kwargs = specimen.build()
    optimizer = optimizer_for(model, args, kwargs) if specimen.trains else None
    return atlas.capture(model, *args, kwargs=kwargs, backward=specimen.trains, optimizer=optimizer)


@every_specimen
def test_columns_are_sound_and_names_unique(specimen: Specimen) -> None:
    graph = captured(specimen)
    assert faults(graph.columns, graph.tables) is None
    names = [node.name for node in graph.nodes]
    assert len(set(names)) == len(names)
    assert all(graph[name].id == position for position, name in enumerate(names))


# -- law 1: parts sum to totals --------------------------------------------------------------------------------------


@every_specimen
def test_parts_sum_to_totals(specimen: Specimen) -> None:
    graph = captured(specimen)
    root = graph.scopes[""]
    ops = graph.where(kind="op")
    assert root.operations == len(ops)
    assert root.time_ns == sum(node.time_ns or 0 for node in ops) == graph.time_ns
    assert sum(root.operations_by_phase.values()) == len(ops)
    for scope in graph.scopes.values():
        assert scope.operations == scope.own_operations + sum(child.operations for child in scope.children)
        assert (scope.time_ns or 0) == (scope.own_time_ns or 0) + sum(child.time_ns or 0 for child in scope.children)
        assert scope.operations == len([node for node in scope.nodes if node.kind == "op"])


# -- law 2: parameters counted once ----------------------------------------------------------------------------------


@every_specimen
def test_parameters_are_counted_once(specimen: Specimen) -> None:
    model, args, kwargs = specimen.build()
    if not isinstance(model, nn.Module):
        pytest.skip("a plain function has no parameters")
    graph = atlas.capture(model, *args, kwargs=kwargs)
    model(*args, **kwargs)  # lazy modules have their parameters only now
    unique = {parameter.untyped_storage()._cdata: parameter.numel() for parameter in model.parameters()}
    assert graph.scopes[""].parameters == sum(unique.values())


# -- law 5: files load back identical ----------------------------------------------------------------------------------


@every_specimen
def test_files_load_back_identical(specimen: Specimen, tmp_path: Path) -> None:
    graph = captured(specimen)
    for suffix in ("json", "atlas"):
        loaded = atlas.load(graph.save(tmp_path / f"graph.{suffix}"))
        assert loaded.identical(graph)
        assert loaded == graph
        assert loaded.hash == graph.hash


# -- law 6: the world is left as found ---------------------------------------------------------------------------------


def world() -> dict[str, Any]:
    """What a recording may touch of the process."""
    return {
        "modes": len(_get_current_dispatch_mode_stack()),
        "module call": nn.Module._call_impl,
        "data": vars(torch.Tensor).get("data"),
        "backward": torch.autograd.backward,
        "collector": gc.get_threshold(),
        "grad": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "hooks": (
            len(optimizer_module._global_optimizer_pre_hooks),
            len(optimizer_module._global_optimizer_post_hooks),
            len(nn.modules.module._global_forward_hooks),
        ),
        "numpy": np.random.get_state()[1].tobytes(),  # noqa: NPY002  # the one a user may have seeded
        "random": random.getstate(),
    }


def result_of(specimen: Specimen, record: bool) -> list[Any]:
    """Everything a training step leaves behind."""
    model, args, kwargs = specimen.build()
    optimizer = optimizer_for(model, args, kwargs) if specimen.trains else None
    torch.manual_seed(7)

    def step() -> Any:
        result = model(*args, **kwargs)
        if specimen.trains:
            loss_of(result).backward()
            if optimizer is not None:
                optimizer.step()
        return result

    if record:
        with atlas.recording(model if isinstance(model, nn.Module) else None):
            result = step()
    else:
        result = step()
    left = [tensor.detach() for tensor in tensors_in(result)]
    left += [leaf.grad for leaf in leaves_of(model, args, kwargs).values()]
    if isinstance(model, nn.Module):
        left += [tensor.detach() for tensor in model.state_dict().values() if isinstance(tensor, torch.Tensor)]
    return [*left, torch.get_rng_state()]


def same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool((one.eq(other) | (one.ne(one) & other.ne(other))).all())


@every_specimen
def test_recording_has_the_effects_the_code_has_alone(specimen: Specimen) -> None:
    alone = result_of(specimen, record=False)
    before = world()
    recorded = result_of(specimen, record=True)
    assert world() == before
    assert len(alone) == len(recorded)
    assert all(same(a, b) for a, b in zip(alone, recorded, strict=True))


def state_of(model: Any, args: Any, kwargs: Any, optimizer: Any) -> dict[str, Any]:
    """Contents, identities and flags of everything the user holds."""
    tensors = [*tensors_in((args, kwargs))]
    flags: list[Any] = []
    if isinstance(model, nn.Module):
        lazy = nn.parameter.UninitializedTensorMixin
        tensors += [t for t in [*model.parameters(), *model.buffers()] if not isinstance(t, lazy)]
        flags = [(name, type(m), m.training, sorted(vars(m))) for name, m in model.named_modules()]
    state = [] if optimizer is None else [(id(p), sorted(s)) for p, s in optimizer.state.items()]
    return {
        "contents": [tensor.detach().clone() for tensor in tensors],
        "gradients": [None if tensor.grad is None else tensor.grad for tensor in tensors if tensor.is_leaf],
        "requires grad": [tensor.requires_grad for tensor in tensors],
        "identities": [(id(tensor), tensor.untyped_storage().data_ptr(), tensor.stride()) for tensor in tensors],
        "versions": [tensor._version for tensor in tensors if not tensor.is_inference()],
        "flags": flags,
        "optimizer": state,
        "rng": torch.get_rng_state(),
    }


def assert_same_state(before: dict[str, Any], after: dict[str, Any]) -> None:
    for key in before:
        if key in ("contents", "gradients"):
            assert len(before[key]) == len(after[key])
            assert all(same(a, b) for a, b in zip(before[key], after[key], strict=True)), key
        elif key == "rng":
            assert torch.equal(before[key], after[key])
        else:
            assert before[key] == after[key], key


@pytest.mark.parametrize("how", ["ops", "modules", "repeated"])
@every_specimen
def test_capture_leaves_everything_as_found(specimen: Specimen, how: str) -> None:
    model, args, kwargs = specimen.build()
    optimizer = optimizer_for(model, args, kwargs) if specimen.trains else None
    before, process = state_of(model, args, kwargs, optimizer), world()
    options = {"modules": {"track_tensor_ops": False}, "repeated": {"warmup": 1, "repeat": 2}}.get(how, {})
    graph = atlas.capture(model, *args, kwargs=kwargs, backward=specimen.trains, optimizer=optimizer, **options)
    if how == "repeated":  # every run began alike, and took the same operations
        assert graph.timing is not None
        assert graph.timing.runs == 2
    assert world() == process
    assert_same_state(before, state_of(model, args, kwargs, optimizer))


class Bomb(TorchDispatchMode):
    """Raises at the n-th op."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= 1
        if self.left == -1:
            raise ValueError("bang")
        return func(*args, **(kwargs or {}))


@every_trained
def test_an_exception_leaves_everything_as_found_and_the_graph_so_far(specimen: Specimen) -> None:
    model, args, kwargs = specimen.build()
    optimizer = optimizer_for(model, args, kwargs)
    whole = [node.operation for node in captured(specimen).where(kind="op")]
    process = world()
    for after in sorted({0, len(whole) // 3, len(whole) // 2, len(whole) - 1}):
        model, args, kwargs = specimen.build()
        optimizer = optimizer_for(model, args, kwargs)
        before = state_of(model, args, kwargs, optimizer)
        with suppress(ValueError), Bomb(after):
            atlas.capture(model, *args, kwargs=kwargs, backward=True, optimizer=optimizer)
        assert world() == process
        assert_same_state(before, state_of(model, args, kwargs, optimizer))


def test_a_failed_recording_keeps_what_was_recorded_and_names_the_op() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(7, 2))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), atlas.recording(model) as rec:
        model(torch.ones(3, 4))
    assert [node.operation for node in rec.graph.where(kind="op")][-1] == "aten.t.default"
    assert rec.failure is not None
    assert rec.failure.operation == "aten.addmm.default"
    assert rec.failure.scope == "2"
    assert rec.failure.source is not None
    assert rec.failure.source.text == "model(torch.ones(3, 4))"
    assert any("aten.addmm.default" in note for note in rec.graph.notes)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        atlas.capture(model, torch.ones(3, 4))
    assert "aten.addmm.default in 2" in "".join(caught.value.__notes__)


# -- law 7: the same graph in another process ------------------------------------------------------------------------

_PRINT_HASHES = """
import sys, torch
torch.set_num_threads(1)
from test_laws import ZOO, captured
for specimen in ZOO:
    graph = captured(specimen)
    print(specimen.name, graph.hash, graph.nodes[-1].name, len(graph))
"""


@pytest.mark.timeout(240)
def test_another_process_gives_the_same_graph_names_and_hash() -> None:
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), *sys.path])
    printed = children.python(_PRINT_HASHES, cwd=here.parent, PYTHONPATH=path, PYTHONHASHSEED="123")
    there = dict(line.split(" ", 1) for line in printed.splitlines() if line.count(" ") == 3)
    assert len(there) == len(ZOO)
    for specimen in ZOO:
        graph = captured(specimen)
        assert f"{graph.hash} {graph.nodes[-1].name} {len(graph)}" == there[specimen.name], specimen.name
