"""Root's tools of storage on a user's runs: they act as the user, keep what is private private, and do not wait for
what the user lets wait."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, List

import pytest

from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.errors import HyperpodKitError, Unreachable, UsageError
from hyperpod_kit.storage.tier import run as tiering
from hyperpod_kit.storage.tier.rules import TierRule
from hyperpod_kit.storage.usage import report, scan
from hyperpod_kit.storage.usage import walk as walking
from hyperpod_kit.storage.usage.ledger import UsageLedger
from hyperpod_kit.storage.usage.walk import WalkRequest
from hyperpod_kit.untrusted import owner
from hyperpod_kit.untrusted.owner import OwnerLimits
from tests.hostile.silent import data_of_two, quick
from tests.hostile.silent import shared as shared
from tests.hostile.silent import silent as silent
from tests.hostile.users import ATTACKER, ROOT, VICTIM, busy_as
from tests.support.rows import full
from tests.support.wait import Deadline, slowness
from tests.unit.checkpoint.small_checkpoint import put_checkpoint

pytestmark = ROOT
RULE = TierRule(older_than=1.0, keep=1)
CANARY = b"the victim's weights "


def a_run(root: Path, uid: int, mode: int, count: int = 3) -> List[str]:
    store = PosixStore(str(root))
    root.mkdir(mode=mode)
    names = [put_checkpoint(store, seq) for seq in range(1, count + 1)]
    for path in (root, *root.rglob("*")):
        os.chown(path, uid, uid)
        path.chmod(mode if path.is_dir() else mode & 0o666)
    return names


def moved(roots: List[Path], archive: Path) -> tiering.TierResult:
    planned = tiering.make_plan([str(root) for root in roots], RULE, time.time() + 1e6)
    return tiering.apply_plan(planned, RULE, str(archive), lambda item: None)


@pytest.mark.parametrize("mode", [0o750, *full(0o700, 0o755)])
def test_owner_group_mode_and_times_survive_a_move(mode: int, shared: Path) -> None:
    root = shared / "fsx" / "run"
    a_run(root, VICTIM, mode)
    before = {str(path.relative_to(root)): path.stat() for path in root.rglob("*")}
    done = moved([root], shared / "archive")
    assert len(done.removed) == 2 and not done.retained
    (target,) = (shared / "archive").iterdir()
    assert (target.stat().st_uid, stat.S_IMODE(target.stat().st_mode)) == (VICTIM, mode)
    compared = 0
    for path in target.rglob("*"):
        found, was = path.stat(), before[str(path.relative_to(target))]
        assert (found.st_uid, found.st_gid, found.st_mode) == (was.st_uid, was.st_gid, was.st_mode), path
        assert found.st_mtime_ns == was.st_mtime_ns or path.name == layout.RUN_FILE
        compared += path.is_file()
    assert compared >= 4


_EXCHANGES = """
import os, sys
run, victims = sys.argv[1:]
print("begun", flush=True)
while True:
    for name in [name for name in os.listdir(run) if name.startswith("seq")]:
        try:
            os.rename(run + "/" + name, run + "/.aside")
            os.symlink(victims, run + "/" + name)
            os.unlink(run + "/" + name)
            os.rename(run + "/.aside", run + "/" + name)
        except OSError:
            pass
