"""What rehearsals leave behind on a machine, found without asking them.

    python examples/demo/leftovers.py [NAME]

Without NAME: everything of the kit's that is there now, also of jobs and rehearsals that are up. With NAME: what
carries the marks of that rehearsal, whatever else runs on the machine; processes and shared memory of its jobs end with
its machines, which carry a mark.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Optional, Pattern, Set, Tuple

STATE_BASE = "/var/lib/hyperpod-kit-rehearsal"
CGROUP_PARENT = "hyperpod-kit"


@dataclass(frozen=True)
class Marks:
    """By what something is known. `names`: of namespaces and links; `paths`: of mounts and files; `words`: of a
    process's command line; `groups`: of control groups, below their hierarchy; `segments`: of shared memory."""

    names: Pattern[str]
    paths: Pattern[str]
    words: Pattern[str]
    groups: Pattern[str]
    segments: Optional[Pattern[str]]

    @classmethod
    def of_all(cls) -> Marks:
        marked = re.compile(r"hpk|hyperpod-kit")
        return cls(
            names=re.compile(r"hpk|hyperpod-kit|^hv[0-9a-f]{12}$"),
            paths=re.compile(r"hpk|hyperpod-kit|mountpoint-s3"),
            words=re.compile(
                r"hyperpod_rehearsal|hyperpod_kit\.checkpoint\.|hyperpod-kit-rehearsal|systemd-nspawn.*hpk"
            ),
            groups=marked,
            segments=marked,
        )

    @classmethod
    def of(cls, name: str) -> Marks:
        """A rehearsal's id follows from its state directory. No segment has it: machines have memory of their own."""
        state = os.path.abspath(os.path.join(os.environ.get("HPK_REHEARSAL_STATE") or STATE_BASE, name))
        identity = hashlib.sha256(state.encode()).hexdigest()[:4]
        paths = re.compile(rf"{re.escape(state)}(?![^/\s])")
        return cls(
            names=re.compile(rf"^hpk-{identity}\b|^hv{identity}"),
            paths=paths,
            words=re.compile(rf"{paths.pattern}|\bhpk-{identity}-"),
            groups=re.compile(rf"^{CGROUP_PARENT}/{identity}$"),
            segments=None,
        )


def _processes(marks: Marks) -> Iterator[str]:
    """Of this PID namespace: what runs in a machine ends with its nspawn, which is here, and others' are not ours."""
    own = {os.getpid(), os.getppid()}
    here = os.readlink("/proc/self/ns/pid")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in own:
            continue
        try:
            if os.readlink(entry / "ns/pid") != here:
                continue
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        text = b" ".join(words).decode(errors="replace")
        if marks.words.search(text):
            yield f"process {entry.name}: {text[:120]}"


def _mounts(marks: Marks) -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if marks.paths.search(line):
            yield f"mount {line.split()[4]}"


def _network(marks: Marks) -> Iterator[str]:
    kinds: Tuple[Tuple[str, str], ...] = (("/run/netns", "network namespace"), ("/sys/class/net", "network link"))
    for directory, kind in kinds:
        if os.path.isdir(directory):
            yield from (f"{kind} {name}" for name in os.listdir(directory) if marks.names.search(name))


def _loop_devices(marks: Marks) -> Iterator[str]:
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            path = backing.read_text().strip()
        except OSError:
            continue
        if marks.paths.search(path):
            yield f"loop device {backing.parts[3]}: {path}"


def _cgroups(marks: Marks) -> Iterator[str]:
    top = Path("/sys/fs/cgroup")
    for hierarchy in (top, *top.glob("*/")):
        for path in (*hierarchy.glob("*/"), *hierarchy.glob(f"{CGROUP_PARENT}/*/")):
            if marks.groups.search(str(path.relative_to(hierarchy))):
                yield f"cgroup {path}"


def _segments(marks: Marks) -> Iterator[str]:
    if marks.segments is None:
        return
    for _, _, files in os.walk("/dev/shm"):
        yield from (f"shared memory segment {name}" for name in files if marks.segments.search(name))


def leftovers(name: Optional[str] = None) -> Set[str]:
    """One line for each machine, mount, namespace, link, loop device, cgroup, segment and process that is there now; of
    the rehearsal `name` alone, if one is given."""
    marks = Marks.of_all() if name is None else Marks.of(name)
    searches = (_processes, _mounts, _network, _loop_devices, _cgroups, _segments)
    return {line for search in searches for line in search(marks)}


if __name__ == "__main__":
    import sys

    lines = sorted(leftovers(sys.argv[1] if len(sys.argv) > 1 else None))
    print("\n".join(lines) if lines else "nothing left")
    sys.exit(1 if lines else 0)
