"""A disk with limits in a machine, and the kit of an admin on it: btrfs in a file of the machine's own, which the
kernel enforces limits on as Lustre does. What is not in a node's image comes by a directory that it shares."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
from driver import TRAIN, Driver

from hyperpod_rehearsal import boot, targets
from hyperpod_rehearsal.machines import processes
from hyperpod_rehearsal.machines.machine import command_in_machine

ADMIN, PACKAGES = "/opt/admin", "/opt/admin-packages"
"""Where nodes see what `shares` gives."""
DISK = "/var/tmp/disk"
LOOPS = 8


def shares(place: Path) -> dict[Path, str]:
    """Directories for `rehearse up --share`: programs with an empty file system of 256 MiB, and Python packages."""
    if shutil.which("btrfs"):
        (place / "lib").mkdir(parents=True)
        (place / "bin").mkdir()
        program = shutil.which("btrfs") or ""
        shutil.copy(program, place / "lib" / "btrfs")
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True, timeout=30).stdout
        for library in re.findall(r"=> (/\S+)", listed):
            # The C library is that of the image's interpreter, whatever ours is.
            if not Path(library).name.startswith("libc.so"):
                shutil.copy(library, place / "lib")
        with open(place / "image", "wb") as file:
            file.truncate(256 << 20)
        subprocess.run(["mkfs.btrfs", "-q", str(place / "image")], check=True, capture_output=True, timeout=60)
        site = f"{TRAIN}/lib/python3.$(python3 -c 'import sys; print(sys.version_info[1])')/site-packages"
        for name, line in (
            ("btrfs", f'LD_LIBRARY_PATH={ADMIN}/lib exec {ADMIN}/lib/btrfs "$@"'),
            ("hyperpod-kit", f'PYTHONPATH={site}:{PACKAGES} exec python3 -m hyperpod_kit.cli.main "$@"'),
        ):
            (place / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
            (place / "bin" / name).chmod(0o755)
    place.mkdir(exist_ok=True)
    return {place: ADMIN, Path(click.__file__).parents[1]: PACKAGES}


def attach(driver: Driver, node: str, at: str) -> None:
    """Mount the disk in a machine. Its own root may make no devices; whoever enters it from this machine may."""
    _, data = boot.require_running(driver.name)
    (leader, *_) = processes.children(targets.find_node(data, node)["pid"])
    devices = [("/dev/loop-control", "c", "10", "237"), *((f"/dev/loop{n}", "b", "7", str(n)) for n in range(LOOPS))]
    for words in (
        *(["mknod", *device] for device in devices),
        ["cp", "--sparse=always", f"{ADMIN}/image", DISK],
        ["mkdir", "-p", at],
        ["mount", "-o", "loop", DISK, at],
    ):
        done = subprocess.run(command_in_machine(leader, words), capture_output=True, text=True, timeout=60)
        assert not done.returncode or "File exists" in done.stderr, done.stderr


def detach(driver: Driver, node: str, at: str) -> None:
    driver.on(node, f"umount -l {at}; rm -f {DISK}", check=False)


def admin(driver: Driver, node: str, line: str, *, check: bool = True) -> str:
    """What a command of the admin's prints on this machine, errors too."""
    return driver.on(node, f"export PATH={ADMIN}/bin:$PATH; {{ {line}; }} 2>&1", check=check)
