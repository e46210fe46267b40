"""A temporary directory of each run of the tests' own, removed when all have passed.

pytest's own lies below one directory for all runs of a user, which each run closes to others when it begins: a test
whose processes are other users' lost its files when another run began.
"""

from __future__ import annotations

import subprocess
import tempfile

import pytest

_PREFIX = "kit-"
"""Short: a socket's path has 107 bytes."""
_REMOVED = 120.0
_MADE = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """A worker has a part of its controller's."""
    if config.option.basetemp is None and not hasattr(config, "workerinput"):
        config.option.basetemp = tempfile.mkdtemp(prefix=_PREFIX)
        config.stash[_MADE] = config.option.basetemp


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    made = session.config.stash.get(_MADE, None)
    if made is None:
        return
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        # By a process: what a test has left mounted there can hang.
        subprocess.run(["rm", "-rf", "--one-file-system", made], timeout=_REMOVED, check=False)
    else:
        print(f"\nwhat the tests had written is in {made}")
