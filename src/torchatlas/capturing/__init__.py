"""A torch program -> a Graph: by watching it run (run.py), with real or fake tensors."""

from torchatlas.capturing.run import Failure, Recording, capture, recording

__all__ = ["Failure", "Recording", "capture", "recording"]
