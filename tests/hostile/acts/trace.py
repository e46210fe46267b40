"""What a command does, as strace sees it: the files that it opens and changes, as whom, what it starts, where it goes.

Each process has a trace of its own (`strace -ff`), so that no line is torn; whose rights a process has is followed from
the call that made it.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

CALLS = "trace=%file,%network,%process,%creds,fchmod,fchown,ftruncate"
READS, NAMES, CHANGES = "reads", "names", "changes"
"""Opens what is in it; only names it or asks what it is; changes it."""

_LINE = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+|\?)(?:<([^>]*)>)?.*")
_DIRECTORY = re.compile(r'(?:AT_FDCWD|\d+)<([^>]*)>, "((?:[^"\\]|\\.)*)"')
_FIRST = re.compile(r'"((?:[^"\\]|\\.)*)"')
_HELD = re.compile(r"\d+<([^>]*)>")
_NUMBER = re.compile(r"-?\d+")
_NO_ID = (-1, 2**32 - 1)
_MAKERS = ("clone", "clone3", "fork", "vfork")
_CHANGING = re.compile(
    r"(mkdir|rmdir|unlink|rename|link|symlink|mknod|truncate|ftruncate|(f|l)?chmod|(f|l)?chown|utime|(l|f)?setxattr|creat)"
)
_NETWORKS = re.compile(r"^(?:connect|sendto|sendmsg)\(.*sa_family=(AF_(?!UNIX|NETLINK)[A-Z0-9]+)")


class Access(NamedTuple):
    """`kind`: one of the above; `uid`: with whose rights."""

    path: str
    kind: str
    uid: int
    call: str


class Trace(NamedTuple):
    """Of a command that has ended with `code`. `programs`: names of what it started; `networks`: kinds of addresses
    that it connected or sent to itself, but those of this machine's own sockets."""

    code: int
    accesses: Tuple[Access, ...]
    programs: Tuple[str, ...]
    networks: Tuple[str, ...]
    printed: str

    def below(self, folder: Path) -> List[Access]:
        """What was done there."""
        return [access for access in self.accesses if Path(access.path).is_relative_to(folder)]


def traced(argv: Sequence[str], uid: int, environment: Dict[str, str]) -> Trace:
    """Run a command as that user."""
    with tempfile.TemporaryDirectory(prefix="hpk-trace-") as place:
        as_user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []
        words = ["strace", "-ff", "-y", "-qq", "-e", "signal=none", "-e", CALLS, "-o", f"{place}/t", *as_user, *argv]
        ended = subprocess.run(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        traces = {int(path.suffix[1:]): path.read_text(errors="replace").splitlines() for path in Path(place).iterdir()}
    accesses: List[Access] = []
    programs: List[str] = []
    networks: List[str] = []
    began = _Rights(traces, 0)
    for pid, lines in traces.items():
        rights = began.of(pid)
        started = [program for line in lines for program in _programs(line)]
        started = started if began.is_child(pid) else started[2 if as_user else 1 :]
        programs += started
        for line in lines:
            rights = _changed(line, rights)
            accesses += _accesses(line, rights)
            if not started:
                networks += [found.group(1) for found in _NETWORKS.finditer(line)]
    return Trace(ended.returncode, tuple(accesses), tuple(programs), tuple(sorted(set(networks))), ended.stdout)


class _Rights:
    """With whose rights each process begins: those that its maker had at that moment."""

    def __init__(self, traces: Dict[int, List[str]], first: int) -> None:
        self._traces = traces
        self._first = first
        self._makers = {child: pid for pid, lines in traces.items() for child in _children(lines)}

    def is_child(self, pid: int) -> bool:
        """Whether another of these processes made it."""
        return pid in self._makers

    def of(self, pid: int) -> int:
        maker = self._makers.get(pid)
        if maker is None:
            return self._first
        rights = self.of(maker)
        for line in self._traces[maker]:
            if pid in _children([line]):
                break
            rights = _changed(line, rights)
        return rights


def _children(lines: Sequence[str]) -> Iterator[int]:
    for line in lines:
        found = _LINE.match(line)
        if found and found.group(1) in _MAKERS and int(found.group(3)) > 0:
            yield int(found.group(3))


def _changed(line: str, rights: int) -> int:
    """As whom files are opened after this call."""
    found = _LINE.match(line)
    if found is None:
        return rights
    numbers = [int(number) for number in _NUMBER.findall(found.group(2))]
    if found.group(1) == "setfsuid":  # gives back the one before
        return rights if numbers[0] in _NO_ID else numbers[0]
    if found.group(3) != "0":
        return rights
    at = {"setuid": 0, "setreuid": 1, "setresuid": 1}.get(found.group(1))
    return rights if at is None or numbers[at] == -1 else numbers[at]


def _programs(line: str) -> Iterator[str]:
    found = _LINE.match(line)
    if found and found.group(1) in ("execve", "execveat") and found.group(3) == "0":
        program = _FIRST.search(found.group(2))
        if program:
            yield os.path.basename(program.group(1))


def _accesses(line: str, rights: int) -> Iterator[Access]:
    found = _LINE.match(line)
    if found is None or found.group(3).startswith("-"):
        return
    call, words, _, opened = found.groups()
    if call in ("open", "openat", "openat2", "creat"):
        yield Access(opened or _path_of(words) or "", _kind_of_open(call, words), rights, line)
        return
    kind = CHANGES if _CHANGING.match(call) else READS if call in ("readlink", "readlinkat") else NAMES
    for path in _paths(call, words):
        yield Access(path, kind, rights, line)


def _kind_of_open(call: str, words: str) -> str:
    if "O_PATH" in words:
        return NAMES
    changing = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_TMPFILE")
    return CHANGES if call == "creat" or any(flag in words for flag in changing) else READS


def _paths(call: str, words: str) -> Iterator[str]:
    if call.startswith(("fchmod", "fchown", "ftruncate", "fsetxattr")) and not call.endswith("at"):
        held = _HELD.match(words)
        if held:
            yield held.group(1)
        return
    path = _path_of(words)
    if path is not None:
        yield path


def _path_of(words: str) -> Optional[str]:
    relative = _DIRECTORY.search(words)
    if relative:
        return os.path.normpath(os.path.join(relative.group(1), relative.group(2)))
    first = _FIRST.search(words)
    return os.path.normpath(first.group(1)) if first else None
