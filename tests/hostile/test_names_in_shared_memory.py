"""Another user lays something into /dev/shm under the names of the victim's captures, locks, logs and directories."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any, Callable, Dict, Iterator

import pytest

from hyperpod_kit.checkpoint.agent.flush import flush_users
from hyperpod_kit.checkpoint.agent.shm import lock, shm_paths, shm_slots
from hyperpod_kit.errors import Untrusted
from hyperpod_kit.system import process
from tests.hostile.captures import committed, flushed, lay, within
from tests.hostile.users import ATTACKER, ROOT, VICTIM, as_user, be, place
from tests.support.rows import share

pytestmark = ROOT


@pytest.fixture
def base() -> Iterator[Path]:
    with place() as found, pytest.MonkeyPatch.context() as patch:
        (found / "shm").mkdir()
        (found / "shm").chmod(0o1777)
        patch.setenv("HPK_SHM_DIR", str(found / "shm"))
        yield found / "shm"


def run_of(folder: Path) -> str:
    return next(folder.glob("*.ctl")).name.split("-")[2]


def a_socket(path: str) -> None:
    socket.socket(socket.AF_UNIX).bind(path)


KINDS: Dict[str, Callable[[str], Any]] = {
    "a file": lambda path: Path(path).touch(0o600),
    "a file that all may write": lambda path: (Path(path).write_text("{}"), os.chmod(path, 0o666)),
    "a fifo": lambda path: os.mkfifo(path, 0o666),
    "a link to nothing": lambda path: os.symlink("/nowhere", path),
    "a link to a fifo": lambda path: (os.mkfifo(path + ".fifo"), os.symlink(path + ".fifo", path)),
    "a link to zeros": lambda path: os.symlink("/dev/zero", path),
    "a directory": lambda path: (os.mkdir(path), os.mkdir(path + "/x")),
    "a socket": a_socket,
}


@pytest.mark.parametrize("loose", [False, True], ids=["own directory", "straight in shared memory"])
@pytest.mark.parametrize("kind", share(KINDS, 2))
def test_names_of_the_victims_keep_nothing_from_being_saved(base: Path, kind: str, loose: bool) -> None:
    root = base.parent / "root"
    lay(base, root, loose=loose)
    run = run_of(base if loose else base / f"hyperpod-kit-{VICTIM}")

    def squat() -> None:
        for rest in ("00000.log", "00000.lock", "00000-01.ctl", "00001-00.img", "00000.saves"):
            KINDS[kind](str(base / f"hpk-{VICTIM}-{run}-{rest}"))
        for rest in ("00000-00.ctl", "00000-00.img", "00000.log", "00000.lock"):
            KINDS[kind](str(base / f"hpk-{VICTIM}-000000000000-{rest}"))

    assert as_user(ATTACKER, squat) == 0
    found = flushed(base)
    assert [one.removed for one in found] == [True] and committed(root), found
    assert not [path for path in base.rglob("hpk-*") if path.lstat().st_uid == VICTIM]


@pytest.mark.parametrize("uid", ["\u00b2", "\u0663", "9" * 200, "", "-1"])
def test_a_directory_of_no_user_is_nobodys(base: Path, uid: str) -> None:
    root = base.parent / "root"
    lay(base, root)
    assert as_user(ATTACKER, lambda: os.mkdir(str(base / f"{shm_paths.PARENT}-{uid}"))) == 0
    assert shm_paths.uids_with_shm_files(str(base)) == [VICTIM]
    assert [user for user, _, _ in shm_paths.iter_user_files_as_uid_name_fd(str(base), ".ctl", 10)] == [VICTIM]
    [outcome] = flushed(base)
    assert outcome.removed and committed(root)


def test_two_thousand_names_are_no_word_of_the_victims(base: Path) -> None:
    root = base.parent / "root"
    lay(base, root)
    assert as_user(ATTACKER, lambda: [(base / f"hpk-{VICTIM}-{n:012x}-00000-00.ctl").touch() for n in range(2000)]) == 0
    [outcome] = flushed(base)
    assert outcome.removed and committed(root)


@pytest.mark.parametrize("name", ["hyperpod-kit", f"hyperpod-kit-{VICTIM}"])
@pytest.mark.parametrize("kind", share(KINDS, 2))
def test_a_directorys_name_that_is_taken_keeps_no_training_from_starting(base: Path, kind: str, name: str) -> None:
    assert as_user(ATTACKER, lambda: KINDS[kind](str(base / name))) == 0
    lay(base, base.parent / "root")
    assert [one.removed for one in flushed(base)] == [True] and committed(base.parent / "root")


def test_a_directory_that_another_made_for_the_victim_is_not_used(base: Path) -> None:
    def squat() -> None:
        os.umask(0)
        for path in (base / "hyperpod-kit", base / f"hyperpod-kit/{VICTIM}", base / f"hyperpod-kit-{VICTIM}"):
            path.mkdir(0o777)

    assert as_user(ATTACKER, squat) == 0
    lay(base, base.parent / "root")
    [made] = base.glob(f"hyperpod-kit-{VICTIM}-*")
    found = made.stat()
    assert found.st_uid == VICTIM and found.st_mode & 0o777 == 0o700
    assert not [*(base / f"hyperpod-kit/{VICTIM}").iterdir(), *(base / f"hyperpod-kit-{VICTIM}").iterdir()]
    assert as_user(ATTACKER, lambda: os.listdir(made)) == 1, "the attacker reads it"
    assert flush_users.flush_as(ATTACKER, folder=str(base), job=None, timeout=20, max_age=0) == []
    assert [one.removed for one in flushed(base)] == [True]


def test_root_moves_aside_what_another_made_in_its_place(base: Path) -> None:
    def squat() -> None:
        (base / "hyperpod-kit").mkdir(0o777)
        (base / f"hyperpod-kit/{VICTIM}").mkdir(0o777)

    assert as_user(ATTACKER, squat) == 0
    with pytest.raises(OSError, match=f"of uid {ATTACKER}, expected a directory of root"):
        shm_paths.make_directories_as_root_reporting_moved(str(base), VICTIM)
    said = shm_paths.make_directories_as_root_reporting_moved(str(base), VICTIM, move_foreign_aside=True)
    assert f"uid {ATTACKER}" in said and "moved-aside" in said
    own = base / f"hyperpod-kit/{VICTIM}"
    assert (own.stat().st_uid, own.stat().st_mode & 0o777) == (VICTIM, 0o700)
    assert (own.parent.stat().st_uid, own.parent.stat().st_mode & 0o777) == (0, 0o711)
    assert shm_paths.make_directories_as_root_reporting_moved(str(base), VICTIM, move_foreign_aside=True) == ""
    assert as_user(ATTACKER, lambda: (own.parent / "4003").mkdir()) == 1
    assert as_user(ATTACKER, lambda: os.rename(own.parent, base / "elsewhere")) == 1
    lay(base, base.parent / "root")
    assert len(list(own.glob("*.ctl"))) == 1 and [one.removed for one in flushed(base)] == [True]


def in_a_container(inside: int) -> None:
    """As enroot starts one: a user namespace that knows no user but this one, root not either."""
    uid = os.geteuid()
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # it was root's: such a process may not say who it is in there
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000) != 0:
        os._exit(77)
    Path("/proc/self/uid_map").write_text(f"{inside} {uid} 1")
    assert os.geteuid() == inside


@pytest.mark.needs("user-namespaces")
@pytest.mark.parametrize("inside", [0, VICTIM], ids=["remapped root", "own number"])
@pytest.mark.parametrize("squat", [False, True])
def test_in_a_container_roots_directory_is_known_and_anothers_is_not(base: Path, inside: int, squat: bool) -> None:
    own = base / f"hyperpod-kit/{VICTIM}"
    if squat:

        def make() -> None:
            os.umask(0)
            os.makedirs(own, 0o777)
            (base / "hyperpod-kit").chmod(0o711)

        assert as_user(ATTACKER, make) == 0
    else:
        shm_paths.make_directories_as_root_reporting_moved(str(base), VICTIM)

    def look() -> None:
        in_a_container(inside)
        assert shm_paths.node_uid() == VICTIM
        found = shm_paths.ensure_user_directory()
        assert found == str(base / f"hyperpod-kit-{VICTIM}" if squat else own), found
        assert shm_paths.own_directories_and_shm_root() == [found, str(base)]
        (Path(found) / f"hpk-{VICTIM}-aaaaaaaaaaaa-00000.saves").touch()

    code = as_user(VICTIM, look)
    assert code == 0
    assert [uid for uid, _, _ in shm_paths.iter_user_files_as_uid_name_fd(str(base), ".saves", 9)] == [VICTIM]


def test_a_lock_of_anothers_makes_the_victim_signal_nobody(base: Path) -> None:
    """The attacker names a process of the victim's and holds the lock."""
    other = subprocess.Popen([*be(VICTIM), "/usr/bin/python3", "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        owner = process.identify_unless_gone_or_zombie(other.pid)
        assert owner is not None
        path = base / f"hpk-{VICTIM}-aaaaaaaaaaaa-00000.lock"
        held = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        os.fchmod(held, 0o666)
        os.fchown(held, ATTACKER, ATTACKER)
        os.write(held, json.dumps([list(owner), [0, 0]]).encode())
        fcntl.flock(held, fcntl.LOCK_EX)

        def begin() -> None:
            with pytest.raises(Untrusted, match=f"of uid {ATTACKER}"):
                lock.acquire_ending_stale_agent(str(path), process.this_process(), grace=0.2)
            assert lock.read_agent_and_trainer(str(path)) is None

        assert as_user(VICTIM, within(30, begin)) == 0
        assert process.is_alive(owner), "it was ended"
        os.close(held)
    finally:
        other.kill()
        other.wait(30)


def test_a_lock_of_the_victims_under_a_second_name_is_none(base: Path) -> None:
    """Where the kernel lets users link files of others (fs.protected_hardlinks=0), one run's lock could stand for
    another run's."""

    def begin() -> None:
        path = str(base / shm_slots.lock_file_name(VICTIM, "a" * 12, 0))
        held = lock.try_acquire(path, process.this_process())
        assert held is not None
        other = str(base / shm_slots.lock_file_name(VICTIM, "b" * 12, 0))
        os.link(path, other)
        with pytest.raises(Untrusted, match="with 2 names"):
            lock.acquire_ending_stale_agent(other, process.Process(1, 1), grace=0.2)

    assert as_user(VICTIM, within(30, begin)) == 0


def test_names_of_roots_are_opened_by_nobody(base: Path) -> None:
    def squat() -> None:
        os.mkfifo(base / "hpk-0-aaaaaaaaaaaa-00000.log", 0o666)
        for rest in ("00000-00.ctl", "00000-00.img", "00000.lock"):
            (base / f"hpk-0-aaaaaaaaaaaa-{rest}").touch()

    assert as_user(ATTACKER, squat) == 0
    before = sorted(os.listdir(base))
    for uid in {0, *shm_paths.uids_with_shm_files(str(base))}:
        assert flushed(base, uid=uid) == []
    assert sorted(os.listdir(base)) == before
