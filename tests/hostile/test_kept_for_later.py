"""What programs keep for themselves or hand to each other is taken for what it is only when nobody else, and no damage,
can have made it something else."""

from __future__ import annotations

import json
import os
import zlib
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Dict, List

import pytest

from hyperpod_kit.checkpoint.agent.flush import flush_captures
from hyperpod_kit.checkpoint.agent.reports import assemble
from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.store.memory import MemoryStore
from hyperpod_kit.data.index.build import Parts
from hyperpod_kit.data.reading import chunks
from hyperpod_kit.data.reading.chunks import ChunkKey, ChunkStore, DiskCache
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.node.slurm.guard import mend
from hyperpod_kit.slurm import findings
from tests.hostile.fuzz import kept_parsers
from tests.hostile.fuzz.checkpoint_parsers import ATTEMPT
from tests.hostile.fuzz.kept_parsers import CHUNK, CHUNK_KEY, KEPT, KEYS, PARTS, SCAN
from tests.hostile.users import ATTACKER, ROOT, VICTIM, as_user, place

# --- chunks of objects on a local disk --------------------------------------------------------------------------


def file_of(cache: DiskCache) -> Path:
    path = Path(cache._path(CHUNK_KEY))
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_the_seeds_of_the_fuzzer_are_what_the_programs_keep(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path / "cache"), floor=0)
    cache.put(CHUNK_KEY, CHUNK)
    assert file_of(cache).read_bytes() == KEPT
    parts = Parts(str(tmp_path / "parts"), "x")
    for key in KEYS:
        parts.append_scan(key, SCAN)
    parts.flush_and_close()
    assert (tmp_path / "parts" / "scans-x").read_bytes() == PARTS


@pytest.mark.parametrize("kind", ["fifo", "directory", "longer", "shorter", "of another key"])
def test_what_is_no_chunk_of_that_key_is_fetched(kind: str, tmp_path: Path) -> None:
    """At once, and without being read whole."""
    cache = DiskCache(str(tmp_path / "cache"), floor=0)
    path = file_of(cache)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "of another key":
        cache.put("another", CHUNK)
        os.rename(cache._path("another"), path)
    else:
        chunk = CHUNK * 2 if kind == "longer" else CHUNK[:-1]
        path.write_bytes(chunk + zlib.crc32(chunk, zlib.crc32(CHUNK_KEY.encode())).to_bytes(4, "little"))
    assert cache.get(CHUNK_KEY, len(CHUNK)) is None
    cache.put(CHUNK_KEY, CHUNK)
    assert cache.get(CHUNK_KEY, len(CHUNK)) == (None if kind == "directory" else CHUNK)


def test_a_store_takes_only_chunks_that_are_as_long_as_it_asked_for(tmp_path: Path) -> None:
    class Source:
        path, etag = "s3://corpus/a", '"0a"'

        def read(self, offset: int, length: int) -> bytes:
            return CHUNK[offset : offset + length]

    disk = DiskCache(str(tmp_path / "cache"), floor=0)
    disk.put('s3://corpus/a "0a" 0-64', CHUNK[:-1])
    store = ChunkStore(chunks.CHUNK_BYTES, disk)
    try:
        requested = store.request_chunk(Source(), ChunkKey("s3://corpus/a", '"0a"', 0, 64))  # type: ignore[arg-type]
        assert isinstance(requested, Future) and requested.result() == CHUNK
    finally:
        store.close()


@ROOT
@pytest.mark.parametrize("kind", ["file", "link to a file", "link to the directory"])
def test_chunks_of_another_user_are_not_taken_for_ones_own(kind: str) -> None:
    """In a directory that he made and left open, with data of his choice."""
    with place() as top:
        folder = top / "cache"

        def attack() -> None:
            os.umask(0)
            cache = DiskCache(str(folder), floor=0)
            if kind == "link to the directory":
                elsewhere = DiskCache(str(top / "his"), floor=0)
                elsewhere.put(CHUNK_KEY, CHUNK)
                os.symlink(top / "his", folder)
                return
            cache.put(CHUNK_KEY, CHUNK)
            if kind == "link to a file":
                os.rename(cache._path(CHUNK_KEY), top / "aside")
                os.symlink(top / "aside", cache._path(CHUNK_KEY))

        def victim() -> None:
            cache = DiskCache(str(folder), floor=0)
            assert cache.get(CHUNK_KEY, len(CHUNK)) is None
            cache.put(CHUNK_KEY, CHUNK)  # which fails in silence, or is his own from now on

        assert as_user(ATTACKER, attack) == 0
        assert as_user(VICTIM, victim) == 0


# --- parts of an index ------------------------------------------------------------------------------------------


def records(folder: Path, *bodies: bytes) -> Parts:
    (folder / "parts").mkdir()
    (folder / "parts" / "scans-x").write_bytes(
        b"".join(kept_parsers._part(key.encode(), body) for key, body in zip(KEYS, bodies))
    )
    return Parts(str(folder / "parts"), "x")


