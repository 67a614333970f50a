"""What the tests of capturing share."""

from __future__ import annotations

import pytest
from capturing.training import Watching, train
from zoo import ZOO


@pytest.fixture(scope="session")
def warm() -> None:
    """What torch imports and registers when it meets something for the first time is none of our doing."""
    for specimen in ZOO:
        train(specimen, lambda model: Watching())
