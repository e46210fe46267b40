"""Runs, access points, mounts and buckets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import boto3
import pytest
from moto import mock_aws

from hyperpod_kit.checkpoint.repository.records import pins
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.errors import UsageError
from hyperpod_kit.storage.usage import buckets, retained
from hyperpod_kit.storage.usage.access_points import access_point_names_by_directory
from hyperpod_kit.storage.usage.ledger import UsageLedger
from tests.support.aws import as_client
from tests.unit.checkpoint.small_checkpoint import put_checkpoint
from tests.unit.storage.usage.trees import count, du, plant


def test_runs_have_sums_and_what_retention_lets_go_is_named(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    plant(root, directories=4)
    deep = root / "team0" / "a" / "b" / "run"
    deep.mkdir(parents=True)
    store = PosixStore(str(deep))
    names = [put_checkpoint(store, seq) for seq in range(1, 6)]
    pins.pin(store, names[0])
    found = count(root, tmp_path / "state")
    assert list(found.runs) == [str(deep)]
    assert (found.runs[str(deep)].allocated, found.runs[str(deep)].entries) == du(deep)
    named = retained.list_deletable(found.runs, 2)
    assert [one.attempt for one in named] == [names[2], names[1]] and all(one.allocated for one in named)
    (broken,) = retained.list_deletable([str(deep / "RUN.json")], 2)
    assert broken.error and not broken.attempt


def test_an_access_point_is_told_apart_at_any_level(tmp_path: Path) -> None:
    root = tmp_path / "efs"
    plant(root, directories=8, links=False)
    alice = root / "team0" / "user0"
    found = count(root, tmp_path / "state", depth=1, marks={str(alice): "alice (fsap-1)"})
    assert (found.directories["alice (fsap-1)"].allocated, found.directories["alice (fsap-1)"].entries) == du(alice)
    outside = found.directories[str(root)].allocated
    assert outside + found.directories["alice (fsap-1)"].allocated == found.total.allocated


@pytest.mark.needs("mounts")
def test_a_mount_below_is_not_entered(tmp_path: Path) -> None:
    code = (
        f"mount -t tmpfs tmpfs '{tmp_path}/tree/team0' && touch '{tmp_path}/tree/team0/file' && exec '{sys.executable}'"
        f" -m tests.unit.storage.usage.trees '{tmp_path}/tree' '{tmp_path}/state'"
    )
    plant(tmp_path / "tree", directories=4)
    ended = subprocess.run(["unshare", "--mount", "sh", "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    body = json.loads(ended.stdout)
    assert body["elsewhere"] == [f"{tmp_path}/tree/team0"]
    assert str(tmp_path / "tree" / "team0") not in body["directories"]


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    as_client(monkeypatch)
    with mock_aws():
        yield


def test_access_points_of_a_file_system(aws: None) -> None:
    efs = boto3.client("efs", "us-east-1")
    fs = efs.create_file_system(CreationToken="t")["FileSystemId"]
    root = {"CreationInfo": {"OwnerUid": 1, "OwnerGid": 1, "Permissions": "0700"}}
    for token, path in (("a", "/home/alice"), ("b", "/home/alice"), ("c", "/")):
        where = {"Path": path, **(root if path != "/" else {})}
        tags = [{"Key": "Name", "Value": token}]
        efs.create_access_point(ClientToken=token, FileSystemId=fs, RootDirectory=where, Tags=tags)
    marks = access_point_names_by_directory(fs, "/efs/")
    assert list(marks) == ["/efs/home/alice"]
    assert marks["/efs/home/alice"].startswith("a (fsap-") and ", b (fsap-" in marks["/efs/home/alice"]


@pytest.fixture
def bucket(aws: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """110 objects, of which 20 have an old version and ten are deleted, and an upload of two parts."""
    monkeypatch.setattr(buckets, "PAGE", 100)
    s3 = boto3.client("s3", "us-east-1")
    s3.create_bucket(Bucket="team-data")
    s3.put_bucket_versioning(Bucket="team-data", VersioningConfiguration={"Status": "Enabled"})
    for number in range(110):
        s3.put_object(Bucket="team-data", Key=f"runs/r{number % 2}/{number:04d}/shard", Body=b"12345")
    for number in range(20):
        s3.put_object(Bucket="team-data", Key=f"runs/r{number % 2}/{number:04d}/shard", Body=b"1")
    for number in range(10):
        s3.delete_object(Bucket="team-data", Key=f"runs/r0/{number * 2:04d}/shard")
    s3.put_object(Bucket="team-data", Key="runsaway", Body=b"not below runs/")
    upload = s3.create_multipart_upload(Bucket="team-data", Key="runs/r1/big")["UploadId"]
    for number, size in ((1, 5 << 20), (2, 7)):
        s3.upload_part(Bucket="team-data", Key="runs/r1/big", UploadId=upload, PartNumber=number, Body=b"x" * size)
    return "s3://team-data/runs"


def test_a_prefix_counts_old_versions_and_unfinished_uploads(
    bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["storage", "usage", bucket, "--depth", "1", "--json", "--state", str(tmp_path / "s")]) == 0
    (body,) = json.loads(capsys.readouterr().out)["roots"]
    kinds = {kind: (one["entries"], one["size"]) for kind, one in body["kinds"].items()}
    assert kinds == {
        "": (100, 90 * 5 + 10),
        "old versions": (30, 20 * 5 + 10),
        "delete markers": (10, 0),
        "unfinished uploads": (1, (5 << 20) + 7),
    }
    assert set(body["directories"]) == {"s3://team-data/runs/", "s3://team-data/runs/r0", "s3://team-data/runs/r1"}
    assert body["directories"]["s3://team-data/runs/"] == body["total"]
    assert run_command_line(["storage", "usage", bucket, "--state", str(tmp_path / "s")]) == 0
    assert "5.0 MiB in 1 unfinished uploads" in capsys.readouterr().out


def test_a_count_that_is_killed_goes_on_at_its_page(bucket: str, tmp_path: Path) -> None:
    where = buckets.parse_url(bucket)

    class Killed(BaseException):
        pass

    def kill(count: int) -> None:
        raise Killed

    calls = 0
    for _ in range(5):
        ledger = UsageLedger(tmp_path / "s", {"root": where.url})
        try:
            calls += 1
            buckets.count_prefix_into_ledger(where, 1, ledger, kill)
            break
        except Killed:
            pass
        finally:
            ledger.close()
    ledger = UsageLedger(tmp_path / "s", {"root": where.url})
    assert calls == 3, "two pages, and one that is not asked again"
    assert ledger.count_entries() == 100 + 30 + 10 + 1
    ledger.close()


@pytest.mark.parametrize("url", ["s3://", "s3://ab", "https://team-data/x"])
def test_what_is_no_bucket(url: str) -> None:
    with pytest.raises(UsageError, match="expected s3://BUCKET"):
        buckets.parse_url(url)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "tree\x1b[31m"
    (root / "run").mkdir(parents=True)
    store = PosixStore(str(root / "run"))
    for seq in range(1, 6):
        put_checkpoint(store, seq)
    words = ["storage", "usage", str(root), "--state", str(tmp_path / "s")]
    assert run_command_line([*words, "--keep", "2"]) == 0
    shown = capsys.readouterr().out
    for text in ("by user", "by group", "by directory", "by run", "may be deleted", "not kept by the policy"):
        assert text in shown
    assert "\x1b[31m" not in shown and "checkpoint prune" in shown
    assert run_command_line([*words, "--by", "user"]) == 0
    assert "by group" not in capsys.readouterr().out
    assert run_command_line(["storage", "usage", str(tmp_path / "nothing")]) == 3
    assert run_command_line(["storage", "usage", str(root), str(root), "--state", "x"]) == 2
    assert not (tmp_path / "s").exists()
