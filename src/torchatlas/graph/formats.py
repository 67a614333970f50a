"""Registries of file formats and of views as other libraries' objects: each format is one function that adds itself.

The graph knows no format; `torchatlas.export` and `torchatlas.render` fill these tables when the package is imported.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchatlas.errors import FileFormatError, FileSystemError, InvalidInputError, MissingDependencyError
from torchatlas.registry import Registry, did_you_mean

Writer = Callable[..., None]  # a graph, a path, and the options of the format by name
Reader = Callable[[Path], Any]

WRITERS: Registry[Writer] = Registry("file format to write")
READERS: Registry[Reader] = Registry("file format to read")
RANK_WRITERS: Registry[Writer] = Registry("file format to write several ranks to")  # takes a list of graphs
VIEWS: Registry[Callable[..., Any]] = Registry("view")


_WEIGHTS = "a file of weights, which say nothing of a run: load them into the model, and capture that"
_OF_OTHERS = {  # what people take for a file of ours, and what it is
    ".trace.json": "a trace, which has times and no graph: capture the program, and join the two with join_profile",
    ".trace.json.gz": "a trace, which has times and no graph: capture the program, and join the two with join_profile",
    ".pt": _WEIGHTS,
    ".pth": _WEIGHTS,
    ".ckpt": _WEIGHTS,
    ".bin": _WEIGHTS,
    ".safetensors": _WEIGHTS,
    ".pt2": "a program of torch.export: capture or trace the model that it was made of",
    ".onnx": "a model for other runtimes: capture the model of PyTorch that it was made of",
    ".py": "a program: record it with torchatlas capture --output run.atlas",
}


def as_path(path: Any) -> Path:
    """What was given as the path of a file, if it can be one."""
    if not isinstance(path, (str, os.PathLike)) or isinstance(os.fspath(path), bytes):
        raise InvalidInputError(
            f"the path of a file is text or a pathlib.Path, not {type(path).__name__}: {path!r:.80}."
        )
    if "\0" in os.fspath(path):
        raise InvalidInputError(f"{os.fspath(path)!r} is no path of a file: it has a NUL character.")
    return Path(path)


def suffix_of(path: Path) -> str:
    """The suffix that says what a file is. Its case does not matter; the longest that a format has is taken.

    >>> suffix_of(Path("STEP.PNG")), suffix_of(Path("step.trace.json")), suffix_of(Path("step.v2.json"))
    ('.png', '.trace.json', '.json')
    """
    parts = path.name.lower().split(".")
    ends = ("." + ".".join(parts[at:]) for at in range(1, len(parts) - 1))
    return next((end for end in ends if end in WRITERS or end in READERS), path.suffix.lower())


def with_rank(path: Path, rank: int) -> Path:
    """The file of one of several processes: run-rank0.atlas of run.atlas."""
    suffix = path.name[len(path.name) - len(suffix_of(path)) :]
    return path.with_name(f"{path.name.removesuffix(suffix)}-rank{rank}{suffix}")


def check_folder(path: Path) -> None:
    """Raise unless the folder of a file that is to be written is there. None is created."""
    folder = path.parent
    try:
        if folder.is_dir():
            return
        file = next((above for above in (folder, *folder.parents) if above.is_file()), None)
    except OSError as error:  # a folder on the way may not be looked into
        raise FileSystemError(f"Cannot write {path}: {error.strerror or error}.") from error
    if file is not None:
        raise FileSystemError(f"Cannot write {path}: {file} is a file, not a folder.")
    raise FileSystemError(f"Cannot write {path}: the folder {folder} does not exist. Create it first.")


def save(graph: Any, path: Path, suffix: str | None = None, **options: Any) -> Path:
    """Write by suffix; says which folder is missing instead of creating it.

    `suffix` is the format of a file whose own suffix names none. A file with the suffix of another format is refused:
    no reader could read it. `options` are those of the format; one that it does not have is refused.
    """
    own = suffix_of(path)
    if suffix is not None and own in WRITERS and own != suffix:
        raise FileFormatError(
            f"{path.name} would hold {suffix[1:]}: give it the suffix {suffix!r}, or leave format= out."
        )
    return _written(_by_suffix(WRITERS, path, suffix), graph, path, suffix or own, options)


def save_together(graphs: Sequence[Any], path: Path, **options: Any) -> Path:
    """Write several graphs, the ranks of one program, to one file; the formats that hold several are RANK_WRITERS."""
    return _written(_by_suffix(RANK_WRITERS, path), graphs, path, suffix_of(path), options)


def _written(writer: Writer, item: Any, path: Path, suffix: str, options: dict[str, Any]) -> Path:
    _check_options(writer, suffix, options)
    check_folder(path)
    try:
        writer(item, path, **options)
    except OSError as error:
        if isinstance(error, FileSystemError):
            raise
        raise FileSystemError(f"Cannot write {path}: {error.strerror or error}.") from error
    return path


def load(path: Path) -> Any:
    """Read by suffix."""
    if (path / "run.jsonl").is_file():  # see runs/journal.py
        raise FileFormatError(
            f"{path} is a recorded run, which holds many graphs: atlas.load({str(path)!r}).graph(step) is one of them, "
            f"and so is each file in {path / 'steps'}. torchatlas view {path} shows it."
        )
    if path.is_dir() and suffix_of(path) not in READERS:  # else the reader says so
        raise FileSystemError(f"{path} is a folder: name a file in it, or look at all of them: torchatlas view {path}")
    if not path.suffix and not path.exists():
        raise FileSystemError(f"There is no file or folder {path}. The path is relative to {Path.cwd()}.")
    reader = _by_suffix(READERS, path)
    try:
        return reader(path)
    except OSError as error:
        if isinstance(error, FileSystemError):
            raise
        hint = _near_files(path) if isinstance(error, FileNotFoundError) else "."
        raise FileSystemError(f"Cannot read {path}: {error.strerror or error}{hint}") from error


def _near_files(path: Path) -> str:
    """The end of a message about a file that is not there: those of its folder that look like it."""
    try:
        there = [str(path.with_name(name)) for name in os.listdir(path.parent) if suffix_of(Path(name)) in READERS]
    except OSError:
        return f": there is no folder {path.parent}."
    return did_you_mean(str(path), there) or f". The path is relative to {Path.cwd()}."


def view(name: str, graph: Any, **options: Any) -> Any:
    """Another library's object, or text, made of the graph."""
    return VIEWS[name](graph, **options)


