"""What holds for all tests.

Property tests: the same examples on every machine, however busy it is. HPK_TEST_RANDOM=1 draws others at each run;
`make fuzz` does so at length.

The millions of objects that collecting the tests makes stay to the end: the garbage collector never looks at them. In a
forked child each look would also copy them, a second of processor time for every child.
"""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "tests",
    deadline=None,
    derandomize="HPK_TEST_RANDOM" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")

gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()
