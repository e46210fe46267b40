"""A process is told from a later one of the same number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from hyperpod_kit.system import process
from hyperpod_kit.system.process import Process
from tests.support.wait import until


def test_a_number_that_is_used_again_is_another_process() -> None:
    own = process.this_process()
    assert own == process.identify_unless_gone_or_zombie(os.getpid()) and process.is_alive(own)
    assert not process.is_alive(Process(own.pid, own.started + 1)) and not process.is_alive(None)
    assert process.effective_uid(own.pid) == os.geteuid()


def test_a_zombie_and_nobody_are_none() -> None:
    child = subprocess.Popen(["sleep", "600"])
    known = process.identify_unless_gone_or_zombie(child.pid)
    assert known is not None and process.is_alive(known)
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process.identify_unless_gone_or_zombie(child.pid) is None and not process.is_alive(known)
    child.wait(10)
    assert process.identify_unless_gone_or_zombie(child.pid) is None and process.effective_uid(child.pid) is None


def test_a_name_with_spaces_and_brackets_is_read_over(tmp_path: object) -> None:
    program = "import time; open('/proc/self/comm', 'w').write(') R 1 (x'); print(flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"\n"
        found = process.identify_unless_gone_or_zombie(child.pid)
        assert found is not None and found.started >= process.this_process().started
    finally:
        child.kill()
        child.wait(10)


def test_a_child_that_is_armed_ends_with_its_parent() -> None:
    """The parent is killed at once: the child, which would sleep for ten minutes, holds the pipe no longer."""
    program = (
        "import os, subprocess, signal; from hyperpod_kit.system.process import make_parent_death_hook\n"
        "subprocess.Popen(['sleep', '600'], preexec_fn=make_parent_death_hook(os.getpid()))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None and parent.stdout.read() == b""
    assert parent.wait(10) == -signal.SIGKILL


def test_what_computes_is_told_from_what_waits() -> None:
    shell = subprocess.Popen(["/bin/sh", "-c", "( while :; do :; done ) & echo $!; wait"], stdout=subprocess.PIPE)
    assert shell.stdout is not None
    busy = int(shell.stdout.readline())
    try:
        until(lambda: process.is_runnable(shell.pid), what="a child on a processor")
        os.kill(busy, signal.SIGSTOP)
        until(lambda: not process.is_runnable(shell.pid), what="nothing that computes")
    finally:
        os.kill(busy, signal.SIGKILL)
        shell.wait(10)
    assert not process.is_runnable(shell.pid)


def test_what_gets_on_is_told_from_what_hangs() -> None:
    """Neither a child that computes nor one after another is idle; one that only sleeps is, from its start on."""
    for work, gets_on in (("while :; do :; done", True), ("while :; do sleep 0.05; done", True), ("sleep 60", False)):
        shell = subprocess.Popen(["/bin/sh", "-c", f"( {work} ) & echo $!; wait"], stdout=subprocess.PIPE)
        assert shell.stdout is not None
        child = int(shell.stdout.readline())
        idle = process.IdleTime(shell.pid)
        try:
            if gets_on:
                until(lambda idle=idle: idle.seconds() == 0.0, what="work")  # type: ignore[misc]
                until(lambda idle=idle: idle.seconds() == 0.0, what="more work")  # type: ignore[misc]
            else:
                until(lambda idle=idle: idle.seconds() > 0.5, what="a process that is idle")  # type: ignore[misc]
        finally:
            os.kill(child, signal.SIGKILL)
            shell.wait(10)
