"""A model to all nodes of a job: read once from storage, whole on every node whatever dies, nothing wrong in it."""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from hyperpod_kit.errors import HyperpodKitError, JobError, NotInAJob, UsageError
from hyperpod_kit.job import cli
from hyperpod_kit.job.fan_out import command, destination, listing, peers, task
from tests.support.rows import full
from tests.support.wait import until
from tests.unit.job.private_slurm import PrivateSlurm, running

FILES = 40


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A snapshot as Hugging Face has them: links to blobs, folders, names of all kinds, an empty file."""
    draw = random.Random(7)
    blobs, made = tmp_path / "blobs", tmp_path / "snapshot"
    (made / "sub ordner").mkdir(parents=True)
    blobs.mkdir()
    for number in range(FILES):
        (blobs / str(number)).write_bytes(draw.randbytes(20_000 + number))
        (made / f"model-{number:05}.safetensors").symlink_to(f"../blobs/{number}")
    (made / "sub ordner" / "größe\n.json").write_text("{}")
    (made / "empty").touch()
    (made / "model-00003.safetensors").resolve().chmod(0o750)
    return made


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A job of three nodes n0 to n2; where each has its own disk."""
    srun = tmp_path / "srun"
    script = Path(__file__).with_name("fan_out_srun.py")
    srun.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {script} "$@"\n')
    srun.chmod(0o755)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[0-2]")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "disks"


