"""TARGET and --inputs, as text -> what a verb runs: a script, or a callable of a module or file, and its inputs."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchatlas.cli._options import stdout_to_stderr
from torchatlas.errors import FileSystemError, InvalidInputError
from torchatlas.graph.formats import READERS, suffix_of
from torchatlas.registry import did_you_mean, near_names

if TYPE_CHECKING:
    import torch

_TARGET = re.compile(r"(?P<module>.+?)(?::(?P<name>[^\W\d][\w.]*))?")
_INPUT = re.compile(r"(?:(?P<name>[^\W\d]\w*)=)?(?:(?P<dtype>[a-z]\w*):)?(?P<shape>\d+(?:,\d+)*|)")


@dataclass(frozen=True)
class Target:
    """`module` is a dotted name or the path of a file; `name` the callable in it, None for a script."""

    module: str
    name: str | None

    @property
    def is_script(self) -> bool:
        return self.name is None

    @property
    def is_file(self) -> bool:
        return self.module.endswith(".py")

    def __str__(self) -> str:
        return self.module if self.name is None else f"{self.module}:{self.name}"


def parse_target(text: str) -> Target:
    """module:callable, path.py:callable or script.py.

    >>> parse_target("models.gpt:build")
    Target(module='models.gpt', name='build')
    """
    match = _TARGET.fullmatch(text)
    target = Target(match["module"], match["name"]) if match else Target(text, None)
    if target.is_script and not target.is_file:
        raise InvalidInputError(
            f"{text!r} is neither module:callable, path.py:callable nor a script ending in .py{_meant(text)}"
        )
    if target.is_file and not Path(target.module).is_file():
        raise FileSystemError(f"There is no file {target.module}. Check the path; it is relative to {Path.cwd()}.")
    return target


def parse_script(text: str, verb: str) -> Target:
    """A target that must be a script, for a verb that runs scripts."""
    target = parse_target(text)
    if not target.is_script:
        raise InvalidInputError(f"{text} is no script; {verb} runs scripts: torchatlas {verb} train.py.")
    return target


def _meant(text: str) -> str:
    """The end of the message about a target that is none: what it may have been meant to be."""
    module, dot, name = text.rpartition(".")
    if suffix_of(Path(text)) in READERS:
        return f"; it is a saved graph, for torchatlas summary {text}, table, cost, memory, draw and view."
    return f"; did you mean {module}:{name}?" if dot and name.isidentifier() and "/" not in text else "."


@contextmanager
def program(target: Target, arguments: Sequence[str] = ()) -> Iterator[None]:
    """sys.argv and sys.path as the program expects them; both as before afterwards."""
    argv, path = sys.argv, list(sys.path)
    folder = str(Path(target.module).resolve().parent) if target.is_file else str(Path.cwd())
    sys.argv = [target.module, *arguments]
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = path


def run_script(target: Target) -> None:
    """Run a script as `python script.py` does."""
    runpy.run_path(target.module, run_name="__main__")


@contextmanager
def opened(text: str, as_json: bool) -> Iterator[tuple[Target, Any]]:
    """Import what a TARGET names, which must not be a script. With --json it prints to stderr."""
    target = parse_target(text)
    if target.is_script:
        raise InvalidInputError(f"{text} is a script; name the model in it: {text}:build.")
    with stdout_to_stderr(as_json), program(target), imported(target) as item:
        yield target, item


@contextmanager
def imported(target: Target) -> Iterator[Any]:
    """The object the target names. A file's module is taken out of sys.modules afterwards."""
    if not target.is_file:
        yield _attribute(_module_named(target.module), target)
        return
    stem = Path(target.module).stem
    name = stem if stem not in sys.modules else f"{stem} of torchatlas"  # a user's random.py is not Python's
    spec = importlib.util.spec_from_file_location(name, target.module)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield _attribute(module, target)
    finally:
        sys.modules.pop(name, None)


