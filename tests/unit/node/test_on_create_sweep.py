"""on_create.sh killed with SIGKILL before each of its commands, and run again: what is installed is the same.

`make test` kills it before one of ten, drawn evenly over the whole; `make test-all` before each.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, Dict, Tuple

import pytest

from hyperpod_kit.bundle.render import Bundle, assemble_bundle, replace_bundle_directory

SCRIPTS = Path(__file__).parents[3] / "lifecycle_scripts"

PROGRAM = b"""\
import os, pathlib, sys
root = pathlib.Path(os.environ["HPK_ROOT"])
(root / "applied").write_text(" ".join(sys.argv[1:]) + chr(10))
"""

# Sourced by the script's own bash, before its first line. Functions and the commands in them count too.
COUNTER = """\
unset BASH_ENV
commands=0
before_command() {
    [ "$BASH_SUBSHELL" -eq 0 ] || return 0
    if [ "$commands" = "${HPK_TEST_KILL_AT:-}" ]; then kill -KILL $$; fi
    commands=$((commands + 1))
    if [ -n "${HPK_TEST_COUNT:-}" ]; then
        echo "$commands" >"$HPK_TEST_COUNT"
        if [ "${STEP:-verify-bundle}" = verify-bundle ]; then echo "$commands" >"${HPK_TEST_COUNT%/*}/changing"; fi
    fi
}
set -T
trap before_command DEBUG
"""


def small_bundle() -> Bundle:
    """The real entry script around a program of three lines, so that hundreds of runs are quick."""
    files = {
        "on_create.sh": (SCRIPTS / "on_create.sh").read_bytes(),
        "lib/__main__.py": PROGRAM,
        "lib/hyperpod_kit/version.py": b'RELEASE = "1"\n',
        "bin/hyperpod-kit": b"#!/bin/sh\n",
        "node_config.json": b'{\n  "failure_pause": 0.0\n}\n',
        "units/x.service": b"[Unit]\n",
    }
    return assemble_bundle(files, "1", "b", "p/")


def run(root: Path, staging: Path, counter: Path, **more: str) -> int:
    environment = {"PATH": os.environ["PATH"], "HPK_ROOT": str(root), "BASH_ENV": str(counter), **more}
    return subprocess.run(
        ["/bin/bash", str(staging / "on_create.sh")],
        env=environment,
        timeout=60,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ).returncode


def installed(root: Path) -> Dict[str, Tuple[int, Any]]:
    """Everything below the root but the log: mode and text, or where a link points."""
    return {
        str(path.relative_to(root)): (
            path.lstat().st_mode,
            os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else None,
        )
        for path in sorted(root.rglob("*"))
        if path.name != "provisioning.log" and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize(
    "before, share",
    [
        ("a fresh node", 10),
        pytest.param("a fresh node", 1, marks=pytest.mark.full),
        pytest.param("a damaged copy beside another bundle", 1, marks=pytest.mark.full),
    ],
)
def test_killed_before_any_command(tmp_path: Path, before: str, share: int) -> None:
    bundle, staging, fresh = small_bundle(), tmp_path / "staging", tmp_path / "fresh"
    replace_bundle_directory(bundle, staging)
    (fresh / "opt").mkdir(parents=True)
    counter, count, changing = tmp_path / "counter.sh", tmp_path / "count", tmp_path / "changing"
    counter.write_text(COUNTER)
    if before != "a fresh node":
        assert run(fresh, staging, counter) == 0
        home = fresh / "opt/hyperpod-kit"
        shutil.copytree(home / bundle.bundle_id, home / "0123456789abcdef")
        (home / bundle.bundle_id / "units/x.service").write_text("")
        (home / "current").unlink()
        (home / "current").symlink_to("0123456789abcdef")

    def copy(name: str) -> Path:
        return Path(shutil.copytree(fresh, tmp_path / name, symlinks=True))

    undisturbed = copy("undisturbed")
    assert run(undisturbed, staging, counter, HPK_TEST_COUNT=str(count)) == 0
    wanted = installed(undisturbed)
    assert wanted["applied"][1] == "node apply --mode on_create\n"
    commands = int(count.read_text())
    assert commands > 40
    first_change = int(changing.read_text())
    dice, begin = random.Random(7), 0 if before == "a fresh node" else first_change
    for number in (min(first + dice.randrange(share), commands - 1) for first in range(begin, commands, share)):
        root = copy(str(number))
        assert run(root, staging, counter, HPK_TEST_KILL_AT=str(number)) == -signal.SIGKILL, number
        if number < first_change:
            assert not (root / "opt/hyperpod-kit").exists()  # nothing was done: the next run is a first one
            continue
        assert run(root, staging, counter) == 0, number
        assert installed(root) == wanted, f"killed before command {number} of {commands}"
        shutil.rmtree(root)
