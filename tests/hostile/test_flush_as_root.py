"""What root's flush does for a user is done as that user: nothing of root's goes along, nothing of the user's comes
back but words, and no user holds up another's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest

from hyperpod_kit import audit
from hyperpod_kit.checkpoint.agent.flush import flush, flush_captures, flush_users
from hyperpod_kit.checkpoint.agent.shm import lock, shm_paths, shm_slots
from hyperpod_kit.system import process
from tests.hostile.captures import committed, flushed, lay
from tests.hostile.users import ATTACKER, ROOT, VICTIM, as_user, be, busy_as, place
from tests.support.wait import scaled, until

pytestmark = ROOT
CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def base() -> Iterator[Path]:
    with place() as found, pytest.MonkeyPatch.context() as patch:
        (found / "shm").mkdir()
        (found / "shm").chmod(0o1777)
        patch.setenv("HPK_SHM_DIR", str(found / "shm"))
        yield found / "shm"


def child_of(uid: int, *, but: int) -> int:
    """The other process that is that user's and ours."""

    def pid() -> int:
        for entry in Path("/proc").iterdir():
            try:
                status = (entry / "status").read_text() if entry.name.isdigit() else ""
                if (
                    f"\nPPid:\t{os.getpid()}\n" in status
                    and f"\nUid:\t{uid}\t{uid}\t" in status
                    and int(entry.name) != but
                ):
                    return int(entry.name)
            except OSError:
                continue
        return 0

    return until(pid, what="such child")


LOCKED = """
import fcntl, json, os, sys, time
fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o600)
start = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
os.write(fd, json.dumps([[os.getpid(), start], [4194305, 1]]).encode())
fcntl.flock(fd, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


def test_its_user_can_neither_trace_it_nor_read_what_root_knew(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of one's own may be traced, its memory and first environment read; one that was root's may not."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of root's")
    lay(base, base.parent / "root", uid=ATTACKER)
    [page] = base.glob(f"hyperpod-kit-{ATTACKER}/*.ctl")
    held = str(page).replace("-00.ctl", ".lock")  # an agent of the attacker's that is at work: flush waits for it
    with busy_as(ATTACKER, LOCKED, held) as other:
        done: List[Any] = []
        seconds = scaled(8.0)
        waiting = threading.Thread(
            target=lambda: done.append(
                flush_users.flush_as(ATTACKER, folder=str(base), job=None, timeout=seconds, max_age=86400.0)
            )
        )
        waiting.start()
        child = child_of(ATTACKER, but=other.pid)
        for name in ("environ", "mem", "maps", "fd"):
            tried = subprocess.run(
                [*be(ATTACKER), "/bin/ls" if name == "fd" else "/bin/cat", f"/proc/{child}/{name}"],
                capture_output=True,
                text=True,
                timeout=30,
            )
            assert tried.returncode != 0 and "Permission denied" in tried.stderr, (name, tried)
        until(lambda: bool(done), timeout=seconds + 112, what="end of the flush")
        waiting.join(30)
        assert "still working" in done[0][0].note or "not done" in done[0][0].note


def test_nothing_of_roots_environment_groups_or_descriptors_goes_along(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of root's")
    monkeypatch.setenv("AWS_PROFILE", "root")
    monkeypatch.setenv("HOME", "/root")
    opened = os.open("/etc/shadow", os.O_RDONLY)
    os.set_inheritable(opened, True)
    words = base.parent / "words"
    words.touch()
    os.chown(words, VICTIM, VICTIM)

    def look(**_: Any) -> List[flush.FlushOutcome]:
        words.write_text(
            json.dumps(
                {
                    "env": dict(os.environ),
                    "groups": os.getgroups(),
                    "ids": os.getresuid(),
                    "gids": os.getresgid(),
                    "fds": sorted(os.listdir("/proc/self/fd")),
                }
            )
        )
        return []

    monkeypatch.setattr(flush, "flush", look)
    assert flush_users.flush_as(VICTIM, folder=str(base), job=None, timeout=20, max_age=0) == []
    os.close(opened)
    said = json.loads(words.read_text())
    assert sorted(said["env"]) == ["LANG", "PATH"], "a user without an entry in passwd has no HOME either"
    assert (said["groups"], said["ids"], said["gids"]) == ([], [VICTIM] * 3, [VICTIM] * 3)
    assert len(said["fds"]) <= 5, said["fds"]  # 0, 1, 2, the answer, and the listing itself
    monkeypatch.setattr(
        "pwd.getpwuid", lambda uid: type("", (), {"pw_name": "nobody", "pw_gid": 65534, "pw_dir": "/home/nobody"})
    )
    assert flush_users.flush_as(VICTIM, folder=str(base), job=None, timeout=20, max_age=0, gid=1234) == []
    said = json.loads(words.read_text())
    assert said["env"]["HOME"] == "/home/nobody" and said["gids"] == [1234] * 3 and 0 not in said["groups"]


def test_a_user_without_an_entry_in_passwd_gets_what_was_captured(base: Path) -> None:
    lay(base, base.parent / "root")
    assert [one.removed for one in flushed(base)] == [True] and committed(base.parent / "root")


def test_it_ends_with_whoever_waits_for_it(base: Path) -> None:
    lay(base, base.parent / "root", uid=ATTACKER)
    [page] = base.glob(f"hyperpod-kit-{ATTACKER}/*.ctl")
    program = f"""
