"""What people and programs see of a root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, List

import pytest

from hyperpod_kit.checkpoint.commands import byte_counts, cli
from hyperpod_kit.checkpoint.repository.format import index, layout, manifest
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec
from hyperpod_kit.checkpoint.repository.records import lease, pins, tombstone
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from tests.unit.checkpoint.small_checkpoint import put_checkpoint


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(str(tmp_path))


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert cli.main(list(words)) == code
    return capsys.readouterr().out


def answer(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    return json.loads(said(capsys, *words, "--json", code=code))


def test_ls(store: PosixStore, capsys: pytest.CaptureFixture[str]) -> None:
    names = [put_checkpoint(store, seq, metrics={"loss": seq / 4}) for seq in (1, 2, 3)]
    pins.pin(store, names[0])
    tombstone.write(store, names[1], "flipped")
    held = lease.Lease(store, names[2], 60)
    open_ = put_checkpoint(store, 4, committed=False)
    lines = said(capsys, "ls", store.url).splitlines()
    assert lines[0].split() == ["CHECKPOINT", "STEP", "SIZE", "RANKS", "TIME", "NOTE"]
    assert [line.split()[0] for line in lines[1:]] == [open_, *reversed(names)]
    assert lines[1].endswith("never committed") and lines[2].endswith("being read; loss 0.75")
    assert "BAD: flipped" in lines[3] and "pinned" in lines[4]
    rows = answer(capsys, "ls", store.url)["attempts"]
    assert [row["pinned"] for row in rows] == [False, False, False, True] and rows[2]["damaged"] == "flipped"
    assert said(capsys, "ls", store.url, "--limit", "1").splitlines()[-1] == "the newest 1; all with --limit 0"
    assert len(said(capsys, "ls", store.url, "--limit", "0").splitlines()) == 5
    assert said(capsys, "ls", store.url, "--limit", "-1", code=2) == ""
    held.release()


def test_an_empty_answer_is_never_a_mount_that_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["ls"], ["verify"], ["show"], ["prune", "--latest", "1"]):
        assert cli.main([command[0], str(tmp_path / "gone"), *command[1:]]) == 3
        assert "its mount is gone" in capsys.readouterr().err
    put_checkpoint(PosixStore(str(tmp_path)), 1, committed=False)
    assert "no checkpoint was ever committed" in said(capsys, "verify", str(tmp_path), code=1)


def test_show(store: PosixStore, capsys: pytest.CaptureFixture[str]) -> None:
    pieces = index.Index(
        tuple(index.Piece(TensorSpec("w", "F32", (2, 3), (2 * n, 0), (4, 3)), n, 4096) for n in range(2))
    )
    from hyperpod_kit.checkpoint.repository.format import digest

    data = index.encode(pieces)
    record = manifest.FileRecord(layout.INDEX_FILE, len(data), digest.small_object_digest(data))
    plain = put_checkpoint(store, 1)
    attempt = put_checkpoint(store, 2, index=record, metrics={"loss": 1.5}, parent={"seq": 1, "step": 1})
    store.create(f"{attempt}/{layout.INDEX_FILE}", data)
    text = said(capsys, "show", store.url, "--tensors")
    assert attempt in text and "loss" in text and "index.bin" in text and "seq 1, step 1" in text
    assert text.splitlines()[-1].split() == ["w", "F32", "[4,", "3]", "0,", "1"]
    found = answer(capsys, "show", store.url, "--tensors")
    assert found["tensors"][0]["pieces"][1] == {"shard": 1, "begin": 4096, "shape": [2, 3], "offsets": [2, 0]}
    assert found["manifest"]["metrics"] == {"loss": 1.5}
    assert plain in said(capsys, "show", store.url, plain)
    assert cli.main(["show", store.url, plain, "--tensors"]) == 1
    assert "no tensor index" in capsys.readouterr().err
    for name in ("seq-000009.step-0000000009.e1-abcd", "../x"):
        assert cli.main(["show", store.url, name]) == 3
        assert f"{name} is not a committed checkpoint" in capsys.readouterr().err
    assert cli.main(["verify", store.url, "../x"]) == 2
    assert "../x is not the name of a checkpoint" in capsys.readouterr().err


def test_verify_says_how_bad_it_is(store: PosixStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = put_checkpoint(store, 1), put_checkpoint(store, 2)
    assert answer(capsys, "verify", store.url)["newest_valid"] == new
    store.overwrite_non_atomically(f"{new}/{layout.EXTRA_FILE}", b"{?")
    found = answer(capsys, "verify", store.url, code=1)
    assert found["newest_valid"] == old and "extra.json" in found["attempts"][0]["problem"]
    assert f"{old}  valid" in said(capsys, "verify", store.url, old)
    assert said(capsys, "verify", store.url, new, code=1).startswith(f"{new}  INVALID: extra.json")
    tombstone.write(store, old, "a mistake")  # what is marked is looked at all the same
    assert answer(capsys, "verify", store.url, code=1)["newest_valid"] == old


def test_prune_says_first_and_deletes_then(store: PosixStore, capsys: pytest.CaptureFixture[str]) -> None:
    names = [put_checkpoint(store, seq, step=seq * 100, metrics={"loss": float(seq)}) for seq in range(1, 6)]
    rule = ["--latest", "1", "--best", "loss:1:min"]
    planned = said(capsys, "prune", store.url, *rule, "--dry-run").splitlines()
    assert len(store.list()) == 7 and [line.split()[1] for line in planned[1:]] == [
        "keep",
        "would",
        "would",
        "would",
        "keep",
    ]
    found = answer(capsys, "prune", store.url, *rule)
    assert found["deleted"] == names[1:4] and found["policy"] == {
        "any": [{"latest": {"n": 1}}, {"best": {"metric": "loss", "n": 1, "mode": "min"}}]
    }
    assert store.list() == [
        layout.LATEST_FILE,
        layout.RUN_FILE,
        f"{layout.PROOFS}/",
        f"{names[0]}/",
        f"{names[4]}/",
    ]


def test_prune_verifies_when_asked(store: PosixStore, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = put_checkpoint(store, 1), put_checkpoint(store, 2)
    data = store.read(f"{new}/{layout.shard_file(0)}")
    store.overwrite_non_atomically(f"{new}/{layout.shard_file(0)}", b"?" + data[1:])
    assert answer(capsys, "prune", store.url, "--latest", "1", "--verify")["deleted"] == []
    found = answer(capsys, "prune", store.url, "--latest", "1", code=1)
    assert found["deleted"] == [] and list(found["damaged"]) == [new]  # never the last good one
    assert "BAD: read back" in said(capsys, "ls", store.url)
    newer = put_checkpoint(store, 3)
    assert answer(capsys, "prune", store.url, "--latest", "1")["deleted"] == [old, new]
    assert f"{newer}" in said(capsys, "ls", store.url) and "proved" in said(capsys, "ls", store.url)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--latest", "0"],
        ["--best", "loss:x"],
        ["--best", "loss:1:median"],
        ["--best", ":1"],
        ["--every-steps", "-5"],
        ["--latest", "many"],
    ],
)
def test_a_policy_that_is_none(store: PosixStore, capsys: pytest.CaptureFixture[str], words: List[str]) -> None:
    put_checkpoint(store, 1)
    assert cli.main(["prune", store.url, *words]) == 2


def test_pin_and_unpin(store: PosixStore, capsys: pytest.CaptureFixture[str]) -> None:
    names = [put_checkpoint(store, seq) for seq in (1, 2)]
    assert "is pinned" in said(capsys, "pin", store.url, names[0], "--reason", "paper")
    assert answer(capsys, "prune", store.url, "--latest", "1")["keep"][names[0]] == "pinned"
    assert "no longer" in said(capsys, "unpin", store.url, names[0])
    assert cli.main(["unpin", store.url, names[0]]) == 1
    assert cli.main(["pin", store.url, "nothing"]) == 3


def test_a_reader_that_has_seen_enough_is_no_error(store: PosixStore) -> None:
    for seq in range(1, 200):
        put_checkpoint(store, seq, committed=False)
    done = subprocess.run(
        f"{sys.executable} -m hyperpod_kit.checkpoint.commands.cli ls {store.url} --limit 0 "
        "| true; exit ${PIPESTATUS[0]}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        timeout=20,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_ls_needs_neither_torch_nor_boto3_nor_shared_memory(store: PosixStore) -> None:
    put_checkpoint(store, 1)
    code = (
        "import sys; from hyperpod_kit.checkpoint.commands import cli; cli.main(['ls', sys.argv[1]]); "
        "print([name for name in ('torch', 'numpy', 'boto3', 'multiprocessing') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, store.url],
        capture_output=True,
        text=True,
        timeout=20,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.stdout.splitlines()[-1] == "[]", done


def test_sizes() -> None:
    assert [byte_counts.format_byte_count(n) for n in (0, 999, 1000, 12_345_678, 5 * 10**13)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "12.3 MB",
        "50.0 TB",
    ]
