"""What of a user's reaches root's hooks and its directories in /run: no log to read, no lock to hold, no variable."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Iterator

import pytest

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.node.machine.locks import hold_lock
from hyperpod_kit.node.machine.timing import Clock
from hyperpod_kit.untrusted import walk
from tests.hostile.users import ATTACKER, ROOT, as_user, busy_as, place

pytestmark = ROOT
CHECKOUT = Path(__file__).parents[2]

IN_OWN_PLACES = """
set -e
mount -t tmpfs none /run && mount -t tmpfs none /opt
mkdir -p /opt/hyperpod-kit/current/bin
printf '#!/bin/sh\\necho /fsx/victim/secret-run\\nexit 1\\n' >/opt/hyperpod-kit/current/bin/hyperpod-kit
chmod 755 /opt/hyperpod-kit/current/bin/hyperpod-kit
SLURM_JOB_ID=7 SLURM_JOB_UID=4002 SLURM_JOB_USER=victim bash {hook} || true
stat -c '%a %U %n' /run/hyperpod-kit/*.log
grep -l secret-run /run/hyperpod-kit/*.log
"""


@pytest.mark.needs("mounts")
@pytest.mark.parametrize("hook", ["prolog", "epilog"])
def test_the_log_of_a_hook_is_root_s_alone(hook: str) -> None:
    script = IN_OWN_PLACES.format(hook=CHECKOUT / f"slurm/{hook}.sh")
    done = subprocess.run(["unshare", "--mount", "bash", "-c", script], capture_output=True, text=True, timeout=120)
    facts, written = done.stdout.splitlines()[-2:]
    assert written in facts and facts.split()[:2] == ["600", "root"], done.stdout + done.stderr


@pytest.fixture
def run() -> Iterator[Path]:
    with place(0o755) as found:
        yield found


HOLD = """
import fcntl, os, sys, time
for flags in (os.O_RDWR, os.O_RDONLY, os.O_WRONLY, os.O_PATH):
    try:
        fcntl.flock(os.open(sys.argv[1], flags), fcntl.LOCK_EX)
    except OSError:
        pass
print("begun", flush=True)
time.sleep(600)
"""


def test_nobody_else_holds_a_lock_of_the_node(make_fake: Path) -> None:
    """A check that waits for a lock that another user has would be no check."""
    lock = make_fake / "run/hyperpod-kit/locks/health"

    class Node:
        clock = Clock()

        class paths:
            @staticmethod
            def lock(name: str) -> str:
                return str(lock)

    with hold_lock(Node, "health", seconds=0) as mine:  # type: ignore[arg-type]
        assert mine
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    with busy_as(ATTACKER, HOLD, str(lock)), hold_lock(Node, "health", seconds=0) as mine:  # type: ignore[arg-type]
        assert mine, "another user holds it"


@pytest.fixture
def make_fake(run: Path) -> Path:
    """A node's root that others may look into, as they may on a node."""
    (run / "run").mkdir(mode=0o755)
    return run


def test_a_loop_of_links_on_the_way_ends(run: Path) -> None:
    (run / "a").symlink_to("b")
    (run / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        walk.open_directory(str(run / "a/x"), make=True)


def test_root_s_links_into_another_s_directory_stop_at_his(run: Path) -> None:
    """Root's link leads to a user's directory, in which the user's link leads back to root's."""
    (run / "his").mkdir()
    os.chown(run / "his", ATTACKER, ATTACKER)
    (run / "roots").mkdir(mode=0o755)
    (run / "short").symlink_to("his/../his")
    assert as_user(ATTACKER, lambda: os.symlink("../roots", run / "his/back")) == 0
    with pytest.raises(Untrusted, match=f"uid {ATTACKER}"):
        walk.open_directory(str(run / "short/back/cron.d"), make=True)
    assert not list((run / "roots").iterdir())


def test_descriptors_do_not_leak_on_the_way(run: Path) -> None:
    (run / "link").symlink_to(run)
    assert as_user(ATTACKER, lambda: None) == 0
    (run / "his").symlink_to("/")
    os.chown(run / "his", ATTACKER, ATTACKER, follow_symlinks=False)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        os.close(walk.open_directory(f"{run}/link/./link//new", make=True))
        with pytest.raises(Untrusted):
            walk.open_directory(f"{run}/his/etc")
        with pytest.raises(FileNotFoundError):
            walk.open_directory(f"{run}/nothing/here")
    assert len(os.listdir("/proc/self/fd")) == before
