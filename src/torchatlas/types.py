"""The classes of what public functions return and of what it holds, for annotations and `isinstance`."""

from __future__ import annotations

from torchatlas.analysis.batch_peak import BatchPeak
from torchatlas.analysis.checkpoint_choice import CheckpointChoice, CheckpointedModule
from torchatlas.analysis.cost import Amount, CostReport, NodeCost
from torchatlas.analysis.devices import Device
from torchatlas.analysis.diff import Change, Comparison, Delta
from torchatlas.analysis.fail_on import Violation
from torchatlas.analysis.memory import LineMemory, MemoryReport, ModuleMemory, TensorMemory
from torchatlas.autograd.debug_session import Breakpoint
from torchatlas.autograd.debug_stop import Stop
from torchatlas.autograd.debugger import Debugger
from torchatlas.autograd.lifecycle import Lifecycle, NodeLife
from torchatlas.autograd.record_backward import BackwardRecording, BackwardRun
from torchatlas.capturing.recording import Failure, Recording
from torchatlas.checkpoint_plans import AppliedPlan, CheckpointCheck, CheckpointPlan
from torchatlas.compat.torchviz import Dot
from torchatlas.diagnosis.findings import Finding, Findings, Severity, Where
from torchatlas.diagnosis.visit import Visit
from torchatlas.execute.check_compatibility import Compatibility
from torchatlas.execute.compare_runs import NodeDifference, RunComparison
from torchatlas.execute.free_sizes import InputSize
from torchatlas.execute.node_values import NodeIO, NodeValues
from torchatlas.execute.verify_replay import Difference, Verification
from torchatlas.export.profile_join import ProfiledNode, ProfileJoin
from torchatlas.graph import Scope, SourceLine, Storage, Value
from torchatlas.graph.timing import Measured, Timing
from torchatlas.integrations.guard import Guard
from torchatlas.integrations.training_report import ModuleShare, TrainingReport
from torchatlas.integrations.training_watch import TrainingWatch
from torchatlas.partition.concurrency import ConcurrencyReport
from torchatlas.partition.report import Parallelism, PartitionReport, Subgraph
from torchatlas.partition.stages import PipelinePlan, Stage
from torchatlas.pipeline.pipeline_run import PipelineRun
from torchatlas.pipeline.schedules import Timeline
from torchatlas.render.bars import ModuleBars
from torchatlas.render.drawing import Drawing
from torchatlas.render.module_table import ModuleRow, ModuleTable
from torchatlas.render.picture import Picture
from torchatlas.runs.run import Run, RunStructure
from torchatlas.runs.run_recording import RunRecording
from torchatlas.runs.step_table import StepTable

__all__ = [
    "Amount",
    "AppliedPlan",
    "BackwardRecording",
    "BackwardRun",
    "BatchPeak",
    "Breakpoint",
    "Change",
    "CheckpointCheck",
    "CheckpointChoice",
    "CheckpointPlan",
    "CheckpointedModule",
    "Comparison",
    "Compatibility",
    "ConcurrencyReport",
    "CostReport",
    "Debugger",
    "Delta",
    "Device",
    "Difference",
    "Dot",
    "Drawing",
    "Failure",
    "Finding",
    "Findings",
    "Guard",
    "InputSize",
    "Lifecycle",
    "LineMemory",
    "Measured",
    "MemoryReport",
    "ModuleBars",
    "ModuleMemory",
    "ModuleRow",
    "ModuleShare",
    "ModuleTable",
    "NodeCost",
    "NodeDifference",
    "NodeIO",
    "NodeLife",
    "NodeValues",
    "Parallelism",
    "PartitionReport",
    "Picture",
    "PipelinePlan",
    "PipelineRun",
    "ProfileJoin",
    "ProfiledNode",
    "Recording",
    "Run",
    "RunComparison",
    "RunRecording",
    "RunStructure",
    "Scope",
    "Severity",
    "SourceLine",
    "Stage",
    "StepTable",
    "Stop",
    "Storage",
    "Subgraph",
    "TensorMemory",
    "Timeline",
    "Timing",
    "TrainingReport",
    "TrainingWatch",
    "Value",
    "Verification",
    "Violation",
    "Visit",
    "Where",
]
