"""Which module call, optimizer step or backward an op belongs to: the calls of a recording, and names of modules.

patches.py tells a Watch what is called; it gives every call a number and every module and tensor a name.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from torchatlas.capturing import compiled, patches
from torchatlas.capturing.collectives import keep_group, note_process
from torchatlas.capturing.frames import recomputing, user_line
from torchatlas.capturing.module_trees import ModuleTree, Owner, tree_of
from torchatlas.capturing.patches import Cell
from torchatlas.capturing.recorder import Recorder
from torchatlas.capturing.row_schema import Recomputed
from torchatlas.capturing.tensor_names import Named, TensorNames
from torchatlas.torch_private import (
    compiled_inside,
    current_autograd_node,
    never_compiled,
    next_sequence_nr,
)


@dataclass
class Watch:
    """The calls of one recording."""

    recorder: Recorder
    model: nn.Module | None = None
    call_owner: list[int] = field(default_factory=list)  # of each call, the number of the module or optimizer
    call_parent: list[int] = field(default_factory=list)  # of each call, the call it ran in, or -1
    owners: list[Owner] = field(default_factory=list)
    on_model_call: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None
    on_model_result: Callable[[Any], None] | None = None
    steps: list[tuple[int, int]] = field(default_factory=list)  # (mark among the rows, owner) at the end of each
    parameter_groups: dict[int, list[list[Named]]] = field(default_factory=dict)  # of optimizers with several
    in_backward: dict[int, tuple[int, Any]] = field(default_factory=dict)  # a step's call -> backward node, user's line
    hears_schedulers: bool = False
    outermost_only: bool = False
    names: TensorNames = field(init=False)
    named: bool = False  # whether a model was given; `model` itself is let go of when the recording stops
    _numbers: dict[int, int] = field(default_factory=dict)  # id of a module or optimizer -> owner number
    _optimizers: list[weakref.ref[Any]] = field(default_factory=list)  # that stepped
    _whole_trees: dict[int, ModuleTree] = field(default_factory=dict)  # by the id of the root; see module_trees.py
    _remembered: dict[int, ModuleTree] = field(default_factory=dict)  # those of the recording before
    _others: list[tuple[str, str, int]] = field(default_factory=list)  # kind, class and number of owners in no tree
    _trees: list[tuple[int, ModuleTree]] = field(default_factory=list)  # with the number of the root
    _graphs: dict[int, tuple[weakref.ref[Any], str]] = field(default_factory=dict)  # of inductor: by id, their names
    _forks: list[Recorder] = field(default_factory=list)  # of the recorder, one per thread that joined
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def touches_nodes(self) -> bool:
        return self.recorder.touches_nodes

    @property
    def is_native(self) -> bool:
        return self.recorder.kind == "native"

    def start(self, predecessor: Watch | None = None) -> None:
        """Begin, in the place of another one if there is a predecessor."""
        note_process(self.recorder.metadata)
        self.names = TensorNames(self.recorder.numbers)
        if predecessor is not None:
            self._remembered = predecessor._whole_trees
        self.named = self.model is not None
        if self.model is not None:
            self._add_tree(self.model)
        if predecessor is None:
            patches.join(self, self.recorder.current)
        else:
            patches.replace(predecessor, self, self.recorder.current)

    def stop(self) -> None:
        patches.leave(self)
        self.finish()

    def finish(self) -> None:
        """Name what came to be meanwhile."""
        note_process(self.recorder.metadata)
        self.recorder.numbers.meet_strangers()
        for fork in self._forks:
            fork.silence()
        for reference in self._optimizers:
            if (optimizer := reference()) is not None:
                self.names.name_states(optimizer)
        for root, tree in self._trees:
            self.names.name_late(tree, root)
        # What is only needed while it runs, and would keep the model, or the recording, alive until it is decoded.
        self.model = self.on_model_call = self.on_model_result = None
        self._forks.clear()

    def abandon(self) -> None:
        """Stop, and leave everything as it is: nobody will ask for a graph."""
        patches.leave(self)
        for fork in self._forks:
            fork.silence()

    @never_compiled
    def number(self, module: Any) -> int:
        """The owner number of a module; one that was not seen before brings its whole tree."""
        number = self._numbers.get(id(module))
        if number is not None and self.owners[number].reference() is module:
            return number
        return self._add_tree(module)

    @compiled_inside
    def module_called(self, inner: Any, cell: Cell, module: Any, args: Any, kwargs: Any) -> Any:
        outer = cell[0]
        number = self._numbers.get(id(module))
        if number is None or self.owners[number].reference() is not module:
            number = self.number(module)
        outermost = module is self.model and outer < 0 and current_autograd_node() is None
        if outermost and self.on_model_call is not None:
            self.on_model_call(args, kwargs)
        cell[0] = self._call(number, outer)
        try:
            result = inner(module, *args, **kwargs)
        finally:
            cell[0] = outer
        if outermost and self.on_model_result is not None:
            self.on_model_result(result)
        return result

    def signature(self) -> int:
        """Equal for recordings in which the same modules and optimizers, by path and class, were met in this order."""
        return hash((*[(root, tree.signature) for root, tree in self._trees], *self._others))

    def call_named(self, path: str, kind: str, outer: int) -> int:
        """A call inside `outer` of a module that a tracer noted: of the model's tree, by path and class."""
        number = next((number for number, owner in enumerate(self.owners) if owner.path == path), None)
        if number is None:
            number = len(self.owners)
            self._others.append(("named", path, number))
            self.owners.append(Owner(lambda: None, kind, path, 0))
        # A tracer leaves only the shell of the modules that it went into
        self.owners[number] = self.owners[number]._replace(type=kind)
        return self._call(number, outer)

    def graph_called(self, inner: Any, cell: Cell, graph: Any, args: Any, kwargs: Any) -> Any:
        known = self._graphs.get(id(graph))
        if known is None or known[0]() is not graph:
            known = self._graphs[id(graph)] = weakref.ref(graph), f"{compiled.GRAPH}.{len(self._graphs)}"
        run, (inputs,) = functools.partial(inner, graph), args
        return compiled.run_as_one(self._recorder_of(cell), known[1], run, inputs, graph.mutated_input_idxs)

    @compiled_inside
    def backward_called(self, inner: Any, cell: Cell, tensors: Any, args: Any, kwargs: Any) -> Any:
        self.may_have_recomputed()
        try:
            return inner(tensors, *args, **kwargs)
        finally:
            self.recorder.take_off()

    def hooks_begin(self, cell: Cell) -> None:
        """From here on ops run inside of ops: hooks on what an op saves for backward."""
        self._recorder_of(cell).hooks_begin()

    def may_have_recomputed(self) -> None:
        """Note if what ran in a backward node so far is a checkpoint's function, run again."""
        node = current_autograd_node()
        if node is not None and recomputing():
            self.recorder.note(Recomputed(node._sequence_nr()))

    def function_operator_called(self, inner: Any, cell: Cell, operator: Any, args: Any, kwargs: Any) -> Any:
        """An operator that runs functions, as torch.cond: only a dispatch mode sees it as one op."""
        with self._recorder_of(cell).in_python(f"{operator} takes functions"):
            return inner(operator, *args, **kwargs)

    def _recorder_of(self, cell: Cell) -> Recorder:
        return next((fork for fork in self._forks if fork.current is cell), self.recorder)

    def scheduler_stepped(self, scheduler: Any) -> None: ...

    def data_set(self, tensor: Any) -> None:
        self.recorder.numbers.forget(tensor)

    def before_resize(self, storage: Any) -> None:
        self.recorder.before_resize(storage)

    def after_resize(self, storage: Any) -> None:
        self.recorder.numbers.after_resize(storage)

    def join_thread(self, cell: Cell, thread: threading.Thread) -> tuple[Cell, Any]:
        """Attribute what a new thread runs to the call that started it. Returns the thread's cell and its recorder."""
        fork = self.recorder.fork()
        self._forks.append(fork)
        owner = self.owners[self.call_owner[cell[0]]] if cell[0] >= 0 else None
        path, root, kind = (owner.path, owner.root, owner.type) if owner is not None else ("", -1, "")
        self._others.append(("thread", kind, len(self.owners)))
        self.owners.append(Owner(weakref.ref(thread), kind, path, root, "thread", thread.name, next_sequence_nr()))
        fork.current[0] = self._call(len(self.owners) - 1, cell[0])
        return fork.current, fork

    @never_compiled
    def _call(self, owner: int, outer: int) -> int:
        """A new call; its number."""
        with self._lock:
            self.call_parent.append(outer)
            self.call_owner.append(owner)
            return len(self.call_owner) - 1

    def _add_tree(self, module: nn.Module) -> int:
        root = len(self.owners)
        tree, tensors = tree_of(module, self._remembered.get(id(module)))
        self._whole_trees[id(module)] = tree
        if not self._numbers.keys().isdisjoint(tree.positions):  # a part may belong to a tree seen earlier
            tree = tree.without([key for key in tree.positions if self._is_known(key)])
            tensors = tree.held() or []
        for reference in tree.replicas:
            keep_group(vars(reference()))
        if root == 0:  # what most recordings see is one tree
            self._numbers.update(tree.positions)
        else:
            self._numbers.update((key, root + position) for key, position in tree.positions.items())
        self.owners += tree.owners(root)
        self._trees.append((root, tree))
        self.names.name_modules(tree, tensors, root)
        return self._numbers[id(module)]

    def _is_known(self, key: int) -> bool:
        """True if the module of this id has a number."""
        number = self._numbers.get(key)
        return number is not None and self.owners[number].reference() is not None

    def step_begins(self, cell: Cell, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        number = self._numbers.get(id(optimizer))
        if number is None or self.owners[number].reference() is not optimizer:
            number = self._numbers[id(optimizer)] = len(self.owners)
            kind = type(optimizer).__name__
            self._optimizers.append(weakref.ref(optimizer))
            self._others.append(("optimizer", kind, number))
            self.owners.append(Owner(self._optimizers[-1], kind, "", number, "optimizer"))
        for group in optimizer.param_groups:
            self.names.name_gradients(group["params"])
        if len(optimizer.param_groups) > 1 and number not in self.parameter_groups:
            groups = [
                [self.names.of_parameter(one, "parameter") for one in group["params"]]
                for group in optimizer.param_groups
            ]
            self.parameter_groups[number] = groups
        outer, inside = cell[0], self._call(number, cell[0])
        ours = type(optimizer).__module__.startswith("torch.optim")  # then no line inside the step is the user's
        line = user_line(sys._getframe(1)) if ours else None
        cell[:] = inside, line
        if (node := current_autograd_node()) is not None:
            self.in_backward[inside] = node._sequence_nr(), line or user_line(sys._getframe(1))

        def outside(closure: Callable[[], Any]) -> Callable[[], Any]:
            """The closure is the program's forward and backward, not the optimizer's work."""

            def run() -> Any:
                cell[:] = outer, None
                result = closure()  # if it raises, the step is over
                cell[:] = inside, line
                return result

            return run

        if len(args) > 1 and callable(args[1]):
            return (args[0], outside(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": outside(kwargs["closure"])}
        return args, kwargs

    def step_ends(self, cell: Cell, optimizer: Any) -> None:
        if id(optimizer) not in self._numbers:
            return  # the recording began inside the step
        cell[1] = None
        while cell[0] >= 0:  # an exception may have left deeper calls open
            owner = self.owners[self.call_owner[cell[0]]]
            if owner.kind == "thread":
                break
            cell[0] = self.call_parent[cell[0]]
            if owner.reference() is optimizer:
                break
        self.steps.append((self.recorder.mark(), self._numbers[id(optimizer)]))
