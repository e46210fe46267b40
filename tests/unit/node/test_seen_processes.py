"""Who a process is when it is asked late."""

from __future__ import annotations

import os
from pathlib import Path

from hyperpod_kit.node.file_audit.supervisor import ProcessTable


def process(proc: Path, state: str, environment: bytes, uid: int = 2001) -> None:
    folder = proc / "7"
    folder.mkdir(exist_ok=True)
    folder.joinpath("status").write_text(f"Name:\tmkdir\nState:\t{state}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    folder.joinpath("cgroup").write_text("0::/user.slice\n")
    folder.joinpath("environ").write_bytes(environment)


def test_one_that_has_ended_and_is_not_reaped_is_what_it_was(tmp_path: Path) -> None:
    """A zombie has its state still, and no environment any more."""
    seen = ProcessTable(str(tmp_path))
    process(tmp_path, "R (running)", b"A=1\0SLURM_JOB_ID=4711\0")
    before = seen.read_and_cache_identity(7, "/usr/bin/mkdir")
    assert before is not None and (before.job, before.job_by, before.seen) == ("4711", "environment", "")
    process(tmp_path, "Z (zombie)", b"")
    assert seen.current_or_cached_identity(7) == before._replace(seen="earlier")


def test_one_that_nobody_has_seen_alive_has_a_user_and_no_job(tmp_path: Path) -> None:
    process(tmp_path, "Z (zombie)", b"", uid=os.getuid())
    found = ProcessTable(str(tmp_path)).current_or_cached_identity(7)
    assert found is not None and (found.uid, found.job) == (os.getuid(), "")
