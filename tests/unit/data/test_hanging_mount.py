"""`data index`, `data verify` and `data stage` on a real FUSE mount that hangs or is dead: one error in time, with the
exit code that a job reads as lost storage."""

from __future__ import annotations

import select
import signal
import subprocess
import sys

import pytest

from hyperpod_kit.data.bulk.staging import WORK_DIRECTORY
from tests.support.serving_fuse import serving_mount
from tests.support.silent_fuse import silent_mount
from tests.support.wait import until

pytestmark = pytest.mark.needs("fuse")


def data(*words):
    """(exit code, standard error) of a command that gives a mount a second to answer, and ends in time."""
    done = subprocess.run(
        [sys.executable, "-m", "hyperpod_kit.data.cli", *map(str, words), "--answer", "1"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["index", "SRC", "--out", "OUT"],
        ["index", "SRC/*.txt", "--out", "OUT"],
        ["stage", "SRC", "OUT"],
        ["stage", "OUT", "SRC"],
    ],
)
def test_a_mount_that_hangs_from_the_beginning(tmp_path, words):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.txt").write_text("a\n")
    with silent_mount(tmp_path / "mount"):
        places = {"SRC": str(tmp_path / "mount"), "OUT": str(tmp_path / "out")}
        code, said = data(*(word.replace("SRC", places["SRC"]).replace("OUT", places["OUT"]) for word in words))
    assert (code, said.count("no answer for 1 s")) == (74, 1) and str(tmp_path / "mount") in said, said
    assert "Traceback" not in said, said


@pytest.fixture
def mount(tmp_path):
    place = tmp_path / "mount"
    with serving_mount(place) as daemon:
        for name in "abc":
            (place / f"{name}.txt").write_text("".join(f"{name}{n}\n" for n in range(40)))
        yield place, daemon


def test_one_that_works_is_read_as_ever(tmp_path, mount):
    place, _ = mount
    assert data("index", place, "--out", tmp_path / "index")[0] == 0
    assert data("index", place / "*.txt", "--out", tmp_path / "by-pattern")[0] == 0
    assert data("verify", tmp_path / "index", "--bytes")[0] == 0
    assert data("stage", place, tmp_path / "copy")[0] == 0
    assert [(tmp_path / "copy" / f"{name}.txt").read_bytes() for name in "abc"] == [
        (place / f"{name}.txt").read_bytes() for name in "abc"
    ]


def test_one_that_hangs_later(tmp_path, mount):
    """Its daemon is stopped: what it was asked before is still to be had, by its death."""
    place, daemon = mount
    assert data("index", place, "--out", tmp_path / "index")[0] == 0
    daemon.send_signal(signal.SIGSTOP)
    try:
        for words in (
            ["index", place, "--out", tmp_path / "index"],
            ["verify", tmp_path / "index", "--bytes"],
            ["stage", place, tmp_path / "copy"],
        ):
            code, said = data(*words)
            assert code == 74 and "no answer for 1 s" in said and str(place) in said, (words, said)
    finally:
        daemon.send_signal(signal.SIGCONT)
    assert data("stage", place, tmp_path / "copy")[0] == 0, "it goes on"


def test_a_destination_that_hangs_later(tmp_path, mount):
    """In the middle of a file: the command would write to it for ever. What the daemon had read already keeps a thread
    in the kernel, and with it the process, until it is answered: the words come before."""
    place, daemon = mount
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "large.txt").write_bytes(bytes(4 << 20))
    words = ["stage", str(tmp_path / "source"), str(place / "copy"), "--rate", "1", "--answer", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "hyperpod_kit.data.cli", *words], stderr=subprocess.PIPE, text=True
    ) as command:
        parts = place / "copy" / WORK_DIRECTORY / "parts"
        until(lambda: parts.is_dir() and any(parts.iterdir()))
        daemon.send_signal(signal.SIGSTOP)
        try:
            assert command.stderr
            assert select.select([command.stderr], [], [], 60)[0], "not a word"
            said = command.stderr.readline()
        finally:
            daemon.send_signal(signal.SIGCONT)
        said += command.communicate(timeout=60)[1]
    assert command.returncode == 74 and "no answer for 1 s" in said and str(place) in said, said
    assert data("stage", tmp_path / "source", place / "copy")[0] == 0, "it goes on"
    assert (place / "copy" / "large.txt").read_bytes() == bytes(4 << 20)


def test_one_that_is_dead(tmp_path, mount):
    place, daemon = mount
    daemon.kill()
    daemon.wait(20)
    for words in (["index", place, "--out", tmp_path / "index"], ["stage", place, tmp_path / "copy"]):
        code, said = data(*words)
        assert code == 74 and str(place) in said and "not connected" in said, said