def fan_out(source: Path, disks: Path, capsys: pytest.CaptureFixture[str]) -> Dict[str, Any]:
    assert cli.main(["fan-out", str(source), f"{disks}/$SLURMD_NODENAME", "--json"]) == 0
    found: Dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def holds(folder: Path) -> Dict[str, tuple[bytes, int, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode & 0o777, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and listing.STATE_DIRECTORY_NAME not in path.parts
    }


def test_every_node_has_all_of_it_and_each_byte_was_read_once(
    source: Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = fan_out(source, job, capsys)
    size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    assert found["bytes_read"] == found["bytes"] == size
    assert [one["done"] for one in found["nodes"]] == [True] * 3
    for node in ("n0", "n1", "n2"):
        assert holds(job / node) == holds(source)
    # Started again it reads what is there, and only what is damaged comes anew.
    hurt = job / "n1" / "model-00008.safetensors"  # which n2 reads from storage, and has
    data = bytearray(hurt.read_bytes())
    data[10_000] ^= 1
    hurt.write_bytes(data)
    again = fan_out(source, job, capsys)
    assert again["bytes_read"] == 0 and [one["received"] for one in again["nodes"]] == [0, len(data), 0]
    assert holds(job / "n1") == holds(source)


@pytest.mark.parametrize(
    ("does", "done", "said"),
    [("die", 2, "no longer queried"), ("lie", 3, "did not arrive as it was sent"), *full(("flip", 3, ""))],
)
def test_a_node_that_dies_or_sends_what_is_not_what_it_says(
    does: str, done: int, said: str, source: Path, job: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("FAN_OUT_TASK", "1")
    monkeypatch.setenv("FAN_OUT_DOES", does)
    monkeypatch.setattr(command, "SILENCE", 4.0)
    code = 0
    try:
        code = cli.main(["fan-out", str(source), f"{job}/$SLURMD_NODENAME", "--json"])
    except JobError as err:
        code = 1
        assert "n1" in str(err)
    assert code == (0 if done == 3 else 1)
    seen = capsys.readouterr()
    assert sum(one["done"] for one in json.loads(seen.out)["nodes"]) == done
    assert said in seen.err
    monkeypatch.setenv("FAN_OUT_TASK", "-1")
    for node in ("n0", "n2") if done == 2 else ("n0", "n1", "n2"):
        assert holds(job / node) == holds(source)
    if done == 2:  # and it is gone on with, when the node is back
        again = fan_out(source, job, capsys)
        assert again["bytes_read"] <= again["bytes"] / 2.9 and holds(job / "n1") == holds(source)


def test_a_directory_that_several_nodes_share_is_refused(
    source: Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(JobError, match="another node or command is copying to"):
        cli.main(["fan-out", str(source), str(job)])


def test_what_cannot_be_copied_is_said_before_anything_is(source: Path, job: Path) -> None:
    (source / "dir").symlink_to(source / "sub ordner")
    with pytest.raises(UsageError, match="a link to a directory"):
        listing.listed(str(source))
    (source / "dir").unlink()
    os.mkfifo(source / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):
        listing.listed(str(source))
    for name in ("../x", "/etc/x", "a//b", f"{listing.STATE_DIRECTORY_NAME}/journal", "", "a/.."):
        with pytest.raises(ValueError, match="not a name of a file"):
            listing.from_json([["x", name, 1, 0o644, 1]])


def test_a_source_that_changes_meanwhile_is_an_error_and_no_mixture(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a").write_bytes(b"1" * 1000)
    plan = listing.plan_of(str(tmp_path / "src"), listing.listed(str(tmp_path / "src")))
    node = task.FanOutNode(plan, destination.Destination(str(tmp_path / "dst"), plan), 0, 1, print)
    (tmp_path / "src" / "a").write_bytes(b"2" * 1000)
    with pytest.raises(JobError, match="was changed while it was copied"):
        node.copy_all_chunks([[("127.0.0.1", 1)]], b"k")
    assert not (tmp_path / "dst" / "a").exists()


def test_who_does_not_have_the_key_gets_nothing(tmp_path: Path) -> None:
    asked: List[int] = []

    def give(number: int) -> tuple[memoryview, str]:
        asked.append(number)
        return memoryview(b"x"), destination.digest_of(memoryview(b"x"))

    server = peers.PeerServer(b"key", 2, ["127.0.0.1"], give)
    for stranger in (b"another key", b""):
        with pytest.raises((OSError, HyperpodKitError)):
            peers.ChunkPeer(stranger, 1, [("127.0.0.1", server.port)]).chunk(0, 1)
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b'{"op": "chunk", "number": 0}\n')
        until(lambda: not sock.recv(1 << 16), what="the end of the connection")
    assert asked == []
    assert bytes(peers.ChunkPeer(b"key", 1, [("127.0.0.1", server.port)]).chunk(0, 1)) == b"x"


def test_outside_of_a_job_it_says_so(source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(NotInAJob, match="this shell is not in a job"):
        command.main([str(source), str(tmp_path)])


@pytest.fixture
def slurm() -> Iterator[PrivateSlurm]:
    with running() as cluster:
        yield cluster


@pytest.mark.full
@pytest.mark.rehearsal
@pytest.mark.needs("slurm")
def test_inside_of_a_batch_script(slurm: PrivateSlurm) -> None:
    place = Path(tempfile.mkdtemp(prefix="work-", dir=slurm.base))
    place.chmod(0o777)
    (place / "model").mkdir()
    for number in range(12):
        (place / "model" / f"part-{number}").write_bytes(random.Random(number).randbytes(100_000))
    main = Path(cli.__file__).with_name("__main__.py")
    script = place / "job.sbatch"
    script.write_text(
        f"#!/bin/bash\n#SBATCH -N3 --ntasks-per-node=1 -o {place}/out\n"
        f"/usr/bin/python3 -I -S {main} fan-out {place}/model '{place}/disk-$SLURMD_NODENAME' --json\n"
    )
    batch = slurm.sbatch(str(script), cwd=place)
    until(lambda: slurm.state(batch) in ("COMPLETED", "FAILED"), what="the job's end")
    said = (place / "out").read_text()
    found = json.loads(said.splitlines()[-1])
    assert found["bytes_read"] == found["bytes"] == 1_200_000, said
    for node in ("n1", "n2", "n3"):
        assert holds(place / f"disk-{node}") == holds(place / "model")
