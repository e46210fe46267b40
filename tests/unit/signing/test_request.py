"""Our signature is the one that botocore makes of the same request."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as TheirCredentials

from hyperpod_kit.signing.request import PAYLOAD, Credentials, sign_request_headers

NOW = datetime(2026, 11, 22, 3, 4, 5, tzinfo=timezone.utc)
KEYS = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")


@pytest.mark.parametrize("token", ["", "session=="])
@pytest.mark.parametrize(
    "method, url, body",
    [
        ("GET", "https://b.s3.eu-west-1.amazonaws.com/runs/a%20b/%C3%BC~x?list-type=2&prefix=a%2Fb&start-after=", b""),
        ("PUT", "http://127.0.0.1:9000/bucket/seq-000001-step-1/manifest.json", b"{}"),
        ("POST", "https://b.s3.eu-west-1.amazonaws.com/x?uploads=", b""),
    ],
)
def test_it_is_botocores(monkeypatch: pytest.MonkeyPatch, method: str, url: str, body: bytes, token: str) -> None:
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_, **__: NOW.replace(tzinfo=None), raising=False)
    digest = hashlib.sha256(body).hexdigest()
    request = AWSRequest(method, url, headers={PAYLOAD: digest, "if-none-match": "*"}, data=body)
    signer = S3SigV4Auth(TheirCredentials(*KEYS, token or None), "s3", "eu-west-1")
    request.context["timestamp"] = NOW.strftime("%Y%m%dT%H%M%SZ")
    request.context["payload_signing_enabled"] = True
    signer.add_auth(request)
    stamp = datetime.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    ours = sign_request_headers(
        Credentials(*KEYS, token),
        "s3",
        "eu-west-1",
        method,
        url,
        {PAYLOAD: digest, "if-none-match": "*"},
        digest,
        stamp.timestamp(),
    )
    assert ours["authorization"] == request.headers["Authorization"]
    assert ours.get("x-amz-security-token", "") == token
