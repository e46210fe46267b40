"""A call that hangs is left behind: a real one that waits in the kernel, the opening of a pipe nobody writes to."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from hyperpod_kit.data import ElasticLoader, IndexedDataset
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.reading import bounded
from hyperpod_kit.data.reading.bounded import BoundedFile
from hyperpod_kit.errors import DataUnavailable
from hyperpod_kit.system import mountinfo
from hyperpod_kit.system.bounded_thread import BoundedCalls, CallUnanswered
from hyperpod_kit.untrusted import source_owner
from tests.support.rows import full
from tests.support.wait import Deadline, until


def waiting(path, _flags=0):
    """In place of the product's own call, which waits for no pipe: here a pipe is a file of a mount that hangs."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


@pytest.fixture(autouse=True)
def every_mount_may_hang(monkeypatch):
    monkeypatch.setattr(mountinfo, "DISKS", frozenset())
    monkeypatch.setattr(source_owner, "open_nonblocking_as_source_owner", waiting)


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "mount"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.txt").write_text("".join(f"{name}{n}\n" for n in range(40)))
    return build_index([str(folder)], str(tmp_path / "index")).index


def hang(corpus):
    """Whoever opens a.txt waits, until `heal`."""
    path = corpus.file(0).path
    os.rename(path, path + ".away")
    os.mkfifo(path)
    return path


def heal(path):
    os.unlink(path)
    os.rename(path + ".away", path)


def test_reads_by_threads_are_the_same_reads(corpus, monkeypatch):
    monkeypatch.setattr(bounded, "PIECE_BYTES", 7)
    data = IndexedDataset(corpus)
    assert [data[n] for n in range(80)] == [f"a{n}" for n in range(40)] + [f"b{n}" for n in range(40)]
    monkeypatch.undo()
    assert data.__getitems__(range(80)) == [data[n] for n in range(80)]
    assert {type(file) for file in data._files._open.values()} == {BoundedFile}


def test_a_file_that_hangs_for_a_while(corpus):
    path = hang(corpus)
    timer = threading.Timer(0.5, heal, [path])
    timer.start()
    assert IndexedDataset(corpus, answer=0.2, patience=60)[3] == "a3"


def test_one_that_hangs_for_ever_is_one_error_in_time(corpus):
    path = hang(corpus)
    deadline = Deadline(30)
    with pytest.raises(DataUnavailable, match=r"a\.txt, at 0: .*no answer for 0\.1 s.* for 1 s"):
        IndexedDataset(corpus, answer=0.1, patience=1)[0]
    assert not deadline.has_passed()
    assert IndexedDataset(corpus, answer=20)[40] == "b0", "another file of the same mount answers"
    os.close(os.open(path, os.O_RDWR))  # lets go of who waits


def test_with_workers_the_batches_are_the_same(corpus):
    calm = list(ElasticLoader(IndexedDataset(corpus), 4, collate_fn=list))
    path = hang(corpus)
    threading.Timer(1.0, heal, [path]).start()
    found = list(ElasticLoader(IndexedDataset(corpus, answer=0.2), 4, collate_fn=list, num_workers=2))
    assert found == calm


def test_a_file_that_is_opened_late_is_closed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    calls = BoundedCalls(0.05, "test", most_threads=1)
    handles = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CallUnanswered):
        BoundedFile(str(tmp_path / "pipe"), calls)
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    (tmp_path / "file").write_text("here")
    until(lambda: calls._under_way == 0, what="the end of what was left behind")
    assert BoundedFile(str(tmp_path / "file"), calls).read(0, 4) == b"here"
    os.close(writer)
    assert len(os.listdir("/proc/self/fd")) <= handles + 1, "what came late is closed"


def test_an_error_of_the_call_is_the_callers(tmp_path):
    with pytest.raises(FileNotFoundError):
        BoundedFile(str(tmp_path / "none"), BoundedCalls(30, "test"))


def test_a_child_has_threads_of_its_own(corpus):
    data = IndexedDataset(corpus)
    assert data[0] == "a0"
    pid = os.fork()
    if not pid:
        os._exit(0 if data[1] == "a1" and data.__getitems__([41, 42]) == ["b1", "b2"] else 1)
    assert os.waitpid(pid, 0)[1] == 0


PROGRAM = """
import os, sys
from hyperpod_kit.data import ElasticLoader, IndexedDataset, SampleIndex
from hyperpod_kit.data.reading import mounts
from hyperpod_kit.untrusted import source_owner
mounts.mountinfo.DISKS = frozenset()
source_owner.open_nonblocking_as_source_owner = lambda path, _flags=0: os.open(path, os.O_RDONLY | os.O_CLOEXEC)
data = IndexedDataset(SampleIndex.open(sys.argv[1]), answer=0.1, patience=0.1)
for batch in ElasticLoader(data, 4, num_workers=int(sys.argv[2])):
    pass
"""


@pytest.mark.parametrize("workers", [0, *full(1)])
def test_a_trainer_without_its_data_ends_with_74(corpus, workers):
    """And it ends: threads that wait for the mount do not hold it."""
    path = hang(corpus)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, corpus.folder, str(workers)], capture_output=True, timeout=100
    )
    assert done.returncode == 74 and b"DataUnavailable" in done.stderr and path.encode() in done.stderr, done.stderr
