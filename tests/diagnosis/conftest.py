"""The scripts are programs, not tests. Some tests watch with both recorders."""

import pytest
from native_build import built, native

__all__ = ["built", "native"]

collect_ignore = ["scripts"]


@pytest.fixture(params=["python", "native"])
def recorder(request: pytest.FixtureRequest) -> str:
    """The recorder that a visit uses: the one in C++ only where it is built."""
    if request.param == "native":
        request.getfixturevalue("native")
    return str(request.param)
