"""A model cut into stages that run in processes of their own, on torch.distributed.pipelining."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchatlas.pipeline.run import PipelineRun, run_pipeline

__all__ = ["PipelineRun", "run_pipeline"]


def __getattr__(name: str) -> Any:
    """Both bring torch, which takes seconds to import: a worker watches its parent before that."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torchatlas.pipeline import run

    return getattr(run, name)
