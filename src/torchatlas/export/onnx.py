"""Graph -> the structure of an `.onnx` file, which Netron shows: whole training steps too.

Operators are PyTorch's own, in domains such as `aten`: no runtime of ONNX runs such a file, and it holds no weights.
`atlas.trace(model, x).save("model.onnx")` writes a model that runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from torchatlas.errors import FileFormatError
from torchatlas.escapes import encodable
from torchatlas.export.node_fields import edges_by_target, node_fields
from torchatlas.files import replacing
from torchatlas.graph import EdgeKind, Graph, NodeKind
from torchatlas.graph.columns import EDGE_KINDS, KINDS, Array, Layout
from torchatlas.graph.formats import WRITERS, imported
from torchatlas.graph.names import origin, short_name

_DATA = EDGE_KINDS.index(EdgeKind.DATA)
_ABOUT = (
    "The structure of a PyTorch program, for viewers such as Netron. Its operators are PyTorch's, in domains of their "
    "own, and the data of its tensors is not in this file: no runtime runs it."
)
_FACTS = {
    "module", "phase", "operation_type", "flops", "elementwise_flops", "bytes_read", "bytes_written", "time_ns",
    "memory_bytes", "iteration", "sequence_nr", "forward_node", "file", "line", "function",
}  # fmt: skip
# torch's dtype -> TensorProto.DataType, where ONNX has it
_DTYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "uint32": 12, "uint64": 13, "complex64": 14, "complex128": 15, "bfloat16": 16, "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18, "float8_e5m2": 19, "float8_e5m2fnuz": 20,
}  # fmt: skip


@WRITERS.add(".onnx")
def save_onnx(graph: Graph, path: Path) -> None:
    """Write the structure for Netron. No runtime runs it: see `onnx_model`."""
    try:
        data = onnx_model(graph).SerializeToString(deterministic=True)
    except Exception as error:
        if "EncodeError" not in type(error).__name__:
            raise
        raise FileFormatError(
            f"{path}: not written: a file of ONNX holds at most 2 GiB, and this graph of {len(graph):,} nodes is more. "
            "Save a part of it: graph.subgraph(scope=...)."
        ) from error
    with replacing(path) as file:
        file.write(data)


def onnx_model(graph: Graph) -> Any:
    """An onnx.ModelProto: nodes with our names, tensors named after their makers, attributes, and figures as metadata.

    What no node made (parameters, buffers, states) is an initializer without data. ONNX has one tensor per input of a
    node: further ones that reach it, by writes to parts of a tensor, are inputs at the end. Nodes that must only wait
    for others say so in their metadata, `waits_for`.
    """
    onnx = imported("onnx", ".onnx files need", "onnx")
    return _Model(graph, onnx).made()


class _Model:
    def __init__(self, graph: Graph, onnx: Any) -> None:
        self.graph, self.onnx = graph, onnx
        self.names = [encodable(name) for name in graph.index.names()]
        self.model = onnx.ModelProto(ir_version=10, producer_name="torchatlas", domain="torchatlas", doc_string=_ABOUT)
        self.tensors = _tensor_names(graph, self.names)
        self._taken = {name for row in self.tensors for name in row}
        self._initializers: dict[int, str] = {}  # value -> name
        self._attributes: dict[Any, list[Any]] = {}
        self._layout = np.append(graph.columns["value_layout"], -1)
        self._info = {row: self._type(layout) for row, layout in enumerate(graph.tables.layouts)}

    def made(self) -> Any:
        graph, proto = self.graph, self.model.graph
        proto.name = "graph"
        fields, missing = node_fields(graph)
        for at, note in enumerate([f"made of {origin(graph.source)}", *graph.notes, missing]):
            if note:
                self.model.metadata_props.add(key=f"note {at}" if at else "source", value=encodable(note))
        facts = [(field.name, field.items) for field in fields if field.name in _FACTS]
        operations = [_domain(operation.name) for operation in graph.tables.operations]
        for domain in sorted({domain for domain, _, _ in operations}):
            self.model.opset_import.add(domain=domain, version=1)
        self.model.opset_import.add(domain="", version=20)
        waits, edges = edges_by_target(graph, data=False), edges_by_target(graph, data=True)
        of_node, kinds = graph.columns["node_operation"].tolist(), graph.columns["node_kind"].tolist()
        returned: dict[str, int] = {}
        for node, kind in enumerate(kinds):
            taken = self._inputs(node, edges[node])
            if KINDS[kind] == NodeKind.INPUT:
                for name, row in zip(self.tensors[node], self._made_by(node), strict=True):
                    self._describe(proto.input, name, row)
                continue
            if KINDS[kind] == NodeKind.OUTPUT:
                rows = self._layout[graph.index.inputs(node)].tolist()
                for at, name in enumerate(taken):
                    if name and returned.setdefault(name, node) == node:
                        self._describe(proto.output, name, rows[at] if at < len(rows) else -1)
                continue
            domain, kind_name, overload = operations[of_node[node]]
            one = proto.node.add(name=self.names[node], op_type=kind_name, domain=domain, overload=overload)
            one.input.extend(taken)
            one.output.extend(self.tensors[node])
            one.attribute.extend(self._attributes_of(node))
            for name, items in facts:
                if (item := items[node]) is not None and item != "":
                    one.metadata_props.add(key=name, value=str(item))
            if len(waits[node]):
                before = ", ".join(self.names[source] for source, _, _ in waits[node].tolist())
                one.metadata_props.add(key="waits_for", value=before)
            for name, row in zip(self.tensors[node], self._made_by(node), strict=True):
                if row >= 0 and self._info[row] is not None:
                    self._describe(proto.value_info, name, row)
        return self.model

    def _inputs(self, node: int, edges: Array) -> list[str]:
        """The names of the tensors that a node reads: one per slot, then further ones that reach a taken slot."""
        values = self.graph.index.inputs(node).tolist()
        slots: list[str | None] = [None] * max([len(values), *(edges[:, 2] + 1).tolist()])
        more: list[str] = []
        for source, output, slot in edges.tolist():
            name = self.tensors[source][max(output, 0)]
            if slot >= 0 and slots[slot] is None:
                slots[slot] = name
            else:
                more.append(name)
        for slot, value in enumerate(values):
            if slots[slot] is None and self.graph.columns["value_producer"][value] < 0:
                slots[slot] = self._initializer(value)
        return [*(name or "" for name in slots), *more]

    def _initializer(self, value: int) -> str:
        if value not in self._initializers:
            item = self.graph.values[value]
            plain = encodable(item.parameter or f"{item.role} {value}")
            name = plain if plain not in self._taken else f"{plain} ({item.role} {value})"
            self._taken.add(name)
            self._initializers[value] = name
            proto = self.model.graph.initializer.add(
                name=name,
                data_type=_DTYPES.get(item.dtype, 0),
                doc_string=encodable(f"{item.role}, {item.dtype}{list(item.shape)}; its data is not in this file"),
            )
            proto.dims.extend(size if isinstance(size, int) else 0 for size in item.shape)
        return self._initializers[value]

    def _made_by(self, node: int) -> list[int]:
        """The layout of each of its tensors; -1 for one that is not known."""
        rows = self._layout[self.graph.index.outputs(node)].tolist()
        return [*rows, *[-1] * (len(self.tensors[node]) - len(rows))]

    def _describe(self, infos: Any, name: str, row: int) -> None:
        info = infos.add(name=name)
        known = self._info.get(row)
        if known is not None:
            info.type.CopyFrom(known)

    def _type(self, layout: Layout) -> Any:
        code = _DTYPES.get(layout.dtype)
        if code is None:
            return None
        tensor_type = self.onnx.TypeProto()
        tensor_type.tensor_type.elem_type = code
        shape = tensor_type.tensor_type.shape
        shape.SetInParent()  # a scalar has a shape of no dimensions, which is not the same as none
        for size in layout.shape:
            shape.dim.add(**({"dim_value": size} if isinstance(size, int) else {"dim_param": encodable(size)}))
        return tensor_type

    def _attributes_of(self, node: int) -> list[Any]:
        columns, index = self.graph.columns, self.graph.index
        rows = (*self._layout[index.inputs(node)].tolist(), None, *self._layout[index.outputs(node)].tolist())
        key = (int(columns["node_operation"][node]), int(columns["node_arguments"][node]), *rows)
        if key not in self._attributes:
            self._attributes[key] = self._made_attributes(self.graph.nodes[node].attributes)
        return self._attributes[key]

    def _made_attributes(self, attributes: Mapping[str, Any]) -> list[Any]:
        make, protos = self.onnx.helper.make_attribute, []
        for name, item in attributes.items():
            if item is None:
                continue
            plain = int(item) if isinstance(item, bool) else item
            fits = isinstance(plain, (int, float)) or (
                isinstance(plain, (list, tuple))
                and bool(plain)
                and all(isinstance(one, int) and not isinstance(one, bool) for one in plain)
            )
            if isinstance(plain, int) and not -(2**63) <= plain < 2**63:
                fits = False
            protos.append(make(encodable(name), plain if fits else encodable(str(item))))
        return protos


def _tensor_names(graph: Graph, names: list[str]) -> list[list[str]]:
    """Per node the names of its outputs, also of those that only an edge mentions."""
    columns = graph.columns
    count = np.diff(columns["output_ptr"])
    data = columns["edge_kind"] == _DATA
    np.maximum.at(count, columns["edge_source"][data], np.maximum(columns["edge_output_index"][data], 0) + 1)
    return [
        [name] if made == 1 else [f"{name}:{at}" for at in range(made)]
        for name, made in zip(names, count.tolist(), strict=True)
    ]


def _domain(operation: str) -> tuple[str, str, str]:
    """Domain, name and overload of an operation.

    >>> _domain("aten.add_.Tensor"), _domain("torch.nn.functional.relu"), _domain("AddBackward0")
    (('aten', 'add_', 'Tensor'), ('torch.nn.functional', 'relu', ''), ('torchatlas', 'AddBackward0', ''))
    """
    text, name = encodable(operation), encodable(short_name(operation))
    parts = text.split(".")
    if len(parts) >= 3 and parts[1] == name:
        return parts[0], name, ".".join(parts[2:])
    return text.rpartition(".")[0] or "torchatlas", name or "unnamed", ""
