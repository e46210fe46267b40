"""The root directory of an access point, made by whoever comes first; several nodes are several processes here."""

from __future__ import annotations

import errno
import multiprocessing
import os
import stat
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Dict

import pytest

from hyperpod_rehearsal.standins.access_point import prepare_access_point
from hyperpod_rehearsal.standins.fuse.background import StartFailed

NODES, ROUNDS = 6, 150
CREATION = {"OwnerUid": os.getuid(), "OwnerGid": os.getgid(), "Permissions": "0750"}


def points(**root: Any) -> Dict[str, Any]:
    return {"fsap-1": {"FileSystemId": "fs-1", "RootDirectory": {"Path": "/home/trainer", **root}}}


def node(base: Path, together: Barrier, results: Any) -> None:
    """Enter a fresh access point in each round at the same moment as all others, and hold it open as a daemon does."""
    links, made = [], points(CreationInfo=CREATION)
    for number in range(ROUNDS):
        together.wait(60)
        descriptor = os.open(prepare_access_point(made, "fsap-1", "fs-1", str(base / str(number)))[0], os.O_RDONLY)
        together.wait(60)
        links.append(os.fstat(descriptor).st_nlink)
        os.close(descriptor)
    results.put(links)


def test_nodes_that_make_it_at_once_all_serve_the_same_directory(tmp_path):
    context = multiprocessing.get_context("fork")
    together, results = context.Barrier(NODES), context.Queue()
    processes = [context.Process(target=node, args=(tmp_path, together, results)) for _ in range(NODES)]
    for process in processes:
        process.start()
    links = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(30)
    deleted = [number for number, round_links in enumerate(zip(*links)) if 0 in round_links]
    assert not deleted, f"rounds with a node on a directory that was deleted: {deleted}"
    for number in range(ROUNDS):
        assert os.listdir(tmp_path / str(number) / "home") == ["trainer"]


def test_whoever_is_second_takes_what_the_first_has_made_however_late_it_came(tmp_path, monkeypatch):
    made = points(CreationInfo=CREATION)
    opened = []

    def chmod(path, mode, *, really=os.chmod):
        really(path, mode)
        monkeypatch.setattr(os, "chmod", really)
        opened.append(os.open(prepare_access_point(made, "fsap-1", "fs-1", str(tmp_path))[0], os.O_RDONLY))

    monkeypatch.setattr(os, "chmod", chmod)
    directory = prepare_access_point(made, "fsap-1", "fs-1", str(tmp_path))[0]
    first = os.fstat(opened[0])
    os.close(opened[0])
    assert first.st_nlink > 0 and first.st_ino == os.stat(directory).st_ino
    assert stat.S_IMODE(first.st_mode) == 0o750 and os.listdir(tmp_path / "home") == ["trainer"]


def test_what_is_in_the_way_is_said_and_nothing_is_left(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/trainer").write_text("a file")
    with pytest.raises(FileExistsError) as caught:
        prepare_access_point(points(CreationInfo=CREATION), "fsap-1", "fs-1", str(tmp_path))
    assert caught.value.errno == errno.EEXIST
    assert os.listdir(tmp_path / "home") == ["trainer"]


def test_without_creation_info_a_missing_root_is_denied(tmp_path):
    with pytest.raises(StartFailed, match="access denied by server"):
        prepare_access_point(points(), "fsap-1", "fs-1", str(tmp_path))
