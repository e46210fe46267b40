"""The probe against real answers: a directory, nothing, and FUSE mounts that hang or are dead."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.node.health.look import start_time
from hyperpod_kit.node.health.probe import Probe, probe


def test_a_directory_answers(tmp_path: Path) -> None:
    found = probe(str(tmp_path), 5.0)
    assert found.outcome == "answered"
    assert found.blocks > 0 and not found.read_only and found.latency_ms < 5000


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    assert probe(str(tmp_path / "no"), 5.0).errno == errno.ENOENT


def children() -> set[str]:
    """Pids of this process's children, those that nobody has waited for included; other tests may have some."""
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def test_it_leaves_no_child_and_no_descriptor(tmp_path: Path) -> None:
    descriptors, processes = set(os.listdir("/proc/self/fd")), children()
    for _ in range(3):
        probe(str(tmp_path), 5.0)
    assert set(os.listdir("/proc/self/fd")) == descriptors
    assert children() <= processes


@pytest.mark.rehearsal
@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and /dev/fuse")
def test_a_hung_mount_costs_the_deadline_and_no_more(tmp_path: Path, silent_mount: Any) -> None:
    with silent_mount(tmp_path / "hung"):
        started = time.monotonic()
        both = [Probe(str(tmp_path / "hung")), Probe(str(tmp_path / "hung"))]
        found = [one.finish(0.6) for one in both]
        assert [one.outcome for one in found] == ["no_answer", "no_answer"]
        assert time.monotonic() - started < 1.5
        for one in both:
            assert one.pid is not None
            end = time.monotonic() + 5
            while start_time(one.pid) is not None:
                assert time.monotonic() < end, "the prober is still there"
                time.sleep(0.02)


@pytest.mark.rehearsal
@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and /dev/fuse")
def test_a_dead_mount_says_so_at_once(tmp_path: Path, silent_mount: Any) -> None:
    with silent_mount(tmp_path / "dead") as handle:
        os.close(handle)
        found = probe(str(tmp_path / "dead"), 5.0)
    assert (found.outcome, found.errno) == ("error", errno.ENOTCONN)
