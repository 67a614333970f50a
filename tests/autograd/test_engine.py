"""The engine in Python against torch's own: the same nodes in the same order, the same gradients bit for bit."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from autograd.graphs import GRAPHS, Case, build

from torchatlas.autograd import engine
from torchatlas.autograd.engine.plan import MOST_NODES
from torchatlas.errors import AnalysisError, InvalidInputError, NotAvailableError, StateError

# What is not equal, and why.
NOT_FREED = {  # torch's own node that no gradient comes to is not started in torch: so it keeps what it saved
    "function_with_other_arguments",
    "function_that_is_silent",
    "retained_gradient_that_never_comes",
}
HOOKS_DIFFER = {  # every node has a graph task of torch of its own
    "multi_grad_hook",  # it runs once for each
    "hook_that_queues_a_callback",  # for the end of one, which does not come
}


def nodes_of(case: Case) -> list[Any]:
    """All nodes behind the outputs, in an order that two builds share. Those behind inputs may be out of reach."""
    outputs = case.outputs if isinstance(case.outputs, list) else [case.outputs]
    found: dict[Any, None] = {}
    stack = [engine.gradient_edge(output, "output").node for output in outputs]
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            stack += [following for following, _ in node.next_functions if following is not None]
    return list(found)


def freed(node: Any) -> list[str]:
    """The tensors that a node has let go of."""
    names = [name for name in dir(node) if name.startswith("_raw_saved_")]
    gone = []
    for name in names:
        try:
            slots = getattr(node, name)
        except RuntimeError:
            gone.append(name)
            continue
        slots = slots if isinstance(slots, tuple) else (slots,)
        gone += [name for slot in slots if slot is not None and slot.data is None]
    return gone


class Outcome:
    """What a run left behind."""

    def __init__(self, case: Case, run: Callable[[Case, list[Any]], tuple[Any, list[int]]]) -> None:
        nodes = nodes_of(case)
        self.names = [node.name() for node in nodes]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Using backward\\(\\) with create_graph=True")
            self.returned, self.order = run(case, nodes)
        self.gradients = [*(self.returned or ()), *(tensor.grad for tensor in case.leaves)]
        self.log = case.log
        self.freed = [freed(node) for node in nodes]


def by_torch(case: Case, nodes: list[Any]) -> tuple[Any, list[int]]:
    order: list[int] = []
    handles = [node.register_prehook(lambda _, n=number: order.append(n)) for number, node in enumerate(nodes)]
    options = {"retain_graph": case.retain_graph, "create_graph": case.create_graph}
    if case.grad:
        options["allow_unused"] = case.allow_unused
        returned = torch.autograd.grad(case.outputs, case.inputs, case.grad_outputs, **options)
    else:
        torch.autograd.backward(case.outputs, case.grad_outputs, inputs=case.inputs, **options)
        returned = None
    for handle in handles:
        handle.remove()
    return returned, order


def task_of(case: Case, **more: Any) -> engine.GraphTask:
    return engine.GraphTask(
        case.outputs,
        case.grad_outputs,
        case.inputs,
        retain_graph=case.retain_graph,
        create_graph=case.create_graph,
        accumulate_grad=not case.grad,
        **more,
    )


def by_us(case: Case, nodes: list[Any], **more: Any) -> tuple[Any, list[int]]:
    task = task_of(case, **more)
    task.run()
    assert not task.not_ready
    number = {node: number for number, node in enumerate(nodes)}
    return tuple(task.captured) if case.grad else None, [number[node] for node in task.order]


def directly(case: Case, nodes: list[Any]) -> tuple[Any, list[int]]:
    return by_us(case, nodes, direct=True)


def strides(tensor: torch.Tensor) -> list[int]:
    """Of the dimensions that are longer than one. AccumulateGrad copies a gradient that Python holds, as it does here,
    where it would take over another: the strides of a copy are those of the leaf, where they matter."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def same(one: Any, other: Any) -> bool:
    """The same bits in the same layout; NaN is NaN."""
    if one is None or other is None:
        return one is other
    if one.layout != other.layout or one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.layout is torch.sparse_coo:
        # Not whether it is known to be coalesced: AccumulateGrad forgets that when it takes a gradient over.
        return same(one._indices(), other._indices()) and same(one._values(), other._values())
    if one.layout is torch.strided and strides(one) != strides(other):
        return False
    return torch.equal(torch.nan_to_num(one, 12345.0), torch.nan_to_num(other, 12345.0)) and torch.equal(
        one.isnan(), other.isnan()
    )


