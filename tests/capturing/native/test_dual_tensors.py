"""Forward-mode differentiation under the native recorder: a tangent is computed inside of its op, after the kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import torchatlas as atlas

pytestmark = pytest.mark.usefixtures("native")


def dual() -> torch.Tensor:
    return forward_ad.make_dual(torch.full((8, 16), 0.5), torch.ones(8, 16))


def products() -> None:
    y = (dual() @ torch.ones(16, 32)).relu()
    (y * y).sum()


def modules() -> None:
    nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8))(dual())


def trained() -> None:
    weight = torch.ones(16, 16, requires_grad=True)
    primal, tangent = forward_ad.unpack_dual((dual() @ weight).tanh())
    (primal.sum() + tangent.sum()).backward()


def recorded(program: Callable[[], None], native: bool) -> atlas.Graph:
    with atlas.recording(native=native) as rec, forward_ad.dual_level():
        program()
    assert rec.graph.metadata["recorder"] == ("native" if native else "python")
    return rec.graph


@pytest.mark.parametrize("program", [products, modules, trained])
def test_the_peak_is_that_of_the_recorder_in_python(program: Callable[[], None]) -> None:
    assert recorded(program, True).peak_bytes == recorded(program, False).peak_bytes


def test_an_op_comes_before_its_tangent() -> None:
    graph = recorded(products, True)
    first, *of_tangent = graph.where(operation="aten.mm.default")
    assert all(first.id < node.id for node in of_tangent)
    assert graph.where(operation="aten.relu.default")[0].predecessors == [first]


def test_a_tangent_takes_what_an_op_in_place_has_written() -> None:
    def program() -> None:
        x = dual() * 1
        x.exp_()

    graph = recorded(program, True)
    (written,) = graph.where(operation="aten.exp_.default")
    assert [node.operation for node in written.successors] == ["aten._fw_primal.default"]


def test_numbers_of_autograd_are_those_of_the_recorder_in_python() -> None:
    def numbers(graph: atlas.Graph) -> list[tuple[str, int]]:
        forward = graph.where(phase="forward", operation_type="matmul") + graph.where(operation="aten.tanh.default")
        found = [(node.operation, node.sequence_nr) for node in forward if node.sequence_nr is not None]
        return [(operation, number - found[0][1]) for operation, number in found]

    assert numbers(recorded(trained, True)) == numbers(recorded(trained, False)) != []


def test_hooks_on_what_is_saved_before_the_kernel_come_before_the_op() -> None:
    def pack(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    graphs = []
    for native in (False, True):
        x = torch.ones(3, requires_grad=True)
        with atlas.recording(native=native) as rec, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            x.sin().exp()
        graphs.append([node.operation for node in rec.graph.nodes if "detach" not in node.operation])
    assert graphs[0] == graphs[1]
