from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from hyperpod_kit.checkpoint.repository import commit
from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.records import identity
from hyperpod_kit.checkpoint.repository.store import durable
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.errors import CheckpointError, RunIsOwned
from tests.unit.checkpoint.store_contract import put
from tests.unit.checkpoint.test_manifest import MANIFEST


@pytest.mark.parametrize("unnamed", [True, False], ids=["linked", "exclusive"])
def test_a_file_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool) -> None:
    if not unnamed:  # a file system without O_TMPFILE, such as NFS or Mountpoint
        monkeypatch.setattr(durable, "create_unnamed_then_link", lambda *_: False)
    path = tmp_path / "file"
    durable.write_once(str(path), b"first")
    with pytest.raises(FileExistsError):
        durable.write_once(str(path), b"second")
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


def test_a_root_belongs_to_one_run(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    mine = identity.ensure_run_identity(root, "llama")
    assert (
        identity.ensure_run_identity(root)
        == identity.ensure_run_identity(root, "llama")
        == mine
        == identity.read_or_infer_identity(root)
    )
    with pytest.raises(RunIsOwned, match="'llama'"):
        identity.ensure_run_identity(root, "other")
    with pytest.raises(CheckpointError, match="mount is gone"):
        identity.require_run_identity(str(tmp_path), mine)


def test_epochs_are_unique_however_many_start_at_once(tmp_path: Path) -> None:
    mine = identity.ensure_run_identity(str(tmp_path))
    (tmp_path / "seq-000001.step-0000000001.e6-abcd").mkdir()
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda _: commit.claim_epoch(str(tmp_path), mine, above=3, job={}), range(8)))
    assert sorted(claims) == list(range(7, 15))


def test_only_who_commits_syncs_directories_and_every_name_is_on_disk_before_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut right then would leave: the names that a synced directory held when it was synced."""
    root = tmp_path / "root"
    held: dict[str, set[str]] = {}
    real = os.fsync

    def fsync(fd: int) -> None:
        real(fd)
        path = os.readlink(f"/proc/self/fd/{fd}")
        if os.path.isdir(path):
            held[path] = set(os.listdir(path))

    monkeypatch.setattr(os, "fsync", fsync)
    mine = identity.ensure_run_identity(str(root), "llama")
    attempt = "seq-000043.step-0000000110.e2-abcd"
    PosixStore(str(root)).create(f"{attempt}/{layout.EXTRA_FILE}", b"{}")  # of an agent that died before the manifest
    for rank in range(2):  # each a process of its own, perhaps on another machine
        held.clear()
        put(PosixStore(str(root)), f"{attempt}/{layout.shard_file(rank)}", b"shard", 5)
        assert not held
    body = replace(MANIFEST, run="llama", run_id=mine.run_id)
    before: list[dict[str, set[str]]] = []
    made = PosixStore.create

    def create(self: PosixStore, name: str, data: bytes) -> None:
        if name.endswith(layout.MANIFEST_FILE):
            before.append({path: set(names) for path, names in held.items()})
        made(self, name, data)

    monkeypatch.setattr(PosixStore, "create", create)
    commit.commit(str(root), attempt, body, b"{}")
    shards = {layout.shard_file(0), layout.shard_file(1)}
    (seen,) = before
    assert attempt in seen[str(root)] and seen[str(root / attempt)] == {*shards, layout.EXTRA_FILE}
