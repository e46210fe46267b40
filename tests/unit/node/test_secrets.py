"""Secrets fetched over real HTTP from endpoints that check the signature with botocore's own signer."""

from __future__ import annotations

import ast
import base64
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest

from hyperpod_kit.bundle.render import render
from hyperpod_kit.config.load import load
from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.secrets import Secret
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.timing import Clock
from hyperpod_kit.node.setup.secret_files import fetch, fetch_secrets_and_delete_unneeded, missing_secret_names
from hyperpod_kit.signing.exchange import send_http_request_or_status_zero
from hyperpod_kit.signing.request import Credentials
from tests.support.clock import FakeClock
from tests.support.http import Responder, served

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"
KEY, SECRET_KEY, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "role-token=="
VALUE = 'hunter2 "ü" $(id)\n'
DB = Secret("db", "arn:aws:secretsmanager:us-east-1:111122223333:secret:db-a1b2c3")
PARAMETER = Secret("api", "arn:aws:ssm:eu-west-1:111122223333:parameter/team/api")


class Cloud:
    """The metadata service, Secrets Manager and Parameter Store on one port."""

    def __init__(self) -> None:
        self.values: Dict[str, Any] = {DB.arn: {"SecretString": VALUE}, PARAMETER.arn: {"Parameter": {"Value": VALUE}}}
        self.failures: List[Tuple[int, bytes]] = []
        self.asked: List[str] = []
        self.has_role = True
        outer = self

        class Handler(Responder):
            def do_PUT(self) -> None:
                assert self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
                self.answer(200, b"metadata-token")

            def do_GET(self) -> None:
                assert self.headers["X-aws-ec2-metadata-token"] == "metadata-token"
                outer.asked.append(self.path)
                if not outer.has_role:
                    self.answer(404, b"")
                elif self.path.endswith("/security-credentials/"):
                    self.answer(200, b"NodeRole")
                else:
                    assert self.path.endswith("/NodeRole")
                    self.answer(
                        200, json.dumps({"AccessKeyId": KEY, "SecretAccessKey": SECRET_KEY, "Token": TOKEN}).encode()
                    )

            def do_POST(self) -> None:
                body = self.body()
                outer.asked.append(self.headers["X-Amz-Target"])
                if outer.failures:
                    self.answer(*outer.failures.pop(0))
                    return
                question = json.loads(body)
                name = question.get("SecretId") or question["Name"]
                region, service = name.split(":")[3], name.split(":")[2]
                if self.headers["Authorization"] != outer.signature(self.headers, body, service, region):
                    self.answer(400, b'{"__type": "InvalidSignatureException"}')
                else:
                    self.answer(200, json.dumps(outer.values[name]).encode())

            def answer(self, status: int, body: bytes, **headers: str) -> None:
                super().answer(status, body, **({"Location": "http://127.0.0.1:9/elsewhere"} if status == 302 else {}))

        self.handler = Handler
        self.url = ""

    def signature(self, headers: Any, body: bytes, service: str, region: str) -> str:
        """What botocore would have sent with the same headers at the same moment."""
        authorization = headers["Authorization"]
        names = authorization.split("SignedHeaders=")[1].split(",")[0].split(";")
        request = botocore.awsrequest.AWSRequest("POST", f"{self.url}/", {name: headers[name] for name in names}, body)
        request.context["timestamp"] = headers["X-Amz-Date"]
        signer = botocore.auth.SigV4Auth(botocore.credentials.Credentials(KEY, SECRET_KEY, TOKEN), service, region)
        text = signer.string_to_sign(request, signer.canonical_request(request))
        return (
            f"AWS4-HMAC-SHA256 Credential={signer.scope(request)}, SignedHeaders={';'.join(sorted(names))}, "
            f"Signature={signer.signature(text, request)}"
        )

    @property
    def environment(self) -> Dict[str, str]:
        return {"AWS_ENDPOINT_URL": self.url, "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.url}


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    made = Cloud()
    with served(made.handler) as made.url:
        yield made


@pytest.mark.parametrize("secret", [DB, PARAMETER], ids=lambda secret: secret.service)
def test_a_value_comes_with_the_nodes_own_role(cloud: Cloud, secret: Secret) -> None:
    assert fetch(secret, Clock(), cloud.environment) == VALUE.encode()
    assert cloud.asked[-1] in ("secretsmanager.GetSecretValue", "AmazonSSM.GetParameter")


def test_credentials_of_the_environment_come_first_and_bytes_stay_bytes(cloud: Cloud) -> None:
    cloud.values[DB.arn] = {"SecretBinary": base64.b64encode(b"\0\xff").decode()}
    given = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_SESSION_TOKEN": TOKEN}
    assert fetch(DB, Clock(), {**cloud.environment, **given}) == b"\0\xff"
    assert cloud.asked == ["secretsmanager.GetSecretValue"]


def test_what_passes_is_tried_again_and_what_does_not_is_said_at_once(cloud: Cloud) -> None:
    cloud.failures = [(500, b""), (400, b'{"__type": "ThrottlingException"}'), (503, VALUE.encode())]
    assert fetch(DB, FakeClock(), cloud.environment) == VALUE.encode()
    cloud.failures = [(400, json.dumps({"__type": "com.amazon#AccessDeniedException", "message": VALUE}).encode())]
    with pytest.raises(NodeError, match=r"secret:db-a1b2c3: .* answers 400 AccessDeniedException") as denied:
        fetch(DB, FakeClock(), cloud.environment)
    assert denied.value.hint is not None and "secretsmanager:GetSecretValue" in denied.value.hint
    assert "hunter2" not in str(denied.value)


def test_a_signature_that_is_wrong_would_be_seen(cloud: Cloud) -> None:
    given = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY + "x", "AWS_SESSION_TOKEN": TOKEN}
    with pytest.raises(NodeError, match="InvalidSignatureException"):
        fetch(DB, FakeClock(), {**cloud.environment, **given})


