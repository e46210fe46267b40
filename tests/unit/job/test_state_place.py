"""Where the records of a root are that cannot hold them itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict

import pytest

from hyperpod_kit.checkpoint.repository.store.memory import get_or_create_memory_store
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import CheckpointError, JobError
from hyperpod_kit.job.base.report import JobReport
from hyperpod_kit.job.base.signals import Signals
from hyperpod_kit.job.records import state_place
from hyperpod_kit.job.resume import checkpoint_choice
from hyperpod_kit.job.step.options import RunOptions, prepare
from hyperpod_kit.job.step.storage import CheckpointRoot, ObjectProbe, Probe

ROOT = "s3://bucket/team/run-1"


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> Dict[str, Any]:
    """What kind of file system lies below a path, by its beginning."""
    found: Dict[str, Any] = {"/": ("ext4", "/dev/vda")}
    monkeypatch.setattr(
        state_place,
        "mount_type_and_source",
        lambda path: found[max((at for at in found if path.startswith(at)), key=len)],
    )
    return found


@pytest.fixture
def root(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


def test_a_directory_holds_its_own_and_nothing_else_is_asked(kinds: Dict[str, Any]) -> None:
    assert state_place.absolute("runs/../run") == os.path.join(os.getcwd(), "run")
    assert state_place.chosen("/fsx/run", "", {}) == state_place.state_directory_of_root("/fsx/run") == "/fsx/run/.hpk"
    with pytest.raises(JobError, match="keeps the records of its jobs itself"):
        state_place.chosen("/fsx/run", "/fsx/elsewhere", {})


def test_one_that_all_nodes_share_is_found_and_said(kinds: Dict[str, Any]) -> None:
    kinds["/fsx"], kinds["/mnt/s3"] = ("lustre", "fs@tcp:/x"), ("fuse", "mountpoint-s3")
    env = {"HOME": "/home/me", "SLURM_SUBMIT_DIR": "/fsx/me/jobs/"}
    found = state_place.chosen(ROOT, "", env)
    assert found.startswith("/fsx/me/jobs/.hyperpod-kit/bucket-team-run-1-")
    assert found == state_place.chosen(state_place.absolute(ROOT + "/"), "", env)
    assert found != state_place.chosen("s3://bucket-team/run-1", "", env), "the same words, another root"
    kinds["/home"] = ("fuse.nfs4", "fs-1:/")
    assert state_place.chosen(ROOT, "", env).startswith("/home/me/.hyperpod-kit/")
    assert state_place.chosen("/mnt/s3/run", "", env).startswith("/home/me/.hyperpod-kit/mnt-s3-run-")
    assert state_place.chosen(ROOT, "/scratch", env).startswith("/scratch/bucket-team-run-1-")
    kinds["/home"] = ("fuse", "mountpoint-s3")
    with pytest.raises(JobError, match=r"none of /home/me \(fuse\) is known to be shared") as refused:
        state_place.chosen(ROOT, "", {"HOME": "/home/me"})
    assert refused.value.hint == "--state /fsx/$USER"


def test_two_jobs_cannot_keep_records_of_one_root_in_two_places(root: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no job has ever kept records"):
        state_place.state_directory_of_root(root)
    state_place.record_state_directory_at_root(root, "/fsx/a/run")
    state_place.record_state_directory_at_root(root, "/fsx/a/run")
    assert state_place.state_directory_of_root(root) == "/fsx/a/run"
    with pytest.raises(JobError, match="are in /fsx/a/run, and this job would keep them in /fsx/b/run") as refused:
        state_place.record_state_directory_at_root(root, "/fsx/b/run")
    assert (refused.value.hint or "").startswith("--state /fsx/a")


def test_two_at_the_same_moment_on_mountpoint(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses to open a file that another is just writing."""
    store = get_or_create_memory_store(root)

    def refused(name: str, data: bytes) -> None:
        create(name, data)
        raise PermissionError(1, "Operation not permitted", name)

    create = store.create
    monkeypatch.setattr(store, "create", refused)
    monkeypatch.setattr(state_place, "open_store", lambda url: store)
    state_place.record_state_directory_at_root(root, "/fsx/a/run")
    with pytest.raises(JobError, match="would keep them in /fsx/b/run"):
        state_place.record_state_directory_at_root(root, "/fsx/b/run")


