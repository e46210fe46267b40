"""What systemd itself makes of units: `systemd --test` loads them, starts nothing and prints what it understood.

It runs as an ordinary user's manager, so that nothing of this machine is touched; as root, by way of `nobody`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple

MANAGER = next((path for path in ("/lib/systemd/systemd", "/usr/lib/systemd/systemd") if os.access(path, os.X_OK)), "")
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
_ESCAPE = re.compile(r"\\([abfnrtv])|\\x([0-9a-f]{2})|\\([0-7]{3})|\\(.)", re.DOTALL)
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class Understood(NamedTuple):
    """One unit: its description and the words of every command, after specifiers and variables."""

    description: str
    commands: List[List[str]]


def understood(units: Mapping[str, str]) -> Dict[str, Understood]:
    """What systemd makes of these units (name -> text); one that it refuses is not in the answer."""
    # Not below pytest's directory: that is closed to other users, whatever a test does about it.
    with tempfile.TemporaryDirectory(prefix="hpk-units-") as name:
        os.chmod(name, 0o755)
        folder, home = Path(name, "units"), Path(name, "home")
        folder.mkdir()
        home.mkdir()
        home.chmod(0o777)
        for unit, text in units.items():
            (folder / unit).write_text(text)
        (folder / "all.target").write_text(f"[Unit]\nWants={' '.join(sorted(units))}\n")
        argv = [*(NOBODY if os.geteuid() == 0 else []), MANAGER, "--test", "--user", "--no-pager", "--unit=all.target"]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "XDG_RUNTIME_DIR": str(home),
            "SYSTEMD_UNIT_PATH": f"{folder}:",
            "LC_ALL": "C.UTF-8",
            "SYSTEMD_LOG_LEVEL": "err",
        }
        done = subprocess.run(
            argv,
            env=environment,
            timeout=60,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    blocks = re.split(r"^\t-> Unit (.+):$", done.stdout.decode(errors="replace"), flags=re.MULTILINE)
    return {name: _read(block) for name, block in zip(blocks[1::2], blocks[2::2]) if name in units}


def _read(block: str) -> Understood:
    description = re.search(r"^\t\tDescription: (.*)$", block, re.MULTILINE)
    lines = re.findall(r"^\t\t\tCommand Line: (.*)$", block, re.MULTILINE)
    return Understood(description[1] if description else "", [_words(line) for line in lines])


def _words(line: str) -> List[str]:
    """The words of a command as systemd prints them: a shell would read them; `$$` is a dollar sign when it is run."""
    found = re.findall(r'"((?:[^"\\]|\\.)*)"|([^ ]+)', line)
    return [_ESCAPE.sub(_unescape, quoted or bare).replace("$$", "$") for quoted, bare in found]


def _unescape(match: re.Match[str]) -> str:
    letter, hexadecimal, octal, char = match.groups()
    if letter:
        return _LETTERS[letter]
    return chr(int(hexadecimal, 16)) if hexadecimal else chr(int(octal, 8)) if octal else char


@lru_cache(maxsize=1)
def can_be_asked() -> bool:
    """Whether there is a systemd here that prints command lines."""
    if not MANAGER or (os.geteuid() == 0 and shutil.which("setpriv") is None):
        return False
    told = understood({"a.service": '[Unit]\nDescription=one\n[Service]\nExecStart=/bin/true "a b" c\n'})
    return told.get("a.service") == Understood("one", [["/bin/true", "a b", "c"]])
