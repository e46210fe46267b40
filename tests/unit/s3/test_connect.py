"""Which client speaks to a bucket: boto3's only where it is installed and something is asked for that it alone does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict

import pytest

from hyperpod_kit.s3.client import S3HttpClient
from hyperpod_kit.s3.connect import connect
from hyperpod_kit.s3.errors import S3NotConfigured

BUCKET = "s3://bucket/prefix"
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "eu-west-1"}
ANSWER = '{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "s"}'


def client_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str = BUCKET, **variables: str) -> Any:
    environ: Dict[str, str] = {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
        **variables,
    }
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "HTTPS_PROXY", *KEYS):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return connect(url, environ)


def is_boto3(client: Any) -> bool:
    return type(client).__module__.startswith("botocore.")


@pytest.mark.parametrize(
    "variables, config, own",
    [
        (KEYS, "", True),
        ({}, "[default]\nregion=us-west-2\naws_access_key_id=a\naws_secret_access_key=s\noutput=json\n", True),
        ({"AWS_PROFILE": "a"}, "[profile a]\nregion=us-west-2\naws_access_key_id=a\naws_secret_access_key=s\n", True),
        ({**KEYS, "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:9"}, "", False),
        ({**KEYS, "AWS_USE_DUALSTACK_ENDPOINT": "true"}, "", False),
        ({**KEYS, "HTTPS_PROXY": "http://127.0.0.1:9"}, "", False),
        ({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s"}, "", False),
        ({**KEYS, "AWS_REGION": "us-iso-east-1"}, "", False),
        ({"AWS_REGION": "us-west-2"}, "", False),
        (KEYS, "[default]\nrole_arn=arn:aws:iam::111122223333:role/r\nsource_profile=default\n", False),
        (KEYS, "[default]\ns3 =\n    addressing_style = virtual\n", False),
        ({"AWS_REGION": "us-west-2"}, f"[default]\ncredential_process = echo '{ANSWER}'\n", False),
    ],
)
def test_boto3_is_for_what_it_alone_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: Dict[str, str], config: str, own: bool
) -> None:
    pytest.importorskip("boto3")
    (tmp_path / "config").write_text(config)
    client = client_of(monkeypatch, tmp_path, **variables)
    assert isinstance(client, S3HttpClient) is own and is_boto3(client) is not own


@pytest.mark.parametrize("name", ["zone--usw2-az1--x-s3", "arn:aws:s3:us-west-2:111122223333:accesspoint:data"])
def test_buckets_of_other_kinds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    pytest.importorskip("boto3")
    assert is_boto3(client_of(monkeypatch, tmp_path, f"s3://{name}/prefix", **KEYS))


def test_a_profile_that_is_nowhere_is_no_other_identity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("boto3")
    with pytest.raises(S3NotConfigured, match=r"s3://bucket/prefix cannot be reached: .*nobody"):
        client_of(monkeypatch, tmp_path, AWS_PROFILE="nobody", AWS_REGION="us-west-2")


def test_without_boto3_the_own_client_does_what_it_can(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    client = client_of(monkeypatch, tmp_path, **KEYS, AWS_USE_DUALSTACK_ENDPOINT="true")
    assert isinstance(client, S3HttpClient)
    with pytest.raises(S3NotConfigured, match="no AWS region"):
        client_of(monkeypatch, tmp_path)
