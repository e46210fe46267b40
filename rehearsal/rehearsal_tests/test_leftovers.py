"""The search for what a rehearsal left behind: its own marks are found, whatever else runs on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Iterator, Set

import pytest
from leftovers import Marks, leftovers

from hyperpod_kit.environment import HPK_REHEARSAL_STATE
from hyperpod_rehearsal.records.layout import Layout

INSTANCE = "i-0123456789abcdef0"


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(HPK_REHEARSAL_STATE, str(tmp_path))
    return tmp_path


@contextmanager
def process(*arguments: str) -> Iterator[int]:
    """One that has these words in its command line."""
    child = subprocess.Popen([sys.executable, "-c", "input()", *arguments], stdin=subprocess.PIPE)
    try:
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def processes(lines: Set[str]) -> Set[int]:
    return {int(line.split()[1].rstrip(":")) for line in lines if line.startswith("process ")}


def test_what_carries_the_marks_of_a_rehearsal_is_found() -> None:
    layout = Layout.for_name("demo")
    with ExitStack() as stack:
        daemon = stack.enter_context(process("-m", "hyperpod_rehearsal.daemon", "--state", str(layout.root)))
        machine = stack.enter_context(process("systemd-nspawn", f"--machine={layout.machine_name(INSTANCE)}"))
        assert processes(leftovers("demo")) == {daemon, machine}
    assert leftovers("demo") == set()


def test_jobs_and_rehearsals_of_others_are_not_counted(base: Path) -> None:
    """A job at work on this host with its shared memory; a rehearsal whose name begins with this one's; the same name
    in another checkout."""
    segment = Path(f"/dev/shm/hpk-test-{os.getpid()}")
    other = Layout((base / "elsewhere" / "demo").absolute())
    with ExitStack() as stack:
        stack.callback(segment.unlink)
        segment.touch()
        job = stack.enter_context(process("-m", "hyperpod_kit.checkpoint.agent.agent_main"))
        longer = stack.enter_context(process("hyperpod_rehearsal.daemon", "--state", str(base / "demo-2")))
        same = stack.enter_context(process("systemd-nspawn", f"--machine={other.machine_name(INSTANCE)}"))
        assert leftovers("demo") == set()
        everything = leftovers()
        assert {job, longer, same} <= processes(everything)
        assert f"shared memory segment {segment.name}" in everything


def test_names_of_links_and_namespaces_tell_whose_they_are() -> None:
    layout, other_layout = Layout.for_name("demo"), Layout.for_name("other")
    own = {layout.veth(INSTANCE), layout.bridge, layout.netns(INSTANCE)}
    foreign = {other_layout.veth(INSTANCE), other_layout.bridge, other_layout.netns(INSTANCE)}
    names = own | foreign | {"hvc0", "eth0", "lo"}
    assert {name for name in names if Marks.of("demo").names.search(name)} == own
    assert {name for name in names if Marks.of_all().names.search(name)} == own | foreign
