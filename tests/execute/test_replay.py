"""Law 3: a capture that is run again, op by op, gives the same bits; and what is not the same is found and named."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest
import torch
from execute.replays import recorded, small, step
from torch import nn
from torch.utils.checkpoint import checkpoint
from zoo import ZOO, Specimen, leaves_of, loss_of, specimens, tensors_in

import torchatlas as atlas
from torchatlas.capturing.replaying import CHANGED, UNWRITTEN
from torchatlas.errors import CaptureError
from torchatlas.execute.program import Instruction
from torchatlas.execute.recorded_program import fresh_storage
from torchatlas.execute.replay import ReplayObserver, ReplayProgram, replay
from torchatlas.execute.verify_replay import Verification, verify

# Every specimen that is not equal to the bit, with the reason. There is none.
UNEQUAL: dict[str, str] = {}
SPARSE = {"sparse_gradient"}  # AdamW takes no sparse gradients

every_specimen = pytest.mark.parametrize("specimen", ZOO, ids=str)
every_trained = pytest.mark.parametrize("specimen", specimens(trains=True), ids=str)


# -- the law -----------------------------------------------------------------------------------------------------------


@every_specimen
def test_a_replayed_forward_is_equal_to_the_bit(specimen: Specimen) -> None:
    model, args, kwargs = specimen.build()
    graph = atlas.capture(model, *args, kwargs=kwargs, values="replay")
    found = verify(graph)
    assert found or specimen.name in UNEQUAL, str(found)
    assert CHANGED not in found.patches  # else something ran that was not recorded
    assert found.ops == found.replayed == len(graph.where(kind="op"))


@every_trained
def test_a_replayed_training_step_is_equal_to_the_bit(specimen: Specimen) -> None:
    model, args, kwargs = specimen.build()
    leaves = list(leaves_of(model, args, kwargs).values())
    kind = torch.optim.SparseAdam if specimen.name in SPARSE else torch.optim.AdamW
    optimizer = kind(leaves, lr=0.01) if leaves else None
    graph = atlas.capture(model, *args, kwargs=kwargs, backward=True, optimizer=optimizer, values="replay")
    found = verify(graph)
    assert found or specimen.name in UNEQUAL, str(found)
    assert CHANGED not in found.patches
    plain = atlas.capture(model, *args, kwargs=kwargs, backward=True, optimizer=optimizer)
    assert [node.operation for node in graph.nodes] == [node.operation for node in plain.nodes]
    assert found.ops == found.replayed == len(graph.where(kind="op"))


def test_outputs_gradients_and_parameters_are_those_of_the_program() -> None:
    model, x = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    torch.manual_seed(3)
    graph = atlas.capture(model, x, optimizer=optimizer, loss=loss_of, values="replay")
    again = replay(graph)
    torch.manual_seed(3)
    expected = model(x)
    loss_of(expected).backward()
    optimizer.step()
    assert torch.equal(again.outputs[0], expected)
    assert again.state.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        assert torch.equal(again.state[name], parameter)
        assert parameter.grad is not None
        assert torch.equal(again.gradients[name], parameter.grad)


def test_what_is_returned_has_the_structure_of_the_program() -> None:
    x = torch.arange(4.0)

    def program(x: torch.Tensor) -> dict[str, Any]:
        return {"sum": x.sum(), "both": (x + 1, [x]), "word": "as it is"}

    found = replay(atlas.capture(program, x, values="replay")).outputs[0]
    assert found["word"] == "as it is"
    assert all(torch.equal(a, b) for a, b in zip(tensors_in(found), tensors_in(program(x)), strict=True))


_VERIFY = """
import sys, torchatlas as atlas
from torchatlas.execute.verify_replay import verify
found = verify(atlas.load(sys.argv[1]))
print(bool(found), found.ops, found.outputs, found.storages)
"""


def test_a_file_is_verified_in_another_process(tmp_path: Path) -> None:
    graph = step()
    path, here = graph.save(tmp_path / "step.atlas"), verify(graph)
    printed = children.python(_VERIFY, str(path), PYTHONPATH=os.pathsep.join(sys.path))
    assert printed.split() == ["True", str(here.ops), str(here.outputs), str(here.storages)]
    assert atlas.load(path).identical(graph)


# -- random numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_draws_the_same_numbers_again(reentrant: bool) -> None:
    model, _ = small()
    x = torch.randn(3, 4, requires_grad=True)
    graph = recorded(lambda: checkpoint(model, x, use_reentrant=reentrant).sum().backward())
    draws = graph.metadata["replay"]["draws"]
    assert len(draws) == 2
    assert all(kept for _, _, kept in draws)  # the second state was not left by the first draw
    assert verify(graph)


def test_generators_of_the_program_and_seeds_in_between() -> None:
    one, two = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)

    def program() -> None:
        torch.rand(3, generator=one) + torch.rand(3, generator=two) + torch.rand(3)
        one.manual_seed(9)
        torch.randn(3, generator=one)
        torch.randperm(5, generator=two)
        torch.manual_seed(4)
        torch.empty(4).normal_()
        torch.multinomial(torch.ones(5), 2)

    graph = recorded(program)
    assert len(graph.metadata["replay"]["generators"]) == 3
    assert verify(graph)


def test_without_the_kept_states_the_numbers_differ() -> None:
    """What the two tests above rely on."""
    graph = recorded(lambda: torch.rand(3) + 1)
    graph.metadata["replay"]["draws"][0][2] = False
    torch.manual_seed(77)
    found = verify(graph)
    assert found.first_difference is not None
    assert found.first_difference.operation == "aten.rand.default"


# -- memory ------------------------------------------------------------------------------------------------------------


def tied() -> None:
    weight = torch.ones(3, 3)
    weight[0].mul_(2)
    flat = torch.zeros(12)
    first, second = flat[:6].view(2, 3), flat[6:]
    first.add_(1)
    second.copy_(flat[:6] * 2)
    flat.as_strided((3,), (4,)).sub_(5)
    (first @ weight + flat.sum()).t_()


def conjugated() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j])
    y = x.conj()
    y.mul_(2j)
    x + y, torch.imag(y) + 1


def transposed_in_place() -> None:
    x = torch.ones(2, 3) * 2
    other = x.data  # no op
    x.t_()
    other + torch.ones(2, 3)


def resized() -> None:
    x = torch.ones(4)
    x.resize_(10)[4:] = 2
    out = torch.ones(2)
    torch.add(x, x, out=out.resize_(0))
    storage = torch.zeros(5).untyped_storage()
    shown = torch.empty(0).set_(storage, 1, (2,), (2,))
    shown.add_(out[:2])


def in_inference_mode() -> None:
    with torch.inference_mode():
        nn.Linear(4, 4)(torch.ones(2, 4)).add_(1)


def lstm() -> None:
    nn.LSTM(3, 4, num_layers=2, dropout=0.2)(torch.randn(5, 2, 3))[0].sum().backward()


def with_other_settings() -> None:
    before = torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.arange(3) / 2
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    torch.randn(300, 200) @ torch.randn(200, 7)
    torch.set_num_threads(before)


def in_bfloat16() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        nn.Linear(4, 4)(torch.randn(2, 4)).sum().backward()


def in_threads() -> None:
    threads = [threading.Thread(target=lambda: [torch.rand(9) * 2 for _ in range(20)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def transformed() -> None:
    torch.func.hessian(lambda x: (x**3).sum())(torch.ones(3))
    torch.func.vmap(torch.func.grad(lambda w, x: torch.tanh(x @ w).sum()), (None, 0))(
        torch.ones(3, 2), torch.ones(4, 3)
    )


def sparse_gradients() -> None:
    table = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        table(torch.tensor([1, 2, 1])).pow(2).sum().backward()
        optimizer.step()


def data_from_python() -> None:
    numbers = torch.tensor([1.0, 2.0]) * torch.from_numpy(np.arange(2.0))
    torch.tensor(numbers.tolist()) * numbers.sum().item()


def training() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


PROGRAMS = [
    tied,
    conjugated,
    transposed_in_place,
    resized,
    in_inference_mode,
    lstm,
    with_other_settings,
    in_bfloat16,
    in_threads,
    pytest.param(transformed, marks=pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")),
    sparse_gradients,
    data_from_python,
    training,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_that_are_hard_to_replay(program: Callable[[], None], tmp_path: Path) -> None:
    graph = recorded(program)
    found = verify(graph)
    assert found, str(found)
    assert not found.patches
    assert verify(atlas.load(graph.save(tmp_path / "run.atlas")), allow=["aten", "prims"]) == found


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning")
@pytest.mark.parametrize(
    "kind", ["sparse", "csr", "quantized", "nested", "conjugated", "negated", "misaligned", "mkldnn"]
)
def test_kinds_of_tensors_from_outside(kind: str) -> None:
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    complex_one = torch.tensor([1 + 2j, 3 - 1j])
    tensor, program = {
        "sparse": lambda: (dense.to_sparse(), lambda t: (t @ dense, t.coalesce().indices() + 1, (t + t).to_dense())),
        "csr": lambda: (dense.to_sparse_csr(), lambda t: (t @ dense, t.values() * 2, t.col_indices() + 1)),
        "quantized": lambda: (torch.quantize_per_tensor(dense, 0.1, 3, torch.quint8), lambda t: t.dequantize() + 1),
        "nested": lambda: (torch.nested.nested_tensor([dense, dense[:1]]), lambda t: (t * 2).to_padded_tensor(0.0)),
        "conjugated": lambda: (complex_one.conj(), lambda t: (t * 2, t.mul_(1j))),
        "negated": lambda: (complex_one.conj().imag, lambda t: (t + 1, t.add_(1))),
        "misaligned": lambda: (torch.from_numpy(np.arange(260, dtype=np.float32)[1:]), lambda t: (t @ t, t.sum())),
        "mkldnn": lambda: (dense, lambda t: t.to_mkldnn().relu().to_dense()),
    }[kind]()
    graph = recorded(lambda: program(tensor))
    assert (kind == "misaligned") == bool(graph.metadata["replay"]["misaligned"])
    assert verify(graph)


@pytest.mark.parametrize("off", [0, 4, 16, 63])
def test_a_storage_begins_as_far_from_a_multiple_of_64(off: int) -> None:
    kept = np.arange(100, dtype=np.uint8)
    storage = fresh_storage(kept, off, "cpu")
    assert storage.data_ptr() % 64 == off
    assert list(storage) == kept.tolist()
    storage[0] = 7
    assert kept[0] == 0


def test_what_numpy_writes_is_kept_and_told() -> None:
    outside = torch.ones(4)

    def program() -> None:
        inside = outside * 2
        inside.numpy()[1] = 7
        outside.numpy()[:2] = 5
        (inside + 1) * outside
        outside.numpy()[3] = 9  # after the last op that takes it

    found = verify(recorded(program))
    assert found, str(found)
    assert found.patches == {CHANGED: 3}
    assert "changed outside of the recorded ops: 3 times" in str(found)


def test_a_lazy_module_that_gets_its_parameters_in_inference_mode() -> None:
    x = torch.ones(3, 4)

    def program() -> None:
        model = nn.LazyLinear(4)
        with torch.inference_mode():
            model(x)

    assert verify(recorded(program))


@pytest.mark.parametrize(
    "op",
    [
        lambda x: torch.matmul(x[:, 0], x[0], out=x.detach()[0]),
        lambda x: torch.take(x, torch.tensor([0, 99, 1, 1]), out=x),
        lambda x: torch.gather(x.clone(), 0, torch.full((5, 3), 99), out=x),
        lambda x: torch.cat([x, x], out=x),
        lambda x: x.t_().add_(torch.ones(97)),
    ],
)
def test_a_replay_goes_on_after_an_op_that_raised(op: Callable[[torch.Tensor], Any]) -> None:
    """Such an op is no node, but it may have given its out= another shape and other bytes."""

    def program() -> None:
        x = torch.ones(2, 3).exp()
        with warnings.catch_warnings(), contextlib.suppress(RuntimeError, IndexError):
            warnings.simplefilter("ignore")
            op(x)
        x.sin()

    graph = recorded(program)
    assert verify(graph), str(verify(graph))
    assert graph.nodes[-1].inputs[0].shape == graph.nodes[-1].outputs[0].shape


def test_memory_that_an_op_takes_uninitialized_is_kept() -> None:
    def program() -> None:
        inverse = torch.empty(10)
        inverse[torch.tensor([1, 3])] = 5.0
        inverse.nan_to_num()
        whole = torch.empty(6)
        whole[:3], whole[3:] = 1, 2
        whole * 2

    found = verify(recorded(program))
    assert found, str(found)
    assert found.patches == {UNWRITTEN: 1}  # only of the first: the second was written before it was read
    assert found.uninitialized > 0


@pytest.mark.filterwarnings("ignore:.*quantiz.*:UserWarning")
def test_quantized_memory_that_is_uninitialized_is_not_compared() -> None:
    def program() -> None:
        made = torch._empty_affine_quantized((9,), scale=0.1, zero_point=10, dtype=torch.quint8)
        torch.empty_quantized((4,), made)

    found = verify(recorded(program))
    assert found, str(found)
    assert (found.uninitialized, found.outputs) == (2, 0)


def test_tensors_are_freed_after_their_last_use() -> None:
    graph = recorded(lambda: [torch.ones(10) * 2 for _ in range(50)])

    class Counting(ReplayObserver):
        most = 0

        def ran(self, instruction: Instruction, args: Any, kwargs: dict[str, Any]) -> None:
            self.most = max(self.most, sum(item is not None for item in self.registers))

    program, observer = ReplayProgram(graph, ()), Counting()
    program.run(observer)
    assert program.stopped is None
    assert len(graph.storages) == 100
    assert observer.most <= 2
    assert observer.registers == [None] * len(observer.registers)


# -- what differs is found ---------------------------------------------------------------------------------------------


def test_one_bit_of_a_weight() -> None:
    graph = step()
    weight = next(value for value in graph.values if value.parameter == "3.weight")
    graph.recorded[f"-1:storage/{weight.storage.id}"][0] ^= 1
    found = verify(graph)
    assert not found
    first = found.first_difference
    assert first is not None
    assert (first.module, first.output) == ("3", 0)
    assert first.source is not None
    assert "replays.py:" in first.source  # where `step` runs the model
    assert "3.weight" in found.changed_storages
    assert str(found).startswith("NOT verified: ")
    assert f"first difference: output 0 of {first.node} ({first.operation})" in str(found)


def test_an_argument_that_was_changed() -> None:
    graph = recorded(lambda: torch.ones(3).mul(2).add(1).sub(5))
    texts = graph.tables.arguments
    position = next(i for i, text in enumerate(texts) if text == '[[{"tensor":0},1],{}]')
    texts[position] = '[[{"tensor":0},3],{}]'
    found = verify(graph)
    assert found.first_difference is not None
    assert found.first_difference.operation == "aten.add.Tensor"
    assert found.outputs - found.outputs_equal == 2  # and all that follows from it


def test_a_storage_that_ended_differently_is_named() -> None:
    graph = step()
    last = graph.metadata["replay"]["last"]
    number = next(iter(last))
    last[number] = "00" * 16
    found = verify(graph)
    assert not found
    assert found.first_difference is None
    assert len(found.changed_storages) == 1
    assert "ended differently: " in str(found)


def test_the_largest_difference_where_the_value_is_at_hand() -> None:
    graph = recorded(lambda: torch.ones(3) * 2)
    node = graph.where(operation="mul")[0].id
    graph.recorded["-1:digests"][-1] ^= 1
    assert verify(graph).first_difference.largest is None  # type: ignore[union-attr]
    graph.recorded[f"{node}:0"] = np.array([2.0, 2.5, 2.0], np.float32)
    found = verify(graph).first_difference
    assert found is not None
    assert found.largest == 0.5
    assert "differs by at most 0.5" in str(found)


def test_an_op_that_fails_is_named_with_the_reason() -> None:
    graph = recorded(lambda: torch.ones(3).mul(2).add(1))
    graph.tables.arguments[:] = [text.replace("[3]", "[-3]") for text in graph.tables.arguments]
    found = verify(graph)
    assert not found
    assert (found.ops, found.replayed) == (3, 0)
    assert found.unplayed[0].operation == "aten.ones.default"
    assert "negative dimension" in found.unplayed[0].reason
    with pytest.raises(CaptureError, match=r"could not be replayed: .*negative dimension") as caught:
        replay(graph)
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning")
def test_packed_weights_are_not_in_the_graph() -> None:
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear}, torch.qint8)
    found = verify(atlas.capture(model, torch.ones(2, 4), values="replay"))
    assert not found
    assert found.unplayed[0].operation == "quantized.linear_dynamic.default"
    assert "ScriptObject, is not in the graph" in found.unplayed[0].reason


def test_it_is_frozen_and_plain() -> None:
    found = verify(step())
    assert isinstance(found, Verification)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.ops = 0  # type: ignore[misc]
    assert found.to_dict()["verified"] is True
    assert found.captured_with == found.replayed_with == torch.__version__.partition("+")[0]


# -- nothing is left behind --------------------------------------------------------------------------------------------


def world() -> tuple[Any, ...]:
    return (
        torch.get_rng_state().numpy().tobytes(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.get_deterministic_debug_mode(),
        torch.get_float32_matmul_precision(),
        torch.backends.mkldnn.enabled,
        torch.is_autocast_enabled("cpu"),
        torch.is_inference_mode_enabled(),
    )


@pytest.mark.parametrize("fails", [False, True])
def test_a_replay_leaves_everything_as_found(fails: bool) -> None:
    model, x = small()
    before_capture = [p.detach().clone() for p in model.parameters()]

    def program() -> None:
        torch.set_num_threads(1)
        torch.set_default_dtype(torch.float64)
        model(x).sum().backward()
        torch.rand(3) + 1

    threads = torch.get_num_threads()
    try:
        graph = recorded(program, model)
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(torch.float32)
    assert [node.operation for node in graph.where(kind="op")][-1] == "aten.add.Tensor"
    if fails:
        graph.tables.arguments[:] = [text.replace("[3]", "[-3]") for text in graph.tables.arguments]
    torch.manual_seed(5)
    before, kept = world(), {key: array.copy() for key, array in graph.recorded.items()}
    assert bool(verify(graph)) != fails
    assert world() == before
    with torch.inference_mode(), torch.autocast("cpu"):
        inside = world()
        with atlas.recording() as rec:
            assert bool(verify(graph)) != fails
        assert world() == inside
    assert len(rec.graph) == 0  # a replay is no part of the program around it
    assert all(torch.equal(now, then) for now, then in zip(model.parameters(), before_capture, strict=True))
    assert all((graph.recorded[key] == array).all() for key, array in kept.items())
    assert bool(verify(graph)) != fails


@pytest.mark.parametrize("record", [False, True])
def test_keeping_has_no_effect_on_the_program(record: bool) -> None:
    """The same numbers, gradients and random state, and storages that can still be resized."""

    def run(values: str | None) -> list[torch.Tensor]:
        model, x = small()
        x.requires_grad_()
        optimizer = torch.optim.AdamW(model.parameters())
        torch.manual_seed(1)
        if values is None:
            loss_of(model(x)).backward()
            optimizer.step()
        else:
            with atlas.recording(model if record else None, values=values):
                loss_of(model(x)).backward()
                optimizer.step()
        x.detach().resize_(100)
        return [*(p.detach() for p in model.parameters()), x.grad, torch.get_rng_state()]  # type: ignore[list-item]

    assert all(torch.equal(a, b) for a, b in zip(run(None), run("replay"), strict=True))


def test_tensors_die_when_they_die_without_keeping() -> None:
    gc.collect()
    gc.disable()
    try:
        x, rec = torch.ones(3), atlas.recording(values="replay")
        rec.start()
        y = x * 2
        tensor, storage = weakref.ref(y), weakref.ref(y.untyped_storage())
        del y
        assert tensor() is storage() is None
        with pytest.raises(RuntimeError, match="must match") as caught:
            x + torch.ones(4)
        rec.stop(caught.value)
        tensor = weakref.ref(x)
        del x
        assert caught.value is not None  # its traceback leads through the recorder
        assert tensor() is None
        assert rec._replay is not None
        assert rec._replay.recorder is None
    finally:
        gc.enable()
    assert verify(rec.graph)
