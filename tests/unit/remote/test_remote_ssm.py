"""Sessions of SSM: a real API call over HTTP, a stand-in for the plugin with its arguments, and real terminals."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Iterator

import pytest

from hyperpod_kit.aws.ssm import Ssm, node_session_target, session_request
from hyperpod_kit.cluster.session import session_plugin_program
from hyperpod_kit.errors import HyperpodKitError, NoCredentials, RunError
from hyperpod_kit.remote.connect.ssm_sessions import SsmRunner, SsmSession, SsmSessions
from hyperpod_kit.remote.reports.validate_mounts import validate_mounts
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.transports.ssm_transport import SsmTransport
from hyperpod_kit.system.token_bucket import TokenBucket
from tests.support.aws import as_client
from tests.support.http import aws_json
from tests.support.wait import Deadline

ARN = "arn:aws:sagemaker:us-east-1:111122223333:cluster/abc123def456"
PLUGIN = Path(__file__).with_name("session_manager_plugin.py")


class Aws:
    """StartSession and TerminateSession. `how`: instance id -> how its session goes, or the error that AWS answers."""

    def __init__(self) -> None:
        self.how: dict[str, str] = {}
        self.started: list[str] = []
        self.ended: list[str] = []

    def answer(self, operation: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if operation == "TerminateSession":
            self.ended.append(request["SessionId"])
            return 200, {"SessionId": request["SessionId"]}
        node = request["Target"].rsplit("-i-")[1]
        assert request["Target"] == f"sagemaker-cluster:abc123def456_w-i-{node}"
        self.started.append(node)
        how = self.how.get(f"i-{node}", "shell")
        if how in ("TargetNotConnected", "ExpiredTokenException"):
            return 400, {"__type": how, "message": f"{request['Target']} is not connected."}
        return 200, {"SessionId": f"s-{node}", "TokenValue": how, "StreamUrl": "wss://x"}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Aws]:
    made = Aws()
    as_client(monkeypatch)
    plugin = tmp_path / "bin/session-manager-plugin"
    plugin.parent.mkdir()
    plugin.write_text(f'#!/bin/sh\nexec {sys.executable} {PLUGIN} "$@"\n')
    plugin.chmod(0o755)
    monkeypatch.setenv("PATH", f"{plugin.parent}:{os.environ['PATH']}")
    with aws_json(made.answer) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        yield made


def sessions() -> SsmSessions:
    ssm = Ssm("us-east-1")

    def begin(node: NodeTarget) -> SsmSession:
        request = session_request(node_session_target(ARN, node.group, node.instance_id))
        token = ssm.start_session(request)

        def end() -> None:
            with suppress(HyperpodKitError):
                ssm.terminate_session(token["SessionId"])

        return SsmSession(
            session_plugin_program(token, request, region=ssm.region, endpoint=ssm.endpoint, version="1.2.707.0"), end
        )

    return SsmSessions(begin, TokenBucket(50.0))


def transport(command: list[str], *, timeout: float = 20.0) -> SsmTransport:
    return SsmTransport(sessions(), timeout, command=command)


def nodes(count: int) -> list[NodeTarget]:
    return [NodeTarget(f"i-{index}", "w", "compute", "") for index in range(count)]


def script(directory: Path, text: str) -> list[str]:
    path = directory / "a program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return [str(path)]


def test_a_report_comes_through_a_terminal_unharmed(aws: Aws, tmp_path: Path) -> None:
    report = {
        "node": "n",
        "instance_id": "i-0",
        "bundle_id": "b",
        "checked_at": 0,
        "mounts": [
            {"name": "data", "kind": "nvme", "path": "/mnt/ünï $(id) `x` \\n\t'\"", "state": "ok", "detail": "w" * 9000}
        ],
    }
    (tmp_path / "report").write_text(json.dumps(report))
    command = script(tmp_path, f"echo noise >&2; cat {tmp_path}/report; exit 1")
    aws.how = {"i-1": "no-prompt", "i-2": f"eof-once@{tmp_path}/state"}
    responses = transport(command).query_mount_reports(nodes(3), lambda count: None)
    assert [(one.returncode, one.error) for one in responses] == [(1, "")] * 3
    assert all(json.loads(one.text) == report for one in responses)
    assert sorted(aws.started) == ["0", "1", "2", "2"], "an EOF at the start is tried again"
    assert aws.ended == ["s-2"], "the one that broke is ended, the others have ended by themselves"


def test_sessions_that_go_wrong_are_their_nodes_alone(aws: Aws, tmp_path: Path) -> None:
    report = json.dumps({"node": "n", "instance_id": "i-0", "checked_at": 0, "mounts": []})
    aws.how = {"i-1": "TargetNotConnected", "i-2": "eof", "i-3": "hang", "i-4": "babble"}
    deadline = Deadline(40)
    found = validate_mounts(nodes(5), transport(script(tmp_path, f"echo '{report}'"), timeout=7.0), expected={})
    assert not deadline.has_passed()
    assert found[0].healthy
    for entry, words in zip(
        found[1:],
        (
            "TargetNotConnected",
            "Cannot perform start session: EOF",
            "gave no answer within 7 s",
            "printed more than 512 KiB",
        ),
    ):
        assert words in entry.error, [one.error for one in found]
    assert "s-3" in aws.ended and aws.started.count("2") == 3


def test_what_aws_refuses_to_all_ends_the_question(aws: Aws) -> None:
    aws.how = {f"i-{index}": "ExpiredTokenException" for index in range(20)}
    with pytest.raises(NoCredentials):
        transport(["true"]).query_mount_reports(nodes(20), lambda count: None)


def test_a_command_by_a_session_is_a_command_as_any_other(aws: Aws) -> None:
    runner = SsmRunner(nodes(1)[0], sessions())
    assert runner.run(["sh", "-c", "echo a 'b c'; exit 3"], check=False).stdout == "a b c"
    with pytest.raises(RunError, match="exited 3"):
        runner.run(["sh", "-c", "exit 3"])
    with pytest.raises(ValueError):
        runner.run(["cat"], input="x")
