"""What an op was called with -> the sizes of a layer as its box states them: 64→128, 3×3/2, depthwise.

Each comes in several wordings, the longest first. All say the same: a convolution without its groups is another one.
"""

from __future__ import annotations

import re
from typing import Any

from torchatlas.graph import Graph
from torchatlas.graph.arguments import TensorRef, decode
from torchatlas.graph.attributes import arguments_by_name
from torchatlas.graph.columns import PHASES, ROLES
from torchatlas.graph.nouns import OperationType, Phase, Role
from torchatlas.render.layout.text_fitting import plain

_PARAMETER, _BACKWARD = ROLES.index(Role.PARAMETER), PHASES.index(Phase.BACKWARD)
_OWN = {_PARAMETER, ROLES.index(Role.BUFFER), ROLES.index(Role.CONSTANT)}  # also tensors of a program without modules
# What the schemas of products call the operand that has the features, and the other one. What they add to is not among
# them: a bias is no weight.
_PRODUCTS = {
    "addmm": ("mat1", "mat2"),
    "mm": ("self", "mat2"),
    "linear": ("input", "weight"),
    "baddbmm": ("batch1", "batch2"),
    "mv": ("vec", "self"),
    "addmv": ("vec", "mat"),
}
_LAYER = re.compile(r"_l([0-9]{1,9})(?:_reverse)?$")
_STEPS = 4  # so many ops may make a weight of parameters: casts and norms are two or three

Shape = tuple[int | str, ...]
Wordings = tuple[str, ...]  # texts that say the same, the longest first


