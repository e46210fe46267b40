from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hyperpod_kit.checkpoint.repository import commit, identity
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
    mine = identity.open_root(root, "llama")
    assert identity.open_root(root) == identity.open_root(root, "llama") == mine == identity.of_root(root)
    with pytest.raises(RunIsOwned, match="'llama'"):
        identity.open_root(root, "other")
    with pytest.raises(CheckpointError, match="mount is gone"):
        identity.confirm(str(tmp_path), mine)


def test_epochs_are_unique_however_many_start_at_once(tmp_path: Path) -> None:
    mine = identity.open_root(str(tmp_path))
    (tmp_path / "seq-000001.step-0000000001.e6-abcd").mkdir()
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda _: commit.claim_epoch(str(tmp_path), mine, above=3, job={}), range(8)))
    assert sorted(claims) == list(range(7, 15))
