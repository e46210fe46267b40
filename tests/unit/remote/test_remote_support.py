"""support-bundle as an admin types it: what is in the archive, and that no planted secret is."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator

import pytest

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.remote.scrub import Scrubber
from hyperpod_kit.remote.support import collecting
from hyperpod_kit.remote.support.archive import SupportArchive
from hyperpod_kit.remote.support.collecting import PARTS, make_script, parse_parts
from hyperpod_kit.remote.target import NodeTarget
from tests.support.aws import as_client
from tests.support.http import aws_json
from tests.unit.remote.test_remote_validate_mounts import Nodes, ssh

if TYPE_CHECKING:
    from tests.unit.remote.conftest import Network

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"
ACCOUNT = "210987654321"
PEM = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\n"
SECRETS = {
    "AKIAIOSFODNN7EXAMPLE": "aws_access_key_id = {}",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "using {} as it is",
    "wJalrXUtnFEMIaK7MDENGcbPxRfiCYEXAMPLEKEZ": '{{"SecretAccessKey": "{}"}}',
    "FwoGZXIvYXdzEBYaDHqa0AP1": "AWS_SESSION_TOKEN={}",
    "hf_abcdefghijklmnopqrstuvwxyzABCDEF12": "login with {}",
    "ghp_0123456789abcdefghijklmnopqrstuvwxyz": "cloning https://{}@github.com/a/b",
    "xoxb-123456789012-abcdef": "slack {}",
    "local-wandb-key-1": "export WANDB_API_KEY='{}'",
    "tr0ub4dor": "postgres://trainer:{}@db.internal:5432/runs",
    "two words here": 'password: "{}"',
    "hunter2": "mysql --user=root --password {} -e 'select 1'",
    "correcthorse": "the password is {}",
    "c2VjcmV0Omh1bnRlcjI=": "Authorization: Basic {}",
    "abcdef.ghi": "curl -H 'Authorization: Bearer {}'",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJqb2IifQ.dBjftJeZ4CVP-mB92K27": "jwt {}",
    "attempt-key-of-a-job": "HPK_ATTEMPT_KEY={}",
    "5f2b7c": "https://b.s3.amazonaws.com/o?X-Amz-Signature={}&X-Amz-Date=1",
    "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW": PEM.replace("{", "{{"),
    "arn-free-secret": '{{"error": "{{\\"token\\": \\"{}\\"}}"}}',
}
"""A secret -> how a log or an answer has it."""
LINES = [sentence.format(secret) for secret, sentence in SECRETS.items()]


@pytest.mark.parametrize("secret", SECRETS)
def test_no_secret_is_left_in_a_text(secret: str) -> None:
    line = SECRETS[secret].format(secret)
    for text in (line, f"before {line} after", json.dumps({"detail": line}), json.dumps(json.dumps({"x": line}))):
        assert secret not in Scrubber().text(text), Scrubber().text(text)
    assert secret not in json.dumps(Scrubber().value({"detail": [line]}))


def test_what_is_no_secret_stays() -> None:
    lines = [
        "2026-01-31T12:00:00Z mount fsx is stale: Transport endpoint is not connected",
        '{"step": "mount:fsx", "status": "failed", "hint": "check the security group"}',
        "bundle 0123456789abcdef, sha256 " + "0f" * 32,
        "10.0.9.1@tcp:/abcdefgh on /fsx type lustre (rw,nosuid,nodev,relatime)",
        "s3://a-bucket/runs/llama/step-00001200/MANIFEST.json",
        "i-0123456789abcdef0 in worker-group at ip-10-1-2-3",
    ]
    scrubber = Scrubber()
    assert scrubber.text("\n".join(lines)) == "\n".join(lines) and not scrubber.removed


def test_an_account_is_the_same_word_everywhere() -> None:
    scrubber = Scrubber()
    first = scrubber.text(f"arn:aws:iam::{ACCOUNT}:role/nodes and {ACCOUNT}.dkr.ecr.eu-west-1.amazonaws.com")
    assert first == "arn:aws:iam::account-1:role/nodes and account-1.dkr.ecr.eu-west-1.amazonaws.com"
    assert scrubber.text(f"bucket-{ACCOUNT}-data") == "bucket-account-1-data"


def test_long_lines_take_little_time() -> None:
    for line in ("a" * 200_000, "secret" * 30_000, "x://" * 50_000, "-----BEGIN PRIVATE KEY-----" * 8_000):
        Scrubber().text(line)
    Scrubber().text(("password " * 400 + "\n") * 50)


def test_the_script_is_one_that_a_shell_runs() -> None:
    mark = f"@{'0' * 32}@"
    done = subprocess.run(["/bin/sh", "-c", make_script(mark)], capture_output=True, text=True, timeout=300)
    parts = parse_parts(done.stdout, mark)
    assert list(parts) == [part.name for part in PARTS], "a part that fails hides no other"
    assert "kernel" in parts["versions.txt"].text


def node_answer(command: str) -> tuple[int, str, str]:
    """A node in all of whose files a secret lies."""
    found = re.search("@[0-9a-f]{32}@", command)
    if found is None:
        return 0, "", ""
    text = "\n".join(LINES)
    values: Dict[str, Any] = {"detail": LINES, "token": "short", "mounts": {"fsx": {"status": {"state": "hung"}}}}
    parts = [
        f"\n{found[0]} {part.name}\n{json.dumps(values) if part.name.endswith('.json') else text}\n" for part in PARTS
    ]
    return 0, "Welcome!\n" + "".join(parts) + f"\n{found[0]} end\n", ""


class SupportedCluster(Nodes):
    """DescribeCluster and the events beside what Nodes answers, with a secret in both."""

    def answer(self, operation: str, request: Dict[str, Any]) -> tuple[int, Dict[str, Any]]:
        if operation == "DescribeCluster":
            arn = f"arn:aws:sagemaker:us-west-2:{ACCOUNT}:cluster/abcdefghijkl"
            return 200, {
                "ClusterArn": arn,
                "ClusterStatus": "InService",
                "InstanceGroups": [],
                "FailureMessage": "\n".join(LINES),
            }
        if operation == "ListClusterEvents":
            return 200, {"Events": []}
        return super().answer(operation, request)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[SupportedCluster]:
    made = SupportedCluster()
    as_client(monkeypatch)
    with aws_json(made.answer) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        yield made


def contents(path: Path) -> Dict[str, str]:
    with tarfile.open(path) as tar:
        files = {}
        for member in tar.getmembers():
            stream = tar.extractfile(member)
            assert stream is not None
            files[member.name.partition("/")[2]] = stream.read().decode()
        return files


def test_no_planted_secret_is_in_the_archive(
    network: Network, nodes: SupportedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = json.loads(EXAMPLE.read_text())
    for number, line in enumerate(LINES):
        written[f"note_{number}"] = line
    written["db_password"] = "plainword"
    config, out = tmp_path / "c.json", tmp_path / "fault.tar.gz"
    config.write_text(json.dumps(written))
    nodes.addresses = [network.node(node_answer).address, network.node(node_answer).address, network.silent()]
    words = ["support-bundle", str(config), "--out", str(out), "--root", str(tmp_path / "gone"), *ssh(network)]
    assert run_command_line([*words, "--timeout", "30"]) == 1, "a node and a root are missing"
    printed = capsys.readouterr()
    files = contents(out)
    everything = "\n".join([*files.values(), *files, printed.out, printed.err])
    assert [secret for secret in (*SECRETS, "plainword", ACCOUNT) if secret in everything] == []
    assert stat.S_IMODE(out.stat().st_mode) == 0o600 and not list(tmp_path.glob("*.partial"))
    manifest = json.loads(files["MANIFEST.json"])
    assert manifest["format"] == "hpk-support/1" and manifest["removed"]["an AWS access key id"] > 3
    assert {entry["name"] for entry in manifest["files"]} == set(files) - {"MANIFEST.json"}
    absent = {entry["what"]: entry["reason"] for entry in manifest["left_out"]}
    assert f"node worker-group/i-{2:017x}" in absent, "the silent one is named"
    assert any("gone" in what for what in absent)
    for name in ("admin/versions.json", "admin/findings.json", "admin/configuration.json", "aws/describe-cluster.json"):
        assert name in files and name in printed.out
    assert json.loads(files["nodes/worker-group/i-00000000000000001/health.json"])["token"].startswith("[removed")
    assert '"state": "hung"' in files["nodes/worker-group/i-00000000000000001/health.json"]


def test_a_file_that_is_there_is_not_written_over(
    network: Network, nodes: SupportedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fault.tar.gz"
    out.write_text("mine")
    nodes.addresses = [network.node(node_answer).address]
    line = ["support-bundle", str(EXAMPLE), "--out", str(out), "--no-nodes"]
    assert run_command_line(line) == 2 and out.read_text() == "mine"
    assert "--overwrite" in capsys.readouterr().err
    assert run_command_line([*line, "--overwrite", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["path"] == str(out) and shown["bytes"] == out.stat().st_size
    assert {"what": "nodes", "reason": "--no-nodes"} in shown["manifest"]["left_out"]


def test_the_archive_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperpod_kit.remote.support.archive.MOST_BYTES", 1 << 20)
    archive = SupportArchive("demo", 0.0)
    for number in range(7):
        archive.add_text(f"log-{number}", "a line of some length\n" * 10_000, "node")
    assert archive.size <= 1 << 20 and archive.left_out[0].reason == "the archive would have more than 1 MiB"
    assert (len(archive.members), len(archive.left_out)) == (4, 3)


def test_nodes_of_every_group_are_among_those_that_are_asked() -> None:
    targets = [NodeTarget(f"i-{number}", "workers", "", "10.0.0.1") for number in range(100)]
    targets.append(NodeTarget("i-c", "controller", "", "10.0.0.2"))
    chosen = collecting.choose_nodes(targets)
    assert len(chosen) == collecting.MOST_NODES and chosen[-1].group == "controller"