"""


@pytest.mark.full
def test_what_is_exchanged_meanwhile_is_read_by_nobody(shared: Path) -> None:
    victims, mine = shared / "fsx" / "private", shared / "fsx" / "mallory"
    names = a_run(victims, VICTIM, 0o700)
    for path in victims.rglob("shard*"):
        path.write_bytes(CANARY * 1000)
    a_run(mine, ATTACKER, 0o755, count=6)
    with busy_as(ATTACKER, _EXCHANGES, str(mine), str(victims / names[-1])):
        for _ in range(5):
            moved([mine], shared / "archive")
            copies = [path for path in (shared / "archive").rglob("*") if path.is_file()]
            assert not [path for path in copies if CANARY in path.read_bytes()]


@pytest.mark.parametrize("what", ["the root", *full("an attempt", "leases")])
def test_a_mount_that_does_not_answer_costs_one_line(
    what: str, shared: Path, silent: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, good = shared / "fsx" / "mallory", shared / "fsx" / "good"
    a_run(mine, ATTACKER, 0o755)
    a_run(good, VICTIM, 0o755)
    place = {"the root": mine, "an attempt": mine / "seq-000009.step-0000000090.e1-dead", "leases": mine / "leases"}[
        what
    ]
    place.mkdir(exist_ok=True)
    os.chown(place, ATTACKER, ATTACKER)
    silent(place)
    quick(monkeypatch)
    planned = tiering.make_plan([str(mine), str(good)], RULE, time.time() + 1e6)
    assert [root for root, why in planned.failed if "does not answer" in why] == [str(mine)]
    done = tiering.apply_plan(planned, RULE, str(shared / "archive"), lambda item: None)
    assert {item.root for item in done.removed} == {str(good)} and not done.retained
    for words in (["ls", str(mine)], ["prune", str(mine), "--latest", "1", "--dry-run"], ["verify", str(mine)]):
        deadline = Deadline(60)
        # Nothing of `verify` asks who holds a lease.
        assert run_command_line(["checkpoint", *words]) != 0 or (what, words[0]) == ("leases", "verify")
        assert not deadline.has_passed()


@pytest.mark.parametrize("what", ["the place", "a directory", "a file"])
def test_a_mount_that_does_not_answer_costs_usage_preload_and_quota_one_line(
    what: str,
    shared: Path,
    silent: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = data_of_two(shared)
    quick(monkeypatch)
    mine = data / "mallory"
    mounted = {"the place": mine, "a directory": mine / "d", "a file": mine / "file"}[what]
    if what == "a directory":
        mounted.mkdir()
    silent(mounted, regular=what == "a file")
    places = [str(mine), str(data / "good")] if what == "the place" else [str(data)]
    code = run_command_line(["storage", "preload", *places, "--json"])
    said = capsys.readouterr()
    assert code == 1, said.err
    body = json.loads(said.out)
    assert body["files"] == (1 if what != "a directory" else 2) and len(body["unread"]) == 1, body
    assert f"uid {ATTACKER} has mounted" in body["unread"][0]
    code = run_command_line(
        [
            "storage",
            "usage",
            *places,
            "--json",
            "--state" if len(places) == 1 else "--fresh",
            *one_state(places, shared),
        ]
    )
    said = capsys.readouterr()
    assert code == (1 if what == "the place" else 0), said.err
    reports = json.loads(said.out)["roots"]
    if what == "the place":
        assert "does not answer" in said.err and [one["root"] for one in reports] == [str(data / "good")]
    else:
        assert reports[0]["elsewhere"] == [str(mounted)]
        # Root's place, two directories of users and a file or two: a name that is covered is not counted.
        assert reports[0]["total"]["entries"] == (5 if what == "a directory" else 4)
    # Nothing here has limits: what counts is that it ends, and whose fault it was.
    assert run_command_line(["storage", "quota", "show", str(mine), str(data / "good")]) == 1
    assert len(capsys.readouterr().err.splitlines()) >= 2


def one_state(places: List[str], shared: Path) -> List[str]:
    return [str(shared / "archive" / "state")] if len(places) == 1 else []


@pytest.mark.parametrize("what", ["a directory", "a file"])
def test_a_mount_that_comes_during_a_count_costs_one_directory(
    what: str, shared: Path, silent: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes that look do not know of it: what they know of mounts is of before."""
    data = data_of_two(shared)
    quick(monkeypatch)
    (data / "mallory" / "d").mkdir()
    mounted = data / "mallory" / ("d" if what == "a directory" else "file")
    silent(mounted, regular=what == "a file")
    asked = WalkRequest(str(data), workers=1)
    known = walking._Pool._render_config
    first: List[str] = []

    def ignorant(pool: walking._Pool) -> str:
        config = json.loads(known(pool))
        if not first:
            first.append("")
            config["elsewhere"] = []
        return json.dumps(config)

    monkeypatch.setattr(walking._Pool, "_render_config", ignorant)
    ledger = UsageLedger(shared / "archive" / "state", asked.resume_identity())
    walking.walk_tree_into_ledger(asked, ledger, lambda count: None)
    found = report.make_report(str(data), ledger)
    ledger.close()
    assert found.users[str(VICTIM)].entries == 2
    if what == "a directory":  # the kernel says whose mount it is of, before it is asked
        assert found.elsewhere == [str(mounted)] and not found.unread
    else:
        assert found.unread == [(str(data / "mallory"), scan.UNANSWERED)]


_SQUASHED = "--bounding-set=-dac_override,-dac_read_search"


@pytest.mark.parametrize("command", ["usage", "preload"])
def test_where_root_is_nobody_each_directory_is_read_as_its_owner(command: str, shared: Path) -> None:
    """As behind a server that squashes root: private directories of two owners, one in the other too."""
    data = data_of_two(shared)
    inner = data / "good" / "inner"
    inner.mkdir()
    (inner / "file").write_bytes(b"y" * 1000)
    for path in (inner, inner / "file"):
        os.chown(path, VICTIM, VICTIM)
        path.chmod(0o700 if path.is_dir() else 0o400)
    program = "import sys; from hyperpod_kit.cli.main import run_command_line; sys.exit(run_command_line(sys.argv[1:]))"
    words = [
        "storage",
        command,
        str(data),
        "--json",
        *(["--state", str(shared / "archive" / "s")] if command == "usage" else []),
    ]
    argv = ["setpriv", _SQUASHED, sys.executable, "-c", program, *words]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    body = json.loads(ended.stdout)
    if command == "usage":
        (root,) = body["roots"]
        assert root["unread_count"] == 0 and root["users"][str(VICTIM)]["entries"] == 4
        assert root["users"][str(ATTACKER)]["entries"] == 2
    else:
        assert body["files"] == 3 and body["whole"], body


