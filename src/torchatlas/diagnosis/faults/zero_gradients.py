"""zero-gradients: gradients are exactly zero at every step: dead units, saturated ones, and layers of zeros."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchatlas.autograd.graph_walk import leaf_of, sequence_nr
from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.data_flow import reachable
from torchatlas.diagnosis.events import Diagnosis, Doublings, diagnosis
from torchatlas.diagnosis.findings import Where, at, some
from torchatlas.diagnosis.leaf_tensors import Leaf
from torchatlas.diagnosis.loss_graph import short
from torchatlas.diagnosis.numeric_checks import has_numbers, is_zero, largest

_FEWEST_STEPS = 5
_UNDERFLOW = 1e-25  # gradients of at most this size may become zero by being multiplied
_ACTIVATION = re.compile(r"(Relu|Threshold|Hardtanh|Hardswish|Hardsigmoid|Sigmoid|Tanh|Gelu|Silu|Elu)Backward\d")
_RELU = ("Relu", "Threshold", "Hardtanh")
_PRODUCT = re.compile(r"(Addmm|Mm|Addmv|Mv|Bmm|Baddbmm|Dot|Mul|Convolution|MkldnnConvolution)Backward\d")
_SAME_NUMBERS = re.compile(  # or some of them
    r"(T|Transpose|Permute|View|UnsafeView|ReshapeAlias|Expand|Unsqueeze|Squeeze|ToCopy|Embedding|Index|IndexSelect|"
    r"Select|Slice)Backward\d"
)
_MOST_BETWEEN = 50  # nodes from an activation to the layer before it or after it


@dataclass(frozen=True)
class ZeroCause:
    """A node of backward that got a gradient and passed only zeros on, and why."""

    why: str  # "dead", "saturated" or "zeros"
    number: int  # autograd's
    name: str
    layer: str  # that is dead, or all zeros
    units: int


@dataclass(eq=False)
class _Suspect:
    """A leaf that has got nothing but zeros so far."""

    reference: weakref.ref[torch.Tensor]
    steps: int = 0
    stop: ZeroCause | None = None  # the latest
    unexplained: bool = False  # at some time


@diagnosis
class ZeroGradients(Diagnosis):
    """Watches each leaf until a gradient is not zero; and every node on the way to leaves that have had only zeros.

    Reported only with a reason that stays: an activation with a derivative of zero in front of a layer that learns, or
    a layer of zeros that itself gets none. Masks, gates, unused experts and satisfied margins are no such reasons.
    """

    keys = ("zero-gradients",)
    needs_the_end = keys

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._alive: dict[int, weakref.ref[torch.Tensor]] = {}  # by id
        self._suspects: dict[Leaf, _Suspect] = {}
        self._passes = Doublings()
        self._since = Doublings()  # passes with suspects
        self._leaves: dict[int, torch.Tensor] = {}  # of the pass that runs: not known to be alive, by node
        self._sizes: dict[int, float] = {}  # the largest gradient that came to each node of it
        self._whole = False  # whether every node is looked at

    def before_backward(self, backward: BackwardPass) -> None:
        self._leaves, self._sizes, self._whole = {}, {}, False
        if not backward.accumulates:
            return
        looks = self._passes.count(backward.line)
        if self._suspects or looks:
            leaves = backward.leaves.items()
            self._leaves = {number: leaf for number, leaf in leaves if not self._is_alive(leaf)}
            self._whole = bool(self._suspects and self._leaves) and self._since.count(backward.line)

    def _is_alive(self, leaf: torch.Tensor) -> bool:
        known = self._alive.get(id(leaf))
        return known is not None and known() is leaf

    def nodes_wanted(self, backward: BackwardPass) -> Iterable[int]:
        return range(len(backward.nodes)) if self._whole else self._leaves

    def node_runs(self, backward: BackwardPass, node: int, gradients: Any) -> None:
        self._sizes[node] = max((largest(each) for each in gradients if each is not None), default=0.0)

    def after_backward(self, backward: BackwardPass, error: BaseException | None) -> None:
        leaves, self._leaves = self._leaves, {}
        zero: dict[int, Leaf] = {}
        for number, tensor in leaves.items():
            if self._sizes.get(number):
                self._alive[id(tensor)] = weakref.ref(tensor)
                if self._suspects:
                    self._suspects.pop(self.history.leaf(tensor), None)
            elif number in self._sizes and error is None:
                zero[number] = leaf = self.history.leaf(tensor)
                self._suspects.setdefault(leaf, _Suspect(weakref.ref(tensor)))
        if self._whole and zero:
            self._explain(Explanation(backward, self._sizes, zero), zero)
        self._sizes = {}

    def _explain(self, explanation: Explanation, zero: dict[int, Leaf]) -> None:
        stops = explanation.stops()
        for number, leaf in zero.items():
            suspect = self._suspects[leaf]
            suspect.stop = stops.get(number)
            suspect.unexplained = suspect.unexplained or suspect.stop is None

    def before_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        for parameter in parameters if self._suspects else ():
            if not self._is_alive(parameter) and (suspect := self._suspects.get(self.history.leaf(parameter))):
                suspect.steps += 1

    def at_end(self, complete: bool) -> None:
        groups: dict[int, list[tuple[Leaf, _Suspect]]] = {}
        for leaf, suspect in self._suspects.items():
            certain = complete and not suspect.unexplained and not leaf.moved and suspect.steps >= _FEWEST_STEPS
            if certain and suspect.stop is not None:
                groups.setdefault(suspect.stop.number, []).append((leaf, suspect))
        for group in groups.values():
            self._report(group)

    def _report(self, group: list[tuple[Leaf, _Suspect]]) -> None:
        group = sorted(group, key=lambda each: each[0].number)
        stop, steps = group[0][1].stop, max(suspect.steps for _, suspect in group)
        assert stop is not None
        maker = self.history.maker_of(stop.number)
        where: list[Where] = [at("stopped by", maker)] if maker is not None else [Where(f"stopped by {stop.name}")]
        if maker is not None and (caller := self.history.caller_of(maker)) is not None:
            where.append(caller)
        names = some([leaf.name for leaf, _ in group])
        why, fix = _REASONS[stop.why]
        layer = f"layer {stop.layer}" if stop.layer.isdigit() else stop.layer
        units = f"all {stop.units:,} units of {layer} are" if stop.units > 1 else f"the only unit of {layer} is"
        self.report(
            "zero-gradients",
            f"the gradient of {names} was exactly 0 at each of {steps:,} steps",
            where,
            why.format(layer=layer, units=units),
            fix,
        )


_REASONS = {
    "dead": (
        "{units} dead: the activation after it gives 0 for every sample, and there its derivative is 0",
        "use a smaller learning rate or initialisation, no large negative bias, scaled inputs; or LeakyReLU or GELU",
    ),
    "saturated": (
        "{units} saturated: the derivative of the activation is 0 in floating point for every sample",
        "use scaled inputs, a smaller initialisation, or normalisation before the activation",
    ),
    "zeros": (
        "the weights of {layer} are all 0 and stay so: they pass no gradient on, and they are multiplied by 0 as well",
        "initialise weights at random; of two layers in a row only one may begin with zeros",
    ),
}


class Explanation:
    """Why some leaves got zeros in one pass, from the sizes of the gradients that came to all of its nodes."""

    def __init__(self, backward: BackwardPass, sizes: dict[int, float], zero: dict[int, Leaf]) -> None:
        self.nodes, self.sizes, self.zero, self.losses = backward.nodes, sizes, zero, backward.losses
        self._targets, self._sources = backward.targets, backward.sources

    def stops(self) -> dict[int, ZeroCause]:
        """The cause for each leaf, by its node; leaves that are missing have no cause that is known to stay."""
        causes: dict[int, ZeroCause] = {}
        at_node: dict[int, ZeroCause] = {}
        own: dict[int, set[int]] = {}  # leaves that are factors of the products that stop their gradients
        for leaf in self.zero:
            stopping = self._stopping(leaf)
            known = [(node, self._stop(node, target)) for node, target in stopping]
            if known and all(stop is not None for _, stop in known):
                at_node |= {node: stop for node, stop in known if stop is not None}
                causes[leaf] = next(stop for _, stop in known if stop is not None)
            elif all(self._factor(target) == leaf for _, target in stopping):
                own[leaf] = {node for node, _ in stopping}
        for leaf, products in own.items():  # the other factor is zero, perhaps for one of these causes
            stops = [self._before(product, leaf, at_node) for product in products]
            if stops and stops[0] is not None and all(stop == stops[0] for stop in stops):
                causes[leaf] = stops[0]
        return causes

    def _stopping(self, leaf: int) -> list[tuple[int, int]]:
        """The edges on the way to a leaf along which a node that got a gradient passed only zeros on."""
        edges, seen, waiting = [], {leaf}, [leaf]
        while waiting:
            target = waiting.pop()
            for source in self._sources[target]:
                if self.sizes.get(source):
                    edges.append((source, target))
                elif source not in seen:
                    seen.add(source)
                    waiting.append(source)
        return edges

    def _stop(self, node: int, target: int) -> ZeroCause | None:
        name = short(self.nodes[node])
        if self.sizes[node] <= _UNDERFLOW:
            return None
        if _ACTIVATION.fullmatch(name) and self._is_within(node):
            layer = self._layer(node)
            why = "dead" if name.startswith(_RELU) else "saturated"
            return None if layer is None else self._made(why, node, layer)
        if _PRODUCT.fullmatch(name):
            factors = [self._factor(each) for each in self._targets[node] if each != target]
            zeros = [each for each in factors if each in self.zero and is_zero(self._leaf(each))]
            return self._made("zeros", node, zeros[0]) if zeros and zeros[0] is not None else None
        return None

    def _made(self, why: str, node: int, layer: int) -> ZeroCause:
        name = self.zero[layer].name.rpartition(".")[0] or self.zero[layer].name
        return ZeroCause(why, sequence_nr(self.nodes[node]), short(self.nodes[node]), name, len(self._leaf(layer)))

    def _leaf(self, node: int) -> torch.Tensor:
        leaf = leaf_of(self.nodes[node])
        assert leaf is not None
        return leaf

    def _factor(self, node: int) -> int | None:
        """The leaf that a node hands on as it is, or transposed, reshaped, in part, or in another type."""
        while leaf_of(self.nodes[node]) is None:
            targets = self._targets[node]
            if len(targets) != 1 or not _SAME_NUMBERS.fullmatch(short(self.nodes[node])):
                return None
            node = targets[0]
        return node

    def _layer(self, activation: int) -> int | None:
        """The weight right before an activation, if it gets zeros."""
        near = [leaf for node in self._behind(activation) if (leaf := self._factor(node)) is not None]
        return next((leaf for leaf in near if leaf in self.zero and self._leaf(leaf).dim() >= 2), None)

    def _behind(self, node: int) -> Iterator[int]:
        """The nodes that a node's gradient goes to, the nearest first."""
        waiting = list(self._targets[node])
        seen = set(waiting)
        for each in waiting:
            yield each
            new = [target for target in self._targets[each] if target not in seen]
            seen.update(new)
            if len(waiting) < _MOST_BETWEEN:
                waiting += new

    def _before(self, product: int, leaf: int, at_node: dict[int, ZeroCause]) -> ZeroCause | None:
        """Why a leaf is multiplied by zero: the factor comes of a node that stops others, or the leaf is such zeros."""
        name = self.zero[leaf].name.rpartition(".")[0] or self.zero[leaf].name
        if product in at_node and at_node[product].layer == name:
            return at_node[product]
        inputs = [target for target in self._targets[product] if self._factor(target) is None]
        near = [node for each in inputs for node in (each, *self._behind(each)) if node in at_node]
        return at_node[near[0]] if near and at_node[near[0]].why != "zeros" else None

    def _is_within(self, activation: int) -> bool:
        """True if a layer comes after an activation, or if all gradients are zero though the loss is not.

        Else it may be part of the loss: a margin that is kept.
        """
        after = reachable([activation], self._sources.__getitem__) - {activation}
        if any(self._factor(target) is not None for node in after for target in self._targets[node]):
            return True
        moved = any(self.sizes.get(number) for number, node in enumerate(self.nodes) if leaf_of(node) is not None)
        return not moved and any(has_numbers(loss) and not is_zero(loss) for loss in self.losses)
