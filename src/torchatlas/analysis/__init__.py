"""Questions to a Graph, answered from its columns alone: a loaded file will do, and torch is not needed."""

from torchatlas.analysis.schedule import levels, longest_path

__all__ = ["levels", "longest_path"]
