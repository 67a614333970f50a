"""vanishing, exploding: gradients shrink or grow by orders of magnitude on their way back through the layers.

Only what lies on one path through the graph of autograd is compared, one layer behind the other: parallel branches, and
weights against biases, may well differ. Layers are alike if their nodes are of one type.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from torchatlas.autograd.graph_walk import leaf_of
from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.events import Diagnosis, Doublings, diagnosis
from torchatlas.diagnosis.findings import Severity
from torchatlas.diagnosis.loss_graph import LossGraph, short
from torchatlas.diagnosis.numeric_checks import has_numbers, rms

_FACTOR = 1e6
_FEWEST_LAYERS = 6
_FEWEST_REPEATS = 8
_MOST_NODES = 1_000  # stop adding kinds of nodes once this many are watched
_MOST_AT_ONCE = 0.5  # of the change, in orders of magnitude: more between two neighbours is a gate or a scale
_EACH_LAYER = "each layer multiplies them by its own factor"
_AGAINST_VANISHING = (
    "use residual connections, normalisation, an initialisation that fits the activation, or ReLU or GELU instead of "
    "sigmoid or tanh"
)
_AGAINST_EXPLODING = "use an initialisation that fits the activation, normalisation, residual connections, or clipping"


@diagnosis
class VanishingExploding(Diagnosis):
    keys = ("vanishing", "exploding")

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._passes = Doublings()
        self._suspected = Doublings()  # passes: the paths of few are looked at
        self._looks = False  # at the pass that runs

    def before_backward(self, backward: BackwardPass) -> None:
        self._weights: dict[int, float] = {}  # by the node of the leaf: the size of its gradient
        self._repeated: dict[tuple[str, tuple[int, ...]], dict[int, float]] = {}
        self._looks = self._passes.count(backward.line)

    def nodes_wanted(self, backward: BackwardPass) -> Iterable[int]:
        """The weights, and kinds of nodes that repeat. Every node costs time: so not in each pass."""
        if not self._looks:
            return ()
        nodes = [number for number, leaf in backward.leaves.items() if leaf.dim() >= 2]
        for alike in backward.kinds.values():  # those of one loop are as many
            if len(alike) >= _FEWEST_REPEATS and len(nodes) < _MOST_NODES:
                nodes += [number for number in alike if number not in backward.leaves]
        return nodes

    def node_runs(self, backward: BackwardPass, node: int, gradients: Any) -> None:
        gradient = next((grad for grad in gradients if grad is not None), None)
        if gradient is None or not has_numbers(gradient) or not gradient.numel():
            return
        if node in backward.leaves:
            self._weights[node] = rms(gradient)
        else:
            kind = short(backward.nodes[node]), tuple(gradient.shape)
            self._repeated.setdefault(kind, {})[node] = rms(gradient)

    def after_backward(self, backward: BackwardPass, error: BaseException | None) -> None:
        weights = _known(self._weights)
        repeated = {kind: _known(sizes) for kind, sizes in self._repeated.items()}
        wide = [kind for kind, sizes in repeated.items() if _differ(sizes, _FEWEST_REPEATS)]
        if not _differ(weights, _FEWEST_LAYERS) and not wide:
            return
        if not self._suspected.count(backward.line):
            return
        paths = Paths(backward)
        layers = paths.layers(weights)
        for kind in dict.fromkeys(type(backward.nodes[layer]) for layer in layers):
            alike = {layer: weights[leaf] for layer, leaf in layers.items() if type(backward.nodes[layer]) is kind}
            chain = paths.longest(alike) if _differ(alike, _FEWEST_LAYERS) else []
            if len(chain) >= _FEWEST_LAYERS and (ends := _ends([alike[layer] for layer in chain])) is not None:
                first, last = (leaf_of(backward.nodes[layers[layer]]) for layer in (chain[-1], chain[0]))
                self._report_layers(backward, first, last, *ends)
                return
        for name, shape in wide:
            sizes = repeated[name, shape]
            steps = [sizes[node] for node in paths.longest(sizes)]
            if len(steps) >= _FEWEST_REPEATS and (ends := _ends(steps)) is not None and ends[0] > ends[1]:
                self._report_repeats(backward, name, steps, layers=len(weights))
                return

    def _report_layers(self, backward: BackwardPass, first: Any, last: Any, early: float, late: float) -> None:
        key, verb = ("vanishing", "vanish") if early < late else ("exploding", "explode")
        self.report(
            key,
            f"gradients {verb}: {late:.1e} at {self.history.name(last)}, "
            f"{early:.1e} at {self.history.name(first)} (root mean square)",
            backward.lines,
            _EACH_LAYER,
            _AGAINST_VANISHING if key == "vanishing" else _AGAINST_EXPLODING,
            severity=Severity.WARNING,
        )

    def _report_repeats(self, backward: BackwardPass, name: str, sizes: list[float], layers: int) -> None:
        recurrent = 2 * layers < len(sizes)  # else every run may have weights of its own
        self.report(
            "exploding",
            f"gradients explode: from {sizes[0]:.1e} to {max(sizes):.1e} over {len(sizes)} runs of {name}",
            backward.lines,
            "the same step is applied again and again, and each time it multiplies them" if recurrent else _EACH_LAYER,
            "clip gradients, shorten the recurrence (detach), or use gates, normalisation or orthogonal weights"
            if recurrent
            else _AGAINST_EXPLODING,
            severity=Severity.WARNING,
        )


class Paths:
    """Which nodes of a pass lie behind which, seen from the loss."""

    def __init__(self, graph: LossGraph) -> None:
        self._targets, self._sources = graph.targets, graph.sources
        self._inputs = [len(node.next_functions) for node in graph.nodes]  # with those that lead nowhere: data

    def layers(self, leaves: Mapping[int, Any]) -> dict[int, int]:
        """The node that uses each of some leaves -> the leaf. A leaf that is used several times has no single node."""
        layers: dict[int, int] = {}
        for leaf in leaves:
            node = leaf
            while len(self._sources[node]) == 1 and (node == leaf or self._inputs[node] == 1):
                node = self._sources[node][0]
            if node != leaf and self._inputs[node] > 1:
                layers.setdefault(node, leaf)
        return layers

    def longest(self, sites: Mapping[int, Any]) -> list[int]:
        """The nodes of `sites` on the path, beginning at the loss, that has most of them."""
        waiting = list(map(len, self._sources))
        ready = [node for node, count in enumerate(waiting) if not count]
        best: dict[int, tuple[int, int]] = {}  # how many sites a path to a node has, and the last of them
        before: dict[int, int] = {}
        while ready:
            node = ready.pop()
            count, last = best.get(node, (0, -1))
            if node in sites:
                before[node], count, last = last, count + 1, node
                best[node] = count, last
            for target in self._targets[node]:
                if count > best.get(target, (0, -1))[0]:
                    best[target] = count, last
                waiting[target] -= 1
                if not waiting[target]:
                    ready.append(target)
        chain = []
        _, node = max(best.values(), default=(0, -1))
        while node >= 0:
            chain.append(node)
            node = before[node]
        return chain[::-1]


def _known(sizes: Mapping[int, float]) -> dict[int, float]:
    return {node: size for node, size in sizes.items() if size > 0 and math.isfinite(size)}


def _differ(sizes: Mapping[int, float], fewest: int) -> bool:
    return len(sizes) >= fewest and max(sizes.values()) >= _FACTOR * min(sizes.values())


def _ends(sizes: list[float]) -> tuple[float, float] | None:
    """The sizes near the input and near the loss, if they differ much and did not change at one place alone."""
    quarter = max(len(sizes) // 4, 1)
    late, early = statistics.median(sizes[:quarter]), statistics.median(sizes[-quarter:])
    change = math.log(early / late)
    steps = [math.log(after / before) for before, after in pairwise(sizes)]
    largest = max(step if change > 0 else -step for step in steps)
    return (early, late) if abs(change) >= math.log(_FACTOR) and largest <= _MOST_AT_ONCE * abs(change) else None