import os, sys
from hyperpod_kit.checkpoint.agent.flush import flush
from hyperpod_kit.checkpoint.agent.flush import flush_users
print(os.getpid(), flush=True)
flush_users.flush_as({ATTACKER}, folder={str(base)!r}, job=None, timeout=60.0, max_age=86400.0)
"""
    with busy_as(ATTACKER, LOCKED, str(page).replace("-00.ctl", ".lock")):
        root = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(CHECKOUT)}
        )
        assert root.stdout is not None
        pid = int(root.stdout.readline())
        children = Path(f"/proc/{pid}/task/{pid}/children")
        child = int(until(children.read_text, what="child of root's").split()[0])
        status = Path(f"/proc/{child}/status")
        until(lambda: f"\nUid:\t{ATTACKER}\t" in status.read_text(), what="child that has become the user")
        root.kill()
        root.wait(30)
        until(lambda: process.identify_unless_gone_or_zombie(child) is None, what="end of the child without anybody")


ANSWERS: Dict[str, Tuple[bytes, str]] = {
    "nothing": (b"", "its answer is invalid"),
    "no JSON": (b"yes", "its answer is invalid"),
    "deep": (b"[" * 100000, "its answer is invalid"),
    "another shape": (b'[["r", null, true]]', "its answer is invalid"),
    "other types": (b'[["r", 5, 1, {}]]', "its answer is invalid"),
    "an object": (b'{"a": 1}', "its answer is invalid"),
    "too much": (b"x" * (2 << 20), "more than"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_what_it_answers_is_a_word_of_its_users(base: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    data, why = ANSWERS[kind]

    def forge(rows: Any, out: Any) -> None:
        out.write(data.decode())

    monkeypatch.setattr(json, "dump", forge)
    [outcome] = flush_users.flush_as(VICTIM, folder=str(base), job=None, timeout=20, max_age=0)
    assert not outcome.removed and outcome.attempt is None and why in outcome.note


def test_words_in_it_reach_no_terminal_as_they_are(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def say(**_: Any) -> List[flush.FlushOutcome]:
        return [flush.FlushOutcome("\x1b]0;mine\x07run", "a\nb", True, "\x1b[2J" + "x" * 9000)]

    monkeypatch.setattr(flush, "flush", say)
    [outcome] = flush_users.flush_as(VICTIM, folder=str(base), job=None, timeout=20, max_age=0)
    assert outcome.run.isprintable() and outcome.attempt == "a b" and outcome.note.isprintable()
    assert len(outcome.note) <= 2000


def test_one_run_that_cannot_be_flushed_ends_nothing_for_others(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        lay(base, base.parent / f"root{number}", uid=VICTIM)
    first = min(path.name.split("-")[2] for path in base.glob(f"hyperpod-kit-{VICTIM}/*.ctl"))
    real = flush_captures.save

    def broken(run: str, *rest: Any) -> flush_captures.Saved:
        if run == first:
            raise RuntimeError("whatever it is")
        return real(run, *rest)

    monkeypatch.setattr(flush_captures, "save", broken)
    found = flushed(base)
    assert [one.removed for one in found] == [False, True, True] and "RuntimeError: whatever it is" in found[0].note


def test_what_was_done_for_whom_is_recorded(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: List[Any] = []
    monkeypatch.setattr(audit, "record_root_action_in_journal", lambda *words, **more: said.append((words, more)))
    lay(base, base.parent / "root")
    run = next(base.glob(f"hyperpod-kit-{VICTIM}/*.ctl")).name.split("-")[2]
    flush_users.flush_as(VICTIM, folder=str(base), job="7", timeout=30, max_age=86400.0, asked_by="Epilog of job 7")
    [(words, more)] = said
    assert words[:2] == ("flushed", f"run {run}") and words[2].startswith("committed seq-")
    assert more == {"asked_by": "Epilog of job 7", "owner": f"uid {VICTIM}"}
    flush_users.flush_as(VICTIM, folder=str(base), job="7", timeout=30, max_age=86400.0)
    flush_users.flush_as(0, folder=str(base), job=None, timeout=30, max_age=86400.0)
    assert len(said) == 1, "nothing was done"


def test_only_root_flushes_for_others(base: Path) -> None:
    from hyperpod_kit.checkpoint.commands import cli

    lay(base, base.parent / "root")
    assert as_user(ATTACKER, lambda: _exit(cli.main(["flush", "--all", "--uid", str(VICTIM)]))) == 1
    assert as_user(ATTACKER, lambda: _exit(cli.main(["flush", "--all"]))) == 0
    assert not committed(base.parent / "root") and list(base.glob(f"hyperpod-kit-{VICTIM}/*.ctl"))


def _exit(code: int) -> None:
    assert code == 0


def test_the_epilog_flushes_for_the_jobs_user(base: Path) -> None:
    """The hook itself, with a program in the place of the installed one."""
    lay(base, base.parent / "root")
    program = base.parent / "program"
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c \'import sys; sys.path.insert(0, "{CHECKOUT}"); '
        'from hyperpod_kit.checkpoint.commands import cli; sys.exit(cli.main(sys.argv[2:]))\' "$@"\n'
    )
    program.chmod(0o755)
    hook = base.parent / "epilog.sh"
    hook.write_text(
        (CHECKOUT / "slurm/epilog.sh")
        .read_text()
        .replace("/opt/hyperpod-kit/current/bin/hyperpod-kit", str(program))
        .replace("/run/hyperpod-kit", str(base.parent / "run"))
    )
    done = subprocess.run(
        ["bash", str(hook)],
        timeout=120,
        capture_output=True,
        text=True,
        env={
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_UID": str(VICTIM),
            "SLURM_JOB_GID": str(VICTIM),
            "HPK_SHM_DIR": str(base),
            "AWS_SECRET_ACCESS_KEY": "of root's",
        },
    )
    assert done.returncode == 0 and committed(base.parent / "root"), (done, list((base.parent / "run").iterdir()))
    assert not list((base.parent / "run").iterdir()) and not list(base.glob(f"hyperpod-kit-{VICTIM}/*"))


FULL = """
import os, sys
from pathlib import Path
from tests.hostile.captures import committed, flushed, lay
from tests.hostile.users import ATTACKER, as_user
base, root = Path(sys.argv[1]), Path(sys.argv[2])
os.environ["HPK_SHM_DIR"] = str(base)
lay(base, root)

