"""Looking at what a program's variables hold: by which names, and the program is left as it was."""

from __future__ import annotations

import gc
import sys
import weakref
from types import FrameType
from typing import Any

import pytest
import torch
from diagnosis.steps import net, train
from torch import Tensor, nn

import torchatlas as atlas
from torchatlas.capturing.frames import variables_of
from torchatlas.diagnosis import leaf_tensors, variable_names
from torchatlas.diagnosis.variable_names import names_of


class Thing:
    pass


def look() -> list[str]:
    return sorted(variables_of(sys._getframe(1)))


def test_looking_at_the_variables_of_a_function_keeps_none_of_them_alive() -> None:
    def program() -> None:
        thing = Thing()
        gone = weakref.ref(thing)
        assert look() == ["gone", "thing"]
        del thing
        assert gone() is None

    program()


def test_a_dictionary_that_the_program_got_of_locals_stays_as_it_is() -> None:
    def program(rate: float = 0.1) -> list[str]:
        config = locals()
        model = net()
        train(torch.optim.SGD(model.parameters(), rate), model(torch.ones(2, 4)).sum())
        look()
        return sorted(config)

    with atlas.doctor() as visit:
        assert program() == ["rate"]
    assert not visit.findings


def test_variables_that_exec_has_made_stay() -> None:
    def program() -> Any:
        exec("made = 3")
        look()
        return eval("made") if sys.version_info < (3, 13) else 3  # where each call gets a dictionary of its own

    assert program() == 3


def test_variables_stay_while_a_debugger_traces_the_program() -> None:
    def tracer(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is program.__code__:
            variables_of(frame)
        return tracer

    def program() -> int:
        number = 1
        return number + 1

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        found = program()
    finally:
        sys.settrace(before)
    assert found == 2


def test_names_of_what_holds_something_keep_no_variable_alive() -> None:
    def program() -> None:
        thing, kept = Thing(), [torch.ones(1)]
        gone = weakref.ref(thing)
        assert list(names_of([kept[0]])) == ["kept"]
        del thing
        assert gone() is None

    program()


def test_a_list_that_a_function_closes_over_is_named_once() -> None:
    def program() -> tuple[list[str], Any]:
        kept = [torch.ones(1)]

        def closure() -> list[Tensor]:
            return kept

        return list(names_of([kept[0]])), closure

    running, closure = program()
    assert running == ["kept"]
    (name,) = names_of([closure()[0]])
    assert name.startswith("kept of ")
    assert name.endswith("program.<locals>.closure")


def test_an_attribute_of_a_class_is_called_by_the_class() -> None:
    class Log:
        kept = (torch.ones(1),)

    assert list(names_of([Log.kept[0]])) == ["Log.kept"]


def test_asking_for_names_leaves_no_garbage() -> None:
    class Log:
        def __init__(self) -> None:
            self.kept = [torch.ones(3)]

    log = Log()
    watched, weak = weakref.ref(log), weakref.ref(log.kept[0])
    gc.collect()
    gc.disable()
    try:
        assert "Log.kept" in names_of([log.__dict__["kept"][0]])
        del log
        assert watched() is None  # at once, and not when the collector comes by
        assert weak() is None
    finally:
        gc.enable()


def test_a_function_that_calls_eval_of_a_model_has_variables() -> None:
    def evaluate(model: nn.Module) -> list[str]:
        kept = model.eval()(torch.ones(2, 4))
        return [*names_of([kept]), *look()]

    def evaluated() -> list[str]:
        return [str(eval("1")), *look()]

    assert evaluate(nn.Linear(4, 1)) == ["kept", "kept", "model"]
    assert evaluated() == ["1"]


def test_a_loss_dies_as_it_does_alone() -> None:
    def program() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loss = model(torch.ones(2, 4)).sum()
        train(optimizer, loss)
        alive = weakref.ref(loss)
        del loss
        gc.collect()
        assert alive() is None

    with atlas.doctor() as visit:
        program()
    assert not visit.findings


class Key(str):
    __slots__ = ()

    def __repr__(self) -> str:
        raise RuntimeError("asked for a repr")


class Tables(nn.Module):
    """A long table of numbers before the layers that torch does not know of."""

    def __init__(self) -> None:
        super().__init__()
        self.table = [[[row, column] for column in range(900)] for row in range(900)]
        self.head = nn.Linear(4, 1)
        self.layers = {Key("first"): nn.Linear(4, 4), "last": nn.Linear(4, 4)}

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


def test_a_large_table_is_not_read_to_its_end_and_keys_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    model, looked_at = Tables(), 0
    # Of these only: models of other tests that are still there are looked into as well.
    lists = {id(one) for row in model.table for one in (row, *row)}
    entries = variable_names._entries

    def counted(value: Any) -> Any:
        nonlocal looked_at
        looked_at += id(value) in lists
        return entries(value)

    monkeypatch.setattr(variable_names, "_entries", counted)
    with atlas.doctor() as visit:
        model(torch.ones(2, 4)).sum().backward()
        assert visit.history.name(model.layers["last"].weight) == "layers['last'].weight"
        assert visit.history.name(next(iter(model.layers.values())).weight) == "layers[Key].weight"
    assert 0 < looked_at < 10_000  # of 810,000 lists


def test_a_new_input_in_every_step_is_no_reason_to_look_for_models_again(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt, learn = [], leaf_tensors.Leaves._learn
    monkeypatch.setattr(leaf_tensors.Leaves, "_learn", lambda *args: learnt.append(learn(*args)))
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(5):
            image = torch.randn(2, 4).requires_grad_()
            train(optimizer, model(image).sum())
        assert visit.history.name(image) == "image"
    assert len(learnt) == 1


def test_parameters_of_a_model_that_was_traced_have_their_own_names() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3)), torch.randn(2, 3)
    traced = atlas.trace(model, x)  # torch.export keeps the model in a module of its own, `_export_root`
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with atlas.doctor() as visit:
        for _ in range(2):
            model(x).square().mean().backward()
            optimizer.step()
    assert visit.findings.keys == ["not-zeroed"]
    assert "_export_root" not in str(visit)
    assert "0.weight" in str(visit)
    assert traced is not None
