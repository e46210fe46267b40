"""Moves and removals on disk, killed everywhere; damaged, pinned, leased and open checkpoints."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Iterator

import pytest

from hyperpod_kit.checkpoint.repository import retention, selection
from hyperpod_kit.checkpoint.repository.records import catalog, identity, lease, pins
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.storage.tier import migrate as migration
from hyperpod_kit.storage.tier import run as tiering
from hyperpod_kit.storage.tier import survey
from hyperpod_kit.storage.tier.rules import TierRule
from tests.support.rows import share
from tests.support.wait import until
from tests.unit.checkpoint.small_checkpoint import SMALL_RUN, put_checkpoint

ALL = TierRule(older_than=0.0, keep=1)
NOW = 2_000_000_000.0


@pytest.fixture
def place() -> Iterator[Path]:
    """In memory: every file is synced."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        (Path(made) / "run").mkdir()
        yield Path(made)


def valid(root: Path) -> set[str]:
    """Committed checkpoints of which every byte is proved."""
    store, found = PosixStore(str(root)), set()
    for entry in catalog.list_checkpoints(store):
        if entry.committed and survey.is_intact_by_digest_of_every_byte(store, entry.checkpoint_id):
            found.add(entry.checkpoint_id)
    return found


def target(place: Path) -> Path:
    return place / "archive" / f"run-{SMALL_RUN.run_id[:8]}"


def damage(root: Path, attempt: str) -> None:
    shard = next((root / attempt).glob("shard-*"))
    data = bytearray(shard.read_bytes())
    data[5] ^= 1
    shard.chmod(0o600)
    shard.write_bytes(data)


