"""What a creation that fails leaves behind, what it fails for, and what it waits for."""

from __future__ import annotations

import contextlib
import fcntl
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.model.mounts.efs import EfsMount
from tests.support.wait import Deadline

NEEDED = EfsMount("home", "/efs", "fs-0123456789abcdef0")
FAILING = {"HPK_TEST_FAIL": "fail-hyperpod-kit-mount-home.service"}


def shim(sandbox: Any, *programs: str) -> None:
    for program in programs:
        (sandbox.root / "shims" / program).symlink_to("recorder")


def node_of(make_sandbox: Any, render_example: Any, **changes: Any) -> Any:
    return make_sandbox("compute", render_example(**{"mounts": (NEEDED,), "users": (), **changes}))


@pytest.mark.full
def test_the_last_lines_reach_the_disk_and_cloudwatch_before_the_bad_news(
    make_sandbox: Any, render_example: Any
) -> None:
    sandbox = node_of(make_sandbox, render_example, failure_pause=45.0)
    shim(sandbox, "sync", "sleep")
    done = sandbox.on_create(**FAILING)
    assert done.returncode == 1
    # The line is written, then on the disk, then there is time; and nothing comes after that.
    assert [call.split()[0] for call in sandbox.calls[-2:]] == ["sync", "sleep"]
    assert sandbox.calls[-1] == "sleep 45.0"
    assert sandbox.calls[-2].endswith("/var/log/provision/provisioning.log")
    assert (sandbox.log[-1]["step"], sandbox.log[-1]["status"]) == ("apply", "failed")
    assert "mount:home" in sandbox.log[-2]["error"]


@pytest.mark.parametrize(
    "written, slept", [("0.0", "0.0"), ("90.0", "90.0"), ("1e9", "60"), ("99999999", "60"), ("-5", "60")]
)
def test_a_damaged_pause_is_bounded(make_sandbox: Any, written: str, slept: str) -> None:
    sandbox = make_sandbox()
    shim(sandbox, "sleep")
    config = sandbox.staging / "node_config.json"
    config.write_text(config.read_text().replace('"failure_pause": 0.0', f'"failure_pause": {written}'))
    (sandbox.staging / "slurm/prolog.sh").write_text("#!/bin/bash\n")
    assert sandbox.on_create().returncode == 1
    assert sandbox.calls == [f"sleep {slept}"]


def test_what_is_not_required_fails_no_node(make_sandbox: Any, render_example: Any) -> None:
    sandbox = node_of(
        make_sandbox, render_example, mounts=(EfsMount("home", "/efs", "fs-0123456789abcdef0", required=False),)
    )
    done = sandbox.on_create(**FAILING)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = {line["step"]: line["status"] for line in sandbox.log}
    assert (steps["mount:home"], steps["slurm-worker"], steps["summary"]) == ("failed", "changed", "ok")


@pytest.mark.full
def test_what_the_system_refuses_the_program_is_in_the_log(make_sandbox: Any, render_example: Any) -> None:
    sandbox = node_of(make_sandbox, render_example)
    (sandbox.root / "var").mkdir()
    (sandbox.root / "var/lib").write_text("not a directory\n")
    assert sandbox.on_create().returncode == 3
    text = (sandbox.root / "var/log/provision/provisioning.log").read_text()
    assert f"{sandbox.root}/var/lib/hyperpod-kit: Not a directory" in text
    assert sandbox.log[-1]["hint"] == "read the failed steps above"


@pytest.mark.full
def test_two_at_once_wait_for_each_other(make_sandbox: Any, render_example: Any) -> None:
    sandbox = node_of(make_sandbox, render_example)
    lock = sandbox.root / "opt/hyperpod-kit/.lock"
    lock.parent.mkdir()
    with open(lock, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        second = subprocess.Popen(
            ["/bin/bash", str(sandbox.staging / "on_create.sh")],
            stdout=subprocess.PIPE,
            env=sandbox.environment(),
            stdin=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert second.stdout is not None
            assert "verify-bundle: ok" in second.stdout.readline()
            deadline = Deadline(30)
            while not waits_for(second.pid, "flock"):
                assert not deadline.has_passed() and second.poll() is None
            assert not (sandbox.root / "opt/hyperpod-kit/current").exists()
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)
            said, _ = second.communicate(timeout=60)
    assert second.returncode == 0, said
    assert (sandbox.root / "opt/hyperpod-kit/current").exists()


def waits_for(pid: int, program: str) -> bool:
    """Whether a child of the process is `program`."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has ended
            if Path(f"/proc/{child}/comm").read_text().strip() == program:
                return True
    return False


def test_a_second_apply_says_who_is_at_work(make_node: Any) -> None:
    from hyperpod_kit.errors import NodeError
    from hyperpod_kit.node.creation.apply import apply
    from hyperpod_kit.node.machine.locks import hold_lock

    fake = make_node([])
    with hold_lock(fake.node, "apply", seconds=0) as mine, pytest.raises(
        NodeError, match="another `hyperpod-kit node a"
    ):
        assert mine
        apply(fake.node, (), "on_create", lambda line: None)
    assert 299 <= sum(fake.clock.slept) <= 301
    assert not Path(fake.node.paths.apply_status).exists()


@pytest.mark.full
def test_the_log_is_one_json_line_a_step(make_sandbox: Any, render_example: Any) -> None:
    sandbox = node_of(make_sandbox, render_example)
    assert sandbox.on_create().returncode == 0
    for line in (sandbox.root / "var/log/provision/provisioning.log").read_text().splitlines():
        record = json.loads(line)
        assert {"ts", "node", "role", "step", "status", "duration_ms", "error", "hint"} <= set(record)
        assert record["status"] in ("ok", "changed", "skipped", "failed")
