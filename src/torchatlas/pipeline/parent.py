"""A worker does not outlive the process that started the pipeline, and nothing of it outlives the workers."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

HAS_PARENT = "TORCHATLAS_PIPELINE_HAS_PARENT"  # stdin is a pipe that ends with whoever started us


def end_with_parent(folder: Path) -> None:
    """From now on. Workers that torchrun starts have its stdin, and so the same pipe."""
    if os.environ.get(HAS_PARENT):
        threading.Thread(target=_wait, args=(folder,), daemon=True).start()


def _wait(folder: Path) -> None:
    while os.read(0, 1):  # not through sys.stdin, whose lock Python wants when it ends
        pass
    shutil.rmtree(folder, ignore_errors=True)  # all of them try: the last one finds nothing that another still writes
    os._exit(1)
