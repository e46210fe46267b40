"""What efs-utils leaves beside its mounts, of EFS and of S3 Files: the kernel shows 127.0.0.1:/ for every one of them.

The helper runs a local proxy a mount (since 2.0 also without TLS) and writes <state dir>/<fs-id>.<path with dots>.<port
of the proxy>, JSON: `cmd` of the proxy and, with TLS, `accessPoint` (efs-utils 3.1, efs_utils_common/proxy.py). With a
real NFS mount the kernel's `port=` leads to the file, wherever the mount was moved to since.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Dict, List, Optional, Union

from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.s3files import S3FilesMount
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text
from hyperpod_kit.node.mounts.kinds.kind import MountIdentity
from hyperpod_kit.node.mounts.kinds.mount_record import read_record, replacement_reason
from hyperpod_kit.system.mountinfo import MountEntry

EfsUtilsMount = Union[EfsMount, S3FilesMount]
"""A mount that efs-utils makes."""


def format_source(file_system: Optional[str], access_point: Optional[str]) -> str:
    """Return a file system and its access point, as a person writes them."""
    if not access_point:
        return f"{file_system}:/"
    return f"{file_system}:/ {access_point}"


def identify_proxied(node: Node, mount: EfsUtilsMount, entry: MountEntry, *, service: str, tls: bool) -> MountIdentity:
    """Identify which file system a mount of 127.0.0.1:/ is, by efs-utils' state files or the kit's own record.
    `service`: efs-utils' name of the AWS service."""
    expected = format_source(mount.file_system_id, mount.access_point_id)
    host, separator, export = entry.source.rpartition(":")
    if not separator or export != "/" or not host.startswith("127."):
        if tls and separator and export == "/":
            through = " through TLS"
        else:
            through = f", found {entry.fs_type}"
        return MountIdentity(False, entry.source, f"expected {expected}{through}")
    record = read_record(node, mount)
    replacement = replacement_reason(record, entry)
    states = read_efs_utils_states(node, entry)
    # Without a port, a note on this path may be about the mount that lies beneath.
    if states and not (replacement and entry.stacked > 1 and entry.option_value_or_none("port") is None):
        state = states[-1]
        actual = format_source(state["fsId"], state.get("accessPoint"))
        if state.get("service_type", service) != service:
            return MountIdentity(False, actual, f"expected {expected} of {service}, found {state['service_type']}")
        if tls and _is_efs_proxy_without_tls(state):
            return MountIdentity(False, actual, f"expected {expected} through TLS, but its proxy runs without TLS")
        return MountIdentity(actual == expected, actual, f"expected {expected}")
    if replacement:
        return MountIdentity(False, entry.source, f"expected {expected}, {replacement}")
    if record is not None:
        actual = format_source(record.mount.get("file_system_id"), record.mount.get("access_point_id"))
        return MountIdentity(actual == expected, actual, f"expected {expected}")
    return MountIdentity(True, entry.source, "known by source and path only")


def _is_efs_proxy_without_tls(state: Dict[str, Any]) -> bool:
    command = [str(argument) for argument in state.get("cmd") or [""]]
    return os.path.basename(command[0]) == "efs-proxy" and "--tls" not in command


def read_efs_utils_states(node: Node, entry: MountEntry) -> List[Dict[str, Any]]:
    """Read efs-utils' state files on this mount, each with `fsId`; the most reliable last. More than one where
    some are stale."""
    port = entry.option_value_or_none("port")
    middle = "." + entry.path.strip("/").replace("/", ".") + "."
    try:
        names = sorted(os.listdir(node.paths.efs_state))
    except OSError:
        return []
    states = []
    for name in names:
        file_system, separator, rest = name.partition(".")
        last = rest.rpartition(".")[2]
        if port is not None:
            matches = last == port
        else:
            matches = f".{rest}".startswith(middle) and rest[len(middle) - 1 :] == last
        if not matches or not separator or not file_system.startswith("fs-") or not last.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            raw = json.loads(read_text(f"{node.paths.efs_state}/{name}") or "null")
            if isinstance(raw, dict):
                states.append({**raw, "fsId": file_system})
    return sorted(states, key=lambda state: (_is_running(node, state), float(state.get("mount_time") or 0)))


def _is_running(node: Node, state: Dict[str, Any]) -> bool:
    return os.path.exists(node.paths.under_root(f"/proc/{state.get('pid')}"))


def proxy_is_dead(entry: MountEntry) -> bool:
    """Return whether nobody listens any more where this mount's proxy was.

    The kernel then retries for ever and every process that looks at the mount hangs: dead, although it is
    listed. efs-utils' watchdog starts the proxy anew within a second as long as it runs itself.
    """
    port = entry.option_value_or_none("port")
    if port is None or not port.isdigit() or not entry.source.startswith("127."):
        return False
    import socket  # only for a mount that does not answer

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(("127.0.0.1", int(port)))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def common_mount_options(mount: EfsUtilsMount) -> List[str]:
    """The options that both helpers take alike."""
    mount_options = []
    if mount.access_point_id:
        mount_options = [f"accesspoint={mount.access_point_id}"]
    if mount.region:
        mount_options.append(f"region={mount.region}")
    return mount_options
