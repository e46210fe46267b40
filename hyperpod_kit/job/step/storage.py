"""Check whether the checkpoint root and our records of it answer on this node, in such a way that a mount that hangs
does not block this process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from typing import Callable, List, Optional

from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import is_path, open_store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.job.base.report import JobReport
from hyperpod_kit.job.base.signals import Signals
from hyperpod_kit.job.records import state_place
from hyperpod_kit.system.bounded_thread import CallUnanswered, result_within, start_in_thread
from hyperpod_kit.system.process import IdleTime
from hyperpod_kit.system.wait import BackOff, poll_until
from hyperpod_kit.untrusted.text import clean_one_line

DEADLINE = 5.0
"""Seconds in which a call to a file system that serves comes back."""

LONGEST = 30.0
"""Seconds that a probe may take where it gets on, or waits for a processor: on a node that is busy."""

_LOOKS_PER_DEADLINE = 10

MARKS = "/run/hyperpod-kit/degraded"
"""Where the health timer leaves a file for each mount that failed too many checks in a row."""

CHECK_INTERVAL = 5.0
"""Seconds between two looks at the marks."""

LOOKS_INSIDE = 6
"""In a container the root is probed at each look, whatever the marks say: a mount that the node has made anew is whole
for the node, and dead for every container that runs. One of so many looks writes, the others only check what exists."""

FAILURE_CHECK_INTERVAL = 1.0
"""Seconds within which a rank's failure to save is noticed."""

_PROBE = 'file=$(mktemp "$0/.probe.XXXXXX") && rm -f "$file" && for each; do [ -e "$each" ] || exit 1; done'
"""Makes and removes a file in the first directory, as one listed from a cache proves nothing, and then looks for the
other paths. Nothing may be written to what Mountpoint serves: there the pointer to our records is looked for."""

_PROBE_THERE = 'for each in "$0" "$@"; do [ -e "$each" ] || exit 1; done'
"""Only looks for the paths, which costs the servers nothing. An answer that came from a cache is found out by the next
probe that writes."""

_PROBE_BARE = (
    "import os, sys, tempfile; os.unlink(tempfile.mkstemp(prefix='.probe.', dir=sys.argv[1])[1]); "
    "sys.exit(not all(map(os.path.exists, sys.argv[2:])))"
)
"""Does the same as _PROBE, ten times as slowly, in a container whose image has no mktemp or rm."""

_SIGNAL = 128
"""The shell's status above which its command was ended by a signal."""


class Probe:
    """Probes by one process at a time: while one hangs in the kernel no second one is started, and none is waited for.

    A program, and no call in a fork of this process, which has threads and handlers of signals.

    `state`: the directory of our records; `root`: given where they are not in it; `claim_path`: the claim of the job,
    which a directory that was made anew in the root's place does not have.
    """

    def __init__(
        self, state: str, root: str = "", *, claim_path: str = "", deadline: float = DEADLINE, longest: float = LONGEST
    ) -> None:
        self._places = [state]
        if claim_path:
            self._places.append(claim_path)
        if root and is_path(root) and os.path.relpath(state, root) != state_place.RECORDS_DIRECTORY:
            self._places.append(os.path.join(root, state_place.STATE_POINTER))
        self._deadline = deadline
        self._longest = longest
        self._process: Optional[subprocess.Popen[bytes]] = None
        self.has_timed_out = False
        """Whether the last probe came to no end: that of a mount that hangs, and not of a path that is not there."""

    def _question(self, write: bool) -> List[str]:
        if not write:
            return ["/bin/sh", "-c", _PROBE_THERE, *self._places]
        if all(map(shutil.which, ("mktemp", "rm"))):
            return ["/bin/sh", "-c", _PROBE, *self._places]
        return [sys.executable, "-I", "-S", "-c", _PROBE_BARE, *self._places]

    def answers(self, *, write: bool = True) -> bool:
        """Return whether the paths answer; True where no process can be started, or each one is ended by a signal.

        False after `deadline` seconds in which the probe did not get on at all. On a busy node it gets up to `longest`:
        that it waits for a processor, or that several calls took some seconds each, says nothing of the file system.
        """
        if self._process is not None and self._process.poll() is None:
            return False
        start = time.monotonic()
        self.has_timed_out = False
        while True:
            try:
                # No descriptor of ours: it may outlive us, and Slurm waits for whoever holds a job's log open.
                self._process = subprocess.Popen(
                    self._question(write),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                )
            except OSError:
                return True
            code = self._wait_while_it_gets_on(start + self._longest)
            if code is None:
                self.has_timed_out = True
                self._process.kill()
                return False
            self._process = None
            if 0 <= code <= _SIGNAL:
                return code == 0
            # Ended by a signal it says nothing of the root: Slurm signals every process of a step, this one too.
            # Each probe has at least `deadline` seconds.
            if time.monotonic() >= start + self._longest - self._deadline:
                return True

    def _wait_while_it_gets_on(self, end: float) -> Optional[int]:
        """Return how the probe ended; None when it did not get on for `deadline` seconds, or has not ended by `end`."""
        assert self._process is not None
        process = self._process
        idle = IdleTime(process.pid)
        code = None
        while code is None and time.monotonic() < end and idle.seconds() < self._deadline:
            code = poll_until(
                process.poll,
                lambda code: code is not None,
                BackOff(0.002, 0.1),
                seconds=self._deadline / _LOOKS_PER_DEADLINE,
            )
        return code


