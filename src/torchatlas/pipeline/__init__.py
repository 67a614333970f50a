"""A model cut into stages that run in processes of their own, on torch.distributed.pipelining."""

from torchatlas.pipeline.run import PipelineRun, run_pipeline

__all__ = ["PipelineRun", "run_pipeline"]
