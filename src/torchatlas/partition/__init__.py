"""A computation -> pieces: what can be one kernel, what can run at once, where to cut it for several devices.

Planning works on graphs alone; only making runnable modules of the pieces needs torch.
"""

from torchatlas.partition.concurrency import ConcurrencyAnalyzer, ConcurrencyReport
from torchatlas.partition.partitioner import GraphPartitioner
from torchatlas.partition.report import Parallelism, PartitionReport, Subgraph
from torchatlas.partition.stages import PipelinePlan, Stage, pipeline_stages

__all__ = [
    "ConcurrencyAnalyzer",
    "ConcurrencyReport",
    "GraphPartitioner",
    "Parallelism",
    "PartitionReport",
    "PipelinePlan",
    "Stage",
    "Subgraph",
    "pipeline_stages",
]
