"""A limit is set on the directory that was looked at, whatever its owner puts into its place meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator, List

import pytest

from hyperpod_kit.run import LocalRunner
from hyperpod_kit.storage.quota import backends, request_box, requests
from hyperpod_kit.storage.quota import decision as quota_decision
from hyperpod_kit.storage.quota.limits import QuotaError, QuotaLimits, QuotaUsed
from tests.hostile.users import ATTACKER, ROOT, VICTIM, as_user, busy_as, place
from tests.support.wait import until

pytestmark = ROOT

_EXCHANGES = """
import ctypes, os, sys, time
mine, his, link, aside = sys.argv[1:]
libc = ctypes.CDLL(None)
print("begun", flush=True)
while True:
    notify = libc.inotify_init()
    libc.inotify_add_watch(notify, mine.encode(), 0x20)
    os.read(notify, 4096)  # somebody opens my directory: he has looked whose it is
    os.symlink(his, link)
    os.rename(mine, aside)
    os.rename(link, mine)
    time.sleep(0.1)
    os.unlink(mine)
    os.rename(aside, mine)
    os.close(notify)
"""


class Limiter:
    """Asks the directory's name each time, as `lfs` does."""

    name = "stand-in"
    counts_files = True

    def __init__(self, shared: Path) -> None:
        self.shared = shared
        self.limited: List[int] = []

    def read_usage(self, directory: str) -> QuotaUsed:

        def is_exchanged() -> bool:
            os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))
            return (self.shared / "mallory").is_symlink()

        # The exchange, which lasts for a moment, has to have been seen for the test to say anything.
        until(is_exchanged, what="exchange")
        return QuotaUsed(directory, 0, 0, QuotaLimits(hard_bytes=1 << 40), "")

    def build_limit_commands(self, directory: str, limits: QuotaLimits, grace: int) -> list[list[str]]:
        self.limited.append(os.stat(directory).st_uid)
        return [["true", directory]]


@pytest.fixture
def shared() -> Iterator[Path]:
    with place() as top:
        request_box.make_request_box(str(top))
        for uid, name in ((ATTACKER, "mallory"), (VICTIM, "bob")):
            (top / name).mkdir()
            os.chown(top / name, uid, uid)
        yield top


def ask(shared: Path) -> str:
    def put() -> None:
        box = request_box.RequestBox(str(shared))
        box.add_request(requests.QuotaRequest(str(shared / "mallory"), 1 << 20, 0, "please", 1.7e9))

    assert as_user(ATTACKER, put) == 0
    box = request_box.RequestBox(str(shared))
    (one,) = box.list_pending_and_refusal_reasons()[0]
    box.close()
    return one.id


def test_a_directory_that_is_exchanged_meanwhile(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = Limiter(shared)
    monkeypatch.setattr(backends, "choose_backend", lambda directory, runner, project=None: limiter)
    mine, his = shared / "mallory", shared / "bob"
    with busy_as(ATTACKER, _EXCHANGES, str(mine), str(his), str(shared / ".l"), str(shared / ".a")):
        one = ask(shared)
        box = request_box.RequestBox(str(shared))
        decision, commands = quota_decision.approve_and_set_limits(box, one, LocalRunner())
        box.close()
    assert limiter.limited == [ATTACKER] and decision.approved
    assert commands == [["true", str(mine)]]
    assert not list(his.iterdir())


def test_a_directory_that_another_file_system_is_mounted_on(shared: Path) -> None:
    """A mount of the user's could let every question to it wait for ever."""
    import subprocess

    mine = shared / "mallory"
    subprocess.run(["mount", "-t", "tmpfs", "none", str(mine)], check=True)
    try:
        with pytest.raises(QuotaError, match="something is mounted"):
            requests.require_requestable_directory(str(shared), str(mine), ATTACKER)
    finally:
        subprocess.run(["umount", str(mine)], check=True)
