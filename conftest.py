"""What holds for all tests.

Property tests: the same examples on every machine, however busy it is. HPK_TEST_RANDOM=1 draws others at each run;
`make fuzz` does so at length. `make test` draws a fifth of them (tests/support/examples.py).

The millions of objects that collecting the tests makes stay to the end: the garbage collector never looks at them. In a
forked child each look would also copy them, a second of processor time for every child: so a child's collector looks at
none that it has inherited.

One thread computes for torch in each process: of several, those that have nothing to do spin while they wait for one
that got no processor, and beside other parts of the suite a small training took four times the processor time.

Where SIGINT is ignored by inheritance (`make test &` in a script, a runner of CI) the tests hear it all the same, and
so do the programs that they start. tests/unit/test_interrupts.py starts programs that inherit it.
"""

from __future__ import annotations

import gc
import os
import signal
from typing import Iterator

import pytest
from hypothesis import HealthCheck, settings

from hyperpod_kit import ending
from tests.support import capabilities, deadlines, memory, own_temporary, processor_time, warm_agents, warm_models
from tests.support.examples import ALL, GATE, SHARE

settings.register_profile(
    "tests",
    deadline=None,
    derandomize="HPK_TEST_RANDOM" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=ALL,
)
settings.register_profile(GATE, settings.get_profile("tests"), max_examples=SHARE)
settings.load_profile("tests")

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported, by these processes and those they start
gc.disable()
os.register_at_fork(after_in_child=gc.freeze)

ending.restore_sigint_if_ignored()
memory.forget()

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
"""Not SIGCHLD: the first DataLoader with workers of a process takes it for good."""


@pytest.fixture(autouse=True)
def who_hears_signals() -> Iterator[None]:
    """A handler that a test or its subject leaves behind is the fault of that test, not of the next ones."""
    before = [signal.getsignal(number) for number in _SIGNALS]
    yield
    after = [signal.getsignal(number) for number in _SIGNALS]
    if after != before:
        for number, handler in zip(_SIGNALS, before):
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    assert after == before, "a signal is heard by another handler than before the test"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(own_temporary)  # before pytest makes its own
    config.pluginmanager.register(capabilities)
    config.pluginmanager.register(deadlines)
    config.pluginmanager.register(warm_agents)
    config.pluginmanager.register(warm_models)
    path = os.environ.get(processor_time.VARIABLE)
    if path:
        config.pluginmanager.register(processor_time.ProcessorTime(path))


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()
