"""Reading outlasts a mount that goes and comes back, goes to the same object elsewhere, and ends with one error."""

from __future__ import annotations

import errno
import os
import shutil

import numpy as np
import pytest

from hyperpod_kit.data import IndexedDataset
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.reading.retrying_reader import RetryingFiles
from hyperpod_kit.errors import ChangedFile, DataUnavailable


class Clock:
    """Seconds that pass by sleeping; `then`: time -> what happens."""

    def __init__(self):
        self.now = 0.0
        self.then = {}

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        for when in sorted(self.then):
            if when <= self.now:
                self.then.pop(when)()


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "mount" / "corpus"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("one\ntwo\nthree\n")
    return build_index([str(folder)], str(tmp_path / "index")).index


@pytest.fixture
def clock():
    return Clock()


def patient(clock, **how):
    return RetryingFiles(60.0, clock=clock, sleep=clock.sleep, **how)


def test_a_directory_that_is_empty_for_a_while(corpus, clock, tmp_path):
    """As between an unmount and a mount."""
    os.rename(tmp_path / "mount", tmp_path / "gone")
    clock.then[20.0] = lambda: os.rename(tmp_path / "gone", tmp_path / "mount")
    assert patient(clock).read(corpus.file(0), 4, 3) == b"two" and 20 <= clock.now < 30


@pytest.mark.parametrize("number", [errno.ENOTCONN, errno.ESTALE, errno.EIO, errno.ETIMEDOUT])
def test_an_open_file_that_fails_is_opened_anew(corpus, clock, monkeypatch, number):
    """The kernel's own answers need a mount that dies (tests/rehearsal); here the descriptor's read gives them."""
    files = patient(clock)
    file = corpus.file(0)
    assert files.read(file, 0, 3) == b"one"
    real, opened = os.pread, []

    def broken(handle, length, offset):
        if clock.now < 10:
            raise OSError(number, os.strerror(number))
        return real(handle, length, offset)

    monkeypatch.setattr(os, "pread", broken)
    monkeypatch.setattr(os, "open", lambda *a, f=os.open: opened.append(a) or f(*a))
    assert files.read(file, 8, 5) == b"three" and clock.now >= 10 and len(opened) > 2


def test_from_elsewhere_when_it_does_not_come_back(corpus, clock, tmp_path):
    other = tmp_path / "other"
    os.rename(tmp_path / "mount" / "corpus", other)
    files = patient(clock, elsewhere={str(tmp_path / "mount" / "corpus"): str(other)})
    assert files.read(corpus.file(0), 0, 3) == b"one" and clock.now >= 60
    waited = clock.now
    assert files.read(corpus.file(0), 4, 3) == b"two" and clock.now == waited, "not waited for again at each read"
    clock.now += 100
    os.rename(other, tmp_path / "mount" / "corpus")
    assert files.read(corpus.file(0), 4, 3) == b"two" and clock.now == waited + 100


def test_a_mount_that_is_given_up_is_waited_for_once(clock, tmp_path):
    folder, other = tmp_path / "mount", tmp_path / "other"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.txt").write_text(f"{name}\n")
    index = build_index([str(folder)], str(tmp_path / "index")).index
    os.rename(folder, other)
    folder.mkdir()  # the mount point, with nothing on it
    files = patient(clock, elsewhere={f"{folder}/": f"{other}/"})
    assert files.read(index.file(0), 0, 1) == b"a" and 60 <= clock.now < 70
    waited = clock.now
    assert files.read(index.file(1), 0, 1) == b"b" and clock.now == waited


def test_a_file_that_alone_is_missing_does_not_take_the_others_along(clock, tmp_path):
    folder, other = tmp_path / "mount", tmp_path / "other"
    for place in (folder, other):
        place.mkdir()
        for name in "ab":
            (place / f"{name}.txt").write_text(f"{name}\n")
    index = build_index([str(folder)], str(tmp_path / "index")).index
    (folder / "a.txt").unlink()
    files = patient(clock, elsewhere={str(folder): str(other)})
    assert files.read(index.file(0), 0, 1) == b"a" and clock.now >= 60
    shutil.rmtree(other)
    assert files.read(index.file(1), 0, 1) == b"b", "from its own place"


