"""Opening files: only regular files are read, and a file that is written appears whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from torchatlas.errors import FileSystemError
from torchatlas.interrupts import bracketed

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_to_read(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file. Others are refused at once: reading a named pipe would wait for a writer."""
    _refuse_other(path, os.stat(path))  # to open a device may already do something
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _refuse_other(path, os.fstat(descriptor))  # it may be another one by now
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def _refuse_other(path: str | os.PathLike[str], status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise FileSystemError(f"Cannot read {os.fspath(path)}: it is {kind}, not a file.")


@bracketed
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when the block ends well; until then nothing changes.

    On Linux it has no name until it is complete, so that a process that is killed leaves nothing behind.
    """
    target = _real(path)
    beside = target.with_name(f".atlas-{secrets.token_hex(8)}.tmp")
    file = _unnamed(target.parent)
    named = file is None
    if file is None:
        file = open(beside, "xb")  # noqa: SIM115  # closed below
    try:
        with file:
            yield file
            file.flush()
            if target.exists():
                os.chmod(beside if named else file.fileno(), target.stat().st_mode & 0o777)
            if not named:
                # Only linkat follows the link in /proc, and Python calls it if a descriptor to begin from is given.
                os.link(f"/proc/self/fd/{file.fileno()}", beside, src_dir_fd=file.fileno())
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def _real(path: Path) -> Path:
    """The target of a link: the file is replaced, not the link."""
    try:
        path.stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        loops = path.is_symlink() and not os.path.exists(os.path.realpath(path))
        why = "it is a symbolic link that leads back to itself" if loops else error.strerror or error
        raise FileSystemError(f"Cannot write {path}: {why}. Remove it, or choose another name.") from error
    return Path(os.path.realpath(path))


def _unnamed(folder: Path) -> BinaryIO | None:
    """A new file without a name; None where the system or the file system has none."""
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o666), "wb")
    except OSError:  # whatever the reason, a file with a name tells it better
        return None
