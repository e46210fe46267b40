"""Files are brought whole, proved, once, and go on after a kill: from directories, and by s5cmd from this project's own
S3 server with refusals and cut connections in between."""

from __future__ import annotations

import contextlib
import filecmp
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

boto3 = pytest.importorskip("boto3", reason="the package boto3 is not installed")


from boto3.s3.transfer import TransferConfig  # noqa: E402

from hyperpod_kit.cli.main import run_command_line  # noqa: E402
from hyperpod_kit.data import IndexedDataset, SampleIndex  # noqa: E402
from hyperpod_kit.data.bulk import directory, s5cmd  # noqa: E402
from hyperpod_kit.data.bulk.stage import stage  # noqa: E402
from hyperpod_kit.data.index.build import build_index  # noqa: E402
from hyperpod_kit.data.reading import objects  # noqa: E402
from hyperpod_kit.errors import DataError, DataUnavailable, Unreachable  # noqa: E402
from hyperpod_kit.untrusted.owned_directory import OwnedDirectory  # noqa: E402
from hyperpod_rehearsal.s3.faults import S3Fault  # noqa: E402
from hyperpod_rehearsal.s3.store import StoredBuckets  # noqa: E402
from tests.support import aws  # noqa: E402
from tests.support.rows import full  # noqa: E402
from tests.support.wait import until  # noqa: E402

BUCKET = "corpus"
MIB = 1 << 20


def fill(folder, files=40, size=20_000):
    dice = random.Random(1)
    names = [f'd{n % 3}/{n:03} it\'s "one".bin' for n in range(files)] + ["top.txt", "empty"]
    for name in names:
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(dice.randbytes(dice.randrange(1, size)) if name != "empty" else b"")
    return names


def same(one, two, names):
    return filecmp.cmpfiles(one, two, names, shallow=False) == (names, [], [])


@pytest.fixture
def source(tmp_path):
    fill(tmp_path / "source")
    return tmp_path / "source"


