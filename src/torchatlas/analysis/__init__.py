"""Questions to a Graph, answered from its columns alone: a loaded file will do, and torch is not needed."""

from torchatlas.analysis.critical_path import CriticalPath, critical_path, levels, longest_path, widest_level

__all__ = ["CriticalPath", "critical_path", "levels", "longest_path", "widest_level"]
