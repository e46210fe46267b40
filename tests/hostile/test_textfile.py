"""Whose directory root writes its metrics to: the exporter's user has it, and would have root write elsewhere."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Iterator

import pytest

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.node.machine import files
from tests.hostile.users import ATTACKER, ROOT, as_user, busy_as, place
from tests.support.wait import Deadline

pytestmark = ROOT

SECRET = "root:$6$x:19000:0:99999:7:::\n"


@pytest.fixture
def home() -> Iterator[Path]:
    """The attacker's own directory, in which root is to write `collector/kit.prom`; beside it `shadow`, root's own."""
    with place(0o755) as found:
        (found / "shadow").write_text(SECRET)
        (found / "shadow").chmod(0o600)
        (found / "exporter/collector").mkdir(parents=True)
        for path in ("exporter", "exporter/collector"):
            os.chown(found / path, ATTACKER, ATTACKER)
        yield found


def unharmed(home: Path) -> bool:
    shadow = home / "shadow"
    found = shadow.stat()
    return shadow.read_text() == SECRET and stat.S_IMODE(found.st_mode) == 0o600 and found.st_uid == 0


@pytest.mark.parametrize("write", [files.write_volatile, files.write_if_different])
@pytest.mark.parametrize("lay", ["link", "hard link", "fifo", "directory", "file"])
def test_names_that_a_release_before_would_have_used_lead_nowhere(home: Path, lay: str, write: object) -> None:
    """For every process number that root may have: `<name>.<process>.partial` is there already."""
    target = home / "exporter/collector/kit.prom"
    if lay == "hard link":
        # Where the kernel lets him (fs.protected_hardlinks=0): made by root here.
        os.link(home / "shadow", f"{target}.{os.getpid()}.partial")
    else:
        make = {
            "link": lambda path: os.symlink(home / "shadow", path),
            "fifo": os.mkfifo,
            "directory": os.mkdir,
            "file": lambda path: Path(path).write_text("mine"),
        }[lay]

        def squat() -> None:
            for process in range(max(1, os.getppid() - 50), os.getppid() + 50):
                make(f"{target}.{process}.partial")

        assert as_user(ATTACKER, squat) == 0
    write(str(target), "metrics\n")  # type: ignore[operator]
    assert target.read_text() == "metrics\n" and target.stat().st_uid == 0
    assert unharmed(home)


@pytest.mark.parametrize("lay", ["link", "fifo", "directory"])
def test_the_file_s_own_name_leads_nowhere_and_is_not_waited_for(home: Path, lay: str) -> None:
    target = home / "exporter/collector/kit.prom"
    make = {
        "link": lambda: os.symlink(home / "shadow", target),
        "fifo": lambda: os.mkfifo(target),
        "directory": lambda: target.mkdir(),
    }[lay]
    assert as_user(ATTACKER, make) == 0
    if lay == "directory":
        with pytest.raises(IsADirectoryError):
            files.write_volatile(str(target), "metrics\n")
    else:
        files.write_if_different(str(target), "metrics\n")
        assert target.read_text() == "metrics\n" and not target.is_symlink()
    assert unharmed(home)
    assert [one.name for one in target.parent.iterdir()] == ["kit.prom"]


@pytest.mark.parametrize("part", ["exporter/collector", "exporter/collector/new/deep"])
def test_a_link_in_the_place_of_the_directory_is_not_followed(home: Path, part: str) -> None:
    """Root would write into a directory of its own, /etc/cron.d for one, or make directories there."""
    (home / "cron.d").mkdir(mode=0o755)

    def exchange() -> None:
        (home / "exporter/collector").rmdir()
        (home / "exporter/collector").symlink_to(home / "cron.d")

    assert as_user(ATTACKER, exchange) == 0
    with pytest.raises(Untrusted, match=f"symbolic link of uid {ATTACKER}"):
        files.write_volatile(str(home / part / "kit.prom"), "metrics\n")
    assert not list((home / "cron.d").iterdir())


def test_links_of_root_are_followed(home: Path) -> None:
    """/var/run is one."""
    (home / "run").symlink_to("exporter")
    files.write_volatile(str(home / "run/collector/../collector/new/kit.prom"), "metrics\n")
    assert (home / "exporter/collector/new/kit.prom").read_text() == "metrics\n"


EXCHANGE = """
import os, sys
collector, bait = sys.argv[1:]
print("begun", flush=True)
while True:
    try:
        os.rename(collector, collector + ".kept")
        os.symlink(bait, collector)
        os.unlink(collector)
        os.rename(collector + ".kept", collector)
        for name in os.listdir(collector):
            if name.endswith(".partial"):
                os.rename(collector + "/" + name, collector + "/kept")
                os.symlink(bait + "/../shadow", collector + "/" + name)
    except OSError:
        pass
"""


def test_exchanging_directory_and_file_in_between_leads_nowhere(home: Path) -> None:
    (home / "cron.d").mkdir(mode=0o755)
    collector = home / "exporter/collector"
    written = tries = 0
    deadline = Deadline(60)
    with busy_as(ATTACKER, EXCHANGE, str(collector), str(home / "cron.d")):
        while tries < 400 or (not written and not deadline.has_passed()):
            tries += 1
            try:
                files.write_volatile(str(collector / "kit.prom"), "metrics\n")
                written += 1
            except (OSError, Untrusted):
                continue
    assert written, "the attack was in the way each time: it tells nothing"
    assert not list((home / "cron.d").iterdir()) and unharmed(home)


def test_names_of_leftovers_end_no_write_and_remove_nothing_of_others(home: Path) -> None:
    """Numbers that are no process, digits that are none, directories, files of his: the next write goes on."""
    collector = home / "exporter/collector"
    # Not in use: the kernel's highest number is below it.
    free = 2**22 + 7

    def squat() -> None:
        for word in ("99999999999999999999", "\u00b2", "-1", "0", str(free)):
            (collector / f"kit.prom.{word}.partial").write_text("mine")
        (collector / f"kit.prom.{free}.{'0' * 16}.partial").mkdir()
        (collector / f"kit.prom.{free}.{'1' * 16}.partial").symlink_to(home / "shadow")

    assert as_user(ATTACKER, squat) == 0
    before = {one.name for one in collector.iterdir()}
    (collector / f"kit.prom.{free}.{'2' * 16}.partial").write_text("root's own, of one that was killed")
    files.write_if_different(str(collector / "kit.prom"), "metrics\n")
    assert {one.name for one in collector.iterdir()} == before | {"kit.prom"}
    assert unharmed(home)


def test_metrics_that_are_written_where_a_link_lies_leave_the_file_behind_it(home: Path) -> None:
    target = home / "exporter/collector/kit.prom"
    os.utime(home / "shadow", (1, 1))
    assert as_user(ATTACKER, lambda: os.symlink(home / "shadow", target)) == 0
    for _ in range(2):
        files.write_volatile(str(target), "metrics\n")
        assert not target.is_symlink() and target.read_text() == "metrics\n"
    assert (home / "shadow").stat().st_mtime == 1 and unharmed(home)


def test_a_fifo_for_a_file_of_ours_is_not_waited_for(home: Path) -> None:
    assert as_user(ATTACKER, lambda: os.mkfifo(home / "exporter/collector/note.json")) == 0
    found: list[object] = []
    reading = threading.Thread(
        target=lambda: found.append(files.read_json(str(home / "exporter/collector/note.json"))), daemon=True
    )
    reading.start()
    reading.join(30)
    assert found == [None]
