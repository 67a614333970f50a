"""Find where the parts of autograd stand in the installed torch: python benchmarks/learn/source_locations.py [--write]

Prints the table of quick-reference.md, section 16; --write puts it there. Headers and Python files are in the wheel, so
their lines can be looked up. Files in C++ (.cpp) are not: the page names them without lines.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

PACKAGE = Path(torch.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "learn" / "quick-reference.md"
BEGIN, END = "<!-- source locations: begin -->", "<!-- source locations: end -->"
HEADERS = "include/torch/csrc/autograd"


@dataclass(frozen=True)
class Part:
    """One row: what it is called here, its qualified name, and the folder or file to look for it in."""

    called: str
    name: str  # Class, Class::member or function in C++; Class.member or function in Python
    where: str


PARTS = [
    Part("a node", "Node", HEADERS),
    Part("making a node", "Node::Node", HEADERS),
    Part("its edges, all at once", "Node::set_next_edges", HEADERS),
    Part("its edges, one by one", "Node::add_next_edge", HEADERS),
    Part("its topological number", "Node::update_topological_nr", HEADERS),
    Part("what its inputs look like", "Node::add_input_metadata", HEADERS),
    Part("running it", "Node::operator()", HEADERS),
    Part("the device it runs on", "Node::device", HEADERS),
    Part("an edge", "Edge", HEADERS),
    Part("edges of the inputs of an op", "collect_next_edges", HEADERS),
    Part("does an op need a node?", "compute_requires_grad", HEADERS),
    Part("hanging a node onto a tensor", "set_history", HEADERS),
    Part("where a tensor's gradient goes", "gradient_edge", HEADERS),
    Part("what autograd knows of a tensor", "AutogradMeta", HEADERS),
    Part("shape, dtype, device, stream of an input", "InputMetadata", HEADERS),
    Part("a saved tensor and its version", "SavedVariable", HEADERS),
    Part("the node of x * y", "MulBackward0", HEADERS),
    Part("the node of a leaf", "AccumulateGrad", HEADERS),
    Part("the node above several roots", "GraphRoot", HEADERS),
    Part("a node that raises", "Error", HEADERS),
    Part("one call of backward", "GraphTask", HEADERS),
    Part("what a selective task wants of a node", "GraphTask::ExecInfo", HEADERS),
    Part("gradients that have come for a node", "InputBuffer", HEADERS),
    Part("a node with its buffer", "NodeTask", HEADERS),
    Part("who is next", "ReadyQueue", HEADERS),
    Part("the engine", "Engine", HEADERS),
    Part("the entry of backward (declared)", "Engine::execute", HEADERS),
    Part("one node of backward (declared)", "Engine::evaluate_function", HEADERS),
    Part("counting edges (declared)", "Engine::compute_dependencies", HEADERS),
    Part("is anomaly mode on?", "AnomalyMode", HEADERS),
    Part("sequence numbers (declared)", "get_and_increment", "include/ATen/SequenceNumber.h"),
    Part("loss.backward()", "Tensor.backward", "_tensor.py"),
    Part("torch.autograd.backward", "backward", "autograd/__init__.py"),
    Part("torch.autograd.grad", "grad", "autograd/__init__.py"),
    Part("the call into the engine", "_engine_run_backward", "autograd/graph.py"),
    Part("a node, for Python", "Node", "autograd/graph.py"),
    Part("hooks for saved tensors", "saved_tensors_hooks", "autograd/graph.py"),
    Part("a custom Function", "Function", "autograd/function.py"),
    Part("its ctx", "FunctionCtx", "autograd/function.py"),
    Part("no second derivative", "once_differentiable", "autograd/function.py"),
    Part("no graph", "no_grad", "autograd/grad_mode.py"),
    Part("anomaly mode, for Python", "detect_anomaly", "autograd/anomaly_mode.py"),
    Part("a graph of torch.fx", "Graph", "fx/graph.py"),
]


@cache
def without_comments(text: str) -> str:
    """C++ with comments, strings and Windows blanked, so that braces can be counted. Lines stay where they are."""
    windows = r"^#ifdef _WIN32\n.*?^#(?:else|endif)"
    text = re.sub(windows, _blanked, text, flags=re.S | re.M)
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
    return re.sub(pattern, _blanked, text, flags=re.S)


def _blanked(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def closing(code: str, opening: int) -> int:
    """Where the brace at `opening` is closed."""
    depth = 0
    for match in re.finditer(r"[{}]", code[opening:]):
        depth += 1 if match[0] == "{" else -1
        if not depth:
            return opening + match.start()
    raise ValueError("a brace is never closed")


def type_spans(code: str, name: str) -> Iterator[tuple[int, int]]:
    """Where a struct or class of this name is defined."""
    for match in re.finditer(rf"^[ \t]*(?:struct|class)\s+(?:TORCH_API\s+)?{name}\b[^;{{()]*\{{", code, re.M):
        yield match.start(), closing(code, match.end() - 1)


def function_spans(code: str, name: str) -> Iterator[tuple[int, int]]:
    """Where functions of this name are defined or declared, those with a body first."""
    declared = []
    opening = r"\s*\(" if not name.endswith("()") else r"\("
    for match in re.finditer(rf"^[ \t]*(?:[\w:&<>*,]+[ \n]+)*{re.escape(name)}{opening}", code, re.M):
        if re.search(r"\b(?:return|else|new)\b", match[0]):
            continue
        after = re.compile(r"[;{]").search(code, _past_parameters(code, match.end() - 1))
        if after is None:
            continue
        if after[0] == "{":
            yield match.start(), closing(code, after.start())
        else:
            declared.append((match.start(), after.start()))
    yield from declared


def _past_parameters(code: str, opening: int) -> int:
    depth = 0
    for match in re.finditer(r"[()]", code[opening:]):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return opening + match.end()
    raise ValueError("a parenthesis is never closed")


def in_header(text: str, name: str) -> tuple[int, int] | None:
    """First and last line of a type, a member or a function in a header."""
    code, offset = without_comments(text), 0
    *owners, last = name.split("::")
    for owner in owners:
        span = next(type_spans(code, owner), None)
        if span is None:
            return None
        offset, code = offset + span[0], code[span[0] : span[1] + 1]
        body = code.index("{") + 1
        offset, code = offset + body, code[body:]
    spans = function_spans if last[0].islower() or last in owners else type_spans
    for start, end in spans(code, last):
        start += len(code[start:]) - len(code[start:].lstrip())
        return text.count("\n", 0, offset + start) + 1, text.count("\n", 0, offset + end) + 1
    return None


def in_python(text: str, name: str) -> tuple[int, int] | None:
    """First and last line of a class, method or function in a Python file."""
    found: ast.AST = ast.parse(text)
    for part in name.split("."):
        inner = [each for each in ast.iter_child_nodes(found) if getattr(each, "name", None) == part]
        if not inner:
            return None
        found = inner[-1]  # after those that are only for @overload
    assert isinstance(found, ast.ClassDef | ast.FunctionDef)
    return found.lineno, found.end_lineno or found.lineno


def locate(part: Part, package: Path = PACKAGE) -> tuple[str, int, int]:
    """The file of a part, as PyTorch's repository names it, with its first and last line."""
    place = package / part.where
    files = sorted(place.rglob("*.h")) if place.is_dir() else [place]
    for file in files:
        found = (in_python if file.suffix == ".py" else in_header)(file.read_text(), part.name)
        if found is not None:
            path = file.relative_to(package).as_posix()
            return path.removeprefix("include/") if path.startswith("include/") else f"torch/{path}", *found
    raise LookupError(f"{part.name} was not found in {place}: torch {torch.__version__} has it elsewhere")


def table() -> str:
    """The table in Markdown, of the installed torch."""
    version = torch.__version__.split("+")[0]
    rows = [f"Found in torch {version}.", "", "| part | name | file | lines |", "|---|---|---|---|"]
    for part in PARTS:
        file, first, last = locate(part)
        rows.append(f"| {part.called} | `{part.name}` | `{file}` | {first}-{last} |")
    return "\n".join(rows)


def written() -> str:
    """The table as the page has it."""
    return PAGE.read_text().split(BEGIN)[1].split(END)[0].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into quick-reference.md")
    if not parser.parse_args().write:
        print(table())
        return
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