def test_a_directory_is_staged_once(source, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["data", "stage", str(source), str(out), "--json"]
    assert run_command_line([*words, "--dry-run"]) == 0 and not out.exists()
    assert json.loads(capsys.readouterr().out)["brought"] == 42
    assert run_command_line(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["files"], found["brought"], found["by_size"], found["known"]) == (42, 42, 0, 0)
    names = [str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()]
    assert same(source, out, names)
    (source / "top.txt").write_text("other")
    assert run_command_line(words[:-1]) == 0
    assert capsys.readouterr().out.startswith("1 file, 5 B, into") and (out / "top.txt").read_text() == "other"


def test_an_index_of_the_source_is_one_of_the_copy(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.txt").write_text("one\ntwo\n")
    index = build_index([str(tmp_path / "source")], str(tmp_path / "index")).index
    stage(str(tmp_path / "source"), str(tmp_path / "out"))
    moved = SampleIndex.open(index.folder, sources=(str(tmp_path / "out"),))
    (tmp_path / "source" / "a.txt").unlink()
    assert IndexedDataset(moved)[1] == "two"


def test_damage_on_the_way_is_found_and_brought_again(source, tmp_path, monkeypatch):
    real = directory.Directory._copy_to_part_path_recording_digest
    damaged: list[Any] = []

    def copy(self, file, part):
        real(self, file, part)
        if file.path == "top.txt" and not damaged:
            damaged.append(part)
            with open(part, "r+b") as stream:
                stream.write(b"?" if Path(source, "top.txt").read_bytes()[:1] != b"?" else b"!")
        return part

    monkeypatch.setattr(directory.Directory, "_copy_to_part_path_recording_digest", copy)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    stage(str(source), str(tmp_path / "out"))
    assert damaged and filecmp.cmp(source / "top.txt", tmp_path / "out" / "top.txt", shallow=False)


def test_what_cannot_be_staged_is_said(tmp_path, source, monkeypatch):
    with pytest.raises(DataError, match="is not a directory"):
        stage(str(tmp_path / "none"), str(tmp_path / "out"))
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="no files"):
        stage(str(tmp_path / "nothing"), str(tmp_path / "out"))
    monkeypatch.setattr(OwnedDirectory, "free_bytes", lambda self: 7)
    with pytest.raises(DataError, match=r"7 bytes free, and \d+ are still to be copied"):
        stage(str(source), str(tmp_path / "out"))


def test_two_at_a_time_wait_for_each_other(source, tmp_path):
    out = tmp_path / "out"
    reports = []
    threads = [threading.Thread(target=lambda: reports.append(stage(str(source), str(out)))) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(report.brought for report in reports) == [0, 0, 42]


def test_a_rate_is_kept(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_bytes(os.urandom(3 * MIB))
    assert stage(str(tmp_path / "source"), str(tmp_path / "out"), rate=2 * MIB).seconds >= 1.0


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """(store with faults, client, URL of the server); s5cmd and boto3 find it by AWS's variables."""
    store = StoredBuckets(tmp_path / "s3")
    store.create_bucket(BUCKET)
    with aws.endpoint(monkeypatch, store) as url:
        objects._client_for_process.cache_clear()
        yield store, boto3.session.Session().client("s3"), url
        objects._client_for_process.cache_clear()


def put(client, folder, prefix):
    for path in folder.rglob("*"):
        if path.is_file():
            client.put_object(Bucket=BUCKET, Key=f"{prefix}{path.relative_to(folder)}", Body=path.read_bytes())


def put_in_parts(client, key, size, part):
    data = random.Random(0).randbytes(size)
    client.upload_fileobj(io.BytesIO(data), BUCKET, key, Config=TransferConfig(part, multipart_chunksize=part))
    return data


@pytest.mark.full
def test_a_prefix_is_staged_with_proof(bucket, source, tmp_path, capsys):
    _, client, _ = bucket
    put(client, source, "run/")
    data = put_in_parts(client, "run/large.bin", 12 * MIB, 5 * MIB)
    out = tmp_path / "out"
    words = ["data", "stage", "s3://corpus/run", str(out), "--json"]
    assert run_command_line([*words, "--dry-run"]) == 0 and not out.exists()
    assert run_command_line(words) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["brought"], found["by_size"]) == (43, 0)
    assert (out / "large.bin").read_bytes() == data
    assert same(source, out, [str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()])
    assert run_command_line(words) == 0 and json.loads(capsys.readouterr().out)["known"] == 43
    client.put_object(Bucket=BUCKET, Key="run/top.txt", Body=b"other")
    assert run_command_line(words) == 0 and json.loads(capsys.readouterr().out)["brought"] == 1
    assert run_command_line(["data", "stage", "s3://corpus/run/top.txt", str(tmp_path / "one")]) == 0
    assert [path.name for path in (tmp_path / "one").iterdir() if path.is_file()] == ["top.txt"]
    index = build_index(["s3://corpus/run/d0"], str(tmp_path / "index"), format="whole").index
    copy = IndexedDataset(SampleIndex.open(index.folder, sources=(str(out / "d0"),)))
    assert copy[0] == IndexedDataset(index)[0], "an index of s3:// is one of its copy"


def test_a_key_of_several_lines_gives_s5cmd_no_order(bucket, tmp_path):
    """It ended s5cmd at the first of its lines, and nobody said why the files behind it did not come."""
    _, client, _ = bucket
    client.put_object(Bucket=BUCKET, Key="theirs", Body=b"theirs")
    kept = tmp_path / "kept"
    kept.write_bytes(b"mine")
    client.put_object(Bucket=BUCKET, Key=f"run/a\ncp s3:/\\/{BUCKET}/theirs {kept}\nb", Body=b"x")
    with pytest.raises(DataError, match="cannot be staged"):
        stage("s3://corpus/run", str(tmp_path / "out"))
    assert kept.read_bytes() == b"mine"


def test_refusals_and_cut_connections(bucket, source, tmp_path, monkeypatch):
    store, client, url = bucket
    put(client, source, "run/")
    data = put_in_parts(client, "run/large.bin", 12 * MIB, 5 * MIB)
    store.faults.add(S3Fault(path="corpus/run/d0", status=503, count=8, method="GET"))
    store.faults.add(S3Fault(path="large", status=500, count=2, method="GET"))
    with CuttingProxy(url, cuts=[3 * MIB, 700_000, 10_000, 1_000_000]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        found = stage("s3://corpus/run", str(tmp_path / "out"))
    assert found.brought == 43 and found.by_size == 0 and not proxy.cuts, "every cut was made"
    assert (tmp_path / "out" / "large.bin").read_bytes() == data
    assert same(source, tmp_path / "out", [str(p.relative_to(source)) for p in source.rglob("*") if p.is_file()])


class CuttingProxy:
    """Passes connections on to a server, and cuts one after each of `cuts` bytes of answers in all."""

    def __init__(self, url, cuts):
        host, port = url.rpartition("//")[2].split(":")
        self._server = (host, int(port))
        self.cuts = cuts
        self._came = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._server)
            threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, one, other, counts):
        try:
            while data := one.recv(65536):
                if counts and self._cut(len(data)):
                    other.sendall(data[: len(data) // 2])
                    break
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _cut(self, count):
        with self._lock:
            self._came += count
            if self.cuts and self._came >= self.cuts[0]:
                self.cuts.pop(0)
                self._came = 0
                return True
            return False


@pytest.mark.full
def test_what_does_not_come_is_one_error(bucket, source, tmp_path, monkeypatch):
    store, client, _ = bucket
    put(client, source, "run/")
    monkeypatch.setattr(s5cmd, "_RETRIES", 0)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    store.faults.add(S3Fault(path="top", status=500, method="GET"))
    with pytest.raises(DataUnavailable, match=r"1 file was not copied, first top\.txt: .*41 files were copied"):
        stage("s3://corpus/run", str(tmp_path / "out"))
    store.faults.clear()
    assert stage("s3://corpus/run", str(tmp_path / "out")).brought == 1
    with pytest.raises(DataError, match="no files"):
        stage("s3://corpus/none", str(tmp_path / "out"))
    with pytest.raises(Unreachable, match="cannot be listed: NoSuchBucket"):
        stage("s3://nowhere/run", str(tmp_path / "out"))
    client.put_object(Bucket=BUCKET, Key="bad/a/../../b", Body=b"x")
    with pytest.raises(DataError, match="cannot be the path of a file"):
        stage("s3://corpus/bad", str(tmp_path / "out"))


def test_an_etag_that_is_no_digest(bucket, source, tmp_path, monkeypatch):
    """As of objects under SSE-KMS: they come twice, until it is known that no ETag is one."""
    _, client, _ = bucket
    put(client, source, "run/")
    real = s5cmd.etag_verdict_and_md5_or_empty
    asked = []

    def compare(stream, size, tag):
        asked.append(tag)
        return real(stream, size, tag[::-1])

    monkeypatch.setattr(s5cmd, "etag_verdict_and_md5_or_empty", compare)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    found = stage("s3://corpus/run", str(tmp_path / "out"))
    assert found.brought == found.by_size == 42 and len(asked) < 2 * 42


PROGRAM = """
import sys
from hyperpod_kit.data.bulk.stage import stage
stage(sys.argv[1], sys.argv[2], rate=float(sys.argv[3]))
"""


@pytest.mark.parametrize("kind", ["s3", *full("directory")])
def test_killed_and_called_again_it_brings_the_rest(bucket, source, tmp_path, kind, monkeypatch):
    _, client, _ = bucket
    fill(source, files=60, size=100_000)
    put(client, source, "run/")
    place, out = ("s3://corpus/run" if kind == "s3" else str(source)), tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, place, str(out), str(MIB)], env={**os.environ, "MARK_OF_THIS_TEST": str(out)}
    )

    def arrived():
        return [path for path in out.rglob("*") if path.is_file() and ".hpk-stage" not in path.parts]

    until(lambda: len(arrived()) > 5, what="some files")
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: not _marked(out), what="the end of the engine")
    names = [str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()]
    there = [str(path.relative_to(out)) for path in arrived()]
    assert 5 < len(there) < len(names) and same(source, out, there), "what has its name is whole"
    found = stage(place, str(out))
    assert found.known == len(there) and found.brought == len(names) - len(there) and same(source, out, names)
    assert os.listdir(out / ".hpk-stage") == ["lock"]


def _marked(mark):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"MARK_OF_THIS_TEST={mark}\0".encode() in Path("/proc", pid, "environ").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def test_s5cmd_is_held_to_a_rate(bucket, tmp_path):
    _, client, _ = bucket
    put_in_parts(client, "run/large.bin", 12 * MIB, 5 * MIB)
    found = stage("s3://corpus/run", str(tmp_path / "out"), rate=6 * MIB)
    assert found.seconds >= 12 / 6 * 0.9


def test_sizes_of_parts():
    assert s5cmd.candidate_part_sizes(12 * MIB, 3)[0] == 5 * MIB and 8 * MIB in s5cmd.candidate_part_sizes(20 * MIB, 3)
    assert s5cmd.candidate_part_sizes(35 * MIB, 5)[:1] == [8 * MIB], "the last part may be smaller, the others not"
    assert 7 * MIB in s5cmd.candidate_part_sizes(35 * MIB, 5)
    assert s5cmd.candidate_part_sizes(100, 1)[0] == 5 * MIB