def _module_named(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise  # something the module imports is missing: the module's own failure
        raise InvalidInputError(
            f"There is no module {error.name!r}, neither installed nor in {Path.cwd()}. "
            "For a file, write path.py:callable."
        ) from None


def _attribute(module: Any, target: Target) -> Any:
    item = module
    for part in (target.name or "").split("."):
        if not hasattr(item, part):
            hint = did_you_mean(part, vars(item) if hasattr(item, "__dict__") else ()) or "."
            raise InvalidInputError(f"{target.module} has no {part!r}{hint}")
        item = getattr(item, part)
    if not callable(item):
        raise InvalidInputError(f"{target} is of type {type(item).__name__}, not a model or function.")
    return item


def example_inputs(texts: Sequence[str], *, fake: bool) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Tensors for [NAME=][DTYPE:]SHAPE: normal numbers, or zeros and ones of an integer type; the same every time.

    With `fake` they have no data at all.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    args: list[torch.Tensor] = []
    kwargs: dict[str, torch.Tensor] = {}
    for text in texts:
        match = _INPUT.fullmatch(text.replace(" ", ""))
        dtype = getattr(torch, match["dtype"] or "float32", None) if match else None
        if match is None or not isinstance(dtype, torch.dtype):
            raise InvalidInputError(
                f"--inputs {text!r} is not [NAME=][DTYPE:]SHAPE, such as 2,3,224,224 or int64:2,16 or mask=bool:2,16."
            )
        shape = [int(size) for size in match["shape"].split(",") if size]
        if fake:
            tensor = torch.empty(shape, dtype=dtype, device="meta")
        elif dtype.is_floating_point or dtype.is_complex:
            kind = dtype if dtype.is_complex or dtype.itemsize > 1 else torch.float32
            tensor = torch.randn(shape, dtype=kind, generator=generator).to(dtype)
        else:
            tensor = torch.randint(0, 2, shape, generator=generator).to(dtype)
        if match["name"]:
            kwargs[match["name"]] = tensor
        else:
            args.append(tensor)
    return args, kwargs


def model_and_example(
    item: Any, target: Target, inputs: tuple[str, ...]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The model that a target is or makes, and its example: --inputs, or what comes with the model."""
    from torch import nn

    made = item if isinstance(item, nn.Module) else item()
    if not inputs and (call := as_model_call(made)) is not None:
        return call
    model = made[0] if isinstance(made, tuple) and made else made
    if not isinstance(model, nn.Module):
        raise InvalidInputError(f"{target} is or returns {type(model).__name__}, not a model; only models will do.")
    if not inputs and not takes_nothing(model.forward):
        raise InvalidInputError(
            f"{target} is a {type(model).__name__} without inputs, and it takes some: give them with --inputs."
        )
    args, kwargs = example_inputs(inputs, fake=False)
    return model, tuple(args), kwargs


def as_model_call(made: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """(model, args) or (model, args, kwargs), as a function may return them; None for anything else."""
    from torch import nn

    if not (isinstance(made, tuple) and 2 <= len(made) <= 3 and isinstance(made[0], nn.Module)):
        return None
    model, args, kwargs = (*made, {})[:3]
    return model, tuple(args) if isinstance(args, (tuple, list)) else (args,), dict(kwargs)


def takes_nothing(item: Any) -> bool:
    """Whether an object can be called without arguments."""
    try:
        inspect.signature(item).bind()
    except (TypeError, ValueError):
        return False
    return True


def optimizer_named(name: str | None) -> Any:
    """A class of torch.optim."""
    if name is None:
        return None
    import torch

    kinds = {
        key: kind
        for key, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    if name not in kinds:
        near = " or ".join(near_names(name, kinds))
        hint = f"did you mean {near}?" if near else f"known: {', '.join(sorted(kinds))}."
        raise InvalidInputError(f"torch.optim has no {name!r}; {hint}")
    return kinds[name]