def test_preload_reads_no_link_and_no_file_as_anybody_but_its_owner(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = data_of_two(shared)
    mine = data / "mallory"
    (mine / "link").symlink_to(data / "good" / "file")
    (mine / "links").symlink_to(data / "good")
    for path in (mine / "link", mine / "links"):
        os.chown(path, ATTACKER, ATTACKER, follow_symlinks=False)
    assert run_command_line(["storage", "preload", str(mine), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == 1
    for link in ("link", "links"):
        assert run_command_line(["storage", "preload", str(mine / link), "--json"]) == 1
        body = json.loads(capsys.readouterr().out)
        assert body["files"] == 0 and f"symbolic link of uid {ATTACKER}" in body["unread"][0]


def test_a_limit_is_not_set_by_way_of_a_users_link(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = data_of_two(shared)
    link = data / "mallory" / "link"
    link.symlink_to(data / "good")
    os.chown(link, ATTACKER, ATTACKER, follow_symlinks=False)
    assert run_command_line(["storage", "quota", "set", str(link), "--bytes", "1MiB"]) == 1
    assert f"symbolic link of uid {ATTACKER}" in capsys.readouterr().err
    assert run_command_line(["storage", "quota", "set", str(data / "good"), "--bytes", "1MiB"]) == 1
    assert "directory limits exist on" in capsys.readouterr().err


def test_checkpoints_of_another_owner_in_a_run_stay(shared: Path) -> None:
    root = shared / "fsx" / "run"
    names = a_run(root, VICTIM, 0o755)
    for path in (root / names[0], *(root / names[0]).rglob("*")):
        os.chown(path, ATTACKER, ATTACKER)
        path.chmod(0o700 if path.is_dir() else 0o600)
    done = moved([root], shared / "archive")
    assert {item.attempt for item in done.removed} == {names[1]} or not done.removed
    assert (root / names[0]).is_dir()
    copies = [path for path in (shared / "archive").rglob("*") if path.is_file()]
    assert not [path for path in copies if names[0] in str(path) and path.name.startswith("shard")]


def test_a_childs_words_arrive_and_its_memory_does_not(shared: Path) -> None:
    (shared / "mine").mkdir()
    os.chown(shared / "mine", VICTIM, VICTIM)
    kept: List[int] = []

    def work() -> object:
        kept.append(1)
        return [os.getuid(), os.geteuid(), os.getgid(), os.getgroups()]

    assert owner.run_as_owner_in_child_if_root(str(shared / "mine"), work) == [VICTIM, VICTIM, VICTIM, []]
    assert kept == [] and owner.run_as_owner_in_child_if_root(str(shared), lambda: os.getuid()) == 0

    def refuse() -> object:
        raise UsageError("not so", hint="so")

    with pytest.raises(UsageError, match="not so") as refused:
        owner.run_as_owner_in_child_if_root(str(shared / "mine"), refuse)
    assert refused.value.hint == "so"
    with pytest.raises(PermissionError):
        owner.run_as_owner_in_child_if_root(str(shared / "mine"), lambda: os.listdir("/root"))
    with pytest.raises(HyperpodKitError, match="KeyError"):
        owner.run_as_owner_in_child_if_root(str(shared / "mine"), lambda: dict[str, int]()["x"])
    with pytest.raises(HyperpodKitError, match="without an answer"):
        owner.run_as_owner_in_child_if_root(str(shared / "mine"), lambda: os._exit(0))


@pytest.mark.full
def test_who_works_may_take_longer_and_who_waits_may_not(shared: Path) -> None:
    (shared / "mine").mkdir()
    os.chown(shared / "mine", VICTIM, VICTIM)

    def busy() -> int:
        end = time.process_time() + 2.0
        while time.process_time() < end:
            pass
        return 7

    assert owner.run_as_owner_in_child_if_root(str(shared / "mine"), busy, OwnerLimits(silence=0.5 * slowness())) == 7
    with pytest.raises(Unreachable, match="does not answer"):
        owner.run_as_owner_in_child_if_root(str(shared / "mine"), lambda: time.sleep(600), OwnerLimits(silence=0.5))
    with pytest.raises(Unreachable, match="does not answer"):
        owner.run_as_owner_in_child_if_root(str(shared / "mine"), busy, OwnerLimits(silence=0.2, longest=0.5))


def test_who_has_worked_is_waited_for_no_longer_once_nothing_moves(shared: Path) -> None:
    """What it has written may still have to be written out, which takes nothing of its own time."""
    deadline = Deadline(60)

    def work_then_hang() -> None:
        end = time.process_time() + 1.5
        while time.process_time() < end:
            pass
        os.read(os.pipe()[0], 1)

    with pytest.raises(Unreachable, match="does not answer"):
        owner.run_as_owner_in_child_if_root(str(shared), work_then_hang, OwnerLimits(silence=1.0))
    assert not deadline.has_passed()
    assert OwnerLimits(silence=1.0).allowed_standstill_seconds(10 << 20) == 11.0
