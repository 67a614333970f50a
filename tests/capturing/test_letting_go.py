"""Whoever records a distributed step may let go of model and process group in any order: nothing deadlocks.

letting_go.py says how it is provoked. Without capturing/collectives.py's `keep_group` each program with
DistributedDataParallel hangs within four rounds. For hundreds of rounds: TORCHATLAS_ROUNDS=100 pytest THIS_FILE.
"""

import os
import sys
from pathlib import Path

import children
import pytest

PROGRAM = Path(__file__).with_name("letting_go.py")
ROUNDS = int(os.environ.get("TORCHATLAS_ROUNDS", "3"))
LIMIT = 500 + 30.0 * ROUNDS  # what waits for an idle processor waits long on a busy one
# fmt: off
PROGRAMS = [
    "ddp", "modules_only", "backward_only", "born_and_gone_within", "captured", "recorded_backward", "debugged",
    "fsdp", "fsdp_of_old", "pipeline",
]
# fmt: on


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 60)
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="only Linux lets a thread wait until the processor is idle")
def test_no_round_hangs(tmp_path: Path) -> None:
    commands = [[sys.executable, str(PROGRAM), str(tmp_path), str(rank), str(ROUNDS), *PROGRAMS] for rank in (0, 1)]
    for printed in children.run(*commands, limit=LIMIT):
        assert printed.out.splitlines() == [f"{name}: {ROUNDS} rounds" for name in PROGRAMS]
