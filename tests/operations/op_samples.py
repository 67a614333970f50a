"""Run as a program: record torch's own sample inputs of all its operators, cost them, print what went wrong as JSON.

A program and no module, for importing torch's testing code changes the process: it freezes backend flags.
"""

import json
import sys
import unittest
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

import torchatlas as atlas
from torchatlas.analysis.node_work import count
from torchatlas.errors import AnalysisError
from torchatlas.graph import Graph

SAMPLES = 2  # of each dtype


def graphs() -> Iterator[tuple[str, Graph]]:
    for op in operators():
        kinds = [dtype for dtype in (torch.float32, torch.complex64, torch.int64, torch.bool) if dtype in op.dtypes]
        for dtype in kinds[:2]:
            trains = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
            samples = op.sample_inputs("cpu", dtype, requires_grad=trains)
            for sample, _ in zip(samples, range(SAMPLES), strict=False):
                recording = atlas.recording()
                try:
                    with recording:
                        run(op, sample, trains)
                except (RuntimeError, NotImplementedError, AssertionError):
                    pass  # not for this device; what ran until then is recorded
                yield op.name, recording.graph


def operators() -> list[Any]:
    expecttest = ModuleType("expecttest")  # only its base class is wanted, and it need not be installed
    expecttest.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules.setdefault("expecttest", expecttest)
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if not op.name.startswith("jiterator")]  # for CUDA alone


def run(op: Any, sample: Any, trains: bool) -> None:
    made = op(sample.input, *sample.args, **sample.kwargs)
    made = made if isinstance(made, (tuple, list)) else [made]
    ends = [one for one in made if isinstance(one, torch.Tensor) and one.requires_grad] if trains else []
    if ends:
        sum((one.abs() if one.is_complex() else one).sum() for one in ends).backward()


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names: set[str] = set()
    uncosted: set[str] = set()
    failures: list[str] = []
    for name, graph in graphs():
        names |= {operation.name for operation in graph.tables.operations}
        try:
            uncosted |= set(count(graph).uncosted)
        except AnalysisError as error:
            failures.append(f"{name}: {error}")
    print(json.dumps({"operations": sorted(names), "uncosted": sorted(uncosted), "failures": failures}))


if __name__ == "__main__":
    main()
