"""Users ask for other limits: real uids, a real box, btrfs where a limit is set, and what hostile users leave there."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.errors import Absent
from hyperpod_kit.storage.quota import decision as quota_decision
from hyperpod_kit.storage.quota import request_box
from hyperpod_kit.storage.quota.limits import QuotaError, QuotaLimits
from hyperpod_kit.storage.quota.request_box import MAX_OF_USER, RequestBox
from hyperpod_kit.storage.quota.requests import (
    MAX_FILE_BYTES,
    QuotaRequest,
    decode_request,
    encode_request,
    merge_limits,
    require_requestable_directory,
)
from tests.unit.storage.quota.conftest import subvolume
from tests.unit.storage.quota.test_enforced import ALICE, BOB, MIB, as_user, fill

pytestmark = pytest.mark.needs("root")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of root's that every user can come to, with a box and a directory of alice's."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="hpk-box-") as made:
        os.chmod(made, 0o755)
        request_box.make_request_box(made)
        own = Path(made) / "alice"
        own.mkdir(0o700)
        os.chown(own, ALICE, ALICE)
        yield Path(made)


def asked(directory: Path, **other: Any) -> QuotaRequest:
    return QuotaRequest(
        **{"directory": str(directory), "bytes": 32 * MIB, "files": 0, "why": "more", "at": 1.0, **other}
    )


def put(box: Path, uid: int, name: str, data: bytes) -> None:
    path = box / request_box.NAME / name
    path.write_bytes(data)
    os.chown(path, uid, uid)


def listed(place: Path, capsys: Capture, *more: str) -> dict[str, Any]:
    run_command_line(["storage", "requests", "list", str(place), "--json", *more])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def waiting(place: Path) -> tuple[list[request_box.PendingRequest], list[str]]:
    box = RequestBox(str(place))
    try:
        return box.list_pending_and_refusal_reasons()
    finally:
        box.close()


def test_who_has_met_his_limit_asks_for_more_and_gets_it(btrfs: Path, capsys: Capture) -> None:
    own = subvolume(btrfs, "alice", ALICE)
    assert run_command_line(["storage", "quota", "set", str(own), "--bytes", "8MiB"]) == 0
    for _ in range(2):
        assert run_command_line(["storage", "requests", "open", str(btrfs)]) == 0
    words = ["storage", "request", str(own), "--bytes", "32MiB", "--why", "a larger model"]

    def asking() -> None:
        with pytest.raises(OSError):
            fill(own / "much", 16 * MIB)
        assert run_command_line([*words, "--dry-run"]) == 0 and not waiting(btrfs)[0]
        assert run_command_line(words) == 0
        # Not by himself: the setter is root's, and so is what is recorded.
        assert run_command_line(["storage", "requests", "approve", str(btrfs), waiting(btrfs)[0][0].id]) != 0

    as_user(ALICE, asking)
    as_user(BOB, lambda: _refused(words))
    capsys.readouterr()
    (one,) = listed(btrfs, capsys)["waiting"]
    assert (one["uid"], one["bytes"], one["why"], one["error"]) == (ALICE, 32 * MIB, "a larger model", None)
    assert one["now"]["limits"]["hard_bytes"] == 8 * MIB
    approve = ["storage", "requests", "approve", str(btrfs), one["id"]]
    assert run_command_line([*approve, "--dry-run"]) == 0
    assert "would run: btrfs qgroup limit 33554432" in capsys.readouterr().out
    assert len(listed(btrfs, capsys)["waiting"]) == 1
    assert run_command_line(approve) == 0
    capsys.readouterr()
    found = listed(btrfs, capsys, "--all")
    assert not found["waiting"] and [row["state"] for row in found["decided"]] == ["approved"]
    assert found["decided"][0]["bytes"] == 32 * MIB and found["decided"][0]["request"]["why"] == "a larger model"
    as_user(ALICE, lambda: fill(own / "much", 16 * MIB))
    assert run_command_line(approve) == 1 and "was answered" in capsys.readouterr().err
    assert not [name for name in os.listdir(btrfs / request_box.NAME) if name.endswith(".json")]


def _refused(words: list[str]) -> None:
    assert run_command_line(words) == 1


def test_a_request_is_denied_and_its_user_reads_why(place: Path, capsys: Capture) -> None:
    put(place, ALICE, "a.json", encode_request(asked(place / "alice")))
    (one,), _ = waiting(place)
    deny = ["storage", "requests", "deny", str(place), one.id, "--why", "old checkpoints first"]
    assert run_command_line([*deny, "--dry-run"]) == 0 and waiting(place)[0]
    assert run_command_line(deny) == 0 and not waiting(place)[0]

    def reading() -> None:
        box = RequestBox(str(place))
        (said,) = box.read_decisions()
        assert (said.approved, said.why, said.uid) == (False, "old checkpoints first", ALICE)
        with pytest.raises(PermissionError):
            os.unlink(f"{box.path}/decided/{said.id}.json")
        with pytest.raises(PermissionError):
            os.rename(f"{box.path}/decided", f"{box.path}/mine")

    as_user(ALICE, reading)
    # The same words again are the same request, which has its answer.
    put(place, ALICE, "b.json", encode_request(asked(place / "alice")))
    assert waiting(place) == ([], [])
    capsys.readouterr()
    assert run_command_line(["storage", "requests", "list", str(place), "--all"]) == 0
    assert "denied" in capsys.readouterr().out


def test_what_is_no_request_is_named_and_harms_nobody(place: Path) -> None:
    box, good = place / request_box.NAME, encode_request(asked(place / "alice"))
    put(place, BOB, "garbled.json", b"\xff{")
    put(place, BOB, "deep.json", b"[" * MAX_FILE_BYTES)
    put(place, BOB, "huge.json", good + b" " * (50 << 20))
    put(place, BOB, "control\x1b[2J.json", encode_request(asked(place, why="\x1b]0;root\x07")))
    os.symlink("/etc/shadow", box / "link.json")
    os.mkfifo(box / "fifo.json")
    os.mkdir(box / "directory.json")
    put(place, ALICE, "good.json", good)
    put(place, ALICE, "two.json", encode_request(asked(place / "alice", why="two names")))
    os.link(box / "two.json", box / "two-again.json")
    found, refused = waiting(place)
    assert [(one.uid, one.file) for one in found] == [(ALICE, "good.json")]
    assert len(refused) == 9 and (box / "huge.json").stat().st_size > 50 << 20


def test_one_user_cannot_hide_the_requests_of_another(place: Path) -> None:
    for number in range(3 * MAX_OF_USER):
        put(place, BOB, f"0{number:02}.json", encode_request(asked(place / "alice", bytes=number + 1)))
    put(place, ALICE, "z.json", encode_request(asked(place / "alice")))
    found, refused = waiting(place)
    assert sum(one.uid == BOB for one in found) == MAX_OF_USER and sum(one.uid == ALICE for one in found) == 1
    assert refused == [f"{3 * MAX_OF_USER} files of uid {BOB}: only {MAX_OF_USER} were read"]

    def more() -> None:
        with pytest.raises(QuotaError, match="pending already"):
            RequestBox(str(place)).add_request(asked(place / "alice"))

    as_user(BOB, more)


@pytest.mark.full
def test_however_many_names_one_user_has_the_others_are_read(place: Path) -> None:
    box, many = place / request_box.NAME, 10_200

    def fill() -> None:
        for number in range(many):
            os.close(os.open(box / f"{number:05}", os.O_WRONLY | os.O_CREAT, 0o600))

    as_user(BOB, fill)
    put(place, ALICE, "z.json", encode_request(asked(place / "alice")))
    found, refused = waiting(place)
    assert [one.uid for one in found] == [ALICE]
    assert refused[-1] == f"{many} files of uid {BOB}: only {MAX_OF_USER} were read" and len(refused) == MAX_OF_USER + 1


def test_other_names_of_a_users_file_hide_none_of_his_requests(place: Path) -> None:
    box = place / request_box.NAME
    put(place, ALICE, "z.json", encode_request(asked(place / "alice")))
    put(place, ALICE, "0", b"a file of hers that all may write")
    for number in range(2 * MAX_OF_USER):
        os.link(box / "0", box / f"0{number:02}")
    assert [one.file for one in waiting(place)[0]] == ["z.json"]


def test_a_text_that_is_changed_after_it_was_read_is_another_request(place: Path) -> None:
    put(place, ALICE, "a.json", encode_request(asked(place / "alice")))
    (one,), _ = waiting(place)
    put(place, ALICE, "a.json", encode_request(asked(place / "alice", bytes=1 << 50)))
    assert run_command_line(["storage", "requests", "deny", str(place), one.id, "--why", "no"]) == 1
    # Nor does the same text of another.
    put(place, BOB, "a.json", encode_request(asked(place / "alice")))
    assert run_command_line(["storage", "requests", "deny", str(place), one.id, "--why", "no"]) == 1


@pytest.mark.parametrize("what", ["another's", "link", "outside", "below a user's", "gone"])
def test_nobody_asks_for_what_is_not_his(place: Path, what: str, capsys: Capture) -> None:
    bobs = place / "bob"
    bobs.mkdir()
    os.chown(bobs, BOB, BOB)
    inner = place / "alice" / "deep" / "own"
    inner.mkdir(parents=True)
    os.chown(inner, ALICE, ALICE)
    os.symlink(bobs, place / "alices-link")
    os.lchown(place / "alices-link", ALICE, ALICE)
    directory = {
        "another's": bobs,
        "link": place / "alices-link",
        "outside": Path("/etc"),
        "below a user's": inner,
        "gone": place / "gone",
    }[what]
    put(place, ALICE, "a.json", encode_request(asked(directory)))
    (row,) = listed(place, capsys)["waiting"]
    assert row["error"] and row["now"] is None
    assert run_command_line(["storage", "requests", "approve", str(place), row["id"], "--dry-run"]) != 0
    assert waiting(place)[0], "nothing was decided"


def test_a_member_asks_for_the_directory_of_his_group(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = place / "vision"
    shared.mkdir()
    os.chown(shared, 0, 39001)
    os.chmod(shared, 0o2770)
    require: Callable[..., None] = require_requestable_directory
    with pytest.raises(QuotaError, match="belongs to"):
        require(str(place), str(shared), ALICE)
    monkeypatch.setattr("hyperpod_kit.storage.quota.requests.non_root_gids_of_user", lambda uid: frozenset({39001}))
    require(str(place), str(shared), ALICE)
    os.chmod(shared, 0o2750)
    with pytest.raises(QuotaError, match="belongs to"):
        require(str(place), str(shared), ALICE)


def test_a_box_that_is_anothers_is_not_used(place: Path, tmp_path: Path, capsys: Capture) -> None:
    theirs = place / "alice" / request_box.NAME
    theirs.mkdir(0o1777)
    os.chown(theirs, ALICE, ALICE)
    assert request_box.nearest_directory_with_box(str(place / "alice" / "x")) == str(place)
    with pytest.raises(QuotaError, match="expected root's"):
        RequestBox(str(place / "alice"))
    with pytest.raises(QuotaError, match="already exists"):
        request_box.make_request_box(str(place / "alice"))
    with pytest.raises(Absent, match="the directory for requests"):
        RequestBox(str(tmp_path))
    assert run_command_line(["storage", "request", str(tmp_path), "--bytes", "1TiB"]) == 1
    assert "requests open" in capsys.readouterr().err
    assert run_command_line(["storage", "request", str(place / "alice")]) == 2


def test_one_admin_at_a_time(place: Path) -> None:
    put(place, ALICE, "a.json", encode_request(asked(place / "alice")))
    (one,), _ = waiting(place)
    box = RequestBox(str(place))
    with box.decision_lock(), pytest.raises(QuotaError, match="another admin"):
        quota_decision.record_denial(RequestBox(str(place)), one.id, "no")
    quota_decision.record_denial(box, one.id, "no")
    box.close()


@pytest.mark.parametrize(
    "change",
    [
        {"bytes": -1}, {"bytes": True}, {"bytes": "1"}, {"bytes": 1 << 62}, {"bytes": 0}, {"files": 1.5},
        {"at": float("nan")}, {"at": None}, {"directory": "x"}, {"directory": "/a/../etc"}, {"directory": "/a\n"},
        {"directory": "/" + "a" * 2000}, {"why": "w" * 501}, {"why": "\x1b[2J"}, {"more": 1}, {"format": "other"},
    ],
)  # fmt: skip
def test_values_out_of_bounds_are_no_request(change: dict[str, Any]) -> None:
    body = json.loads(encode_request(asked(Path("/fsx/alice"))))
    assert decode_request(json.dumps(body).encode()) == asked(Path("/fsx/alice"))
    with pytest.raises(ValueError):
        decode_request(json.dumps({**body, **change}).encode())


def test_limits_that_were_not_asked_for_stay() -> None:
    now = QuotaLimits(1, 2, 3, 4)
    assert merge_limits(now, 9, 0) == QuotaLimits(1, 9, 3, 4)
    assert merge_limits(now, 0, 9) == QuotaLimits(1, 2, 3, 9)


def test_what_died_between_the_limit_and_the_record_is_done_again(
    btrfs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    own = subvolume(btrfs, "alice", ALICE)
    assert run_command_line(["storage", "quota", "set", str(own), "--bytes", "8MiB"]) == 0
    request_box.make_request_box(str(btrfs))
    put(btrfs, ALICE, "a.json", encode_request(asked(own)))
    (one,), _ = waiting(btrfs)

    def died(*words: object) -> None:
        raise KeyboardInterrupt

    approve = ["storage", "requests", "approve", str(btrfs), one.id]
    with monkeypatch.context() as patched:
        patched.setattr(RequestBox, "record_decision_and_remove_request", died)
        assert run_command_line(approve) != 0
    capsys.readouterr()
    (row,) = listed(btrfs, capsys)["waiting"]
    assert row["now"]["limits"]["hard_bytes"] == 32 * MIB, "the limit is set, and the request still waits"
    assert run_command_line(approve) == 0 and not waiting(btrfs)[0]


def test_what_is_mounted_in_the_box_is_not_asked(place: Path) -> None:
    put(place, ALICE, "good.json", encode_request(asked(place / "alice")))
    put(place, BOB, "mounted.json", encode_request(asked(place / "alice", bytes=1)))
    over = str(place / request_box.NAME / "mounted.json")
    subprocess.run(["mount", "--bind", "/etc/passwd", over], check=True, timeout=60)
    try:
        found, refused = waiting(place)
    finally:
        subprocess.run(["umount", over], check=True, timeout=60)
    assert [one.file for one in found] == ["good.json"] and "something is mounted there" in refused[0]