def has_degraded_mounts(marks_directory: str = MARKS) -> bool:
    """Return whether the node's own checks have given up any of its mounts. Costs nothing and asks no file system."""
    try:
        with os.scandir(marks_directory) as entries:
            return any(True for _ in entries)
    except OSError:
        return False


class RootWatch:
    """A background thread that calls `changed(True)` when the root stops answering on this node, and `changed(False)`
    when it answers again. It probes the root only while the node's checks doubt a mount, always `inside` a container,
    and at once when the rank has failed to save: `failed()` counts that.

    It does not end the rank: when all nodes are without the root, waiting is right, and `job run` sees them all.
    """

    def __init__(
        self,
        state: str,
        changed: Callable[[bool], None],
        *,
        root: str = "",
        marks: str = MARKS,
        check_interval: float = CHECK_INTERVAL,
        inside: bool = False,
        failed: Callable[[], int] = lambda: 0,
    ) -> None:
        self._probe = Probe(state, root)
        self._inside = inside
        self._failed = failed
        self._changed = changed
        self._marks = marks
        self._check_interval = check_interval
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        is_unreachable = False
        looks = failed = 0
        due = time.monotonic() + self._check_interval
        while not self._over.wait(min(FAILURE_CHECK_INTERVAL, self._check_interval)):
            before, failed = failed, self._failed()
            if time.monotonic() >= due:
                looks, due = looks + 1, time.monotonic() + self._check_interval
            elif failed == before:
                continue
            is_doubtful = is_unreachable or failed != before or has_degraded_mounts(self._marks)
            is_unreachable_now = False
            if is_doubtful or self._inside:
                write = is_doubtful or looks % LOOKS_INSIDE == 0
                is_unreachable_now = not self._probe.answers(write=write)
            if is_unreachable_now != is_unreachable:
                is_unreachable = is_unreachable_now
                self._changed(is_unreachable)

    def stop(self) -> None:
        """Make the thread end before its next look."""
        self._over.set()


class ObjectProbe:
    """Probes a root in S3 on a thread of its own, by looking for the pointer to our records.

    `failure`: what was wrong the last time, "" for nothing.
    """

    def __init__(self, root: str, *, deadline: float = DEADLINE) -> None:
        self._root = root
        self._deadline = deadline
        self._store: Optional[Store] = None
        self._call: Optional[Future[str]] = None
        self.failure = ""

    def answers(self) -> bool:
        """Return whether the root answers and has the pointer, after `deadline` seconds at most."""
        if self._call is None:
            self._call = start_in_thread(self._describe_failure_or_empty, "hpk-root")
        try:
            self.failure = result_within(self._call, self._deadline)
            self._call = None
        except CallUnanswered as err:  # it is waited for again by the next look
            self.failure = str(err.strerror)
        return not self.failure

    def _describe_failure_or_empty(self) -> str:
        try:
            if not self._store:
                self._store = open_store(self._root)
            if self._store.exists(state_place.STATE_POINTER):
                return ""
            return f"{state_place.STATE_POINTER} is missing"
        except (CheckpointError, OSError) as err:
            return clean_one_line(verify.describe_failure(err))
        except Exception as err:  # of a library: the supervisor must not end by it
            return clean_one_line(f"{type(err).__name__}: {err}")


class CheckpointRoot:
    """The checkpoint root as `job run` sees it. `limit`: seconds that an outage is waited for, at most. `root`: given
    where `state`, the directory of our records, is not in it; `claim_path`: this job's claim, if it has one."""

    def __init__(
        self,
        state: str,
        limit: float,
        signals: Signals,
        report: JobReport,
        root: str = "",
        claim_path: str = "",
    ) -> None:
        self._probe = Probe(state, root, claim_path=claim_path)
        self._claim_path = claim_path
        self._objects: Optional[ObjectProbe] = None
        if root and not is_path(root):
            self._objects = ObjectProbe(root)
        self._state = state
        self._root = root
        self._limit = limit
        self._signals = signals
        self._report = report

    def answers(self) -> bool:
        """Return whether root and records answer here and now; takes at most DEADLINE seconds for each of the two."""
        if not self._probe.answers():
            return False
        return self._objects is None or self._objects.answers()

    def is_replaced(self) -> bool:
        """Return whether a directory answers in the place of our records that is not the one that was claimed."""
        if not self._claim_path or self._probe.has_timed_out:
            return False
        if self._probe.answers() or self._probe.has_timed_out:
            return False
        return Probe(self._state).answers()

    def _describe_outage(self) -> str:
        if self._objects is not None and self._objects.failure:
            return f"{self._root} does not answer: {self._objects.failure}"
        if self.is_replaced():
            return f"{self._state} is not the directory with which this job began"
        return f"{self._state} does not answer"

    def outlast(self) -> bool:
        """Wait until the root answers, `limit` seconds at most and until a signal comes; return whether it was away."""
        signals = self._signals
        has_outage = False

        def over() -> bool:
            nonlocal has_outage
            if self.answers() or signals.stop or signals.warned:
                return True
            if not has_outage:
                # Where the log is on the same file system, this line waits with us.
                self._report("storage", f"{self._describe_outage()}; waiting up to {self._limit:g} s")
            has_outage = True
            return False

        poll_until(
            over, bool, BackOff(1.0, 5.0, factor=1.5), seconds=self._limit, sleep=signals.pause_until_stop_or_warning
        )
        return has_outage