@pytest.mark.parametrize("name", GRAPHS)
def test_equals_the_engine_of_torch(name: str) -> None:
    theirs_case, ours_case = build(name), build(name)
    theirs, ours = Outcome(theirs_case, by_torch), Outcome(ours_case, by_us)
    assert ours.names == theirs.names, "the two builds differ"
    assert ours.order == theirs.order
    assert_same(ours.gradients, theirs.gradients)
    assert (ours.log == theirs.log) == (name not in HOOKS_DIFFER)
    assert (ours.freed == theirs.freed) == (name not in NOT_FREED)


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    assert [place for place, pair in enumerate(zip(ours, theirs, strict=True)) if not same(*pair)] == []


WITH_HOOKS = {"retained_gradients", "backward_into_an_intermediate", "grad_of_an_input_behind_another"}


@pytest.mark.parametrize("name", GRAPHS)
def test_nodes_called_as_functions_give_the_same_where_there_are_no_hooks(name: str) -> None:
    theirs_case, ours_case = build(name), build(name)
    if name in WITH_HOOKS or "hook" in name:
        pytest.skip("hooks do not run")
    theirs, ours = Outcome(theirs_case, by_torch), Outcome(ours_case, directly)
    assert ours.order == theirs.order
    assert_same(ours.gradients, theirs.gradients)


TWICE = [
    "backward_of_backward",
    "backward_of_sums_of_gradients",
    "grad_of_a_convolution_twice",
    "function_with_setup_context",
]


@pytest.mark.parametrize("name", TWICE)
def test_gradients_of_gradients_are_equal(name: str) -> None:
    def second(case: Case, run: Any, grad: Any) -> tuple[Any, list[str]]:
        leaves = case.leaves or case.inputs
        outcome = Outcome(case, run)
        total = sum(gradient.pow(2).sum() for gradient in outcome.gradients if gradient is not None)
        names = [node.name() for node in nodes_of(Case(total))]
        return [*outcome.gradients, *grad(total, leaves, allow_unused=True)], names

    theirs, their_names = second(build(name), by_torch, torch.autograd.grad)
    ours, our_names = second(build(name), by_us, engine.grad)
    assert our_names == their_names  # the graph that the first one built
    assert_same(ours, theirs)


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs(seed: int) -> None:
    """Many leaves, ties and paths, of random shape; half of them with inputs selected."""

    def case() -> Case:
        generator = torch.Generator().manual_seed(seed)
        draw = lambda n: int(torch.randint(n, (), generator=generator))  # noqa: E731
        torch.manual_seed(seed)
        leaves = [torch.randn(3, requires_grad=True) for _ in range(2 + draw(12))]
        made = list(leaves)
        for _ in range(5 + draw(40)):
            parts = [made[draw(len(made))] for _ in range(1 + draw(5))]
            kind = draw(4)
            made.append(
                torch.stack(parts).sum(0) if kind == 0 else sum(parts).sin() if kind == 1 else parts[0] * parts[-1]
            )
        roots = [made[-1 - draw(3)].sum() for _ in range(1 + draw(3))]
        chosen = [made[draw(len(made))] for _ in range(1 + draw(4))] if seed % 2 else None
        return Case(roots, inputs=chosen, leaves=leaves, grad=seed % 4 == 1, allow_unused=True)

    theirs, ours = Outcome(case(), by_torch), Outcome(case(), by_us)
    assert ours.order == theirs.order
    assert_same(ours.gradients, theirs.gradients)
    assert ours.freed == theirs.freed


