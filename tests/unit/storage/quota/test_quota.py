"""What needs no file system with limits: Lustre's answers as documented, crossings, sinks, EFS."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.errors import Absent, HyperpodKitError, UsageError
from hyperpod_kit.storage.alerts import config as alert_config
from hyperpod_kit.storage.alerts.config import AlertConfig, AlertSinks
from hyperpod_kit.storage.quota import backends, check, efs_stop
from hyperpod_kit.storage.quota import check as checking
from hyperpod_kit.storage.quota.enforced import lustre
from hyperpod_kit.storage.quota.limits import QuotaError, QuotaLimits, QuotaUsed
from hyperpod_kit.system import quota_note
from tests.support.runner import RecordingRunner

# As `lfs` 2.15 prints them; written by hand after Lustre's documentation, recorded nowhere: no Lustre runs here.
HEAD = "     Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace\n"
PLAIN = f"Disk quotas for prj 5001 (pid 5001):\n{HEAD} /fsx  307200  409600  512000  -  1201  0   10000  -\n"
OVER = (
    f"Disk quotas for prj 5001 (pid 5001):\n{HEAD} /fsx  450000* 409600  512000 6d23h58m  1201 1000*  10000  expired\n"
)
WRAPPED = (
    f"Disk quotas for prj 5001 (pid 5001):\n{HEAD}/fsx/a very/long mount\n"
    "                 307200       0       0       -    1201       0       0       -\n"
    "pid 5001 is using default block quota setting\n"
)


def test_what_lfs_prints() -> None:
    assert lustre.parse_quota(PLAIN, "/fsx/alice") == QuotaUsed(
        "/fsx/alice", 307200 * 1024, 1201, QuotaLimits(409600 * 1024, 512000 * 1024, 0, 10000)
    )
    over = lustre.parse_quota(OVER.replace("1000*", "1000"), "/fsx/alice")
    assert over.grace == "bytes: 6d23h58m, files: expired" and over.share == 450000 / 512000
    wrapped = lustre.parse_quota(WRAPPED, "/fsx/alice")
    assert (wrapped.bytes, wrapped.files, wrapped.limits, wrapped.share) == (307200 * 1024, 1201, QuotaLimits(), 0.0)


@pytest.mark.parametrize(
    "text", ["", "lfs: command failed", HEAD, PLAIN.replace("307200", "much"), HEAD + "/fsx 1 2 3"]
)
def test_what_lfs_does_not_print(text: str) -> None:
    with pytest.raises(QuotaError):
        lustre.parse_quota(text, "/fsx/alice")


def test_a_sum_without_one_of_the_servers_is_no_sum() -> None:
    with pytest.raises(QuotaError, match="the sum is incomplete"):
        lustre.parse_quota(PLAIN.replace("  307200", "  [307200]"), "/fsx/alice")


@given(numbers=st.lists(st.integers(0, 2**50), min_size=6, max_size=6), star=st.booleans())
def test_any_row_is_read_as_it_was_written(numbers: list[int], star: bool) -> None:
    used, soft, hard, files, soft_files, hard_files = numbers
    soft, soft_files = min(soft, hard) if hard else soft, min(soft_files, hard_files) if hard_files else soft_files
    mark, grace = ("*", "6d23h") if star else ("", "-")
    row = f"/fsx {used}{mark} {soft} {hard} {grace} {files} {soft_files} {hard_files} -"
    found = lustre.parse_quota(f"Disk quotas for prj 7 (pid 7):\n{HEAD}{row}\n", "/fsx/x")
    assert (found.bytes, found.files) == (used * 1024, files)
    assert found.limits == QuotaLimits(soft * 1024, hard * 1024, soft_files, hard_files)


def test_a_directory_becomes_a_project_of_its_owners_number(tmp_path: Path) -> None:
    answers = {f"lfs project -d {tmp_path}": f"    0 - {tmp_path}\n", "lfs quota": PLAIN}
    runner = RecordingRunner(dict(answers))
    backend = lustre.Lustre(runner, "/fsx", 5001)
    assert backend.build_limit_commands(str(tmp_path), QuotaLimits(8 << 40, 10 << 40, 0, 1000), 7 * 86400) == [
        ["lfs", "project", "-p", "5001", "-s", "-r", str(tmp_path)],
        ["lfs", "setquota", "-p", "5001", "-b", "8589934592K", "-B", "10737418240K", "-i", "0", "-I", "1000", "/fsx"],
        ["lfs", "setquota", "-t", "-p", "--block-grace", "604800", "--inode-grace", "604800", "/fsx"],
    ]
    with pytest.raises(QuotaError, match="belongs to no project"):
        backend.read_usage(str(tmp_path))
    runner.answers[f"lfs project -d {tmp_path}"] = f" 5001 P {tmp_path}\n"
    assert backend.read_usage(str(tmp_path)).files == 1201
    # Where it is a project, root does not walk the tree again.
    assert [argv[1] for argv in backend.build_limit_commands(str(tmp_path), QuotaLimits(hard_bytes=1), 0)] == [
        "setquota"
    ]
    if not os.geteuid():
        runner.answers[f"lfs project -d {tmp_path}"] = f"    0 - {tmp_path}\n"
        with pytest.raises(QuotaError, match="belongs to root"):
            lustre.Lustre(runner, "/fsx").build_limit_commands(str(tmp_path), QuotaLimits(), 0)


def test_where_nothing_has_limits(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="not a directory on this machine"):
        backends.read_usage(str(tmp_path / "gone"), RecordingRunner())
    with pytest.raises(QuotaError, match="Lustre and btrfs"):
        backends.read_usage("/proc", RecordingRunner())
    with pytest.raises(QuotaError, match="expected 0 <= soft <= hard"):
        QuotaLimits(2, 1)


def used(share: float, name: str = "/fsx/alice") -> QuotaUsed:
    return QuotaUsed(name, round(share * 100_000), 1, QuotaLimits(hard_bytes=100_000))


def test_alerted_of_at_eighty_percent_and_again_only_after_it_was_below_seventy_five(tmp_path: Path) -> None:
    config = AlertConfig({"/fsx/alice": ()}, (), AlertSinks())
    shares: list[float] = []
    crossed = []
    for share in (0.5, 0.799, 0.8, 0.9, 0.79, 0.75, 0.81, 0.749, 0.799, 0.8):
        shares.append(share)
        if checking.check_quotas_and_alert(config, lambda _: used(shares[-1]), tmp_path / "state").alerts.new:
            crossed.append(share)
    assert crossed == [0.8, 0.8]


def test_a_directory_that_cannot_be_looked_at_stays_what_it_was(tmp_path: Path) -> None:
    config = AlertConfig({"/fsx/alice": ()}, (), AlertSinks())

    def gone(directory: str) -> QuotaUsed:
        raise QuotaError("gone")

    checking.check_quotas_and_alert(config, lambda _: used(0.9), tmp_path / "state")
    checking.check_quotas_and_alert(config, gone, tmp_path / "state")
    assert not checking.check_quotas_and_alert(config, lambda _: used(0.78), tmp_path / "state").alerts.new


def test_a_sink_that_fails_does_not_keep_others_from_it(tmp_path: Path) -> None:
    sinks_of = AlertSinks(mail="127.0.0.1:1", prometheus=str(tmp_path / "prom"))
    config = AlertConfig({"/fsx/alice": ("a@b",), "/fsx/bob": ()}, (), sinks_of)

    def show(directory: str) -> QuotaUsed:
        if directory == "/fsx/bob":
            raise QuotaError("gone")
        return used(0.9)

    failed = checking.check_quotas_and_alert(config, show, tmp_path / "state").alerts.failed
    assert len(failed) == 2 and failed[0].startswith("/fsx/bob") and failed[1].startswith("mail: ")
    assert 'share{directory="/fsx/alice"} 0.9' in (tmp_path / "prom").read_text()


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '{"directories": []}', '{"directories": {"/a": "me"}}', '{"directories": {}, "more": 1}'),
        *('{"directories": {}, "sinks": {"fax": "1"}}', '{"directories": {}, "sinks": {"mail": 1}}'),
    ],
)
def test_configurations_that_mean_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text(text)
    with pytest.raises(UsageError):
        alert_config.load(tmp_path / "f")


def test_a_metric_gets_it(aws: None) -> None:
    assert check.publish_quota_state(AlertSinks(cloudwatch=True), [used(0.85)], []) == []
    (metric,) = boto3.client("cloudwatch", "us-east-1").list_metrics(Namespace=check.NAMESPACE)["Metrics"]
    assert metric["Dimensions"] == [{"Name": "Directory", "Value": "/fsx/alice"}]


FOREIGN = {"Sid": "Mine", "Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "elasticfilesystem:ClientMount"}


@pytest.fixture
def file_system(aws: None) -> tuple[str, list[str]]:
    """(id, access points) of one with a policy of others."""
    efs = boto3.client("efs", "us-east-1")
    made = efs.create_file_system(CreationToken="t")["FileSystemId"]
    policy = {"Version": "2012-10-17", "Id": "x", "Statement": [FOREIGN]}
    efs.put_file_system_policy(FileSystemId=made, Policy=json.dumps(policy))
    points = [efs.create_access_point(ClientToken=f"t{n}", FileSystemId=made)["AccessPointId"] for n in range(2)]
    return made, points


def test_an_access_point_is_stopped_and_let_go_and_others_statements_stay(
    file_system: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    made, (alice, bob) = file_system

    def policy() -> dict[str, Any]:
        answer = boto3.client("efs", "us-east-1").describe_file_system_policy(FileSystemId=made)
        return dict(json.loads(answer["Policy"]))

    before = policy()
    assert run_command_line(["storage", "quota", "stop", made, alice, "--dry-run"]) == 0 and policy() == before
    for _ in range(2):
        assert run_command_line(["storage", "quota", "stop", made, alice]) == 0
    (foreign, ours) = policy()["Statement"]
    assert foreign == FOREIGN and ours["Action"] == "elasticfilesystem:ClientWrite" and ours["Effect"] == "Deny"
    assert [arn.endswith(alice) for arn in efs_stop.access_point_arns_denied_writing(policy())] == [True]
    assert (
        run_command_line(["storage", "quota", "stop", made, bob]) == 0
        and len(efs_stop.access_point_arns_denied_writing(policy())) == 2
    )
    assert run_command_line(["storage", "quota", "resume", made, alice, bob]) == 0
    assert policy() == before
    assert run_command_line(["storage", "quota", "stop", made, "fsap-of-another"]) == 1
    assert "has no access point" in capsys.readouterr().err


class Busy:
    """A file system whose policy another admin changes while we do: `times` of our changes are lost."""

    def __init__(self, times: int) -> None:
        self.now: dict[str, Any] = {"Version": "2012-10-17", "Statement": [FOREIGN]}
        self.times = times

    def policy(self, file_system_id: str) -> dict[str, Any]:
        return self.now

    def put_policy(self, file_system_id: str, policy: str) -> None:
        if self.times:
            self.times -= 1
            self.now = {**self.now, "Statement": [FOREIGN, {**FOREIGN, "Sid": f"Other{self.times}"}]}
        else:
            self.now = json.loads(policy)


def test_a_change_that_another_has_overwritten_is_made_again_on_his() -> None:
    busy = Busy(2)
    assert efs_stop.update_stopped_access_points(busy, "fs-1", stop=["arn:a"]) == ["arn:a"]
    assert [one["Sid"] for one in busy.now["Statement"]] == ["Mine", "Other0", efs_stop.SID]
    with pytest.raises(QuotaError, match="being changed by others"):
        efs_stop.update_stopped_access_points(Busy(9), "fs-1", stop=["arn:a"])


def test_a_policy_that_would_be_too_long_names_the_number() -> None:
    names = [f"arn:aws:elasticfilesystem:us-east-1:111122223333:access-point/fsap-{n:017x}" for n in range(400)]
    with pytest.raises(QuotaError, match="stops 400 access points"):
        efs_stop.update_stopped_access_points(Busy(0), "fs-1", stop=names)


def test_a_file_system_without_a_policy_gets_none_of_ours() -> None:
    class Open:
        def policy(self, file_system_id: str) -> None:
            return None

        def put_policy(self, file_system_id: str, policy: str) -> None:
            raise AssertionError

    with pytest.raises(QuotaError, match="has no policy"):
        efs_stop.update_stopped_access_points(Open(), "fs-1", stop=["arn:a"])


def test_an_error_at_a_limit_names_directory_limit_and_command(tmp_path: Path) -> None:
    inner = tmp_path / "run" / "deep"
    inner.mkdir(parents=True)
    full = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(inner / "shard"))
    assert "hyperpod-kit storage usage" in quota_note.quota_exceeded_hint_or_empty(full)
    quota_note.write_quota_note(str(tmp_path), {"bytes": 1000, "files": 0})
    assert quota_note.quota_exceeded_hint_or_empty(full) == (
        f"; {tmp_path} has a limit of 1,000 bytes: hyperpod-kit storage quota show {tmp_path}"
    )
    assert quota_note.quota_exceeded_hint_or_empty(OSError(errno.ENOSPC, "", str(inner))) == ""
    for words in (b"garbage", b"[]", b'{"bytes": "\\u001b[31m", "files": -1}', b"{" * 5000):
        (tmp_path / quota_note.NAME).write_bytes(words)
        assert "[31m" not in quota_note.quota_exceeded_hint_or_empty(full)


@pytest.mark.needs("root")
def test_a_link_in_place_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "alice").symlink_to(tmp_path / "etc")
    os.lchown(tmp_path / "alice", 5001, 5001)
    with pytest.raises(HyperpodKitError, match="symbolic link"):
        quota_note.write_quota_note(str(tmp_path / "alice"), {"bytes": 1})


@pytest.mark.needs("root")
def test_two_directories_of_one_owner_are_told_apart(tmp_path: Path) -> None:
    os.chown(tmp_path, 5001, 5001)
    answers = {f"lfs project -d {tmp_path}": f"    0 - {tmp_path}\n", "lfs quota": PLAIN}
    backend = lustre.Lustre(RecordingRunner(dict(answers)), "/fsx")
    with pytest.raises(QuotaError, match="already counts another directory") as refused:
        backend.build_limit_commands(str(tmp_path), QuotaLimits(hard_bytes=1 << 40), 0)
    assert refused.value.hint and "--project" in refused.value.hint
    unused = f"Disk quotas for prj 5001 (pid 5001):\n{HEAD}/fsx 0 0 0 - 0 0 0 -\n"
    backend = lustre.Lustre(RecordingRunner({**answers, "lfs quota": unused}), "/fsx")
    assert [argv[1] for argv in backend.build_limit_commands(str(tmp_path), QuotaLimits(hard_bytes=1 << 40), 0)] == [
        "project",
        "setquota",
    ]
