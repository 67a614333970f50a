"""docs/format.md shows a file; it must be one."""

import re
from pathlib import Path

from msgspec import Struct

from torchatlas.export import json_rows
from torchatlas.graph import Graph
from torchatlas.graph.columns import EDGE_KINDS, KINDS, PHASES, ROLES

PAGE = Path(__file__).parents[2] / "docs" / "format.md"


def test_the_example_loads_and_saves_to_the_same_bytes(tmp_path: Path) -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "example.json"
    path.write_text(example, encoding="utf-8")
    graph = Graph.load(path)
    assert graph["act.relu"].source is not None
    assert [node.name for node in graph["act.relu"].predecessors] == ["x"]
    assert graph.save(tmp_path / "again.json").read_text(encoding="utf-8") == example


def test_every_field_and_word_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = [json_rows.Document, json_rows.JsonOperation, json_rows.JsonParameter]
    rows += [section.row for section in json_rows.ROW_LISTS]
    fields = {name for row in rows if issubclass(row, Struct) for name in row.__struct_fields__}
    words = {str(word) for word in (*KINDS, *PHASES, *ROLES, *EDGE_KINDS)}
    assert {name for name in fields | words if f"`{name}`" not in page} == set()
