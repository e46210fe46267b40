"""A /run without room: a real tmpfs that is full. Checks and repairs go on, in one line, and leave nothing behind."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Iterator

import pytest

from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.node import cli
from hyperpod_kit.node.commands import mount_commands
from hyperpod_kit.node.health.check_cycle import CheckCycle, check_mounts_and_start_repairs
from hyperpod_kit.node.health.repair import repair_if_needed_and_save_outcome
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import write_if_different, write_volatile
from tests.support.capabilities import require

EFS = EfsMount("home", "/efs/trainer", "fs-0123456789abcdef0", "fsap-0123456789abcdef0")
ORDER = "systemctl start --no-block hyperpod-kit-repair@home.service"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """/run of `make_node`'s node, 64 kB that `fill` uses up."""
    path = tmp_path / "node/run"
    path.mkdir(parents=True)
    require("mounts")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(path)], timeout=20, check=True)
    yield path
    subprocess.run(["umount", "--lazy", str(path)], timeout=20, check=False)


def fill(run: Path) -> None:
    with open(run / "fill", "ab", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))


def partials(run: Path) -> list[Path]:
    return [*run.rglob("*.partial")]


def checked(node: Node) -> CheckCycle:
    done = check_mounts_and_start_repairs(node)
    assert done is not None
    return done


def test_a_check_goes_on_in_one_line_and_leaves_nothing(run: Path, make_node: Any) -> None:
    fake = make_node([EFS])
    fake.mounted("/efs/trainer", "nfs4", "127.0.0.1:/")
    assert checked(fake.node).unkept == ""
    for _ in range(2):
        fill(run)
        done = checked(fake.node)
        assert done.messages == (done.unkept,) and "\n" not in done.unkept
        assert "cannot be written: No space left on device" in done.unkept and "df -h" in done.unkept
        assert not partials(run)
    prom = fake.root / "var/lib/node_exporter/textfile_collector/hyperpod_kit.prom"
    assert "hyperpod_kit_health_kept 0\n" in prom.read_text()
    fake.unmounted("/efs/trainer")
    fill(run)
    assert checked(fake.node).ordered == ("home",) and ORDER in fake.runner.calls
    fake.mounted("/efs/trainer", "nfs4", "127.0.0.1:/")
    ended = repair_if_needed_and_save_outcome(fake.node, EFS)
    assert ended is not None and ended.ok and not partials(run)
    (run / "fill").unlink()
    (run / "hyperpod-kit/health.json.999999999.0123456789abcdef.partial").write_text("of a check that was killed")
    assert checked(fake.node).messages == () and not partials(run)
    assert "hyperpod_kit_health_kept 1\n" in prom.read_text()


def test_the_command_says_it_and_exits_1(
    run: Path, make_node: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = make_node([EFS])
    fake.mounted("/efs/trainer", "nfs4", "127.0.0.1:/")
    monkeypatch.setattr(mount_commands, "open_node", lambda: fake.node)
    checked(fake.node)
    fill(run)
    assert cli.run(["health"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "No space left on device" in said[0]


def test_without_inodes_not_even_the_lock_can_be_made(
    run: Path, make_node: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["mount", "-o", "remount,nr_inodes=1", str(run)], check=True, timeout=20)
    fake = make_node([EFS])
    monkeypatch.setattr(mount_commands, "open_node", lambda: fake.node)
    assert cli.run(["health"]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: {run}/hyperpod-kit") and error.endswith(": No space left on device")
    assert hint == f"hint: df -h {run}; df -i {run}"


@pytest.mark.parametrize("write", [write_volatile, write_if_different])
def test_a_file_that_cannot_be_written_leaves_the_old_one_alone(run: Path, write: Any) -> None:
    write(str(run / "state"), "old")
    fill(run)
    with pytest.raises(OSError, match="No space left"):
        write(str(run / "state"), "new" * 5000)
    assert (run / "state").read_text() == "old" and not partials(run)
