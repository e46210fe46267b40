"""Whose root it is, also when RUN.json is lost or damaged, and when the root is exchanged under a running job."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.checkpoint.commands import cli
from hyperpod_kit.checkpoint.repository import commit, retention
from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.policy import Latest
from hyperpod_kit.checkpoint.repository.records import identity
from hyperpod_kit.checkpoint.repository.records.identity import RunIdentity
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.checkpoint.repository.store.restricted import RestrictedStore
from hyperpod_kit.errors import CheckpointError, RunIsOwned
from tests.support.damage import flip
from tests.support.rows import share
from tests.unit.checkpoint.small_checkpoint import SMALL_RUN, put_checkpoint

OTHER = RunIdentity("other", "f" * 32)


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    (tmp_path / "root").mkdir()
    return PosixStore(str(tmp_path / "root"))


@pytest.fixture
def run_file(store: PosixStore) -> Path:
    return Path(store.url, layout.RUN_FILE)


def delete(path: Path) -> None:
    path.unlink()


def flipped(path: Path) -> None:
    flip(path, 30)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link_to_zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = [delete, flipped, empty, fifo, link_to_zeros, directory]
DAMAGE = pytest.mark.parametrize("damage", DAMAGES)


def answer(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert cli.main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


@DAMAGE
def test_a_start_finds_whose_root_it_is_and_writes_it_again(store: PosixStore, run_file: Path, damage: Any) -> None:
    put_checkpoint(store, 1)
    damage(run_file)
    with pytest.warns(RuntimeWarning, match=r"rest of the root says that it is of run 'small'.*written again"):
        assert identity.ensure_run_identity(store, "small") == SMALL_RUN
    assert identity.read_run_file(store).identity == SMALL_RUN
    with pytest.raises(RunIsOwned, match="belongs to run 'small', this is run 'mine'"):
        identity.ensure_run_identity(store, "mine")


@pytest.mark.parametrize("damage", share(DAMAGES, 2))
def test_verify_and_ls_say_it_and_repair_mends_it(
    store: PosixStore, run_file: Path, damage: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    name = put_checkpoint(store, 1)
    assert answer(capsys, "verify", store.url)["run_problem"] is None
    assert answer(capsys, "repair", store.url)["written"] is False
    damage(run_file)
    found = answer(capsys, "verify", store.url, code=1)
    assert layout.RUN_FILE in found["run_problem"] and found["newest_valid"] == name
    assert cli.main(["ls", store.url]) == 0
    assert f"hyperpod-kit checkpoint repair {store.url}" in capsys.readouterr().out
    planned = answer(capsys, "repair", store.url, "--dry-run")
    assert (planned["id"], planned["written"]) == (SMALL_RUN.run_id, False)
    assert identity.read_run_file(store).identity is None
    assert answer(capsys, "repair", store.url)["written"] is True
    assert answer(capsys, "repair", store.url)["written"] is False
    assert cli.main(["verify", store.url]) == 0 and identity.read_run_file(store).identity == SMALL_RUN


def test_two_runs_in_one_root_are_named_and_nobody_is_chosen(
    store: PosixStore, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = put_checkpoint(store, 1)
    run_file.unlink()
    identity.write_run_file_unless_valid(store, OTHER)
    theirs = put_checkpoint(store, 2, run=OTHER)
    found = answer(capsys, "verify", store.url, code=1)
    assert found["newest_valid"] == theirs and "it is of run 'small'" in found["attempts"][1]["problem"]
    run_file.unlink()
    for call in (lambda: identity.ensure_run_identity(store), lambda: identity.require_run_identity(store, SMALL_RUN)):
        with pytest.raises(CheckpointError, match=f"of 2 runs.*{theirs}.*{mine}") as caught:
            call()
        assert "--run-id" in (caught.value.hint or "")
    assert not run_file.exists()
    assert cli.main(["repair", store.url]) == 1
    said = capsys.readouterr().err
    assert mine in said and theirs in said and "--run-id" in said
    assert cli.main(["repair", store.url, "--run-id", "e"]) == 1
    capsys.readouterr()
    assert answer(capsys, "repair", store.url, "--run-id", "0000")["run"] == "small"
    assert identity.ensure_run_identity(store) == SMALL_RUN


def test_a_new_id_that_was_made_beside_old_checkpoints_is_noticed(
    store: PosixStore, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is left behind when RUN.json was lost."""
    put_checkpoint(store, 1)
    run_file.unlink()
    identity.write_run_file_unless_valid(store, OTHER)
    found = answer(capsys, "verify", store.url, code=1)
    assert "none of the checkpoints is" in found["run_problem"]
    assert cli.main(["repair", store.url]) == 1 and "--run-id" in capsys.readouterr().err
    assert answer(capsys, "repair", store.url, "--run-id", SMALL_RUN.run_id)["written"] is True
    assert cli.main(["verify", store.url]) == 0


