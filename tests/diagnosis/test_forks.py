"""Processes that a program forks under the doctor: nobody watches them, and nothing of the visit is left in them.

A recording that the program has made itself goes on there for itself: see capturing/test_reentrance.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import torchatlas as atlas
from torchatlas.capturing import patches
from torchatlas.diagnosis.visit import Visit
from torchatlas.graph.names import short_name
from torchatlas.torch_private import dispatch_mode_stack

pytestmark = [pytest.mark.child, pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks nothing")]


def in_fork(work: Callable[[], Any]) -> str:
    """What a function returns, as text, in a process that is forked here."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, repr(work()).encode())
        except BaseException as error:
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        text = answer.read().decode()
    os.waitpid(child, 0)
    return text


def short_names(graph: atlas.Graph) -> list[str]:
    return [short_name(node.operation) for node in graph.where(kind="op")]


class NotedOps(Dataset[torch.Tensor]):
    """Runs ops in a worker, and returns how many of them a recording has seen by then."""

    def __init__(self, length: Callable[[], int]) -> None:
        self.length = length

    def __len__(self) -> int:
        return 4

    def __getitem__(self, item: int) -> torch.Tensor:
        for _ in range(50):
            torch.ones(3) + 1
        return torch.tensor(self.length())


@pytest.fixture
def is_native(recorder: str) -> bool:
    return recorder == "native"


def test_workers_are_not_watched_by_the_doctor(is_native: bool) -> None:
    with Visit(native=is_native) as visit:
        torch.ones(2) + 1
        seen = torch.cat(list(DataLoader(NotedOps(lambda: visit.history.ops), num_workers=1, timeout=60)))
    assert seen.max() < 50


@pytest.mark.parametrize("thread", [False, True])
def test_nothing_of_a_visit_is_left_in_a_fork(is_native: bool, thread: bool) -> None:
    call, backward, stack = nn.Module._call_impl, torch.autograd.backward, dispatch_mode_stack()

    def left() -> Any:
        model = nn.Linear(2, 2)
        model(torch.ones(1, 2)).sum().backward()
        patched = nn.Module._call_impl is not call or torch.autograd.backward is not backward
        return patched, dispatch_mode_stack() != stack, len(patches._WATCHES), visit.history.ops

    answers = list[str]()
    with Visit(native=is_native) as visit:
        nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
        ops = visit.history.ops
        if thread:
            forking = threading.Thread(target=lambda: answers.append(in_fork(left)))
            forking.start()
            forking.join(60)
        else:
            answers.append(in_fork(left))
        assert nn.Module._call_impl is not call
        torch.ones(2) + 1
        assert visit.history.ops > ops
    # The mode of a thread lies on that thread's stack, and only passes on.
    assert answers == [repr((False, thread and not is_native, 0, ops))]


def test_a_fork_while_other_threads_run_ops(is_native: bool) -> None:
    """What they were in the middle of stays so in the fork: nobody may wait for it there."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            torch.ones(2) + 1

    with Visit(native=is_native):
        threads = [threading.Thread(target=work) for _ in range(2)]
        for each in threads:
            each.start()
        answers = [in_fork(lambda: float(torch.ones(2).sum())) for _ in range(4)]
        over.set()
        for each in threads:
            each.join(60)
    assert answers == ["2.0"] * 4


def test_a_recording_around_the_visit_goes_on_in_the_fork(is_native: bool) -> None:
    def work() -> Any:
        torch.ones(2).sin()
        visit.__exit__(None, None, None)
        rec.__exit__(None, None, None)
        return short_names(rec.graph), visit.findings.keys

    with atlas.recording(native=is_native) as rec, Visit(native=is_native) as visit:
        torch.ones(2).exp()
        answer = in_fork(work)
    assert answer == repr((["ones", "exp", "ones", "sin"], []))


def test_a_fork_under_the_doctor_says_nothing_of_what_its_parent_did(is_native: bool) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def steps() -> None:
        for _ in range(4):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    def work() -> Any:
        steps()
        visit.__exit__(None, None, None)
        return visit.findings.keys

    with Visit(native=is_native) as visit:
        steps()
        assert in_fork(work) == "[]"
    assert visit.findings.keys == ["not-zeroed"]
