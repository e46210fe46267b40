from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path
from typing import Any, List, Optional

import pytest

from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.format import digest, layout
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import catalog, tombstone
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import (
    CheckpointError,
    DigestMismatch,
    DigestUnavailable,
    NoCheckpoint,
    NoValidCheckpoint,
    StorageUnreadable,
)
from tests.support.damage import flip
from tests.unit.checkpoint.small_checkpoint import put_checkpoint


def test_nothing_committed_is_not_the_same_as_nothing_valid(committed, tmp_path: Path) -> None:
    with pytest.raises(NoCheckpoint):
        selection.newest_valid(str(tmp_path / "nowhere"))
    root, attempt = committed(seq=1)
    (Path(root) / attempt / "MANIFEST.json").rename(tmp_path / "kept")
    with pytest.raises(NoValidCheckpoint, match=r"as LATEST says, and its MANIFEST.json is gone"):
        selection.newest_valid(root)
    (Path(root) / "LATEST").unlink()
    with pytest.raises(NoCheckpoint):  # as a save that was killed before its commit leaves it
        selection.newest_valid(root)
    (Path(root) / attempt / "MANIFEST.json").write_bytes(b"")
    with pytest.raises(NoValidCheckpoint, match=r"MANIFEST.json is empty") as caught:
        selection.newest_valid(root)
    assert caught.value.reasons[0][0] == attempt


