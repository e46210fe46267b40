"""`node uninstall`: what goes, what stays, and what must be over before."""

from __future__ import annotations

import argparse
import getpass
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.kinds import mount_to_dict
from hyperpod_kit.node.commands import uninstall
from hyperpod_kit.node.machine.files import write_json
from hyperpod_kit.node.mounts import remove_stale
from hyperpod_kit.node.mounts.kinds.mount_record import record_current_mount_as_kits
from hyperpod_kit.node.slurm import take_back
from hyperpod_kit.node.slurm.hooks import with_kit_block

HOME = EfsMount("home", "/efs", "fs-0123456789abcdef0")
CONF = f"SlurmUser={getpass.getuser()}\nStateSaveLocation=/var/spool/slurmctld\n"
PLATFORM = {"/etc/systemd/system/theirs.service": "[Unit]\n", "/efs/data": "of a user", "/etc/passwd": "root:x\n"}


def put(root: Path, path: str, text: str = "") -> Path:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place


@pytest.fixture
def fake(make_node: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A compute node with all that the kit puts there."""
    return installed(make_node([HOME]), monkeypatch)


@pytest.fixture
def head(make_node: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A controller."""
    fake = installed(make_node([HOME], role="controller"), monkeypatch)
    fake.runner.on(f"{fake.node.paths.scontrol} ping", out="Slurmctld(primary) at ip-10-1-0-10 is UP\n")
    for path in (fake.node.paths.slurm_conf, fake.node.paths.plugstack_conf):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(with_kit_block(CONF, ["Prolog=/opt/hyperpod-kit/current/slurm/prolog.sh"]))
    return fake


def installed(fake: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    for unit in ("health.timer", "health.service", "repair@.service", "mount-home.service"):
        put(fake.root, f"/etc/systemd/system/hyperpod-kit-{unit}", "[Unit]\n")
    for path in (
        "/opt/hyperpod-kit/0123456789abcdef/bin/hyperpod-kit",
        "/var/cache/hyperpod-kit/packages/a.deb",
        "/run/hyperpod-kit/health.json",
        "/etc/systemd/logind.conf.d/50-hyperpod-kit.conf",
    ):
        put(fake.root, path)
    for path, text in PLATFORM.items():
        put(fake.root, path, text)
    (fake.root / "usr/local/bin").mkdir(parents=True)
    (fake.root / "usr/local/bin/hyperpod-kit").symlink_to("/opt/hyperpod-kit/current/bin/hyperpod-kit")
    write_json(fake.node.paths.recorded_mounts, [mount_to_dict(HOME)])
    fake.mounted(HOME.path, "nfs4", "127.0.0.1:/")
    record_current_mount_as_kits(fake.node, HOME)
    fake.runner.on(f"umount {HOME.path}", do=lambda: fake.unmounted(HOME.path))
    monkeypatch.setattr(uninstall, "open_node", lambda: fake.node)
    monkeypatch.setattr(remove_stale, "is_mount_in_use", lambda path: False)
    return fake


def run(*, dry_run: bool = False) -> int:
    return int(uninstall.uninstall_command(argparse.Namespace(dry_run=dry_run)))


def files(root: Path) -> set[str]:
    return {f"/{path.relative_to(root)}" for path in root.rglob("*") if path.is_symlink() or path.is_file()}


def test_a_dry_run_names_what_goes_and_changes_nothing(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(fake.root)
    assert run(dry_run=True) == 0 and files(fake.root) == before
    told = capsys.readouterr().out
    assert "mounts: unmount /efs" in told and "hyperpod-kit-health.timer" in told and "/opt/hyperpod-kit" in told
    assert "stays: users and groups" in told
    assert not [call for call in fake.runner.calls if call.startswith(("systemctl stop", "umount"))]


def test_what_is_the_kits_goes_and_what_is_others_stays(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    left = {path for path in files(fake.root) if not path.startswith("/proc/")}
    assert left == set(PLATFORM)
    assert all((fake.root / path.lstrip("/")).read_text() == text for path, text in PLATFORM.items())
    stopped = next(call for call in fake.runner.calls if call.startswith("systemctl stop"))
    assert stopped == "systemctl stop hyperpod-kit-health.timer", "nothing makes a mount again that goes"
    assert run() == 0, "again"


def test_a_mount_in_use_keeps_the_program(
    fake: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remove_stale, "reason_to_keep_mounted", lambda node, mount: "is in use")
    assert run() == 1
    assert "kept for now: /efs is in use" in capsys.readouterr().out
    assert (fake.root / "opt/hyperpod-kit").is_dir() and "umount /efs" not in fake.runner.calls
    monkeypatch.undo()
    monkeypatch.setattr(uninstall, "open_node", lambda: fake.node)
    monkeypatch.setattr(remove_stale, "is_mount_in_use", lambda path: False)
    assert run() == 0 and not (fake.root / "opt/hyperpod-kit").exists()


def test_a_disk_below_the_kits_state_is_never_emptied(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    data = put(fake.root, "/var/lib/hyperpod-kit/nvme/images/layer", "of users")
    fake.mounted("/var/lib/hyperpod-kit/nvme", "ext4", "/dev/nvme1n1")
    assert run() == 1 and data.read_text() == "of users"
    assert "/var/lib/hyperpod-kit/nvme is mounted" in capsys.readouterr().out
    assert (fake.root / "opt/hyperpod-kit").is_dir()


def test_slurm_that_names_the_kit_is_asked_for_first(fake: Any) -> None:
    put(fake.root, "/run/slurm/conf/slurm.conf", "Prolog=/opt/hyperpod-kit/current/slurm/prolog.sh\n")
    with pytest.raises(NodeError, match="still names files of the kit") as caught:
        run()
    assert "on the controller first" in (caught.value.hint or "") and (fake.root / "opt/hyperpod-kit").is_dir()


def test_a_job_that_runs_from_the_kit_is_waited_for(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(fake.root, "/proc/4321/cmdline", "/usr/bin/python3\0/opt/hyperpod-kit/current/lib/hyperpod_kit/job/__main__.py")
    if os.geteuid() == 0:
        os.chown(fake.root / "proc/4321", 2001, 2001)
    with pytest.raises(NodeError, match="1 process of a job runs from /opt/hyperpod-kit on this node, first 4321"):
        run()


def test_a_controllers_slurm_runs_on_by_its_own_lines(head: Any) -> None:
    head.runner.on("systemctl is-active --quiet slurmctld", 0)
    assert run() == 0
    assert Path(head.node.paths.slurm_conf).read_text() == CONF == Path(head.node.paths.plugstack_conf).read_text()
    scontrol = [call for call in head.runner.calls if "scontrol" in call]
    assert scontrol[-2:] == [f"{head.node.paths.scontrol} reconfigure", f"{head.node.paths.scontrol} ping"]
    assert "systemctl stop slurmctld.service" not in head.runner.calls


def with_shared_state(head: Any) -> Path:
    """The state is on the mount, and the platform's own place leads there."""
    shared = "/efs/.hyperpod-kit/demo/slurmctld"
    put(head.root, f"{shared}/job_state", "jobs")
    lines = ["Prolog=/opt/hyperpod-kit/current/slurm/prolog.sh", f"StateSaveLocation={shared}"]
    Path(head.node.paths.slurm_conf).write_text(with_kit_block(CONF, lines))
    own: Path = head.root / "var/spool/slurmctld"
    own.parent.mkdir(parents=True)
    own.symlink_to(shared)
    put(head.root, "/etc/systemd/system/slurmctld.service.d/hyperpod-kit.conf", "BindsTo=x\n")
    return own


def test_the_state_of_slurm_goes_home_before_its_mount_goes(head: Any, capsys: pytest.CaptureFixture[str]) -> None:
    own = with_shared_state(head)
    runs = [True]
    head.runner.on("systemctl is-active --quiet slurmctld", 3)
    head.runner.on("systemctl stop slurmctld.service", do=runs.clear)
    assert run() == 0
    assert not own.is_symlink() and (own / "job_state").read_text() == "jobs"
    assert Path(head.node.paths.slurm_conf).read_text() == CONF and not runs
    assert not (head.root / "etc/systemd/system/slurmctld.service.d/hyperpod-kit.conf").exists()
    orders = [call for call in head.runner.calls if call.startswith(("systemctl st", "umount"))]
    places = [
        next(index for index, call in enumerate(orders) if word in call)
        for word in ("stop slurmctld", "start slurmctld", "umount /efs")
    ]
    assert places == sorted(places)
    assert (head.root / "efs/.hyperpod-kit/demo/slurmctld/job_state").exists(), "what is on the mount stays there"


@pytest.mark.parametrize(
    ("conf", "controllers", "message"),
    [(f"SlurmUser={getpass.getuser()}\n", 1, "names no StateSaveLocation"), (CONF, 2, "several controllers share")],
)
def test_a_state_without_a_way_home_stops_it(head: Any, conf: str, controllers: int, message: str) -> None:
    with_shared_state(head)
    text = Path(head.node.paths.slurm_conf).read_text().replace(CONF, conf)
    Path(head.node.paths.slurm_conf).write_text(text)
    head.node = replace(head.node, config=replace(head.node.config, controllers=controllers))
    with pytest.raises(NodeError, match=message):
        take_back.describe_pending_changes(head.node)
    with pytest.raises(NodeError, match=message):
        take_back.remove_kit_lines_and_move_state_home(head.node)
    assert "systemctl stop slurmctld.service" not in head.runner.calls
