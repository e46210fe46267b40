"""Limits that a kernel enforces, on users that are not root: btrfs on a loop device."""

from __future__ import annotations

import errno
import json
import os
import traceback
from pathlib import Path
from typing import Callable

import pytest

from hyperpod_kit.checkpoint.agent.flush import flush
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.system import quota_note
from tests.support.mail_server import MailServer
from tests.unit.checkpoint.conftest import Capture
from tests.unit.storage.quota.conftest import subvolume

ALICE, BOB = 5001, 5002
MIB = 1 << 20


def as_user(uid: int, call: Callable[[], None]) -> None:
    """In a child that has become this user; raises AssertionError with what went wrong there."""
    told, telling = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(told)
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            call()
            code = 0
        except BaseException:
            os.write(telling, traceback.format_exc().encode()[-3000:])
        finally:
            os._exit(code)
    os.close(telling)
    with os.fdopen(told, "rb") as stream:
        words = stream.read().decode()
    _, status = os.waitpid(child, 0)
    assert not status, words


def fill(path: Path, size: int) -> None:
    """Bytes that cannot be made smaller, on disk."""
    with open(path, "wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())


def test_a_write_stops_at_the_limit_and_the_next_directory_does_not_feel_it(
    btrfs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alice, bob = subvolume(btrfs, "alice", ALICE), subvolume(btrfs, "bob", BOB)
    assert run_command_line(["storage", "quota", "set", str(alice), "--bytes", "16MiB", "--dry-run"]) == 0
    assert "would run: btrfs qgroup limit 16777216" in capsys.readouterr().out
    for _ in range(2):
        assert run_command_line(["storage", "quota", "set", str(alice), "--bytes", "16MiB"]) == 0
    capsys.readouterr()

    def filling() -> None:
        fill(alice / "little", 8 * MIB)
        with pytest.raises(OSError) as stopped:
            fill(alice / "much", 16 * MIB)
        assert stopped.value.errno == errno.EDQUOT

    as_user(ALICE, filling)
    as_user(BOB, lambda: fill(bob / "much", 32 * MIB))
    assert run_command_line(["storage", "quota", "show", str(alice), "--json"]) == 1
    (body,) = json.loads(capsys.readouterr().out)["directories"]
    assert body["limits"]["hard_bytes"] == 16 * MIB and 0.9 < body["share"] <= 1.0 and body["files"] is None
    assert run_command_line(["storage", "quota", "show", str(alice)]) == 1
    assert "16.0 MiB" in capsys.readouterr().out
    assert run_command_line(["storage", "quota", "set", str(alice), "--bytes", "64MiB"]) == 0
    as_user(ALICE, lambda: fill(alice / "much", 32 * MIB))
    assert run_command_line(["storage", "quota", "show", str(alice)]) == 0


def test_a_checkpoint_that_meets_the_limit_names_it_and_the_one_before_stays_whole(
    btrfs: Path, capture: Capture
) -> None:
    alice = subvolume(btrfs, "alice", ALICE)
    root = alice / "run"
    assert run_command_line(["storage", "quota", "set", str(alice), "--bytes", "16MiB"]) == 0

    def small() -> None:
        capture(seq=1, items=250_000, elsewhere=str(root)).close()
        (saved,) = flush.flush()
        assert saved.attempt is not None, saved

    def large() -> None:
        capture(seq=2, items=3_000_000, slot=1, elsewhere=str(root)).close()
        (failed,) = flush.flush()
        assert failed.attempt is None and failed.note, failed
        for words in (f"{alice} has a limit of 16,777,216 bytes", f"hyperpod-kit storage quota show {alice}", "quota"):
            assert words in failed.note, failed.note

    def again() -> None:
        (saved,) = flush.flush()
        assert saved.attempt is not None, saved

    as_user(ALICE, small)
    before = selection.newest_valid(str(root))
    as_user(ALICE, large)
    assert selection.newest_valid(str(root)).checkpoint_id == before.checkpoint_id
    # What could not be written is in memory still, and goes out once there is room.
    assert run_command_line(["storage", "quota", "set", str(alice), "--bytes", "128MiB"]) == 0
    as_user(ALICE, again)
    assert selection.newest_valid(str(root)).seq == 2


def test_only_a_subvolume_has_a_limit_and_one_of_bytes(btrfs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = btrfs / "plain"
    plain.mkdir()
    assert run_command_line(["storage", "quota", "set", str(plain), "--bytes", "16MiB"]) == 1
    assert "btrfs subvolume create" in capsys.readouterr().err
    alice = subvolume(btrfs, "alice", ALICE)
    assert run_command_line(["storage", "quota", "set", str(alice), "--bytes", "2MiB", "--files", "10"]) == 1
    assert "--bytes SIZE alone" in capsys.readouterr().err
    assert not (alice / quota_note.NAME).exists()
    assert run_command_line(["storage", "quota", "show", str(alice)]) == 1
    assert "storage quota set" in capsys.readouterr().err


def test_a_user_is_warned_once_by_mail_before_he_is_stopped(
    btrfs: Path, tmp_path: Path, mails: MailServer, capsys: pytest.CaptureFixture[str]
) -> None:
    alice = subvolume(btrfs, "alice", ALICE)
    assert run_command_line(["storage", "quota", "set", str(alice), "--bytes", "32MiB"]) == 0
    config = {
        "directories": {str(alice): ["alice@example.com"]},
        "admins": ["root@example.com"],
        "sinks": {"mail": mails.address, "prometheus": str(tmp_path / "quota.prom"), "motd": str(tmp_path / "motd")},
    }
    (tmp_path / "quotas.json").write_text(json.dumps(config))
    words = ["storage", "quota", "check", str(tmp_path / "quotas.json"), "--state", str(tmp_path / "state")]
    assert run_command_line(words) == 0 and not mails.received
    as_user(ALICE, lambda: fill(alice / "data", 28 * MIB))
    assert run_command_line([*words, "--dry-run"]) == 1 and not mails.received
    for _ in range(3):
        assert run_command_line(words) == 1
    (mail,) = mails.received
    assert mail.recipients == ["alice@example.com", "root@example.com"]
    assert f"{alice} is 8" in mail.text and "storage usage" in mail.text
    series = (tmp_path / "quota.prom").read_text()
    assert f'hyperpod_kit_quota_limit_bytes{{directory="{alice}"}} 33554432' in series
    assert "is 8" in (tmp_path / "motd").read_text()
    (alice / "data").unlink()
    assert run_command_line(words) == 0 and (tmp_path / "motd").read_text() == ""
    as_user(ALICE, lambda: fill(alice / "data", 28 * MIB))
    assert run_command_line(words) == 1 and len(mails.received) == 2
    capsys.readouterr()