def test_elsewhere_may_fail_in_passing_too(corpus, clock, tmp_path, monkeypatch):
    other = tmp_path / "other"
    os.rename(tmp_path / "mount" / "corpus", other)
    real, failures = os.pread, [errno.EIO, errno.ECONNRESET]

    def broken(handle, length, offset):
        if failures:
            raise OSError(failures.pop(), "cut")
        return real(handle, length, offset)

    monkeypatch.setattr(os, "pread", broken)
    files = patient(clock, elsewhere={str(tmp_path / "mount" / "corpus"): str(other)})
    assert files.read(corpus.file(0), 0, 3) == b"one" and not failures


def test_one_error_with_file_and_place_when_nothing_helps(corpus, clock, tmp_path):
    os.rename(tmp_path / "mount", tmp_path / "gone")
    with pytest.raises(DataUnavailable) as caught:
        patient(clock).read(corpus.file(0), 4, 3)
    assert "corpus/a.txt, at 4" in str(caught.value) and "60 s" in str(caught.value)
    assert caught.value.exit_code == 74
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.txt").write_text("one\n")
    with pytest.raises(DataUnavailable, match="it has 4 bytes, expected 14"):
        patient(clock, elsewhere={str(tmp_path / "mount" / "corpus"): str(other)}).read(corpus.file(0), 4, 3)


def test_what_no_repair_mends_is_raised_at_once(corpus, clock, monkeypatch, tmp_path):
    (tmp_path / "mount" / "corpus" / "a.txt").write_text("other\n")
    with pytest.raises(ChangedFile):
        patient(clock).read(corpus.file(0), 4, 3)

    def refused(*_):
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(PermissionError):
        patient(clock).read(corpus.file(0), 4, 3)
    assert clock.now == 0


def test_a_data_set_is_patient(corpus, tmp_path):
    os.rename(tmp_path / "mount", tmp_path / "gone")
    with pytest.raises(DataUnavailable):
        IndexedDataset(corpus, patience=0.1)[0]


@pytest.fixture
def many(tmp_path):
    """More files than are open at a time, a long line and a short one in each."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(150):
        (folder / f"{number:03}.txt").write_text(f"{number} " + "x" * 5000 + f"\nshort {number}\n")
    return build_index([str(folder)], str(tmp_path / "many-index")).index


def ranges(index, numbers):
    files, starts, lengths = index.where(np.array(numbers))
    return [index.file(number) for number in files.tolist()], starts.tolist(), lengths.tolist()


@pytest.mark.parametrize("count", [1, 7, 300])
def test_several_ranges_are_those_of_single_reads(many, clock, count):
    files = patient(clock)
    asked = ranges(many, [n * 7 % 300 for n in range(count)])
    found = files.read_several(*asked)
    assert found == [patient(clock).read(*one) for one in zip(*asked, strict=True)]
    assert files.bytes_read == sum(map(len, found)), "each is counted once"


def test_several_ranges_of_a_file_that_fails_for_a_while(many, clock, monkeypatch):
    files, asked = patient(clock), ranges(many, range(6))
    expected = files.read_several(*asked)
    real = os.pread

    def broken(handle, length, offset):
        if clock.now < 10 and offset:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(handle, length, offset)

    monkeypatch.setattr(os, "pread", broken)
    assert files.read_several(*asked) == expected and clock.now >= 10


def test_several_ranges_of_a_file_that_became_shorter(many, clock):
    files, asked = patient(clock), ranges(many, range(6))
    files.read_several(*asked)
    os.truncate(asked[0][2].path, 4000)
    with pytest.raises(ChangedFile, match="000 bytes"):
        files.read_several(*asked)
