"""A model cut into stages that run in processes of their own, on torch.distributed.pipelining.

The names bring torch, which takes seconds to import: they are imported when asked for, since a worker watches its
parent before that.
"""

from typing import TYPE_CHECKING

from torchatlas.lazy import lazy_names

__all__ = ["PipelineRun", "run_pipeline"]

if TYPE_CHECKING:
    from torchatlas.pipeline.pipeline_run import PipelineRun, run_pipeline
else:
    __getattr__, __dir__ = lazy_names(__name__, {"pipeline.pipeline_run": "PipelineRun run_pipeline"})