@pytest.mark.parametrize("word", [b"", b"{}", b'{"format": "hpk-state/1", "state": "/x"}', b"\xff" * 5000])
def test_a_word_that_is_none_is_refused(root: str, word: bytes) -> None:
    get_or_create_memory_store(root).create(state_place.STATE_POINTER, word)
    with pytest.raises(CheckpointError):
        state_place.state_directory_of_root(root)
    with pytest.raises(CheckpointError):
        state_place.record_state_directory_at_root(root, "/fsx/a/run")


def test_a_root_that_is_away_is_no_empty_one(root: str, tmp_path: Path) -> None:
    state = tmp_path / "kept" / "run"
    options = RunOptions(root, ("true",), state_directory=str(state))
    with pytest.raises(JobError, match=f"{state.parent} does not exist"):
        prepare(options)
    state.parent.mkdir()
    prepare(options)
    assert state.is_dir()
    assert (
        checkpoint_choice.choose_requiring_root_present(
            root, str(state), checkpoint_choice.newest_complete_kit_else_foreign, {}, {}
        ).source
        == "none"
    )
    open_store(root).delete(state_place.STATE_POINTER)
    with pytest.raises(FileNotFoundError, match=state_place.STATE_POINTER):
        checkpoint_choice.choose_requiring_root_present(
            root, str(state), checkpoint_choice.newest_complete_kit_else_foreign, {}, {}
        )


def test_what_cannot_be_used_is_named_with_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(root: str, state: str) -> None:
        raise PermissionError(13, "AccessDenied: no", f"{root}/x")

    monkeypatch.setattr(state_place, "record_state_directory_at_root", refuse)
    with pytest.raises(JobError, match=f"cannot use {ROOT} as checkpoint root: .*AccessDenied") as refused:
        prepare(RunOptions(ROOT, ("true",), state_directory=str(tmp_path / "run")))
    assert "s3:PutObject" in (refused.value.hint or "")


def test_it_answers_while_its_word_is_there(root: str, tmp_path: Path) -> None:
    state_place.record_state_directory_at_root(root, str(tmp_path))
    probe = ObjectProbe(root)
    assert probe.answers() and probe.failure == ""
    open_store(root).delete(state_place.STATE_POINTER)
    assert not probe.answers() and "is missing" in probe.failure


def test_one_that_hangs_is_not_asked_twice_and_never_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    over, asked = threading.Event(), []

    class Hangs:
        def exists(self, name: str) -> bool:
            asked.append(name)
            return over.wait(60)

    monkeypatch.setattr("hyperpod_kit.job.step.storage.open_store", lambda root: Hangs())
    probe = ObjectProbe(ROOT, deadline=0.1)
    assert [probe.answers() for _ in range(3)] == [False] * 3 and asked == [state_place.STATE_POINTER]
    assert probe.failure == "no answer for 0.1 s"
    over.set()
    probe = ObjectProbe(ROOT, deadline=30.0)
    assert probe.answers()


def test_an_outage_says_what_is_wrong(root: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Signals() as signals:
        storage = CheckpointRoot(str(tmp_path), 0.2, signals, JobReport(), root)
        assert not storage.answers() and storage.outlast()
    assert (
        f"{root} does not answer: {state_place.STATE_POINTER} is missing; waiting up to 0.2 s" in capfd.readouterr().out
    )


def test_a_mount_of_mountpoint_is_looked_at_and_not_written_to(tmp_path: Path) -> None:
    state, served = tmp_path / "state", tmp_path / "served"
    for path in (state, served / ".hpk"):
        path.mkdir(parents=True)
    probe = Probe(str(state), str(served))
    assert not probe.answers()
    (served / state_place.STATE_POINTER).write_text("{}")
    assert probe.answers() and Probe(str(tmp_path / "served" / ".hpk"), str(served)).answers()
    assert sorted(path.name for path in served.rglob("*")) == [".hpk", "state.json"]
