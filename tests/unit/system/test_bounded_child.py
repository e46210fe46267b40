"""A call in a child with a deadline: real mounts that hang, a child in uninterruptible sleep among them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import List

import pytest

from hyperpod_kit.errors import NodeError
from hyperpod_kit.system import bounded_child
from hyperpod_kit.system.bounded_child import NoResponse, call_in_child
from tests.support.serving_fuse import serving_mount, silence
from tests.support.silent_fuse import silent_mount
from tests.support.wait import Deadline, until


def test_what_it_returns_comes_and_what_it_changes_does_not() -> None:
    seen: List[int] = []
    assert call_in_child("x", lambda: [seen.append(1), {"a": seen}], 30) == [None, {"a": [1]}] and seen == []
    assert call_in_child("x", lambda: "y" * (1 << 20), 30) == "y" * (1 << 20), "more than a pipe holds"


def test_an_error_begins_with_what_was_done(tmp_path: Path) -> None:
    def refuse() -> None:
        raise NodeError("it is full", hint="df")

    cases = {
        "it is full": refuse,
        f"{tmp_path}/none: No such file or directory": lambda: os.stat(tmp_path / "none"),
        "ZeroDivisionError: ": lambda: 1 // 0,
    }
    for text, function in cases.items():
        with pytest.raises(NodeError, match=f"^the state: {text}") as caught:
            call_in_child("the state", function, 30)
        assert not isinstance(caught.value, NoResponse)


def test_a_child_that_stands_still_is_killed_in_time() -> None:
    deadline = Deadline(20)
    with pytest.raises(NoResponse, match=r"^the lease: no answer within 0\.2 s$"):
        call_in_child("the lease", lambda: os.kill(os.getpid(), signal.SIGSTOP), 0.2)
    assert not deadline.has_passed()
    until(lambda: all(map(bounded_child._reap, bounded_child._unreaped)), what="end of the child that was killed")


def test_a_lock_of_another_thread_is_no_answer() -> None:
    lock = threading.Lock()
    with lock, pytest.raises(NoResponse):
        call_in_child("x", lock.acquire, 0.2)


def test_the_child_has_no_descriptor_of_ours(tmp_path: Path) -> None:
    """One that the kernel holds would keep a lock, and whoever reads our output would wait for its end."""

    def descriptors() -> List[str]:
        names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return sorted(os.readlink(name) for name in names if os.path.exists(name) or os.path.islink(name))

    with open(tmp_path / "lock", "w"):
        held = call_in_child("x", descriptors, 30)
    assert {name.partition(":")[0] for name in held} <= {"/dev/null", "pipe"} and len(set(held)) == 2, held


def test_a_caller_without_standard_streams_gets_its_answer() -> None:
    program = (
        "import os; os.closerange(0, 2)\n"
        "from hyperpod_kit.system.bounded_child import call_in_child\n"
        "os.write(2, str(call_in_child('x', lambda: 41 + 1, 30)).encode())"
    )
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"42")


@pytest.mark.needs("fuse")
def test_a_mount_that_hangs_costs_the_child(tmp_path: Path) -> None:
    with silent_mount(tmp_path / "mount"), pytest.raises(NoResponse):
        call_in_child("the mount", lambda: os.statvfs(tmp_path / "mount").f_bavail, 0.2)
    assert bounded_child._unreaped == []


@pytest.mark.needs("fuse")
def test_a_child_that_the_kernel_holds_is_left_behind_and_reaped_later(tmp_path: Path) -> None:
    path = tmp_path / "mount"

    def children_left_behind() -> List[int]:
        """Call once more: on a busy machine the child may be killed before it has asked the mount."""
        deadline = Deadline(20)
        with pytest.raises(NoResponse):
            call_in_child("the mount", lambda: os.listdir(path), 0.5)
        assert not deadline.has_passed()
        return bounded_child._unreaped

    with serving_mount(path) as daemon:
        silence(daemon)
        (pid,) = until(children_left_behind, what="child that the kernel holds")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "D", "it ignores SIGKILL"
        assert call_in_child("another", lambda: 1, 30) == 1, "the next call waits for nobody"
        assert bounded_child._unreaped == [pid]
    until(lambda: call_in_child("another", lambda: 1, 30) and bounded_child._unreaped == [], what="its end")
    assert not os.path.exists(f"/proc/{pid}")
