"""Runs hostile calls in child processes and says which ended them: one line of JSON for each operator.

probe_operators.py starts it with guarded_memory.c loaded. usage: worker.py JOB.json PART
"""

from __future__ import annotations

import copy
import json
import mmap
import os
import pickle
import random
import resource
import signal
import struct
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # a call with a meta tensor imports it: here once, and not in each child
from torch.utils import _pytree as pytree

from torchatlas.errors import InvalidInputError
from torchatlas.execute.preconditions import checked

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from probing.calls import loaded
from probing.derived import overload
from probing.mutations import described, mutated

CHILD_BYTES = 4 << 30
CPU_SECONDS = 4  # for one call: longer is a time-out
CLOCK_SECONDS = 120  # for a call that waits
ENDS_KEPT = 5  # of an operator, then the next one is probed
READ_ELEMENTS = 1_000_000  # larger results are not read to the end
TIMEOUTS = (signal.SIGPROF, signal.SIGALRM)
BROKEN, OUT_OF_MEMORY = 77, 78  # exit statuses of a child: probing itself failed; the rest needs a new child


class Probe:
    """One operator, its valid calls, and the hostile ones: case N is the same in every run with the same seed."""

    def __init__(self, name: str, calls: list[bytes], seed: int) -> None:
        self.name, self.seed = name, seed
        self.calls = [loaded(call) for call in calls]
        self.operator = overload(name)
        self.run = checked(self.operator)

    def case(self, number: int) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a case. The first are the valid calls as they are."""
        torch.default_generator.manual_seed(number)
        args, kwargs = copy.deepcopy(self.calls[number % len(self.calls)])  # also the memory of tensors
        if number < len(self.calls):
            return args, kwargs
        return mutated(args, kwargs, random.Random(f"{self.seed} {self.name} {number}"))

    def run_case(self, number: int) -> str | None:
        """Run a case and read its results to the end. Returns why the preconditions refused it, if torch accepts it.

        Every other case records gradients and runs backward: autograd reads arguments as well, and calls kernels.
        """
        args, kwargs = self.case(number)
        trains = number % 2 == 1
        try:
            with torch.set_grad_enabled(trains):
                if trains:
                    _ask_for_gradients((args, kwargs), number // 2)
                results = self.run(*args, **kwargs)
            made = [one for one in pytree.tree_leaves(results) if isinstance(one, torch.Tensor) and one.requires_grad]
            torch.autograd.backward(made, [torch.ones_like(one) for one in made])
            for leaf in pytree.tree_leaves(results):  # a view that reaches outside of its memory shows itself
                if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.numel() <= READ_ELEMENTS:
                    leaf.clone()
        except InvalidInputError as refusal:
            if number < len(self.calls) and _runs(self.operator, *self.case(number)):
                return str(refusal)
        except Exception:  # an error is the right answer to a hostile call
            pass
        return None


def _ask_for_gradients(call: Any, which: int) -> None:
    """Of the tensors whose place is a bit of `which`."""
    tensors = [one for one in pytree.tree_leaves(call) if isinstance(one, torch.Tensor)]
    for place, one in enumerate(tensors):
        if which >> place & 1 and (one.is_floating_point() or one.is_complex()) and one.is_leaf:
            one.requires_grad_()


def _runs(operator: Any, args: list[Any], kwargs: dict[str, Any]) -> bool:
    try:
        operator(*args, **kwargs)
    except Exception:
        return False
    return True


def probed(probe: Probe, numbers: range) -> dict[str, Any]:
    """Run cases in a child, and the rest in another one when a case ends it."""
    current = mmap.mmap(-1, 8)  # the case that a child runs, for its parent to read
    found: dict[str, Any] = {"name": probe.name, "calls": 0, "deaths": [], "timeouts": [], "refused": []}
    while numbers and len(found["deaths"]) + len(found["timeouts"]) < ENDS_KEPT:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            _child(probe, numbers, current, writer)
        os.close(writer)
        with os.fdopen(reader) as lines:
            found["refused"] += [line.strip() for line in lines]
        _, status = os.waitpid(child, 0)
        last = struct.unpack("q", current[:8])[0]
        found["calls"] += last + 1 - numbers.start
        if status and os.waitstatus_to_exitcode(status) != OUT_OF_MEMORY:
            ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            how = signal.Signals(ended).name if ended else f"exit status {os.waitstatus_to_exitcode(status)}"
            found["timeouts" if ended in TIMEOUTS else "deaths"].append([last, how, _described(probe, last)])
        numbers = range(last + 1, numbers.stop)
    return found


def _described(probe: Probe, number: int) -> str:
    try:
        args, kwargs = probe.case(number)
        return f"{described(args)[1:-1]}{', ' if kwargs else ''}{described(kwargs)}"
    except Exception as error:
        return f"its arguments cannot be made ({error})"


def _child(probe: Probe, numbers: range, current: mmap.mmap, writer: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (CHILD_BYTES, CHILD_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    torch.set_grad_enabled(False)
    status = BROKEN
    try:
        for number in numbers:
            current[:8] = struct.pack("q", number)
            signal.alarm(CLOCK_SECONDS)
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            refusal = probe.run_case(number)
            if refusal:
                os.write(writer, f"case {number}: {refusal}".replace("\n", " ").encode() + b"\n")
            if not _has_memory():
                os._exit(OUT_OF_MEMORY)
        status = 0
    finally:
        os._exit(status)


def _has_memory() -> bool:
    """Whether a child can still allocate: otherwise further calls would fail without being probed."""
    return _runs(torch.empty, [1], {})


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    job, part = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    calls = pickle.loads(Path(job["calls"]).read_bytes())
    for name in job["names"][part :: job["workers"]]:
        found = probed(Probe(name, calls[name], job["seed"]), range(job["first"], job["last"]))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
