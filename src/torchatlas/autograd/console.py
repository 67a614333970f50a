"""A backward pass at a terminal, as pdb is for Python: the engine waits, inline, while somebody types."""

from __future__ import annotations

import cmd
import shlex
from collections.abc import Callable, Iterable
from typing import IO, Any

import torch

from torchatlas.autograd.session import Session
from torchatlas.autograd.tasks import Task
from torchatlas.errors import AtlasError, InvalidInputError
from torchatlas.graph import Graph, GraphNode
from torchatlas.tables import clean

Forward = tuple[Graph, dict[int, str]]  # a recording of the forward pass, and the names of parameters by id
_MOST = 12  # nodes that a list shows


class Stopped(Exception):
    """The user has had enough: the program ends."""


class Console(cmd.Cmd):
    """Commands for a stopped backward pass. An empty line repeats the last one."""

    prompt = "(backward) "
    intro = None

    def __init__(
        self,
        *,
        forward: Callable[[], Forward] | None = None,
        commands: Iterable[str] = (),
        stdin: IO[str] | None = None,
        stdout: IO[str] | None = None,
    ) -> None:
        super().__init__(stdin=stdin, stdout=stdout)
        self.use_rawinput = stdin is None
        self.session = _Session(self._talk, forward)
        self.session.go(steps=1)
        self._waiting = list(commands)

    def _talk(self) -> None:
        """Somebody is asked what to do. Returns when the engine shall go on."""
        self._say(f"-> {self.session.stop}" + (f"   [{self.session.hit}]" if self.session.hit else ""))
        while self._waiting:
            line = self._waiting.pop(0)
            self._say(f"{self.prompt}{line}")
            if self.onecmd(line):
                return
        self.cmdloop()

    def _say(self, text: str) -> None:
        self.stdout.write(f"{clean_lines(text)}\n")
        self.stdout.flush()

    def onecmd(self, line: str) -> bool:
        try:
            return bool(super().onecmd(line))
        except AtlasError as error:
            self._say(f"{error}")
            return False

    def default(self, line: str) -> None:
        if line == "EOF":
            raise Stopped
        self._say(f"unknown: {line.split()[0]!r}; help lists the commands")

    # -- going on ----------------------------------------------------------------------------------------------------

    def do_step(self, arg: str) -> bool:
        """step [N]: run one node, or N."""
        if arg and not (arg.isdecimal() and int(arg)):
            raise InvalidInputError(f"step takes a number from 1, not {arg!r}.")
        self.session.go(steps=int(arg or 1))
        return True

    def do_module(self, arg: str) -> bool:
        """module: run until a node of another module is about to run."""
        here = self.session.stopped().module
        self.session.go(until=lambda stop: stop.module != here)
        return True

    def do_until(self, arg: str) -> bool:
        """until NAME | nan | zero | above X: run until this node, operation, module, parameter or gradient comes."""
        test, number = self.session.condition(**condition_of(arg)).test, self.session.stopped().number
        self.session.go(until=lambda stop: stop.number != number and test(stop))
        return True

    def do_run(self, arg: str) -> bool:
        """run: run to the next breakpoint, in this backward pass or a later one."""
        self.session.go()
        return True

    def do_quit(self, arg: str) -> bool:
        """quit: end the program."""
        raise Stopped

    do_s, do_n, do_u, do_c, do_q = do_step, do_module, do_until, do_run, do_quit
    do_next = do_module
    do_continue = do_run

    # -- breakpoints -------------------------------------------------------------------------------------------------

    def do_break(self, arg: str) -> None:
        """break [NAME] [nan] [zero] [above X]: stop whenever this comes; alone: list them."""
        if arg:
            self.session.breakpoints.append(self.session.condition(**condition_of(arg)))
        for number, each in enumerate(self.session.breakpoints):
            self._say(f"{number}: {each}")

    def do_delete(self, arg: str) -> None:
        """delete N: forget a breakpoint."""
        if not arg.isdecimal() or int(arg) >= len(self.session.breakpoints):
            raise InvalidInputError(f"there is no breakpoint {arg!r}.")
        del self.session.breakpoints[int(arg)]

    do_b = do_break

    # -- looking -----------------------------------------------------------------------------------------------------

    def do_where(self, arg: str) -> None:
        """where: the node that is about to run."""
        self._say(f"-> {self.session.stopped()}")

    def do_grads(self, arg: str) -> None:
        """grads: the gradients that arrive at it."""
        for number, gradient in enumerate(self.session.stopped().gradients):
            self._say(f"{number}: {_described(gradient)}")

    def do_ready(self, arg: str) -> None:
        """ready: nodes that have all their gradients, the next first (a model of the engine's queue)."""
        self._list(self._queues()[0])

    def do_waiting(self, arg: str) -> None:
        """waiting: nodes that have some of their gradients."""
        self._list(self._queues()[1])

    def do_ran(self, arg: str) -> None:
        """ran: the nodes that ran last."""
        self._say("\n".join(self.session.order[-_MOST:]) or "nothing yet")

    def do_p(self, arg: str) -> None:
        """p EXPRESSION: evaluate Python; `grads` are the gradients, `node` is torch's node, `stop` all about it."""
        stop = self.session.stopped()
        try:
            self._say(repr(eval(arg, {"torch": torch, "grads": stop.gradients, "node": stop.torch_node, "stop": stop})))
        except Exception as error:  # whatever the expression raises is the user's
            self._say(f"{type(error).__name__}: {error}")

    def do_replace(self, arg: str) -> None:
        """replace N EXPRESSION: have the node take another gradient: replace 0 grads[0].clamp(-1, 1)"""
        number, _, expression = arg.partition(" ")
        if not number.isdecimal() or not expression:
            raise InvalidInputError("replace takes a number and an expression.")
        try:
            made = eval(expression, {"torch": torch, "grads": self.session.stopped().gradients})
        except Exception as error:
            self._say(f"{type(error).__name__}: {error}")
        else:
            self.session.replace(made, int(number))

    do_w, do_g = do_where, do_grads

    def _queues(self) -> tuple[list[GraphNode], list[GraphNode]]:
        stop = self.session.stopped()
        return stop.place.queues(stop.node.id)

    def _list(self, nodes: list[GraphNode]) -> None:
        lines = [node.name for node in nodes[:_MOST]]
        lines += [f"... {len(nodes) - _MOST} more"] if len(nodes) > _MOST else []
        self._say("\n".join(lines) or "none")