def test_a_root_in_which_nothing_was_committed_keeps_the_id_of_its_starts(store: PosixStore, run_file: Path) -> None:
    mine = identity.ensure_run_identity(store, "llama")
    commit.claim_epoch(store, mine, above=0, job={})
    put_checkpoint(store, 1, committed=False)
    run_file.unlink()
    with pytest.warns(RuntimeWarning, match="written again"):
        assert identity.ensure_run_identity(store) == mine


def test_leftovers_that_say_nothing_make_a_new_run(store: PosixStore, run_file: Path) -> None:
    put_checkpoint(store, 1, committed=False)
    assert identity.ensure_run_identity(store, "llama").run == "llama"
    empty(run_file)
    assert identity.ensure_run_identity(store, "llama").run == "llama" and identity.read_run_file(store).problem == ""


def test_no_new_id_beside_checkpoints_that_are_all_damaged(
    store: PosixStore, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = put_checkpoint(store, 1)
    empty(Path(store.url, name, layout.MANIFEST_FILE))
    run_file.unlink()
    with pytest.raises(CheckpointError, match=f"no run is named in its 1 checkpoint: {name}"):
        identity.ensure_run_identity(store)
    assert not run_file.exists()
    assert cli.main(["repair", store.url]) == 1 and name in capsys.readouterr().err


def test_storage_that_deletes_nothing_says_who_can(
    store: PosixStore, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_checkpoint(store, 1)
    empty(run_file)

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "unlink", refused)
    with pytest.raises(CheckpointError, match=r"damaged RUN.json cannot be replaced") as caught:
        identity.ensure_run_identity(RestrictedStore(store.url))
    assert "remove it" in (caught.value.hint or "")


def exchange(store: PosixStore, tmp_path: Path) -> list[str]:
    """Another run's root in the place of this one; its checkpoints."""
    os.rename(store.url, tmp_path / "ours")
    theirs = PosixStore(store.url)
    identity.ensure_run_identity(theirs, "other")
    names = [
        put_checkpoint(theirs, seq, epoch=1, run=identity.read_run_file(theirs).identity or OTHER)
        for seq in range(1, 5)
    ]
    return names


def test_an_exchanged_root_gets_no_commit_and_loses_nothing(store: PosixStore, tmp_path: Path) -> None:
    for seq in range(1, 5):
        put_checkpoint(store, seq, epoch=9)
    planned = retention.plan(retention.judge_all_checkpoints(store), Latest(1))
    names = exchange(store, tmp_path)
    with pytest.raises(RunIsOwned, match=r"is of run 'other' .*, expected run 'small' .* was replaced"):
        retention.enforce(store, Latest(1), SMALL_RUN)
    assert retention.delete_planned(store, planned, SMALL_RUN).deleted == ()
    with pytest.raises(RunIsOwned, match="was replaced"):
        put_checkpoint(store, 5, epoch=9, run=SMALL_RUN)
    assert [name for name in store.list() if name.startswith("seq-") and name[:-1] not in names] == [
        "seq-000005.step-0000000005.e9-abcd/"
    ]
    assert not store.exists("seq-000005.step-0000000005.e9-abcd/MANIFEST.json")
    assert all(store.exists(f"{name}/{layout.MANIFEST_FILE}") for name in names)


def test_an_emptied_root_gets_no_commit(store: PosixStore, tmp_path: Path) -> None:
    """As the directory under a mount is when the mount is gone."""
    put_checkpoint(store, 1)
    os.rename(store.url, tmp_path / "ours")
    os.mkdir(store.url)
    with pytest.raises(CheckpointError, match="emptied or replaced, or its mount is gone"):
        identity.require_run_identity(store, SMALL_RUN)
    with pytest.raises(CheckpointError, match="its mount is gone"):
        retention.enforce(store, Latest(1), SMALL_RUN)


def test_a_checkpoint_of_another_run_is_not_deleted(store: PosixStore, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = put_checkpoint(store, 1, run=SMALL_RUN)
    os.unlink(Path(store.url, layout.RUN_FILE))
    identity.write_run_file_unless_valid(store, OTHER)
    mine = [put_checkpoint(store, seq, run=OTHER) for seq in (2, 3)]
    kept = answer(capsys, "prune", store.url, "--latest", "1")
    assert kept["deleted"] == [mine[0]] and "of another run, 'small'" in kept["keep"][theirs]
