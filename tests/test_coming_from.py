"""docs/coming-from.md says what the calls of other tools are here: each name on its right side must exist."""

from __future__ import annotations

import importlib
import re
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import torchatlas as atlas
from torchatlas import types
from torchatlas.analysis.roofline import Bound
from torchatlas.compat.pytorch_graph.tracker import EDGE_KEYS, NODE_KEYS
from torchatlas.partition.branes_names import ConcurrencyNames, ParallelismNames, ReportNames, SubgraphNames
from torchatlas.partition.report import Reason

PAGE = (Path(__file__).parent.parent / "docs" / "coming-from.md").read_text()
CELLS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]
ROWS = [cells for cells in CELLS if cells[0] != "there"]
CLASSES: dict[str, Any] = {
    **{name: getattr(atlas, name) for name in atlas.__all__},
    **{name: getattr(types, name) for name in types.__all__},
    **{one.__name__: one for one in (Bound, Reason)},
}
HERE = sorted({name for _, here, _ in ROWS for name in re.findall(r"`([^`]+)`", here)})


def has(owner: Any, name: str) -> bool:
    return hasattr(owner, name) or name in getattr(owner, "__dataclass_fields__", {})


@pytest.mark.parametrize(
    "tool",
    [
        *("torchinfo", "torchviz", "torchview", "torchlens", "Netron", "Model Explorer", "torch.profiler"),
        *("pytorch-graph", "dl-backtrace", "branes-ai/graphs"),
    ],
)
def test_every_tool_has_a_table(tool: str) -> None:
    assert re.search(rf"^## {re.escape(tool)}[^\n]*\n+(?:[^#]*\n)?\| there \| here \|", PAGE, re.M)


def test_every_row_is_whole() -> None:
    assert len(ROWS) > 100
    for there, here, meaning in ROWS:
        assert there
        assert here == "none" or re.fullmatch(r"`[\w.]+`(, `[\w.]+`)*", here), here
        assert meaning or here == "none", there


@pytest.mark.parametrize("name", HERE)
def test_every_name_exists(name: str) -> None:
    first, _, rest = name.partition(".")
    if first == "torchatlas":
        module, _, item = name.rpartition(".OperationType")
        found = importlib.import_module(module).OperationType
        assert reduce(getattr, filter(None, item.split(".")), found)
    elif first == "atlas":
        assert rest in atlas.__all__
    else:
        assert not rest or has(CLASSES[first], rest), name


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        ("GraphNode", NODE_KEYS),
        ("GraphEdge", EDGE_KEYS),
        *(
            (owner, [name for name in vars(names) if not name.startswith("_")])
            for owner, names in (
                ("PartitionReport", ReportNames),
                ("Subgraph", SubgraphNames),
                ("Parallelism", ParallelismNames),
                ("ConcurrencyReport", ConcurrencyNames),
            )
        ),
    ],
)
def test_every_compatible_name_is_on_the_page(owner: str, names: list[str]) -> None:
    assert [name for name in names if f"{owner}.{name}" not in HERE] == []