def test_scans_that_say_more_than_they_have_are_made_anew(tmp_path: Path) -> None:
    """Although their checksums are right: counts beyond their end, a digest that is no text, nothing at all."""
    for number, body in enumerate(
        (
            (12).to_bytes(8, "little") + kept_parsers.BODY[8:],
            (2**63).to_bytes(8, "little") + kept_parsers.BODY[8:],
            kept_parsers.BODY[:-1] + b"\xff",
            kept_parsers.BODY[:23],
            b"",
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        parts = records(folder, body, kept_parsers.BODY)
        try:
            assert parts.read_scan_if_intact(KEYS[0]) is None
            kept = parts.read_scan_if_intact(KEYS[1])
            assert kept is not None and kept.digest == SCAN.digest and kept.starts.tolist() == SCAN.starts.tolist()
        finally:
            parts.flush_and_close()


def test_no_key_is_as_long_as_a_file_of_holes(tmp_path: Path) -> None:
    """It says that its key has 4 GiB, and so has the file."""
    (tmp_path / "parts").mkdir()
    path = tmp_path / "parts" / "scans-x"
    path.write_bytes(kept_parsers._part(b"k", b"", 2**32 - 1))
    os.truncate(path, 5 << 30)
    parts = Parts(str(tmp_path / "parts"), "x")
    parts.flush_and_close()
    assert path.stat().st_size == 0


# --- the guard of Slurm -----------------------------------------------------------------------------------------

ODD_TIMES = ["NaN", "Infinity", "-Infinity", "1" * 400, "[" * 100_000, "1e999"]


@pytest.mark.parametrize("moment", ODD_TIMES, ids=lambda word: word[:9])
def test_a_record_of_no_time_is_none(moment: str, tmp_path: Path) -> None:
    """It would stand for ever, or end what reports."""
    text = json.dumps({**kept_parsers.GUARD, "checked_at": "@"}).replace('"@"', moment)
    (tmp_path / "slurm.json").write_text(text)
    assert findings.read_guard_record(str(tmp_path / "slurm.json")) is None


@pytest.mark.parametrize("moment", [float("inf"), float("nan"), 10**400])
@pytest.mark.parametrize("field", ["count", "at"])
def test_a_note_of_no_number_counts_as_no_try(field: str, moment: Any) -> None:
    note = {"count": 2, "at": 1.0, "words": "x", "error": "", field: moment}
    assert mend.Tries.parse_or_empty(note) == mend.Tries()


# --- reports that ranks hand in ---------------------------------------------------------------------------------


def committed(**changed: Any) -> manifest.Manifest:
    """With these in the report of rank 0."""
    store = MemoryStore("memory")
    store._objects.update(kept_parsers.HANDED_IN)
    name = f"{ATTEMPT}/{layout.report_file(0)}"
    store._objects[name] = manifest.seal_json({**kept_parsers.REPORTS[name], **changed})
    found = flush_captures.read_reports(store, ATTEMPT, kept_parsers.WORLD)
    assert found is not None
    return assemble.build_commit_files(found, {}).manifest


def page(**changed: Any) -> Dict[str, Any]:
    return {**kept_parsers.REPORTS[f"{ATTEMPT}/{layout.report_file(0)}"]["page"], **changed}


def parts(**changed: str) -> List[List[str]]:
    said: List[List[str]] = kept_parsers.REPORTS[f"{ATTEMPT}/{layout.report_file(0)}"]["parts"]
    return [[part[0], changed[part[0]]] if part[0] in changed else part for part in said]


def test_a_report_as_it_was_is_committed() -> None:
    made = committed()
    assert made.world == 2 and made.tensors == 3 and made.metrics == {"loss": 0.5}


@pytest.mark.parametrize(
    "changed",
    [
        {"page": page(world=2**62)},
        {"page": page(digest="../x")},
        {"page": page(plan="q"), "parts": parts(held="{}")},
        {"parts": parts(save="{")},
        {"parts": parts(save="[" * 100_000)},
        {"parts": parts(rng='"\ud800"')},
        {"parts": parts(save='["metrics"]')},
        {"parts": parts(save='{"metrics": [1]}')},
        {"parts": parts(save='{"metrics": {"loss": "no number"}}')},
        {"parts": parts(save='{"metrics": {"loss": []}}')},
        {"parts": parts(save='{"line": "x"}')},
        {"page": page(plan="q"), "parts": parts(held='[["box"]]')},
        {"page": page(plan="q"), "parts": parts(held='[[[], "BF16"]]')},
    ],
    ids=lambda changed: str(changed)[-40:],
)
def test_what_ranks_hand_in_is_refused_with_an_error_of_ours(changed: Dict[str, Any]) -> None:
    """And is no checkpoint that nobody can read."""
    with pytest.raises(CheckpointError):
        committed(**changed)


def test_words_of_rank_0_that_are_no_texts() -> None:
    whole = kept_parsers._of_rank(0)
    reports = {0: whole._replace(extra="{}"), 1: kept_parsers._of_rank(1)}
    with pytest.raises(CheckpointError, match="non-tensor state"):
        assemble.build_commit_files(reports, {})