def fill():
    try:
        if sys.argv[3] == "blocks":
            with open(base / "mine", "wb", buffering=0) as stream:
                while True:
                    stream.write(bytes(4096))
        for number in range(100000):
            (base / f"mine-{number}").touch()
    except OSError as err:
        assert err.errno == 28, err
assert as_user(ATTACKER, fill) == 0
found = flushed(base)
assert [one.removed for one in found] == [True] and committed(root), found
"""


@pytest.mark.needs("mounts")
@pytest.mark.parametrize("what", ["blocks", "inodes"])
def test_a_shared_memory_that_another_has_filled_keeps_nothing_from_being_saved(what: str) -> None:
    with place(0o755) as found:
        (found / "shm").mkdir()
        done = subprocess.run(
            [
                "unshare",
                "--mount",
                "--propagation",
                "private",
                "bash",
                "-c",
                'mount -t tmpfs -o size=8m,nr_inodes=400,mode=1777 tmpfs "$1/shm" && '
                f'exec {sys.executable} -c "$2" "$1/shm" "$1/root" "$3"',
                "x",
                str(found),
                FULL,
                what,
            ],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            timeout=120,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == 0, done.stdout


def test_directories_that_change_while_root_looks_are_none(base: Path) -> None:
    """The attacker puts a link to root's own, a file and a directory under one name, as fast as it goes."""
    secret = base.parent / "secret"
    secret.mkdir(0o700)
    (secret / f"hpk-0-{'a' * 12}-00000.saves").write_text("x")
    lay(base, base.parent / "root")
    program = f"""
import os, sys
name = {str(base / f"hyperpod-kit-{ATTACKER}")!r}
os.mkdir(name + "-a"); os.symlink({str(secret)!r}, name + "-b"); open(name + "-c", "w").close()
print("begun", flush=True)
while True:
    for kind in "abc":
        os.rename(name + "-" + kind, name); os.rename(name, name + "-" + kind)
"""
    with busy_as(ATTACKER, program):
        for _ in range(300):
            found = [(uid, name) for uid, name, _ in shm_paths.iter_user_files_as_uid_name_fd(str(base), "", 100)]
            assert {uid for uid, _ in found} == {VICTIM} and len(found) == 2
            assert shm_paths.uids_with_shm_files(str(base)) in ([VICTIM], [ATTACKER, VICTIM])
    assert [one.removed for one in flushed(base)] == [True]


