"""What this machine must offer before nodes can boot on it, and what of it is missing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Mapping, Sequence

from hyperpod_kit.errors import RehearsalError
from hyperpod_kit.untrusted.text import clean_one_line
from hyperpod_rehearsal.machines import apt_sources

TOOLS = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "mksquashfs": "squashfs-tools",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "nsenter": "util-linux",
}

_CAP_SYS_ADMIN = 21
_FIRST_USER, _NOBODY = 1000, 65534


def missing_requirements() -> list[str]:
    """Reasons why nodes cannot boot here, short phrases; empty when they can."""
    if os.uname().sysname != "Linux":
        return ["Linux"]
    reasons: list[str] = []
    if os.geteuid() != 0:
        reasons.append("root (machines, mounts and networks are made)")
    elif not _has_capability(_CAP_SYS_ADMIN):
        reasons.append("CAP_SYS_ADMIN (a container? run it privileged)")
    packages = sorted({package for tool, package in TOOLS.items() if shutil.which(tool, path=path_with_sbin()) is None})
    if packages:
        reasons.append(f"the package{'s' if len(packages) > 1 else ''} {', '.join(packages)}")
    if not _kernel_supports_filesystem("overlay"):
        reasons.append("overlayfs in the kernel")
    if not _kernel_supports_filesystem("squashfs"):
        reasons.append("squashfs in the kernel")
    if not Path("/dev/fuse").exists():
        reasons.append("/dev/fuse (modprobe fuse)")
    if not Path("/proc/self/timens_offsets").exists():
        reasons.append("time namespaces in the kernel (CONFIG_TIME_NS, Linux 5.6)")
    try:
        apt_sources.detect_supported_distribution()
    except RehearsalError as err:
        reasons.append(f"a supported distribution ({err.message})")
    return reasons


def _has_capability(number: int) -> bool:
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return bool(int(status["CapEff"], 16) >> number & 1)


def path_with_sbin() -> str:
    """Return PATH with the directories of administration programs, which an ordinary user's may lack."""
    return os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"


def _kernel_supports_filesystem(name: str) -> bool:
    try:
        listed = Path("/proc/filesystems").read_text().split()
    except OSError:
        return False
    # A module that is not loaded yet is not listed; mount(8) loads it on demand.
    return name in listed or any(Path("/lib/modules").glob(f"{os.uname().release}/kernel/fs/{name}*/{name}.ko*"))


def other_login_users(passwd: Path = Path("/etc/passwd"), environ: Mapping[str, str] = os.environ) -> list[str]:
    """Names of those who can log in here besides root and whoever called sudo."""
    names = []
    for line in passwd.read_text(errors="replace").splitlines():
        fields = line.split(":")
        if (
            len(fields) == 7
            and fields[2].isdigit()
            and _FIRST_USER <= int(fields[2]) < _NOBODY
            and fields[2] != environ.get("SUDO_UID")
            and not fields[6].endswith(("/nologin", "/false"))
        ):
            names.append(fields[0])
    return names


def other_users_warning(users: Sequence[str]) -> str:
    """What a person should know who boots machines beside other users; "" where there are none."""
    if not users:
        return ""
    named = ", ".join(clean_one_line(name, 32) for name in users[:3]) + (
        f" and {len(users) - 3} more" if len(users) > 3 else ""
    )
    return (
        f"warning: {named} can log in on this machine too. Root of a rehearsal's machines is this machine's root: "
        "whoever gets hold of one of them has this machine"
    )


def require_root(what: str) -> None:
    """Raise RehearsalError when this is not root."""
    if os.geteuid() != 0:
        raise RehearsalError(f"{what} needs root: the machines are root's", hint="sudo hyperpod-kit rehearse …")


def require_rehearsal_support() -> None:
    """Raise RehearsalError when nodes cannot boot on this machine."""
    reasons = missing_requirements()
    if reasons:
        raise RehearsalError(
            f"A rehearsal boots real machines, and this one lacks {'; '.join(reasons)}. "
            "The sandbox needs none of it: it runs the same bundle under a temporary directory and records what "
            "it would have done.",
            hint="hyperpod-kit rehearse sandbox provisioning_parameters.json",
        )
