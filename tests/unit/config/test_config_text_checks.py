"""Text that no configuration has a use for: control characters, novels, secrets; named by place, never repeated."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any, Callable

import pytest

from hyperpod_kit.bundle.render import render
from hyperpod_kit.config.load import check, load
from hyperpod_kit.config.reading import credentials
from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.errors import ConfigError
from hyperpod_kit.untrusted.dataclass_json import dataclass_to_json

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"
KEY_ID = "AKIA" + "IOSFODNN7EXAMPLE"
"""AWS's own example, in two parts so that no scanner stops at this file."""

SECRETS = {
    "an AWS access key id": KEY_ID,
    "a private key": "-----BEGIN RSA " + "PRIVATE KEY-----",
    "a GitHub token": "ghp_" + "a1" * 18,
    "a GitLab token": "glpat-" + "x" * 20,
    "a Hugging Face token": "hf_" + "abcDEF" * 6,
    "a Slack token": "xoxb-" + "1234567890-x",
    "a JSON web token": "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0." + "c2lnbmF0dXJl",
    "a password in a URL": "https://me:hun" + "ter2@example.com/x",
    "a password": "password: '" + "hunter2'",
}

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def findings(tmp_path: Path) -> Callable[[Change], list[Finding]]:
    def of(change: Change) -> list[Finding]:
        data = json.loads(EXAMPLE.read_text())
        change(data)
        path = tmp_path / "provisioning_parameters.json"
        path.write_text(json.dumps(data))
        return list(check(path).findings)

    return of


@pytest.mark.parametrize("what", SECRETS)
def test_every_shape_is_seen_and_never_shown(what: str, findings: Callable[[Change], list[Finding]]) -> None:
    assert [found for _, found in credentials.find_secrets_in_text(f"one\n two {SECRETS[what]}\n")] == [what]
    places: dict[str, Change] = {
        "hyperpod_kit.mounts[1].bucket": lambda data: data["hyperpod_kit"]["mounts"][1].update(bucket=SECRETS[what]),
        "slurm_configurations.slurm_sns_arn": lambda data: data.update(
            slurm_configurations={"slurm_sns_arn": SECRETS[what]}
        ),
        "hyperpod_kit.users": lambda data: data["hyperpod_kit"].update(users=SECRETS[what]),
        "hyperpod_kit.cluster.tags.note": lambda data: data["hyperpod_kit"]["cluster"].update(
            tags={"note": SECRETS[what]}
        ),
    }
    for place, change in places.items():
        found = findings(change)
        assert ("HPK-C006", place) in [(item.code, item.path) for item in found]
        assert not [
            item for item in found if SECRETS[what][4:20] in item.render() + json.dumps(dataclass_to_json(item))
        ]


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("slurm_database_secret_arn", "arn:aws:secretsmanager:us-east-1:111122223333:secret:db-a1b2c3", False),
        ("slurm_database_secret_arn", "hunter2", True),
        ("slurm_database_password", "hunter2", True),
        ("LDAP_BindPW", "x", True),
        ("api_key", "x", True),
        ("slurm_database_user", "slurm", False),
        ("slurm_database_password", "", False),
    ],
)
def test_a_key_that_asks_for_a_secret_holds_an_arn(key: str, value: str, wrong: bool) -> None:
    assert (credentials.describe_secret_value(key, value) is not None) is wrong


@pytest.mark.parametrize(
    "text",
    [
        "password=password",
        'password: "$DB_PASSWORD"',
        "PASSWORD=$(cat /run/secret)",
        'PASSWORD="$1"',
        "password = read(path)",
        "s3://bucket/prefix/",
        "https://example.com:8080/a@b",
        "AKIA",
        "XAKIA" + "IOSFODNN7EXAMPLE",
        "hf_short",
        "ssh-keygen -y prints no PRIVATE KEY",
    ],
)
def test_ordinary_text_is_let_pass(text: str) -> None:
    assert list(credentials.find_secrets_in_text(text)) == []


def test_a_line_of_broken_json_or_yaml_is_not_shown_when_it_holds_a_secret(tmp_path: Path) -> None:
    for name, text in (("a.json", f'{{"x": "{KEY_ID}" oops}}'), ("a.yaml", f'x: "{KEY_ID}" oops: [')):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match="looks like a secret") as caught:
            load(tmp_path / name)
        assert KEY_ID not in caught.value.message


@pytest.mark.parametrize("text", ["a\nb", "\0", "\x1b[2J", "a\tb", "\ud800", "\x7f", "\x85"])
def test_control_characters_are_refused_and_shown_escaped(
    text: str, findings: Callable[[Change], list[Finding]]
) -> None:
    def change(data: dict[str, Any]) -> None:
        data["hyperpod_kit"]["cluster"]["tags"] = {"note": text}
        data["hyperpod_kit"][f"key{text}"] = 1

    found = findings(change)
    assert ("HPK-C007", "hyperpod_kit.cluster.tags.note") in [(item.code, item.path) for item in found]
    assert ("HPK-C007", f"hyperpod_kit.key{text}") in [(item.code, item.path) for item in found]
    for item in found:
        assert item.render().isprintable() and item.render().encode()


def test_a_novel_is_refused_and_a_long_message_cut(findings: Callable[[Change], list[Finding]]) -> None:
    found = findings(lambda data: data["hyperpod_kit"]["cluster"].update(tags={"note": "x" * 2049}))
    assert ("HPK-C008", "hyperpod_kit.cluster.tags.note") in [(item.code, item.path) for item in found]
    (wrong,) = findings(lambda data: data["hyperpod_kit"]["mounts"][1].update(name="x" * 1000))
    assert len(wrong.message) > 1000 and len(wrong.render()) < 500 and "… (10" in wrong.render()


def test_nothing_that_we_ship_looks_like_a_secret() -> None:
    """The repository's own bundle: every file of it, and every file in its wheel."""
    files = dict(render(load(EXAMPLE)).installed_files)
    (wheel,) = [place for place in files if place.endswith(".whl")]
    with zipfile.ZipFile(io.BytesIO(files.pop(wheel))) as archive:
        files.update({f"{wheel}/{name}": archive.read(name) for name in archive.namelist()})
    found = [
        (place, what) for place, data in files.items() for _, what in credentials.find_secrets_in_text(data.decode())
    ]
    assert found == []
