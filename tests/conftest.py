"""Property tests: the same examples on every machine, however busy it is.

HPK_TEST_RANDOM=1 draws others at each run; `make fuzz` does so at length.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "tests",
    deadline=None,
    derandomize="HPK_TEST_RANDOM" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")