@pytest.mark.parametrize("body", [b"", b"[]", b'{"SecretStrin": "hunter2"}', b"hunter2", b"\xff"])
def test_an_answer_that_makes_no_sense_is_not_quoted(cloud: Cloud, body: bytes) -> None:
    cloud.failures = [(200, body)]
    with pytest.raises(NodeError, match="the answer is not from secretsmanager") as caught:
        fetch(DB, FakeClock(), cloud.environment)
    assert "hunter2" not in str(caught.value) and caught.value.__cause__ is None


def test_nobody_answers_within_the_bound(cloud: Cloud) -> None:
    cloud.has_role = False
    clock = FakeClock()
    with pytest.raises(NodeError, match=r"not fetched within 60 s: the metadata service .* has no role"):
        fetch(DB, clock, cloud.environment)
    assert 60 <= clock.now < 70
    with pytest.raises(NodeError, match="does not answer"):
        fetch(
            DB,
            FakeClock(),
            {
                **cloud.environment,
                "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
                "AWS_ACCESS_KEY_ID": KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            },
        )


def test_a_signed_request_follows_no_redirect(cloud: Cloud) -> None:
    cloud.failures = [(302, b"")]
    assert send_http_request_or_status_zero("POST", f"{cloud.url}/", {}, b"{}").status == 302


def test_what_is_printed_by_accident_shows_nothing(cloud: Cloud) -> None:
    assert SECRET_KEY not in repr(Credentials(KEY, SECRET_KEY, TOKEN)) + str(Credentials(KEY, SECRET_KEY))
    cloud.failures = [(200, VALUE.encode())]
    assert "hunter2" not in repr(send_http_request_or_status_zero("POST", f"{cloud.url}/", {}, b"{}"))


def with_secrets(fake: Any, *secrets: Secret) -> Node:
    fake.runner.on("getent passwd root", out=f"root:x:{os.getuid()}:{os.getgid()}::/root:/bin/bash\n")
    fake.runner.on("getent passwd nosuch", code=2)
    return replace(fake.node, config=replace(fake.node.config, secrets=secrets))


def test_files_are_for_their_owner_alone_and_a_second_run_changes_nothing(make_node: Any) -> None:
    node = with_secrets(make_node(()), DB, PARAMETER)
    values = {DB.name: b"one", PARAMETER.name: b"two"}

    def ask(secret: Secret, clock: Clock) -> bytes:
        return values[secret.name]

    assert missing_secret_names(node) == ["db", "api"]
    old = os.umask(0)
    try:
        assert fetch_secrets_and_delete_unneeded(node, ask) == ["db", "api"]
    finally:
        os.umask(old)
    path = Path(node.paths.secret("db"))
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"one", 0o400)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o711
    assert missing_secret_names(node) == [] and fetch_secrets_and_delete_unneeded(node, ask) == []
    values["db"] = b"rotated"
    path.with_name("api").chmod(0o644)
    path.with_name("left").write_text("of an earlier configuration")
    assert fetch_secrets_and_delete_unneeded(node, ask) == ["left", "db", "api"]
    assert path.read_bytes() == b"rotated" and stat.S_IMODE(path.with_name("api").stat().st_mode) == 0o400
    assert sorted(os.listdir(path.parent)) == ["api", "db"]
    path.unlink()
    path.symlink_to(path.with_name("elsewhere"))
    assert (
        fetch_secrets_and_delete_unneeded(node, ask) == ["db"]
        and not path.is_symlink()
        and not path.with_name("elsewhere").exists()
    )


def test_an_owner_that_does_not_exist_is_named(make_node: Any) -> None:
    node = with_secrets(make_node(()), Secret("db", DB.arn, owner="nosuch"))
    with pytest.raises(NodeError, match="secret db: its owner nosuch does not exist"):
        fetch_secrets_and_delete_unneeded(node, lambda secret, clock: b"")


def test_the_value_is_in_no_argv_and_no_log(cloud: Cloud, make_sandbox: Any) -> None:
    """The whole creation with a secret, then the command of its unit."""
    sandbox = make_sandbox("compute", render(replace(load(EXAMPLE), failure_pause=0.0, secrets=(DB,))))
    done = sandbox.on_create(**cloud.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    place = sandbox.root / "run/hyperpod-kit/secrets/db"
    assert place.read_text() == VALUE
    steps = {line["step"]: (line["status"], line["detail"]) for line in sandbox.log if "detail" in line}
    assert steps["secrets"] == ("changed", "db")
    assert "hyperpod-kit-secrets.service" in ast.literal_eval((sandbox.root / "recorder/enabled").read_text())
    place.unlink()
    again = sandbox.node("secrets", **cloud.environment)
    assert (again.returncode, again.stdout, place.read_text()) == (0, "changed: db\n", VALUE)
    for path in sandbox.root.rglob("*"):
        if path.is_file() and not path.is_symlink() and path != place:
            assert b"hunter2" not in path.read_bytes() and SECRET_KEY.encode() not in path.read_bytes(), path
    assert "hunter2" not in done.stdout + done.stderr + again.stderr


def test_importing_it_costs_a_tick_of_the_timer_nothing() -> None:
    """urllib and ssl are imported by the command that fetches, by no other."""
    code = "import sys; from hyperpod_kit.node.commands import command_table; print('ssl' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