def test_what_a_job_commits_during_the_walk_is_not_lost(
    committed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, attempt = committed(seq=1)
    manifest, away = Path(root, attempt, layout.MANIFEST_FILE), tmp_path / "away"
    manifest.rename(away)
    newest_first = catalog.iter_checkpoints_newest_first

    def listed_before_the_commit(where: Any) -> Any:
        entries = list(newest_first(where))
        if away.exists():
            away.rename(manifest)
        return iter(entries)

    monkeypatch.setattr(catalog, "iter_checkpoints_newest_first", listed_before_the_commit)
    assert selection.newest_valid(root).checkpoint_id == attempt


def test_order_is_by_epoch_and_seq_and_never_by_step(committed) -> None:
    committed(epoch=1, seq=20, step=200)
    root, rolled_back = committed(epoch=2, seq=21, step=110)
    assert selection.newest_valid(root).checkpoint_id == rolled_back
    committed(epoch=3, seq=5, step=1)
    assert selection.newest_valid(root).step == 1
    assert catalog.highest_epoch_and_seq(root) == (3, 21)


def test_what_is_passed_over_is_taken_only_when_nothing_else_is_valid(committed) -> None:
    root, older = committed(seq=1)
    newest = committed(seq=2)[1]
    found = selection.newest_valid(root, {newest: "it ends every run"})
    assert (found.checkpoint_id, found.rejected) == (older, ((newest, "it ends every run"),))
    flip(Path(root) / older / "shard-00000.safetensors", 5000)
    found = selection.newest_valid(root, {newest: "it ends every run"})
    assert found.checkpoint_id == newest and [name for name, _ in found.rejected] == [older]


def test_what_cannot_be_read_is_told_from_what_is_damaged(committed, monkeypatch: pytest.MonkeyPatch) -> None:
    root, older = committed(seq=1)
    damaged, unreadable = committed(seq=2)[1], committed(seq=3)[1]
    flip(Path(root) / damaged / "shard-00000.safetensors", 5000)
    real = verify.verify_checkpoint

    def verify_attempt(store: Any, attempt: str) -> object:
        if attempt == unreadable:
            raise OSError(5, "Input/output error", f"{attempt}/shard-00000.safetensors")
        return real(store, attempt)

    monkeypatch.setattr(verify, "verify_checkpoint", verify_attempt)
    found = selection.newest_valid(root)
    assert (found.checkpoint_id, found.unread) == (older, (unreadable,))
    assert [name for name, _ in found.rejected] == [unreadable, damaged]


def test_an_io_error_does_not_lead_to_an_older_one_unless_the_caller_decides(committed) -> None:
    root, older = committed(seq=1)
    newest = committed(seq=2)[1]

    def take(attempt: str) -> str:
        if attempt == newest:
            raise OSError(5, "Input/output error", f"{attempt}/extra.json")
        return attempt

    with pytest.raises(StorageUnreadable, match=f"{newest}: cannot be read: Input/output error"):
        selection.load_newest_accepted(root, take)
    taken, found = selection.load_newest_accepted(root, take, skip_unreadable=True)
    assert (taken, found.checkpoint_id, found.unread) == (older, older, (newest,))


def test_what_is_marked_comes_last_for_every_reader(committed) -> None:
    root, older = committed(seq=1)
    newest = committed(seq=2)[1]
    tombstone.write(open_store(root), newest, "flipped")
    taken, found = selection.load_newest_accepted(root, str)
    assert taken == older and found.rejected == ((newest, "marked as damaged: flipped"),)
    taken, found = selection.load_newest_accepted(root, str, {older: "it crashed soon after"})
    assert taken == newest and found.rejected == ((older, "it crashed soon after"),)


def test_walks_back_with_a_reason_for_each(committed) -> None:
    root, oldest = committed(seq=1)
    names = [committed(seq=seq, world=2)[1] for seq in (2, 3, 4, 5)]
    base = Path(root)
    flip(base / names[0] / "shard-00001.safetensors", 5000)
    (base / names[1] / "shard-00000.safetensors").unlink()
    with (base / names[2] / "shard-00001.safetensors").open("r+b") as file:
        file.truncate(100)
    shutil.copytree(base / names[0], base / "seq-000009.step-0000000010.e9-beef")
    flip(base / names[3] / "extra.json", 3)
    found = selection.newest_valid(root)
    assert (found.checkpoint_id, found.seq) == (oldest, 1)
    reasons = dict(found.rejected)
    assert [name for name, _ in found.rejected] == ["seq-000009.step-0000000010.e9-beef", *reversed(names)]
    assert "does not belong into this directory" in reasons["seq-000009.step-0000000010.e9-beef"]
    assert "extra.json: expected blake2b:" in reasons[names[3]]
    assert reasons[names[2]].startswith("shard-00001.safetensors has 100 bytes")
    assert reasons[names[1]] == "shard-00000.safetensors is missing"
    assert "shard-00001.safetensors bytes 0.." in reasons[names[0]]


def test_told_where_to_begin(committed) -> None:
    names = [committed(seq=seq)[1] for seq in (1, 2, 3)]
    root = committed(seq=4)[0]
    assert [
        entry.checkpoint_id for entry in selection.iter_committed_not_excluded_newest_first(root, start_at=names[1])
    ] == [
        names[1],
        names[0],
    ]
    with pytest.raises(CheckpointError, match="not a committed checkpoint"):
        list(selection.iter_committed_not_excluded_newest_first(root, start_at="seq-000099.step-0000000010.e1-abcd"))


def test_an_attempt_that_is_started_again_goes_on_from_what_it_has_saved_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HyperPod's step retry: the environment of the attempt's beginning, and newer checkpoints of its own."""
    (tmp_path / "root").mkdir()
    store = open_store(str(tmp_path / "root"))
    before = put_checkpoint(store, 1, job={"attempt": "7.0.0"})
    told = put_checkpoint(store, 2, job={"attempt": "7.0.0"})
    poison = put_checkpoint(store, 3, job={"attempt": "7.0.0"})  # `job run` passed over it
    own = [put_checkpoint(store, seq, epoch=2, job={"attempt": "7.0.1"}) for seq in (4, 5)]
    strangers = put_checkpoint(store, 6, epoch=2)

    def given(own: Optional[str]) -> List[str]:
        return [
            entry.checkpoint_id
            for entry in selection.iter_committed_not_excluded_newest_first(
                store, start_at=told, also_saved_by_job_attempt=own
            )
        ]

    assert given("7.0.1") == [own[1], own[0], told, before]
    assert given("7.0.2") == given(None) == [told, before]
    # An I/O error says nothing either, so nothing older may be taken in its place.
    real = verify.read_manifest

    def unread(where: Any, attempt: str) -> Any:
        if attempt == own[1]:
            raise OSError(5, "Input/output error", attempt)
        return real(where, attempt)

    with monkeypatch.context() as patched:
        patched.setattr(verify, "read_manifest", unread)
        with pytest.raises(OSError, match="Input/output"):
            given("7.0.1")
    # A damaged manifest says nothing of who saved it, so it stays passed over.
    (tmp_path / "root" / own[1] / layout.MANIFEST_FILE).write_bytes(b"{")
    assert given("7.0.1") == [own[0], told, before]

    shutil.rmtree(tmp_path / "root" / told)  # retention, since newer ones were saved
    assert given("7.0.1") == [own[0], before]
    with pytest.raises(CheckpointError, match="not a committed checkpoint"):
        given("7.0.2")
    shutil.rmtree(tmp_path / "root" / own[0])
    with pytest.raises(CheckpointError, match="not a committed checkpoint"):
        given("7.0.1")
    assert poison and strangers


def test_a_digest_that_cannot_be_computed_is_no_verdict(committed, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xxhash")
    committed(seq=1)
    root, newest = committed(seq=2, algorithm="xxh3")
    assert selection.newest_valid(root).checkpoint_id == newest
    monkeypatch.setitem(sys.modules, "xxhash", None)
    monkeypatch.setattr(digest, "load_library_functions", lambda: None)
    with pytest.raises(DigestUnavailable):
        selection.newest_valid(root)


def test_every_flipped_byte_of_every_file_is_found(committed) -> None:
    root, attempt = committed(seq=1, world=2, items=1500, chunk=4096)
    folder = Path(root) / attempt
    dice = random.Random(20)
    for name in ("shard-00000.safetensors", "shard-00001.safetensors", "MANIFEST.json", "extra.json"):
        path = folder / name
        size = path.stat().st_size
        # The header, the leaves at the end, and anywhere.
        places = {*range(0, 16), *range(size - 16, size), *(dice.randrange(size) for _ in range(120))}
        for at in places:
            if 0 <= at < size:
                flip(path, at, at % 8)
                with pytest.raises(CheckpointError):
                    verify.verify_checkpoint(root, attempt)
                flip(path, at, at % 8)
    verify.verify_checkpoint(root, attempt)


def test_a_flip_is_localised_to_its_chunk(committed) -> None:
    root, attempt = committed(seq=1, chunk=4096)
    flip(Path(root) / attempt / layout.shard_file(0), 9000)
    with pytest.raises(DigestMismatch, match=r"bytes 8192\.\.12288"):
        verify.verify_checkpoint(root, attempt)


def test_a_shard_of_another_save_in_its_place_is_found(committed) -> None:
    root, old = committed(seq=1)
    _, new = committed(seq=2)
    shutil.copy(Path(root) / old / layout.shard_file(0), Path(root) / new / layout.shard_file(0))
    found = selection.newest_valid(root)
    assert found.checkpoint_id == old and "(digests)" in found.rejected[0][1]