@pytest.mark.parametrize("surroundings", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_the_mode_of_the_caller_does_not_matter(surroundings: Any) -> None:
    theirs, ours = build("mlp"), build("mlp")
    with surroundings():
        torch.autograd.backward(theirs.outputs)
        engine.backward(ours.outputs)
    assert_same([leaf.grad for leaf in ours.leaves], [leaf.grad for leaf in theirs.leaves])
    assert not any(leaf.grad.requires_grad for leaf in ours.leaves)
    assert [leaf.grad.is_inference() for leaf in ours.leaves] == [leaf.grad.is_inference() for leaf in theirs.leaves]


def test_inside_of_a_backward_of_torch() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = x.sin()

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            inner = gradient.detach().requires_grad_()
            (found,) = engine.grad((inner.pow(3) + inner).sum(), inner)
        return found

    y.register_hook(hook)
    y.exp().sum().backward()
    expected = y.exp()
    assert torch.equal(x.grad, (3 * expected**2 + 1).detach() * x.cos().detach())


def test_in_threads() -> None:
    cases = [build("gpt") for _ in range(4)]
    threads = [threading.Thread(target=engine.backward, args=(case.outputs,)) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = build("gpt")
    torch.autograd.backward(expected.outputs)
    for case in cases:
        assert_same([leaf.grad for leaf in case.leaves], [leaf.grad for leaf in expected.leaves])


# Errors


def test_a_failing_node_fails_as_in_torch_and_ends_the_task() -> None:
    x = torch.ones(2, requires_grad=True)
    bad = torch._C._functions.DelayedError(b"no way through", 1)(x * 2)
    task = engine.GraphTask(bad.exp().sum())
    with pytest.raises(RuntimeError, match="no way through"):
        task.run()
    assert [node.name() for node in task.order] == ["SumBackward0", "ExpBackward0"]
    with pytest.raises(StateError, match="failed"):
        task.step()
    assert x.grad is None
    torch.ones(2, requires_grad=True).sin().sum().backward()  # torch's queue is as it was


def test_a_hook_that_raises_reaches_the_caller() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.sin()

    def hook(g: torch.Tensor) -> None:
        raise KeyError("mine")

    y.register_hook(hook)
    with pytest.raises(KeyError, match="mine"):
        engine.backward(y.exp().sum())


def test_a_graph_that_was_freed_says_so() -> None:
    x = torch.ones(2, requires_grad=True)
    loss = x.sin().sum()
    engine.backward(loss)
    with pytest.raises(RuntimeError, match="second time"):
        engine.backward(loss)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_sequence_numbers_and_hooks_are_as_before() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.sin()
    number = y.grad_fn._sequence_nr()
    engine.backward(y.sum(), retain_graph=True)
    assert y.grad_fn._sequence_nr() == number
    handle = y.grad_fn.register_hook(lambda i, o: None)
    assert len(handle.hooks_dict_ref()) == 1


def test_reentrant_checkpoints_refuse_selected_inputs_as_in_torch() -> None:
    case = build("reentrant_checkpoint")
    with pytest.raises(RuntimeError, match="checkpoint"):
        engine.grad(case.outputs, case.leaves[-1])


def test_what_cannot_be_asked() -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(AnalysisError, match="Output 0 does not require a gradient"):
        engine.backward(torch.ones(2).sum())
    with pytest.raises(AnalysisError, match="Input 0 does not require a gradient"):
        engine.grad(x.sum(), torch.ones(2))
    with pytest.raises(AnalysisError, match="Input 0 is not used"):
        engine.grad(x.sum(), torch.ones(2, requires_grad=True))
    with pytest.raises(InvalidInputError, match="tensor or several"):
        engine.backward([])
    with pytest.raises(InvalidInputError, match="1 tensors and 2 gradients"):
        engine.backward(x, [x, x])
    with pytest.raises(RuntimeError, match="scalar outputs"):
        engine.backward(x.sin())
    with torch.autograd.set_detect_anomaly(True, check_nan=False), pytest.raises(NotAvailableError, match="anomaly"):
        engine.backward(x.sum())


def test_too_large_a_graph_is_refused() -> None:
    x = torch.ones(1, requires_grad=True)
    y = x
    for _ in range(MOST_NODES + 1):
        y = y + 1
    with pytest.raises(AnalysisError, match="more than 20,000 nodes"):
        engine.backward(y)


def test_unused_inputs_can_be_zeros() -> None:
    x, u = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    zeros, ones = engine.grad(x.sum(), [u, x], materialize_grads=True, create_graph=True)
    assert zeros.tolist() == [0, 0, 0]
    assert zeros.requires_grad
    assert ones.tolist() == [1, 1]


def test_a_task_that_is_given_up_keeps_nothing() -> None:
    def give_up() -> tuple[Any, Any]:
        x = torch.randn(100, requires_grad=True)
        task = engine.GraphTask(x.sin().exp().sum())
        task.step()
        made = task.step().made[0]
        assert made is not None
        return weakref.ref(x.untyped_storage()), weakref.ref(made.untyped_storage())

    leaf, gradient = give_up()
    assert (leaf(), gradient()) == (None, None)


# The parts


@pytest.mark.parametrize("count", range(1, 40))
def test_ready_queue_breaks_ties_as_torch_does(count: int) -> None:
    """One node makes `count` others ready at once, all of the same number, and then more."""

    def graph() -> Case:
        leaves = [torch.ones(1, requires_grad=True) for _ in range(count)]
        late = [leaf * 2 if number % 3 == 0 else leaf for number, leaf in enumerate(leaves)]
        return Case(torch.cat(late).sum(), leaves=leaves)

    assert Outcome(graph(), by_us).order == Outcome(graph(), by_torch).order


def test_ready_queue_takes_high_numbers_first() -> None:
    queue = engine.ReadyQueue()
    for number in (3, 1, 2**64 - 1, 7, 5):
        queue.push(engine.NodeTask(f"node {number}", engine.InputBuffer(), number))
    assert list(queue) == ["node 18446744073709551615", "node 7", "node 5", "node 3", "node 1"]
    assert len(queue) == 5  # looking takes nothing out
    assert [queue.pop().sequence_nr for _ in range(5)] == [2**64 - 1, 7, 5, 3, 1]


def test_ready_queue_of_equals_is_not_first_come_first_served() -> None:
    queue = engine.ReadyQueue()
    for name in "abcd":
        queue.push(engine.NodeTask(name, engine.InputBuffer(), 0))
    assert [queue.pop().node for _ in range(4)] == ["a", "c", "b", "d"]


def test_input_buffer_sums() -> None:
    buffer = engine.InputBuffer()
    first = torch.ones(2)
    buffer.add(1, first)
    assert buffer[1] is first
    buffer.add(1, None)
    buffer.add(1, torch.full((2,), 2.0))
    assert buffer[1].tolist() == [3, 3]
    assert first.tolist() == [1, 1]  # it may be somebody else's
    assert buffer[0] is None


def test_outputs_are_validated() -> None:
    x = torch.ones(3, 1, dtype=torch.float64, requires_grad=True)
    edge = engine.gradient_edge(x, "x")
    (found,) = engine.validate_outputs([edge], [torch.ones(2, 3, 4)])
    assert found.tolist() == [[8.0], [8.0], [8.0]]
    assert found.dtype is torch.float64
    assert engine.validate_outputs([edge, engine.Edge(None, 0)], [None, found]) == [None, found]
    with pytest.raises(AnalysisError, match=r"shape \[2\] and cannot be summed to \[3, 1\]"):
        engine.validate_outputs([edge], [torch.ones(2)])
    with pytest.raises(AnalysisError, match="2 gradients for 1"):
        engine.validate_outputs([edge], [None, None])


def test_dependencies_count_edges() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.sin()
    root = (y * y + x).grad_fn
    dependencies, edges = engine.compute_dependencies(root)
    assert {node.name().split("::")[-1]: count for node, count in dependencies.items()} == {
        "MulBackward0": 1,
        "SinBackward0": 2,
        "AccumulateGrad": 2,
    }
    assert len(edges) == 4


@pytest.mark.parametrize("accumulate", [True, False])
def test_exec_info_selects_what_leads_to_an_input(accumulate: bool) -> None:
    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    y = x.sin()
    root = (y.exp() * w.cos()).grad_fn
    _, edges = engine.compute_dependencies(root)
    info = engine.init_to_execute(root, [engine.gradient_edge(y, "y")], accumulate, edges)
    needed = {node.name() for node, found in info.items() if found.needed}
    captured = {node.name(): found.captures for node, found in info.items() if found.captures}
    if accumulate:
        assert needed == {"MulBackward0", "ExpBackward0", "SinBackward0"}
        assert captured == {}
    else:
        assert needed == {"MulBackward0", "ExpBackward0"}
        assert captured == {"SinBackward0": [engine.Capture(0, 0)]}


def test_stepping() -> None:
    x = torch.ones(2, requires_grad=True)
    task = engine.GraphTask((x.sin() + x.cos()).sum())
    names = [node.name() for node in task.ready]
    assert names == ["SumBackward0"]
    task.step()
    step = task.step()
    assert (step.name, step.executed, [g.tolist() for g in step.made]) == ("AddBackward0", True, [[1, 1], [1, 1]])
    assert step.received[0].tolist() == [1, 1]
    assert [node.name() for node in task.ready] == ["CosBackward0", "SinBackward0"]
    task.step()
    assert [node.name() for node in task.not_ready] == ["torch::autograd::AccumulateGrad"]
    assert list(task.dependencies.values()) == [1]
    assert x.grad is None
    task.run()
    assert task.done
    assert x.grad is not None
    with pytest.raises(StateError, match="end"):
        task.step()


def test_timeline_counts_each_storage_once() -> None:
    x = torch.ones(100, requires_grad=True)
    task = engine.GraphTask((x.sin() + x.cos()).sum())
    task.run()
    found = [(moment.name.split("::")[-1], moment.gradient_bytes) for moment in task.timeline]
    assert found == [
        ("SumBackward0", 4),  # one number, expanded
        ("AddBackward0", 4),  # handed on to both
        ("CosBackward0", 404),
        ("SinBackward0", 400),  # the sum of both
        ("AccumulateGrad", 0),
    ]


def test_timeline_counts_what_was_captured() -> None:
    x = torch.ones(100, requires_grad=True)
    y = x.sin()
    task = engine.GraphTask(y.exp().sum(), inputs=[y], accumulate_grad=False)
    task.run()
    assert [moment.gradient_bytes for moment in task.timeline] == [4, 400, 400]
    assert [node.name() for node in task.order] == ["SumBackward0", "ExpBackward0"]


@pytest.mark.parametrize("name", ["gpt", "sparse_and_dense_for_one_weight", "lstm", "jagged", "several_roots"])
def test_timeline_ends_at_nothing(name: str) -> None:
    task = task_of(build(name))
    task.run()
    assert task.timeline[-1].gradient_bytes == 0
    assert max(moment.gradient_bytes for moment in task.timeline) > 0