def test_what_goes_is_whole_elsewhere_and_can_be_restored(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = PosixStore(str(place / "run"))
    names = [put_checkpoint(store, seq) for seq in range(1, 6)]
    words = ["storage", "tier", str(place / "run"), "--older-than", "1d", "--to", str(place / "archive"), "--keep", "2"]
    assert run_command_line([*words, "--dry-run", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert [one["attempt"] for one in body["go"]] == names[:3] and not body["gone"]
    assert valid(place / "run") == set(names) and not (place / "archive").exists()
    assert run_command_line(words) == 0
    assert "3 checkpoints removed or released" in capsys.readouterr().out
    assert valid(place / "run") == set(names[3:]) and valid(target(place)) == set(names[:3])
    assert selection.newest_valid(str(target(place))).checkpoint_id == names[2]
    assert identity.read_or_infer_identity(str(target(place))) == SMALL_RUN
    assert run_command_line(words) == 0 and valid(target(place)) == set(names[:3])


def test_the_newest_valid_one_stays_however_full_it_is(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = PosixStore(str(place / "run"))
    names = [put_checkpoint(store, seq) for seq in range(1, 5)]
    damage(place / "run", names[3])
    words = ["storage", "tier", str(place / "run"), "--delete", "--above", "0", "--until", "0", "--keep", "1"]
    assert run_command_line(words) == 1
    shown = capsys.readouterr()
    assert "more must be freed" in shown.err and "the newest valid one" in shown.out
    # The newest is damaged: the one before is the newest valid one, and the damage itself is left to be looked at.
    assert valid(place / "run") == {names[2]} and (place / "run" / names[3]).is_dir()


def test_pinned_leased_and_open_ones_stay(place: Path) -> None:
    store = PosixStore(str(place / "run"))
    names = [put_checkpoint(store, seq) for seq in range(1, 7)]
    pins.pin(store, names[0])
    held = lease.Lease(store, names[1], 600)
    with open(next((place / "run" / names[2]).glob("shard-*")), "rb"):
        planned = tiering.make_plan([str(place / "run")], ALL, NOW)
        stay = dict(planned.roots[0].stay)
        assert stay[names[0]] == "pinned" and stay[names[1]] == "being read"
        assert [one.attempt for one in planned.choice.go] in (names[3:5], names[2:5])
        if names[2] in stay:  # a file system that knows who has what open
            assert stay[names[2]] == "a program has it open"
    held.release()


def test_what_is_taken_in_use_after_the_plan_stays(place: Path) -> None:
    store = PosixStore(str(place / "run"))
    names = [put_checkpoint(store, seq) for seq in range(1, 6)]
    planned = tiering.make_plan([str(place / "run")], ALL, NOW)
    assert [one.attempt for one in planned.choice.go] == names[:4]
    pins.pin(store, names[0])
    held = lease.Lease(store, names[1], 600)
    shutil.rmtree(place / "run" / names[4])  # then the fourth is the newest valid one
    done = tiering.apply_plan(planned, ALL, None, lambda item: None)
    held.release()
    assert [one.attempt for one in done.removed] == [names[2]]
    assert dict(done.retained).keys() == {f"{place}/run/{names[n]}" for n in (0, 1, 3)}
    assert valid(place / "run") == {names[0], names[1], names[3]}


def test_a_copy_that_is_not_what_was_saved_costs_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PosixStore(str(place / "run"))
    names = [put_checkpoint(store, seq) for seq in range(1, 3)]
    kept = migration._copy_file

    def bad(source: PosixStore, target: PosixStore, name: str) -> None:
        kept(source, target, name)
        if "shard" in name:
            damage(Path(target.url), name.split("/")[0])

    monkeypatch.setattr(migration, "_copy_file", bad)
    planned = tiering.make_plan([str(place / "run")], ALL, NOW)
    done = tiering.apply_plan(planned, ALL, str(place / "archive"), lambda item: None)
    assert not done.removed and "differs from what was saved" in done.retained[0][1]
    assert valid(place / "run") == set(names)


def test_a_damaged_source_is_not_moved_and_another_run_in_the_target_is_left_alone(place: Path) -> None:
    store = PosixStore(str(place / "run"))
    names = [put_checkpoint(store, seq) for seq in range(1, 4)]
    damage(place / "run", names[0])
    planned = tiering.make_plan([str(place / "run")], ALL, NOW)
    done = tiering.apply_plan(planned, ALL, str(place / "archive"), lambda item: None)
    assert [one.attempt for one in done.removed] == [names[1]] and (place / "run" / names[0]).is_dir()
    put_checkpoint(store, 4)
    shutil.rmtree(target(place))
    target(place).mkdir()
    put_checkpoint(PosixStore(str(target(place))), 1, run=identity.RunIdentity("other", "1" * 32))
    planned = tiering.make_plan([str(place / "run")], ALL, NOW)
    done = tiering.apply_plan(planned, ALL, str(place / "archive"), lambda item: None)
    assert not done.removed and len(done.retained) == 2 and names[2] in valid(place / "run")


# As a user's, who has no child: it is the whole program that is killed.
PROGRAM = """
import sys
from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.untrusted import owner
owner.is_machine_root = lambda: False
policy = ["--older-than", "1d", "--keep", "1"]
sys.exit(run_command_line(["storage", "tier", sys.argv[1] + "/run", *policy, *sys.argv[2:]]))
"""
PLACES = ("tier.file_copied", "tier.file_copied@2", "tier.committed", "tier.copied", "retention.manifest_deleted")


@pytest.mark.parametrize("killed", share(PLACES, 2))
def test_killed_and_typed_again(place: Path, killed: str) -> None:
    store = PosixStore(str(place / "run"))
    names = [put_checkpoint(store, seq) for seq in range(1, 4)]
    argv = [sys.executable, "-c", PROGRAM, str(place), "--to", str(place / "archive")]
    ended = subprocess.run(argv, env={**os.environ, "HPK_FAILPOINT": killed}, timeout=60, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert valid(place / "run") | valid(target(place)) == set(names)
    assert names[2] in valid(place / "run")
    for path in (place / "run" / "leases").glob("*"):
        path.unlink()  # of the killed one; it ends by itself after some minutes
    assert subprocess.run(argv, timeout=60, capture_output=True).returncode == 0
    assert valid(place / "run") == {names[2]} and valid(target(place)) == set(names[:2])


def test_the_lease_of_a_move_is_short_and_renewed_for_as_long_as_it_takes(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "LEASE_SECONDS", 0.6)
    store = PosixStore(str(place / "run"))
    name = put_checkpoint(store, 1)
    seen: set[str] = set()
    with lease.KeptLease(store, name, migration.LEASE_SECONDS):

        def renewed() -> bool:
            seen.update(path.name for path in (place / "run" / "leases").glob("*"))
            return len(seen) >= 3

        until(renewed, what="third lease of one move")
        # A lease that a busy machine renewed too late is taken again.
        until(lambda: lease.leased_checkpoints(store) == {name}, what="a lease in force")
        ends = [int(lease._NAME.fullmatch(one).group(2)) for one in seen]  # type: ignore[union-attr]
        assert max(ends) <= time.time() + 0.6 + 2
    assert list((place / "run" / "leases").glob("*")) == []


class Killed(BaseException):
    """What a process does not survive."""


def one_case(seed: int, place: Path) -> None:
    """A random set of checkpoints, a random rule, killed at a random place, and typed again."""
    chance = random.Random(seed)
    root = place / str(seed) / "run"
    root.mkdir(parents=True)
    store = PosixStore(str(root))
    names, held = [], []
    for seq in range(1, chance.randint(2, 7)):
        committed = chance.random() < 0.85
        name = put_checkpoint(store, seq, epoch=1 + seq // 3, committed=committed)
        names.append(name)
        if committed and chance.random() < 0.2:
            damage(root, name)
        if committed and chance.random() < 0.2:
            pins.pin(store, name)
        if chance.random() < 0.15:
            held.append((name, lease.Lease(store, name, 10**7)))
    before, archive = valid(root), place / str(seed) / "archive"
    newest = max(before, default=None)
    fixed = (before & (pins.pinned_checkpoints(store) | {name for name, _ in held})) | ({newest} if newest else set())
    full = chance.random()
    rule = TierRule(above=full, until=full * chance.random(), keep=chance.randint(1, 3))
    if chance.random() < 0.6:
        rule = TierRule(older_than=chance.choice((0.0, 1e9)), keep=chance.randint(1, 3))
    to = str(archive) if chance.random() < 0.7 else None
    steps = itertools.count()
    death = chance.randint(0, 25)

    def failpoint(name: str) -> None:
        if next(steps) == death:
            raise Killed(name)

    def look() -> None:
        there = valid(archive / f"run-{SMALL_RUN.run_id[:8]}") if to else set()
        here = valid(root)
        assert fixed <= here, (seed, fixed - here)
        if to:
            assert before <= here | there, (seed, before - here - there)
            for entry in catalog.list_checkpoints(PosixStore(str(archive / f"run-{SMALL_RUN.run_id[:8]}"))):
                assert not entry.committed or entry.checkpoint_id in there, (seed, "a committed copy that is not whole")
        else:
            kept = sorted(before)[-rule.keep :]
            assert set(kept) <= here, (seed, kept)

    def go() -> tiering.TierResult | None:
        try:
            planned = tiering.make_plan([str(root)], rule, NOW)
        except CheckpointError:
            return None
        return tiering.apply_plan(planned, rule, to, lambda item: None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migration, "failpoint", failpoint)
        patch.setattr(retention, "failpoint", failpoint)
        with contextlib.suppress(Killed):
            go()
        look()
    done = go()
    look()
    if done is not None:
        again = go()
        assert again is None or not again.removed or rule.above is not None, seed
        for item in done.removed:
            assert item.attempt not in valid(root)
    look()
    shutil.rmtree(place / str(seed))


@pytest.mark.full
def test_random_rules_sets_and_deaths(place: Path) -> None:
    for seed in range(25):
        one_case(seed, place)


@pytest.mark.full
def test_500_random_rules_sets_and_deaths(place: Path) -> None:
    for seed in range(1000, 1500):
        one_case(seed, place)


def test_what_is_no_root(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--older-than", "1d", "--delete"]
    assert run_command_line(["storage", "tier", "s3://bucket/x", *words]) == 2
    assert run_command_line(["storage", "tier", str(place / "nothing"), *words]) == 3
    assert run_command_line(["storage", "tier", str(place / "run"), *words]) == 1
    assert "the run of these checkpoints is unknown" in capsys.readouterr().err
    put_checkpoint(PosixStore(str(place / "run")), 1)
    assert run_command_line(["storage", "tier", str(place / "run"), "--older-than", "1d"]) == 2
    assert run_command_line(["storage", "tier", str(place / "run"), "--delete"]) == 2
    put_checkpoint(PosixStore(str(place / "run")), 2)
    inside = ["--older-than", "1d", "--keep", "1", "--to", str(place / "run" / "old")]
    assert run_command_line(["storage", "tier", str(place / "run"), *inside]) == 2
    assert valid(place / "run") and len(valid(place / "run")) == 2