def _check_options(writer: Writer, suffix: str, options: dict[str, Any]) -> None:
    known = _options(writer)
    for name in options:
        if name not in known:
            takers = [other for other in WRITERS if name in _options(WRITERS[other])]
            hint = f"; {' and '.join(takers)} files do." if takers else did_you_mean(name, known) or "."
            taken = f" There are {', '.join(f'{one}=' for one in known)}." if known and not takers else ""
            raise InvalidInputError(f"{suffix} files take no option {name}={hint}{taken}")


def _options(writer: Writer) -> list[str]:
    """The names of what a writer takes by keyword only."""
    return [one.name for one in inspect.signature(writer).parameters.values() if one.kind is one.KEYWORD_ONLY]


def _by_suffix(formats: Registry[Any], path: Path, suffix: str | None = None) -> Any:
    named = suffix_of(path) if suffix is None else suffix
    if named not in formats:
        other = next((end for end in _OF_OTHERS if path.name.lower().endswith(end)), "") if suffix is None else ""
        suffix = other or named
        known = ", ".join(formats)
        what = f" is {_OF_OTHERS[other]}" if other else f": the suffix {suffix or '(none)'!r} is no {formats.kind}"
        raise FileFormatError(f"{path.name}{what}. Known: {known}.")
    return formats[named]


def imported(package: str, needed_by: str, extra: str | None = None) -> Any:
    """An optional package; MissingDependencyError says which extra of ours installs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        install = f"pip install 'torchatlas[{extra or package}]'"
        raise MissingDependencyError(f"{needed_by} {package}: {install}") from error
