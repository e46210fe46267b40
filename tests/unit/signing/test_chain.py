"""Where credentials, region and endpoint come from, and when they are asked for anew."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Dict, Iterator, List

import pytest

from hyperpod_kit.signing import chain
from hyperpod_kit.signing.request import Credentials
from hyperpod_kit.signing.role import instance_id_or_empty
from tests.support.http import Responder, served


@contextmanager
def metadata(asked: List[str], expires: float) -> Iterator[str]:
    """A metadata service whose role is `node`, and which counts what it gives."""

    class Service(Responder):
        def do_PUT(self) -> None:
            self.answer(200, b"token")

        def do_GET(self) -> None:
            assert self.headers["X-aws-ec2-metadata-token"] == "token"
            if self.path.endswith("/security-credentials/"):
                return self.answer(200, b"node\n")
            if self.path.endswith("/region"):
                return self.answer(200, b"eu-north-1")
            if self.path.endswith("/instance-id"):
                return self.answer(200, b"i-0123456789abcdef0\n")
            asked.append(self.path)
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expires))
            said = {"AccessKeyId": f"role-{len(asked)}", "SecretAccessKey": "s", "Token": "t", "Expiration": moment}
            self.answer(200, json.dumps(said).encode())

    with served(Service) as url:
        yield url


@pytest.fixture
def files(tmp_path: Path) -> Dict[str, str]:
    (tmp_path / "config").write_text(
        "[default]\nregion = us-west-1\n[profile other]\nregion = us-west-2\nendpoint_url = http://127.0.0.1:9/\n"
    )
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = D\naws_secret_access_key = d%d\n"
        "[other]\naws_access_key_id = O\naws_secret_access_key = o\naws_session_token = t\n"
    )
    return {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def test_the_environment_then_the_files_then_the_role(files: Dict[str, str]) -> None:
    own = {"AWS_ACCESS_KEY_ID": "E", "AWS_SECRET_ACCESS_KEY": "e", "AWS_REGION": "r", "AWS_ENDPOINT_URL_S3": "http://e"}
    assert chain.CredentialChain({**files, **own}).get() == Credentials("E", "e")
    assert (
        chain.find_region_or_empty({**files, **own}),
        chain.configured_endpoint_or_empty({**files, **own}, "S3"),
    ) == (
        "r",
        "http://e",
    )
    assert chain.CredentialChain(files).get() == Credentials("D", "d%d")
    assert (chain.find_region_or_empty(files), chain.configured_endpoint_or_empty(files, "S3")) == ("us-west-1", "")
    other = {**files, "AWS_PROFILE": "other"}
    assert chain.CredentialChain(other).get() == Credentials("O", "o", "t")
    assert (chain.find_region_or_empty(other), chain.configured_endpoint_or_empty(other, "S3")) == (
        "us-west-2",
        "http://127.0.0.1:9",
    )
    asked: List[str] = []
    with metadata(asked, time.time() + 3600) as url:
        role = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": url, "AWS_CONFIG_FILE": "/x", "AWS_SHARED_CREDENTIALS_FILE": "/x"}
        found = chain.CredentialChain(role)
        assert found.get().access_key == found.get().access_key == "role-1" and len(asked) == 1
        found.discard_cached_credentials()
        assert found.get().access_key == "role-2" and chain.find_region_or_empty(role) == "eu-north-1"
        assert instance_id_or_empty(role) == "i-0123456789abcdef0"
    assert instance_id_or_empty({"AWS_EC2_METADATA_DISABLED": "true"}) == ""


def test_a_role_whose_credentials_end_soon_is_asked_again() -> None:
    asked: List[str] = []
    with metadata(asked, time.time() + chain.EARLY - 10) as url:
        found = chain.CredentialChain(
            {"AWS_EC2_METADATA_SERVICE_ENDPOINT": url, "AWS_CONFIG_FILE": "/x", "AWS_SHARED_CREDENTIALS_FILE": "/x"}
        )
        assert [found.get().access_key, found.get().access_key] == ["role-1", "role-2"]


def test_credentials_that_have_not_ended_outlast_a_silent_service() -> None:
    asked: List[str] = []
    environ = {"AWS_CONFIG_FILE": "/x", "AWS_SHARED_CREDENTIALS_FILE": "/x"}
    found = chain.CredentialChain(environ)
    with metadata(asked, time.time() + chain.EARLY - 10) as url:
        environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = url
        assert found.get().access_key == "role-1"
    assert found.get().access_key == "role-1"
    found.discard_cached_credentials()
    with pytest.raises(PermissionError, match="returned no token"):
        found.get()


def test_a_profile_says_what_is_not_read_here(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("[profile a]\nregion = r\ncli_pager =\nsso_session = s\n[profile b]\nregion = r\n")
    files = {"AWS_CONFIG_FILE": str(path), "AWS_SHARED_CREDENTIALS_FILE": "/x"}
    assert chain.read_profile({**files, "AWS_PROFILE": "a"}).other_keys == ("sso_session",)
    assert chain.read_profile({**files, "AWS_PROFILE": "b"}).other_keys == ()
    assert [chain.read_profile({**files, "AWS_PROFILE": name}).is_empty for name in "bc"] == [False, True]


def test_without_any_it_says_where_it_has_looked(tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(b"[default\n\xff\xfe")
    nothing = {"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path)}
    with pytest.raises(PermissionError, match=r"in the environment or in ~/.aws, and AWS_EC2_METADATA_DISABLED=true"):
        chain.CredentialChain({**nothing, "AWS_EC2_METADATA_DISABLED": "true"}).get()
    with pytest.raises(PermissionError, match="returned no token"):
        chain.CredentialChain({**nothing, "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9"}).get()
