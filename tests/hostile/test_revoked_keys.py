"""A host shows a key that known_hosts revokes, while another line of the same file names it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hyperpod_kit.remote.connect.ssh_access import KnownHosts

pytest.importorskip("paramiko")


def _key(tmp_path: Path, name: str) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    return " ".join((tmp_path / f"{name}.pub").read_text().split()[:2])


@pytest.mark.parametrize(
    "line",
    [
        "@revoked * {key}",
        "@revoked 10.0.0.1 {key} root@old",
        "  @revoked\t10.0.0.0/8 {key}",
        "@revoked |1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg= {key}",
    ],
)
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_revoked_key_is_refused_for_every_name(tmp_path: Path, line: str, before: bool) -> None:
    bad, good = _key(tmp_path, "bad"), _key(tmp_path, "good")
    path = tmp_path / "known_hosts"
    path.write_text(f"10.0.0.1 {bad}\n10.0.0.1 {good}\n10.0.0.2 {bad}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", path], check=True, capture_output=True)
    named, revoked = path.read_text() + f"10.0.0.3,10.0.0.4 {bad}\n", line.format(key=bad) + "\n"
    path.write_text(revoked + named if before else named + revoked)
    known = KnownHosts(path)
    assert [f"{key.get_name()} {key.get_base64()}" for key in known.keys("10.0.0.1")] == [good]
    assert [known.keys(f"10.0.0.{host}") for host in (2, 3, 4)] == [[], [], []]


def test_an_authority_vouches_for_nobody(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"@cert-authority * {_key(tmp_path, 'ca')}\n@revoked\n@revoked *\n@revoked * ssh-ed25519\n")
    assert KnownHosts(path).keys("10.0.0.1") == []
