"""Checkpoint agents of the tests' own managers, forked from a process that has imported what an agent imports.

That import is nine tenths of what an agent of a small test computes. Agents of the programs that tests start are
started by an interpreter, as a trainer's are, and so are those of a test with the fixture `agents_of_an_interpreter`.
"""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any, Dict, Sequence

import pytest

from tests.support import warm

_LINK = "hyperpod_kit.checkpoint.agent_client.agent_supervisor"
_IMPORTED = ("hyperpod_kit.checkpoint.agent.agent", "hyperpod_kit.descriptors", "traceback")
"""All that the agent's module imports, but not the module: it is what is run."""


def start(
    words: Sequence[str],
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    start_new_session: bool,
    cwd: str,
    env: Dict[str, str],
) -> warm.Forked:
    """As `subprocess.Popen`, as far as an agent is started with it."""
    assert words[0] == sys.executable
    return warm.Forked(
        words[1:], env, imported=_IMPORTED, descriptors=[stdout, stderr, stdin], cwd=cwd, session=start_new_session
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    fork_agents()


def fork_agents() -> None:
    """From now on, in this process, if it has imported what starts them."""
    link: Any = sys.modules.get(_LINK)
    if link is not None:
        link.subprocess = types.SimpleNamespace(Popen=start, TimeoutExpired=subprocess.TimeoutExpired)


@pytest.fixture
def agents_of_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that are started as users' are."""
    monkeypatch.setattr(f"{_LINK}.subprocess", subprocess)
