"""What a rehearsal could leave behind on a machine, found without asking the rehearsal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Set

MARKS = ("hpk", "hyperpod-kit")


def _marked(text: str) -> bool:
    return any(mark in text for mark in MARKS)


def _processes() -> Set[str]:
    """Of this PID namespace: what runs in a machine ends with its nspawn, which is here, and others' are not ours."""
    found = set()
    mine = {os.getpid(), os.getppid()}
    here = os.readlink("/proc/self/ns/pid")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in mine:
            continue
        try:
            if os.readlink(entry / "ns/pid") != here:
                continue
            argv = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        text = b" ".join(argv).decode(errors="replace")
        if (
            "hyperpod_kit.rehearsal" in text
            or ("systemd-nspawn" in text and _marked(text))
            or "hyperpod_kit.checkpoint." in text
            or "hyperpod-kit-rehearsal" in text
        ):
            found.add(f"process {entry.name}: {text[:120]}")
    return found


def leftovers() -> Set[str]:
    """One line for each machine, mount, namespace, link, loop device, cgroup, segment and process that is there now."""
    found = _processes()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if _marked(fields[4]) or "mountpoint-s3" in line:
            found.add(f"mount {fields[4]}")
    for _, _, files in os.walk("/dev/shm"):
        found |= {f"shared memory segment {name}" for name in files if _marked(name)}
    for directory, kind in (("/run/netns", "network namespace"), ("/sys/class/net", "network link")):
        if os.path.isdir(directory):
            found |= {f"{kind} {name}" for name in os.listdir(directory) if _marked(name)}
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if _marked(backing.read_text()):
                found.add(f"loop device {backing.parts[3]}: {backing.read_text().strip()}")
        except OSError:
            continue
    for base in Path("/sys/fs/cgroup").glob("*"):
        found |= {f"cgroup {path}" for path in (base, *base.glob("*")) if path.is_dir() and _marked(path.name)}
    return found


if __name__ == "__main__":
    import sys

    lines = sorted(leftovers())
    print("\n".join(lines) if lines else "nothing left")
    sys.exit(1 if lines else 0)