class LayerSizes:
    """The sizes of layers, asked for by node. Parameters of one name differ in their layout, so the arguments of the
    op count."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._named: dict[tuple[int, int], dict[str, Any]] = {}  # rows of operations and arguments -> these by name
        self._weights: dict[tuple[int, int], bool] = {}  # by values and how far back was looked

    def wordings(self, node: int, kind: OperationType, operation: str, of_layer: bool) -> Wordings:
        """The input and output sizes of an op, in several lengths, if they are known. `of_layer`: the op is in a
        module."""
        if kind == OperationType.CONVOLUTION:
            return self._channels(node)
        if kind == OperationType.MATMUL:
            said = self._features(node, operation, of_layer)
        elif kind == OperationType.EMBEDDING:
            said = "×".join(map(str, self._table(node)))
        elif kind == OperationType.RECURRENT:
            said = self._recurrent(node)
        else:
            weight = self._weight(node) if of_layer else ()
            said = str(weight[0]) if len(weight) == 1 else ""
        return (said,) if said else ()

    def of_block(self, nodes: list[int]) -> Wordings:
        """The sizes of the one layer among ops in a row, if it takes what the first op takes and makes what the last
        makes: of a convolution with its norm, but of no product of what a cat before it made, or of two activations."""
        columns, operations = self.graph.columns, self.graph.tables.operations
        kinds = {node: operations[columns["node_operation"][node]].type for node in nodes}
        layers = [node for node, kind in kinds.items() if kind in (OperationType.CONVOLUTION, OperationType.MATMUL)]
        if len(layers) != 1 or not self._read(layers[0], True):
            return ()
        wordings = self.wordings(layers[0], kinds[layers[0]], plain(self._name_of(layers[0])), True)
        into, _, out = "".join(wordings[:1]).partition(",")[0].partition("→")
        if columns["node_phase"][layers[0]] == _BACKWARD:
            into, out = out, into
        taken = {str(size) for value in self._read(nodes[0], False) for size in self._shape(value)}
        made = {str(size) for shape in self._shapes("output", nodes[-1]) for size in shape}
        return wordings if into in taken and out in made else ()

    def _read(self, node: int, parameters: bool) -> list[int]:
        """The values that an op reads which are parameters, or are none."""
        columns = self.graph.columns
        read = columns["input_value"][columns["input_ptr"][node] : columns["input_ptr"][node + 1]]
        read = read[read >= 0]
        values: list[int] = read[(columns["value_role"][read] == _PARAMETER) == parameters].tolist()
        return values

    def _channels(self, node: int) -> Wordings:
        """The channels that a convolution takes and makes. The weight alone does not tell: of a grouped one it holds
        the channels of one group, and of a transposed one it is transposed."""
        named, values = self.called(node)
        shapes = {name: self._shape(value) for name, value in values.items()}
        taken, made = self._shapes("input", node), self._shapes("output", node)
        weight = shapes.get("weight") or (taken[1] if not named and len(taken) > 1 else ())
        read = shapes.get("input") or shapes.get("self") or (taken[0] if taken else ())
        written = shapes.get("grad_output") or (made[0] if made else ())
        spatial = len(weight) - 2
        # The sizes of conv_tbc, which only old programs call, come in another order.
        if spatial < 1 or min(len(read), len(written)) <= spatial or "tbc" in self._name_of(node):
            return ()
        into, out, groups = read[-1 - spatial], written[-1 - spatial], named.get("groups")
        if groups is None:  # kernels for one group per channel have no such argument, and a file need not say
            groups = _quotient(into if weight[0] == out else out, weight[1])
        said = f"{into}→{out}, " + "×".join(map(str, weight[2:]))
        return _with_details(said, spatial, into, named.get("stride"), named.get("dilation"), groups)

    def _table(self, node: int) -> Shape:
        """The sizes of an embedding. Those of quantised ones have scales in their rows."""
        if self._name_of(node).startswith("quantized"):
            return ()
        weight = self._weight(node)
        if not weight and self.graph.columns["node_phase"][node] == _BACKWARD:  # that makes the gradient of one
            weight = next(iter(self._shapes("output", node)), ())
        return weight if len(weight) == 2 else ()

    def _recurrent(self, node: int) -> str:
        """The sizes that a recurrent layer, or all layers of a module as one op, takes and makes."""
        named, values = self.called(node)
        made = self._shapes("output", node) if self.graph.columns["node_phase"][node] != _BACKWARD else []
        written = self._shape(values["output"]) if "output" in values else made[0] if made else ()
        read = self._shape(values["input"]) if "input" in values else ()
        if not read or not written:
            return ""
        sizes, layers = f"{read[-1]}→{written[-1]}", named.get("num_layers")
        several = isinstance(layers, int) and layers > 1
        if "rnn_layer" in self._name_of(node):
            which = self._number_of_layer(node) if several else ""
            words = [which, "reverse" if named.get("reverse") is True else "", sizes]
        else:
            both = "both directions" if named.get("bidirectional") is True else ""
            words = [sizes, f"{layers} layers" if several else "", both]
        return ", ".join(filter(None, words))

    def _number_of_layer(self, node: int) -> str:
        """The number of the layer that an op belongs to, from the names that torch gives its parameters: bias_hh_l0."""
        rows = (int(self.graph.columns["value_parameter"][value]) for value in self._read(node, True))
        matches = (_LAYER.search(self.graph.tables.names[row]) for row in rows if row >= 0)
        return next((f"layer {match[1]}" for match in matches if match), "")

    def _weight(self, node: int) -> Shape:
        """The shape of the weight that an op reads, as the layer has it: PReLU hands on a view."""
        columns, names = self.graph.columns, self.graph.tables.names
        named, values = self.called(node)
        if "weight" in values:
            value = values["weight"]
            while columns["value_view_of"][value] >= 0 and columns["value_role"][value] == _PARAMETER:
                value = int(columns["value_view_of"][value])
            return self._shape(value)
        read = columns["input_value"][columns["input_ptr"][node] : columns["input_ptr"][node + 1]].tolist()
        for value in read if not named else ():  # a file need not say how ops were called
            name = columns["value_parameter"][value]
            if columns["value_role"][value] == _PARAMETER and name >= 0 and names[name].endswith("weight"):
                return self._shape(value)
        return ()

    def _features(self, node: int, operation: str, of_layer: bool) -> str:
        """The last sizes of what a product with a weight takes and makes: one of two activations is no layer, and those
        of backward sum over the batch. In backward, too, a layer is written with its sizes in forward."""
        first, second = self._operands(node, operation)
        if min(first, second) < 0 or not self._is_weight(second):
            # A vector is the second of mv; and a weight times what it turns has the features in its rows.
            return ""
        taken, made = self._shape(first), next(iter(self._shapes("output", node)), ())
        if not taken or not made:
            return ""
        turned = of_layer and self.graph.columns["node_phase"][node] == _BACKWARD
        return f"{made[-1]}→{taken[-1]}" if turned else f"{taken[-1]}→{made[-1]}"

    def _operands(self, node: int, operation: str) -> tuple[int, int]:
        """The values that a product multiplies, the features first; -1 where one is unknown."""
        if operation not in _PRODUCTS:
            return -1, -1
        named, values = self.called(node)
        if named:
            first, second = _PRODUCTS[operation]
            return values.get(first, -1), values.get(second, -1)
        columns = self.graph.columns  # a file need not say how ops were called
        read = columns["input_value"][columns["input_ptr"][node] : columns["input_ptr"][node + 1]].tolist()
        matrices = [value for value in read if value >= 0 and len(self._shape(value)) >= 2]
        return (matrices[0], matrices[1]) if len(matrices) == 2 else (-1, -1)

    def _is_weight(self, value: int, steps: int = _STEPS) -> bool:
        """Whether a value is a parameter, or what else a program has rather than gets, or was made of such in a few
        steps."""
        known = self._weights.get((value, steps))
        if known is None:
            columns = self.graph.columns
            node = columns["value_producer"][value]
            known = int(columns["value_role"][value]) in _OWN
            if not known and node >= 0 and steps:
                read = columns["input_value"][columns["input_ptr"][node] : columns["input_ptr"][node + 1]].tolist()
                known = bool(read) and all(other < 0 or self._is_weight(other, steps - 1) for other in read)
            self._weights[value, steps] = known
        return known

    def called(self, node: int) -> tuple[dict[str, Any], dict[str, int]]:
        """What an op was called with, by the names of its schema, and the values that the tensors among it are; nothing
        where the graph does not hold it."""
        columns, tables = self.graph.columns, self.graph.tables
        operation, row = int(columns["node_operation"][node]), int(columns["node_arguments"][node])
        if row < 0:
            return {}, {}
        named = self._named.get((operation, row))
        if named is None:  # many ops are called alike
            named = arguments_by_name(tables.operations[operation], decode(tables.arguments[row]))
            self._named[operation, row] = named
        values = columns["input_value"][columns["input_ptr"][node] : columns["input_ptr"][node + 1]].tolist()
        return named, {
            name: values[reference.index]
            for name, reference in named.items()
            if isinstance(reference, TensorRef) and 0 <= reference.index < len(values)  # files may say anything
        }

    def _shapes(self, side: str, node: int) -> list[Shape]:
        """The shapes of the tensors that an op takes ("input") or makes ("output")."""
        columns = self.graph.columns
        values = columns[f"{side}_value"][columns[f"{side}_ptr"][node] : columns[f"{side}_ptr"][node + 1]]
        return [self._shape(value) for value in values.tolist() if value >= 0]

    def _shape(self, value: int) -> Shape:
        shape: Shape = self.graph.tables.layouts[self.graph.columns["value_layout"][value]].shape
        return shape

    def _name_of(self, node: int) -> str:
        name: str = self.graph.tables.operations[self.graph.columns["node_operation"][node]].name
        return name


def _with_details(said: str, spatial: int, into: int | str, stride: Any, dilation: Any, groups: Any) -> Wordings:
    """Channels and kernel of a convolution, and its unusual settings, in long and short words."""
    long = short = said
    if step := _other_than_one(stride):
        # As in tables of papers; but 3/2 would be a fraction.
        long, short = (long + f", stride {step}", short + f", s{step}") if spatial == 1 else (f"{said}/{step}",) * 2
    if apart := _other_than_one(dilation):  # never in words: such convolutions lie side by side, and leave no room
        long, short = f"{long}, d{apart}", f"{short}, d{apart}"
    if isinstance(groups, int) and groups > 1:
        one_each = groups == into
        long += ", depthwise" if one_each else f", groups {groups}"
        short += ", dw" if one_each else f", g{groups}"
    return (long, short) if long != short else (long,)


def _other_than_one(sizes: Any) -> str:
    """A size for every dimension, once if they are equal; empty if all are 1, or none are known."""
    each = [sizes] if isinstance(sizes, int) else sizes
    if not isinstance(each, (list, tuple)) or not all(isinstance(size, int) for size in each) or set(each) <= {1}:
        return ""
    return str(each[0]) if len(set(each)) == 1 else "×".join(map(str, each))


def _quotient(whole: int | str, part: int | str) -> int | None:
    """How many parts a whole has; None where that is unknown."""
    return whole // part if isinstance(whole, int) and isinstance(part, int) and part > 0 else None