class _Session(Session):
    """Asks for a recording of the forward pass when a backward pass begins, not for those inside of one."""

    def __init__(self, pause: Callable[[], None], forward: Callable[[], Forward] | None) -> None:
        super().__init__(pause, {}, None)
        self._recorded = forward

    def begin(self, task: Task) -> None:
        if self._recorded is not None and task.outer is None:
            self.forward, self.names = self._recorded()
        super().begin(task)


def condition_of(text: str) -> dict[str, Any]:
    """nan, zero, above X and a name, in any order."""
    found: dict[str, Any] = {}
    words = shlex.split(text)
    while words:
        word = words.pop(0)
        if word in ("nan", "zero"):
            found[word] = True
        elif word == "above" and words:
            try:
                found["above"] = float(words.pop(0))
            except ValueError:
                raise InvalidInputError("above takes a number.") from None
        else:
            found["what"] = word
    return found


def _described(gradient: torch.Tensor | None) -> str:
    if gradient is None:
        return "none"
    text = f"{str(gradient.dtype).removeprefix('torch.')}{list(gradient.shape)}"
    if gradient.layout is not torch.strided or not gradient.numel() or gradient.is_complex():
        return text
    numbers = gradient.detach().double()
    bad = int((~numbers.isfinite()).sum())
    figures = f"norm {float(numbers.norm()):.4g}, min {float(numbers.min()):.4g}, max {float(numbers.max()):.4g}"
    return f"{text} {figures}" + (f", {bad:,} not finite" if bad else "")


def clean_lines(text: str) -> str:
    return "\n".join(clean(line) for line in text.splitlines())
