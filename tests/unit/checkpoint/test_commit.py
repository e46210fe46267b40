from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hyperpod_kit.checkpoint.repository import commit, layout
from hyperpod_kit.checkpoint.repository.store import durable
from hyperpod_kit.errors import CheckpointError, RunIsOwned


@pytest.mark.parametrize("unnamed", [True, False], ids=["linked", "exclusive"])
def test_a_file_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool) -> None:
    if not unnamed:  # a file system without O_TMPFILE, such as NFS or Mountpoint
        monkeypatch.setattr(durable, "link_whole", lambda *_: False)
    path = tmp_path / "file"
    durable.write_once(str(path), b"first")
    with pytest.raises(FileExistsError):
        durable.write_once(str(path), b"second")
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


def test_a_root_belongs_to_one_run(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    mine = commit.open_root(root, "llama")
    assert commit.open_root(root) == commit.open_root(root, "llama") == mine == commit.open_existing(root)
    with pytest.raises(RunIsOwned, match="'llama'"):
        commit.open_root(root, "other")
    with pytest.raises(CheckpointError, match="mount is gone"):
        commit.open_existing(str(tmp_path))


def test_a_damaged_run_file_is_said_to_be_damaged(tmp_path: Path) -> None:
    commit.open_root(str(tmp_path), "llama")
    path = tmp_path / layout.RUN_FILE
    path.write_bytes(path.read_bytes().replace(b"llama", b"lamma"))
    with pytest.raises(CheckpointError, match=r"RUN.json is torn or damaged"):
        commit.open_root(str(tmp_path))


def test_epochs_are_unique_however_many_start_at_once(tmp_path: Path) -> None:
    identity = commit.open_root(str(tmp_path))
    (tmp_path / "seq-000001.step-0000000001.e6-abcd").mkdir()
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda _: commit.claim_epoch(str(tmp_path), identity, above=3, job={}), range(8)))
    assert sorted(claims) == list(range(7, 15))
