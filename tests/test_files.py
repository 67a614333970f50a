"""Files are read if they are files, and written whole or not at all."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import torchatlas as atlas
from torchatlas import files
from torchatlas.cli import main
from torchatlas.errors import FileSystemError
from torchatlas.execute.node_values import ValueFile
from torchatlas.graph import Graph

SUFFIXES = (".atlas", ".json")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return atlas.capture(torch.nn.Linear(2, 2), torch.ones(1, 2))


@pytest.fixture(params=["without a name", "with a name"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "with a name":
        monkeypatch.setattr(files, "_unnamed", lambda folder: None)


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _not_forever() -> Iterator[None]:
    """Who waits for a named pipe waits for ever."""

    def ring(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def no_file(kind: str, path: Path) -> Path:
    if kind == "named pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        server.close()
    return path


@pytest.mark.parametrize("kind", ["named pipe", "folder", "device", "socket"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_no_file_is_refused_at_once(
    kind: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the names of sockets are short
    path = no_file(kind, Path(f"x{suffix}"))
    for load in (Graph.load, atlas.load):
        with pytest.raises(FileSystemError, match=f"x{suffix}: it is a {kind}, not a file"):
            load(path)


@pytest.mark.parametrize("arguments", [["summary", "x.atlas"], ["verify", "x.atlas"], ["run", "x.atlas"]], ids=str)
def test_the_command_line_refuses_a_pipe(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("x.atlas")
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code
    assert "it is a named pipe, not a file" in done.output


def test_the_command_line_refuses_a_pipe_of_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("x.safetensors")
    atlas.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)).save("m.atlas")
    done = CliRunner().invoke(main, ["run", "m.atlas", "--data", "x.safetensors"])
    assert "it is a named pipe, not a file" in done.output


def test_a_pipe_that_takes_the_place_of_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.touch()
    found = os.stat(file)
    monkeypatch.setattr(os, "stat", lambda path: found)
    with pytest.raises(FileSystemError, match="it is a named pipe"):
        files.open_to_read(pipe)


# -- writing -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("way")
def test_a_file_is_replaced_in_one_step_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with files.replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.usefixtures("way")
def test_a_new_file_has_the_mode_of_any_other(tmp_path: Path) -> None:
    with files.replacing(tmp_path / "x") as file:
        file.write(b"new")
    (tmp_path / "y").touch()
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "y").stat().st_mode


@pytest.mark.usefixtures("way")
def test_a_block_that_raises_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def interrupted() -> None:
        with files.replacing(path) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.usefixtures("way")
def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    link, path = tmp_path / "link", tmp_path / "x"
    link.symlink_to("x")
    for content in (b"first", b"second"):  # it leads to nothing at first
        with files.replacing(link) as file:
            file.write(content)
        assert link.is_symlink()
        assert path.read_bytes() == content


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("suffix", [*SUFFIXES, ".safetensors"])
def test_a_link_that_leads_back_to_itself_is_refused_and_stays(
    length: int, suffix: str, tmp_path: Path, graph: Graph
) -> None:
    names = [tmp_path / f"{number}{suffix}" for number in range(length)]
    for number, name in enumerate(names):
        name.symlink_to(names[(number + 1) % length])

    def save() -> None:
        if suffix != ".safetensors":
            graph.save(names[0])
            return
        with ValueFile(names[0]) as file:
            file.write("x", torch.ones(1))

    with pytest.raises(FileSystemError, match="symbolic link that leads back to itself"):
        save()
    assert all(name.is_symlink() for name in names)


KILLED = """
import sys, time
from pathlib import Path
import torchatlas.files
with torchatlas.files.replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("written", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="files without names are Linux's")
def test_a_save_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.atlas"
    path.write_bytes(b"old")
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline()
    child.kill()
    child.wait(60)
    child.stdout.close()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x.atlas"]
