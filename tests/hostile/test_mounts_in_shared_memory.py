"""A file system of the attacker's that never answers, over a file or directory of the attacker's in /dev/shm.

With `user_allow_other` in fuse.conf, which Mountpoint for S3 needs, fusermount lets any user do so, and root's open,
stat or listing of it waits for as long as the attacker likes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.users import ROOT, place
from tests.support.rows import share

CHECKOUT = Path(__file__).parents[2]
NAMESPACE = ["unshare", "--mount", "--propagation", "private"]

pytestmark = [
    ROOT,
    pytest.mark.needs("mounts", "fuse"),
]

BEGIN = """
import contextlib, ctypes, os, signal, stat, sys
from pathlib import Path
from hyperpod_kit.checkpoint.agent.flush import flush
from hyperpod_kit.checkpoint.agent.shm import shm_paths
from hyperpod_kit.checkpoint.agent.shm import failure_note
from hyperpod_kit.checkpoint.agent.shm import shm_slots
from hyperpod_kit.node.memory.orphaned_snapshots import list_snapshot_owners
from hyperpod_kit.untrusted.dirfd import mount_id_by_handle_or_none_text, mount_id_of
from tests.hostile.captures import committed, flushed, lay
from tests.hostile.users import ATTACKER, VICTIM, as_user

base, root = Path(sys.argv[1]), Path(sys.argv[2])
os.environ["HPK_SHM_DIR"] = str(base)
libc = ctypes.CDLL(None, use_errno=True)
channels = []

def never_answers(path):
    "As fusermount mounts it for the attacker; nobody ever reads a request."
    mode = stat.S_IFMT(os.lstat(path).st_mode)
    channels.append(os.open("/dev/fuse", os.O_RDWR))
    options = f"fd={channels[-1]},rootmode={mode:o},user_id={ATTACKER},group_id={ATTACKER},allow_other"
    if libc.mount(b"attack", os.fsencode(path), b"fuse.attack", 6, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), "no FUSE here")

def mine(path, directory=False):
    "What the attacker makes to mount it there."
    assert as_user(ATTACKER, lambda: os.mkdir(path) if directory else path.touch()) == 0

def hangs(path):
    "Whether the attack is one: whoever asks it waits."
    pid = os.fork()
    if pid == 0:
        signal.alarm(1)
        os.stat(path)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGALRM

def look_at_all():
    "What root does at each tick of its timers, and before each job."
    signal.alarm(20)
    list(shm_paths.iter_user_files_as_uid_name_fd(str(base), ".saves", 1))
    failure_note.read_all(str(base))
    found = list_snapshot_owners(str(base))
    shm_paths.uids_with_shm_files(str(base))
    signal.alarm(0)
    return found
"""

PLACES = {
    "own directory": "shm_paths.make_directories_as_root_reporting_moved(str(base), ATTACKER); target = base / "
    "'hyperpod-kit' / "
    "str(ATTACKER)",
    "a directory beside": "target = base / f'hyperpod-kit-{ATTACKER}'; mine(target, True)",
    "the victim's directory": "target = base / f'hyperpod-kit-{VICTIM}'; mine(target, True)",
    "root's directory": "target = base / 'hyperpod-kit'; mine(target, True)",
    "a slot": "target = base / f'hpk-{ATTACKER}-000000000000-00000-00.ctl'; mine(target)",
    "a note": "target = base / f'hpk-{ATTACKER}-000000000000-00000.saves'; mine(target)",
    "the victim's slot": "target = base / f'hpk-{VICTIM}-000000000000-00000-00.ctl'; mine(target)",
    "the victim's lock": "target = base / f'hpk-{VICTIM}-000000000000-00000.lock'; mine(target)",
}

END = """
never_answers(target)
assert hangs(target), "no attack"
look_at_all()
held_there, around = os.open(target, os.O_PATH | os.O_NOFOLLOW), os.open(target.parent, os.O_PATH)
signal.alarm(20)
assert mount_id_by_handle_or_none_text(around) == mount_id_of(around) != mount_id_of(held_there), "no such file system"
assert mount_id_by_handle_or_none_text(held_there) in ("none", mount_id_of(held_there))
signal.alarm(40)
lay(base, root)
assert [(one.uid, one.job, one.alive) for one in look_at_all()] == [(VICTIM, "7", False)]
assert [one.removed for one in flushed(base)] == [True] and committed(root)
if target.name == "hyperpod-kit":
    reason = shm_paths.make_directories_as_root_reporting_moved(str(base), VICTIM, move_foreign_aside=True)
    assert "something is mounted there" in reason
elif target.parent == base:
    assert shm_paths.make_directories_as_root_reporting_moved(str(base), VICTIM, move_foreign_aside=True) == ""
lay(base, root, seq=2)
assert [one.removed for one in flushed(base)] == [True]
# What a build before 0.1.0 would have called the run, its lock being where the attacker can mount something.
lay(base, root, loose=True, seq=3)
run = max(path.name for path in base.glob(f"hpk-{VICTIM}-*.ctl")).split("-")[2]
squat = base / f"hpk-{VICTIM}-{run}-00000.lock"
mine(squat)
never_answers(squat)
assert [one.removed for one in flushed(base)] == [True]
"""


@pytest.mark.parametrize("where", share(PLACES, 3))
def test_a_file_system_that_never_answers_holds_up_nobody(where: str) -> None:
    with place(0o755) as found:
        (found / "shm").mkdir()
        (found / "shm").chmod(0o1777)
        done = subprocess.run(
            [*NAMESPACE, sys.executable, "-c", BEGIN + PLACES[where] + END, str(found / "shm"), str(found / "root")],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            timeout=120,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == 0, done.stdout
