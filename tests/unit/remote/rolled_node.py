"""A machine for a rollout: the script that is sent runs in bash, below a directory, with an entry script of the test's.

Only what needs a machine stands in: systemd-run runs the script to its end, systemctl says what the test wants, `aws`
copies from a directory, sudo is not there.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Mapping, Optional, Sequence

from hyperpod_kit.errors import RunError, Unreachable
from hyperpod_kit.remote.rollout.node_switch import TargetBundle
from hyperpod_kit.run import Completed

PLACES = ("/opt/hyperpod-kit", "/var/lib/hyperpod-kit", "/var/log/provision")

ENTRY = """\
here=$(cd "$(dirname "$0")" && pwd); id=$(sha256sum <"$here/SHA256SUMS" | cut -c-16); home=$ROOT/opt/hyperpod-kit
echo "$id $HPK_MODE" >>"$ROOT/entered"
log=$ROOT/var/log/provision/provisioning.log
failed() {
    echo '{"step": "'$1'", "status": "failed", "error": "disk full", "hint": "df"}' >>"$log"
    exit 1
}
[ -e "$ROOT/fails-before.$id" ] && failed verify-bundle
[ -d "$home/$id" ] || cp -r "$here" "$home/$id"
ln -sfn "$id" "$home/current"
[ -e "$ROOT/fails-after.$id" ] && failed mount:fsx
printf '{"bundle_id": "%s", "ok": true, "finished_at": 1.8e9}' "$id" >"$ROOT/var/lib/hyperpod-kit/status.json"
"""


def make_bundle(place: Path, text: str) -> str:
    """A bundle of a few files below `place`; its id."""
    files = {
        "on_create.sh": ENTRY,
        "node_config.json": f'{{\n  "lifecycle_mode": "on_init_complete",\n  "text": "{text}"\n}}\n',
        "bundle.json": '{"format": "hpk-bundle/2"}',
    }
    sums = "".join(
        f"{hashlib.sha256(data.encode()).hexdigest()}  {name}\n"
        for name, data in files.items()
        if name != "bundle.json"
    )
    identity = hashlib.sha256(sums.encode()).hexdigest()[:16]
    folder = place / identity
    folder.mkdir(parents=True)
    for name, data in {**files, "SHA256SUMS": sums}.items():
        (folder / name).write_text(data)
    return identity


def wanted(place: Path, identity: str) -> TargetBundle:
    """What the admin's machine says of a bundle."""
    sums = (place / identity / "SHA256SUMS").read_bytes()
    return TargetBundle(identity, hashlib.sha256(sums).hexdigest(), f"{place / identity}/")


class RolledNode:
    """`root`: where its files lie; `unit`: what `systemctl is-active` says; `silent`: why it cannot be reached."""

    target = "node"

    def __init__(self, root: Path, s3: Path, installed: str = "") -> None:
        self.root, self.s3, self.unit, self.silent, self.starts = root, s3, "inactive", "", 0
        self.mounts: Mapping[str, object] = {}
        for place in PLACES:
            (root / place.lstrip("/")).mkdir(parents=True)
        programs = root / "bin"
        programs.mkdir()
        self._program("systemctl", 'cat "$ROOT/unit"')
        self._program("aws", 'echo "$@" >>"$ROOT/fetched"; eval "from=\\${$(($# - 1))} to=\\$$#"; cp -r "$from." "$to"')
        self._program("sudo", "exit 1")
        if installed:
            self.install(installed)

    def install(self, identity: str) -> None:
        """What an earlier creation has left."""
        home = self.root / "opt/hyperpod-kit"
        subprocess.run(["cp", "-r", str(self.s3 / identity), str(home)], check=True)
        (home / "current").symlink_to(identity)
        status = {"bundle_id": identity, "ok": True, "finished_at": 1.8e9}
        (self.root / "var/lib/hyperpod-kit/status.json").write_text(json.dumps(status))

    def _program(self, name: str, text: str) -> None:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    @property
    def current(self) -> str:
        """The bundle that runs."""
        return os.readlink(self.root / "opt/hyperpod-kit/current")

    @property
    def entered(self) -> list[str]:
        """The entry scripts that ran, with their modes."""
        path = self.root / "entered"
        return path.read_text().splitlines() if path.exists() else []

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        check: bool = True,
        input: Optional[str] = None,
        env: Optional[Mapping[str, Optional[str]]] = None,
    ) -> Completed:
        if self.silent:
            raise Unreachable(self.silent)
        words = list(argv)
        if words[-1] == "--json":
            return Completed(tuple(argv), 0, json.dumps(self.mounts), "")
        (self.root / "unit").write_text(f"{self.unit}\n")
        if "systemd-run" in words:
            self.starts += 1
            words = words[words.index("bash") :]
            self._bash(words)
            return Completed(tuple(argv), 0, "", "")
        done = self._bash(words)
        if check and done.returncode:
            raise RunError(argv, done.returncode, done.stdout, done.stderr)
        return Completed(tuple(argv), done.returncode, done.stdout, done.stderr)

    def _bash(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        moved = []
        for word in words:
            for place in PLACES:
                word = word.replace(place, f"{self.root}{place}")
            moved.append(word)
        environment = {"PATH": f"{self.root}/bin:/usr/bin:/bin", "ROOT": str(self.root)}
        return subprocess.run(moved, env=environment, text=True, capture_output=True, timeout=60, check=False)
