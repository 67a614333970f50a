"""examples/*.py -> notebooks that have been run, and pages that show code and output.

All imports are one cell; then a cell ends where a top-level statement is followed by a blank line. The cells of a
notebook run in one namespace of a forked process: torch is imported once for all of them, and none sees the tensors of
another.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sitegen.promised import ROOT

EXAMPLES = ROOT / "examples"
_IMPORTS = (ast.Import, ast.ImportFrom)
AT_ONCE = 2  # examples that run at the same time
LIMIT_S = 240


@dataclass
class Example:
    name: str
    title: str  # the first line of its docstring
    cells: list[str]
    outputs: list[str]
    as_script: bool  # it starts itself as another process, which a notebook cannot

    def notebook(self) -> str:
        """The notebook as a file holds it, in nbformat 4.5."""
        cells: list[dict[str, Any]] = [
            {"cell_type": "markdown", "id": "title", "metadata": {}, "source": f"# {self.title}"}
        ]
        for number, (code, output) in enumerate(zip(self.cells, self.outputs, strict=True), 1):
            stream = [{"output_type": "stream", "name": "stdout", "text": output}] if output else []
            cells.append(
                {
                    "cell_type": "code",
                    "id": f"cell-{number}",
                    "metadata": {},
                    "execution_count": number,
                    "source": code,
                    "outputs": stream,
                }
            )
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
        return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}, indent=1)

    def page(self) -> str:
        lines = [
            "---",
            f"title: {self.name.replace('_', ' ').capitalize()}",
            "---",
            f"# {self.title}",
            "",
            f"`python examples/{self.name}.py`, as it ran when these pages were built.",
        ]
        if not self.as_script:
            lines[-1] += f" [As a notebook]({self.name}.ipynb)."
        for code, output in zip(self.cells, self.outputs, strict=True):
            lines += ["", f"```python\n{code}\n```"]
            lines += ["", f"```text {{ .output }}\n{output.rstrip()}\n```"] if output.strip() else []
        return "\n".join(lines) + "\n"


def examples() -> Iterator[Example]:
    """Every example, run."""
    import torch  # before the processes are forked

    import torchatlas as atlas

    atlas.capture(torch.nn.Linear(2, 2), torch.ones(1, 2))  # what a first capture imports, likewise
    waiting, running = sorted(EXAMPLES.glob("*.py")), []
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            running.append(_Run(waiting.pop(0)))
        yield running.pop(0).finished()


def run(path: Path) -> Example:
    return _Run(path).finished()


def split(source: str) -> tuple[str, list[str]]:
    """The title of an example, from its docstring, and its cells."""
    module = ast.parse(source)
    lines = source.splitlines()
    title = (ast.get_docstring(module) or "").splitlines()[0].removesuffix(".")
    cells: list[str] = []
    begin = module.body[0].end_lineno or 1
    for statement, following in zip(module.body[1:], [*module.body[2:], None], strict=True):
        end = len(lines) if following is None else statement.end_lineno or statement.lineno
        imports = isinstance(statement, _IMPORTS), isinstance(following, _IMPORTS)
        blank_line_after = following is not None and not lines[end].strip()
        if following is None or (imports[0] and not imports[1]) or (not imports[0] and blank_line_after):
            cells.append("\n".join(lines[begin:end]))
            begin = end
    return title, [cell.strip("\n") for cell in cells]


class _Run:
    """An example that runs in a process of its own, in a folder of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.title, self.cells = split(path.read_text())
        self.folder = tempfile.TemporaryDirectory()
        self.result = Path(self.folder.name) / ".outputs.json"
        self.script: subprocess.Popen[str] | None = None
        if "__file__" in path.read_text():
            self.script = subprocess.Popen(
                [sys.executable, str(path)], cwd=self.folder.name, stdout=subprocess.PIPE, text=True
            )
        elif not (child := os.fork()):
            self._run_cells()
        else:
            self.child = child

    def _run_cells(self) -> None:
        """In the child: leave what each cell printed, or how one failed, in a file."""
        signal.alarm(LIMIT_S)  # ends a child that hangs
        try:
            os.chdir(self.folder.name)
            tempfile.tempdir = self.folder.name
            self.result.write_text(json.dumps(_outputs(self.path, self.cells)))
        except BaseException:
            self.result.write_text(json.dumps(traceback.format_exc()))
        finally:
            os._exit(0)

    def finished(self) -> Example:
        with self.folder:
            if self.script is not None:
                printed, _ = self.script.communicate(timeout=LIMIT_S)
                outputs = [""] * (len(self.cells) - 1) + [printed]
                failure = f"exit code {self.script.returncode}" if self.script.returncode else ""
            else:
                os.waitpid(self.child, 0)
                none = json.dumps(f"it left no output within {LIMIT_S} s")
                found = json.loads(self.result.read_text() if self.result.exists() else none)
                outputs, failure = ([], found) if isinstance(found, str) else (found, "")
        if failure:
            raise RuntimeError(f"{self.path.name} failed:\n{failure}")
        # Folders of this machine say nothing to a reader, and the next build has others.
        folders = rf"{self.folder.name}/(?:tmp\w+/)?|{EXAMPLES}/|{ROOT}/"
        outputs = [re.sub(folders, "", text) for text in outputs]
        return Example(self.path.stem, self.title, self.cells, outputs, self.script is not None)


def _outputs(path: Path, cells: list[str]) -> list[str]:
    sys.argv = [str(path)]
    namespace: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    source, outputs, line = path.read_text(), [], 0
    for cell in cells:
        line = source.index(cell, line)
        padded = "\n" * source[:line].count("\n") + cell  # so that lines are those of the file
        printed = io.StringIO()
        with redirect_stdout(printed), redirect_stderr(printed):
            exec(compile(padded, str(path), "exec"), namespace)
        outputs.append(printed.getvalue())
    return outputs