def test_a_slot_under_a_second_name_is_not_committed_twice(base: Path) -> None:
    lay(base, base.parent / "root")
    [page] = base.glob(f"hyperpod-kit-{VICTIM}/*.ctl")
    other = shm_slots.SlotName(VICTIM, "f" * 12, 3, 0)
    for suffix in ("ctl", "img"):
        (page.parent / other.file(suffix)).write_bytes(page.with_suffix("." + suffix).read_bytes())
        os.chown(page.parent / other.file(suffix), VICTIM, VICTIM)
    found = {one.run: one for one in flushed(base)}
    assert found[page.name.split("-")[2]].attempt is not None
    assert "f" * 12 not in found or found["f" * 12].attempt is None


def test_a_lock_is_told_to_stop_only_when_its_process_is_ours(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock's file of ours that names a process of another user's, as after a pid has gone round."""
    told: List[int] = []
    path = str(base / "x.lock")
    with busy_as(ATTACKER, "import time; print('x', flush=True); time.sleep(600)") as other:
        start = int(Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19])
        Path(path).write_text(json.dumps([[other.pid, start], [0, 0]]))
        monkeypatch.setattr(lock, "try_acquire", lambda *_: None)
        monkeypatch.setattr(os, "kill", lambda pid, sign: told.append(pid))
        with pytest.raises(Exception, match="does not end"):
            lock.acquire_ending_stale_agent(path, lock.NOBODY, grace=0.1)
    assert told == []
