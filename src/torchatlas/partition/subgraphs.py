"""Groups of units -> the subgraphs of a report: what they cost, how they divide, what bounds them, why they end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchatlas.analysis.roofline import BOUNDS, Bound, bounds
from torchatlas.graph import OperationType
from torchatlas.graph.columns import Array
from torchatlas.partition.fusion import Fusion
from torchatlas.partition.report import Parallelism, Reason, Subgraph
from torchatlas.partition.traffic import Ledger, Traffic
from torchatlas.partition.unit_graph import Units


class Describer:
    """Describes groups as subgraphs, one at a time."""

    def __init__(
        self,
        units: Units,
        ledger: Ledger,
        groups: list[list[int]],
        moved: Traffic,
        fusion: Fusion | None,
        reasons: dict[tuple[int, int], str],
        names: dict[int, str],
        glue: list[bool] | None,
    ) -> None:
        self.units, self.ledger, self.groups, self.moved, self.fusion = units, ledger, groups, moved, fusion
        self.reasons, self.names, self.glue = reasons, names, glue  # why two groups are not one; names by first unit
        digits = len(str(max(len(groups) - 1, 0)))
        self.ids = [f"s{number:0{digits}}" for number in range(len(groups))]
        self.of_unit = {unit: number for number, group in enumerate(groups) for unit in group}
        self.types = [op.type for op in units.graph.tables.operations]
        self.users: dict[int, list[int]] = {}  # per group those that read what it makes
        for source, target in moved.crossing:
            self.users.setdefault(source, []).append(target)
        self.depends_on = [sorted(set(self._before(number, group))) for number, group in enumerate(groups)]
        self.waited_for = {earlier for before in self.depends_on for earlier in before}

    def subgraphs(self) -> list[Subgraph]:
        return [self._subgraph(number, group) for number, group in enumerate(self.groups)]

    def _subgraph(self, number: int, group: list[int]) -> Subgraph:
        ledger, counts = self.ledger, self.ledger.counts
        ops = np.array(sorted(op for unit in group for op in self.units.ops[unit]), np.int64)
        known = ops[ledger.is_known[ops]]
        macs, other = int(counts.macs[known].sum()), int(counts.elementwise_flops[known].sum())
        unfused, working = int(ledger.bytes[ops].sum()), ops[~ledger.is_idle[ops]]
        fused = self.fusion is not None and self._is_one_kernel(group)
        bytes_ = unfused - (int(self.moved.saved[number]) if fused else 0)
        kernels = min(len(working), 1) if fused else len(working)
        main, work = self._main(group, ops), 2 * macs + other
        times = self.units.graph.columns["node_time_ns"][ops]
        bound, seconds = self._time(working, bytes_, kernels, fused)
        return Subgraph(
            node_id=self.ids[number],
            node_name=self.names.get(group[0], "") or self.units.names[main[0]],
            operation_type=OperationType.VIEW if main[1] is None else self._type(main[1]),
            pattern=self._pattern(working),
            nodes=tuple(self.units.names[unit] for unit in group),
            ops=tuple(ops.tolist()),
            flops=2 * macs,
            macs=macs,
            elementwise_flops=other,
            uncosted=len(ops) - len(known),
            depends_on=tuple(self.ids[earlier] for earlier in self.depends_on[number]),
            total_input_bytes=int(self.moved.inputs[number]),
            total_output_bytes=int(self.moved.outputs[number]),
            total_weight_bytes=int(self.moved.weights[number]),
            saved_for_backward_bytes=int(self.moved.for_backward[number]),
            traffic_bytes=bytes_,
            unfused_bytes=unfused,
            kernels=kernels,
            arithmetic_intensity=work / bytes_ if bytes_ else None,
            parallelism=None if main[1] is None else self._parallelism(main[1]),
            recommended_bottleneck=bound,
            seconds=seconds,
            time_ns=int(times.sum()) if len(times) and (times >= 0).all() else None,
            partition_reason=Reason(self._reason(number)),
            is_glue=False if self.glue is None else self.glue[number],
        )

    def _is_one_kernel(self, group: list[int]) -> bool:
        """Whether one kernel can compute a group: not if a node of torch.fx in it runs several kernels."""
        assert self.fusion is not None
        return not any(self.fusion.kernels[unit].why.startswith("runs ") for unit in group)

    def _before(self, number: int, group: list[int]) -> Iterator[int]:
        for unit in group:
            for before in self.units.before[unit]:
                if self.of_unit[before] != number:
                    yield self.of_unit[before]

    def _main(self, group: list[int], ops: Array) -> tuple[int, int | None]:
        """The unit and the operation that do most: by multiply-adds, then other arithmetic, then bytes."""
        if not len(ops):
            return group[0], None
        ledger = self.ledger
        weight = [
            (int(ledger.counts.macs[op]), int(ledger.work[op]), int(ledger.bytes[op]), -op) for op in ops.tolist()
        ]
        main = -max(weight)[-1]
        return int(self.units.of_op[main]), main

    def _type(self, op: int) -> OperationType:
        return self.types[int(self.units.graph.columns["node_operation"][op])]

    def _pattern(self, working: Array) -> str:
        """The kinds of operation in order, repetitions left out."""
        kinds: list[str] = []
        for op in working.tolist():
            kind = str(self._type(op)) if self.ledger.is_known[op] else "unknown"
            if not kinds or kinds[-1] != kind:
                kinds.append(kind)
        return "+".join(kinds[:6]) + ("+..." if len(kinds) > 6 else "") or "view"

    def _time(self, working: Array, bytes_: int, kernels: int, fused: bool) -> tuple[Bound, float]:
        """What limits it, by the rule of analysis.roofline, and its time at best."""
        device, ledger = self.ledger.device, self.ledger
        compute = float(ledger.compute_s[working].sum())
        overhead = device.overhead_s * max(kernels, 1)
        remote = [self._type(op) is OperationType.COMMUNICATION for op in working.tolist()]
        memory = bytes_ / (device.link if any(remote) else device.bandwidth)
        longer = max(compute, memory)
        seconds = max(longer, overhead) if kernels else 0.0
        if not fused:
            seconds = float(np.nan_to_num(ledger.best.seconds[working]).sum())
        return BOUNDS[int(bounds(compute, memory, overhead))], seconds

    def _parallelism(self, op: int) -> Parallelism | None:
        node = self.units.graph.nodes[op]
        made = self.units.graph.index.outputs(op)
        made = made[made >= 0]
        if not len(made):
            return None
        layout = int(self.units.graph.columns["value_layout"][int(made[0])])
        shape, stride = self.ledger.operands[layout].shape, self.units.graph.tables.layouts[layout].stride
        batch, channels, spatial = _axes(shape, self._type(op))
        side = next((dim for dim, step in enumerate(stride or ()) if step == 1 and shape[dim] > 1), None)
        threads = int(self.ledger.counts.parallelism[op])
        groups, taken = 1, 0
        if self._type(op) is OperationType.CONVOLUTION:
            named = node.attributes.get("groups"), node.attributes.get("in_channels")
            groups, taken = (item if isinstance(item, int) else 0 for item in named)
        return Parallelism(
            operation_type=self._type(op),
            batch=batch,
            channels=channels,
            spatial=spatial,
            total_threads=threads if threads >= 0 else int(np.prod(shape, dtype=np.int64)),
            is_depthwise=groups > 1 and groups == taken,
            is_grouped=groups > 1,
            num_groups=max(groups, 1),
            vectorizable_dimension=side,
            vectorizable_size=1 if side is None else shape[side],
        )

    def _reason(self, number: int) -> str:
        if self.fusion is None:
            return "a group of its own, as the strategy says"
        users = sorted(self.users.get(number, ()))
        if not users:
            waited_for = number in self.waited_for
            return "what follows waits for it and reads nothing of it" if waited_for else "nothing follows it"
        by_reason: dict[str, list[str]] = {}
        for user in users:
            by_reason.setdefault(self.reasons[number, user], []).append(self.ids[user])
        return "; ".join(f"ends before {', '.join(ids)}: {why}" for why, ids in by_reason.items())


def _axes(shape: tuple[int, ...], kind: OperationType) -> tuple[int, int, int]:
    """Batch, channels and positions of a result. Pictures have channels second, sequences and rows have them last."""
    if not shape:
        return 1, 1, 1
    if len(shape) == 1:
        return 1, shape[0], 1
    second = kind is OperationType.CONVOLUTION or (len(shape) >= 4 and kind is not OperationType.MATMUL)
    rest = shape[2:] if second else shape[1:-1]
    return shape[0], shape[1] if second else shape[-1], int(np.prod(rest, dtype=np.int64))
