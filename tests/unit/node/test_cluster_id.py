"""slurmctld's own cluster id is out of the way before it meets a database that has another one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.model.optional_steps import Accounting
from hyperpod_kit.node.optional import slurmdbd
from hyperpod_kit.node.slurm import cluster_id, controller

HERE = "DbdHost=a\nStorageHost=localhost\nStorageUser=slurm\nStorageLoc=slurm_acct_db\n"


@pytest.mark.parametrize("text", ["demo", "other|7", "", None])
def test_what_has_no_id_or_is_another_clusters_stays(tmp_path: Path, text: str | None) -> None:
    """Slurm up to 23.11 writes no id, and refuses the state of another cluster by itself."""
    path = tmp_path / "clustername"
    if text is not None:
        path.write_text(text)
    assert cluster_id.rename_file_with_own_id(str(tmp_path), "demo") == ""
    assert (path.read_text() if path.exists() else None) == text
    assert cluster_id.rename_file_with_own_id(str(tmp_path / "absent"), "demo") == ""


@pytest.mark.parametrize(
    ("before", "after", "is_new"),
    [
        ("", HERE, True),
        (HERE, HERE.replace("localhost", "db.example.com"), True),
        (HERE, HERE.replace("slurm_acct_db", "other"), True),
        (HERE, HERE + 'StoragePass="rotated"\n', False),
        (HERE, HERE.replace("DbdHost=a", "DbdHost=b"), False),
    ],
)
def test_only_another_database_is_a_new_one(before: str, after: str, is_new: bool) -> None:
    assert (slurmdbd.database_of(before) != slurmdbd.database_of(after)) == is_new


def test_slurmdbd_with_another_database_leaves_a_record(make_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = make_node([], role="controller")
    node = fake.node
    conf = Path(node.paths.slurm_conf)
    conf.parent.mkdir(parents=True)
    conf.write_text("ClusterName=Demo\nSlurmUser=slurm\n")
    fake.runner.on("getent passwd slurm", out=f"slurm:x:{os.getuid()}:{os.getgid()}::/:/bin/sh\n")
    monkeypatch.setattr(slurmdbd, "_await_response", lambda node: None)
    assert slurmdbd.ensure_slurmdbd(node, Accounting(), "/usr/sbin/slurmdbd") and cluster_id.is_database_new(node)
    cluster_id.delete_record_of_new_database(node)
    slurmdbd.ensure_slurmdbd(node, Accounting(), "/usr/sbin/slurmdbd")
    assert not cluster_id.is_database_new(node), "it has the same database"


@pytest.mark.parametrize("killed", [False, True])
def test_with_a_new_database_slurmctld_starts_without_its_own_id(make_node: Any, killed: bool) -> None:
    """Also when whoever had set it aside was killed before slurmctld was started."""
    fake = make_node([], role="controller")
    node = fake.node
    bundled = fake.root / "opt/hyperpod-kit/current/slurm"
    bundled.mkdir(parents=True)
    (bundled / "hooks.conf").write_text("PrologFlags=Alloc\n")
    conf = Path(node.paths.slurm_conf)
    conf.parent.mkdir(parents=True)
    conf.write_text("ClusterName=Demo\nStateSaveLocation=/var/spool/slurmctld\n")
    state = fake.root / "var/spool/slurmctld"
    state.mkdir(parents=True)
    (state / "clustername").write_text("demo|1868")
    fake.runner.on(f"{node.paths.scontrol} ping", out="Slurmctld(primary) at ip-10-1-0-10 is UP\n")
    controller.install_hooks_and_move_state(node)
    assert (state / "clustername").exists(), "without accounting it keeps its id"

    fake.runner.on("systemctl is-active --quiet slurmctld", 0)
    fake.runner.on(
        "systemctl stop slurmctld.service", do=lambda: fake.runner.on("systemctl is-active --quiet slurmctld", 3)
    )
    cluster_id.record_new_database(node)
    assert cluster_id.is_database_new(node)
    if killed:
        controller.stop_slurmctld_and_record_restart(node)
        cluster_id.rename_file_with_own_id(str(state), "demo")
    fake.runner.calls.clear()
    changed, notes = controller.install_hooks_and_move_state(node)
    assert changed and any("its old id, 1868" in note for note in notes) == (not killed)
    assert (state / cluster_id.KEPT).read_text() == "demo|1868" and not (state / "clustername").exists()
    assert "systemctl start slurmctld.service" in fake.runner.calls
    assert not cluster_id.is_database_new(node)
    assert controller.install_hooks_and_move_state(node)[0] is False, "a second run has nothing to do"
