"""A torch program -> a Graph: by recording it while it runs, with real or fake tensors, or by reading an export."""

from torchatlas.capturing.capture import capture
from torchatlas.capturing.recording import Failure, Recording, recording

__all__ = ["Failure", "Recording", "capture", "recording"]
