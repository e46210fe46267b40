"""Moves to a bucket of the rehearsal's own S3: proved there, killed everywhere, and an object that is not what was
saved costs nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterator

import pytest

from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.records import catalog, identity
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.storage.tier import migrate as migration
from hyperpod_kit.storage.tier import survey
from hyperpod_kit.untrusted import owner
from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.s3.store import StoredBuckets
from hyperpod_rehearsal.server import serve
from tests.unit.checkpoint.small_checkpoint import SMALL_RUN, put_checkpoint
from tests.unit.checkpoint.test_store_s3 import environment
from tests.unit.storage.tier.test_tier import PLACES, PROGRAM, valid

BUCKET = "archive"
TO = f"s3://{BUCKET}/runs/"
TARGET = f"{TO}run-{SMALL_RUN.run_id[:8]}"


@pytest.fixture
def buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoredBuckets]:
    made = StoredBuckets(tmp_path / "s3")
    made.create_bucket(BUCKET)
    server = serve([("127.0.0.1", 0)], made, keys={"test": Key("test", "secret")})
    environment(monkeypatch, server.url)
    yield made
    server.close()


@pytest.fixture
def place() -> Iterator[Path]:
    """In memory: every file is synced."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        (Path(made) / "run").mkdir()
        yield Path(made)


def there() -> set[str]:
    """Committed checkpoints of the bucket of which every byte is proved."""
    store = open_store(TARGET)
    return {
        one.checkpoint_id
        for one in catalog.list_checkpoints(store)
        if one.committed and survey.is_intact_by_digest_of_every_byte(store, one.checkpoint_id)
    }


@pytest.mark.full
def test_what_goes_is_whole_in_the_bucket_and_can_be_restored(buckets: StoredBuckets, place: Path) -> None:
    names = [put_checkpoint(PosixStore(str(place / "run")), seq) for seq in range(1, 4)]
    words = ["storage", "tier", str(place / "run"), "--older-than", "1d", "--keep", "1", "--to", TO]
    assert run_command_line([*words, "--dry-run"]) == 0 and not buckets.list(BUCKET)
    for _ in range(2):
        assert run_command_line(words) == 0
        assert valid(place / "run") == {names[2]} and there() == set(names[:2])
    assert selection.newest_valid(TARGET).checkpoint_id == names[1]
    assert identity.read_or_infer_identity(TARGET) == SMALL_RUN


def test_an_object_that_is_not_what_was_saved_stays_where_it_was(
    buckets: StoredBuckets, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [put_checkpoint(PosixStore(str(place / "run")), seq) for seq in range(1, 4)]
    kept = migration._copy_file

    def bad(source: PosixStore, target: PosixStore, name: str) -> None:
        kept(source, target, name)
        if name.startswith(names[0]) and "shard" in name:
            (one,) = [info.key for info in buckets.list(BUCKET) if info.key.endswith(name)]
            data = bytearray(buckets.get(BUCKET, one))
            data[5] ^= 1
            buckets.put(BUCKET, one, bytes(data))

    monkeypatch.setattr(migration, "_copy_file", bad)
    monkeypatch.setattr(owner, "is_machine_root", lambda: False)  # the bucket is memory of this process
    words = ["storage", "tier", str(place / "run"), "--older-than", "1d", "--keep", "1", "--to", TO]
    assert run_command_line(words) == 1
    assert "the copy differs from what was saved" in capsys.readouterr().err
    assert valid(place / "run") == {names[0], names[2]} and there() == {names[1]}
    monkeypatch.undo()


@pytest.mark.parametrize(
    "killed",
    [pytest.param(one, marks=[] if one == "tier.committed" else pytest.mark.full) for one in PLACES],
)
def test_killed_and_typed_again(buckets: StoredBuckets, place: Path, killed: str) -> None:
    names = [put_checkpoint(PosixStore(str(place / "run")), seq) for seq in range(1, 4)]
    argv = [sys.executable, "-c", PROGRAM, str(place), "--to", TO]
    ended = subprocess.run(argv, env={**os.environ, "HPK_FAILPOINT": killed}, timeout=120, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert valid(place / "run") | there() == set(names) and names[2] in valid(place / "run")
    for path in (place / "run" / "leases").glob("*"):
        path.unlink()  # of the killed one; it ends by itself after some minutes
    assert subprocess.run(argv, timeout=120, capture_output=True).returncode == 0
    assert valid(place / "run") == {names[2]} and there() == set(names[:2])


def test_a_bucket_that_does_not_answer_costs_nothing(buckets: StoredBuckets, place: Path) -> None:
    names = {put_checkpoint(PosixStore(str(place / "run")), seq) for seq in range(1, 4)}
    for to, code in (("s3://nowhere/runs", 1), ("s3://", 2), ("s3:///x", 2), ("s3:x", 2)):
        words = ["storage", "tier", str(place / "run"), "--older-than", "1d", "--keep", "1", "--to", to]
        assert run_command_line(words) == code and valid(place / "run") == names
