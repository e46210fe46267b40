"""EFS through efs-utils' mount helper, which hides file system and access point behind 127.0.0.1.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any, Dict, Optional, Sequence

from hyperpod_kit.model.mounts import EfsMount, mount_to_dict
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_json, read_text
from hyperpod_kit.node.mounts.kind import Identity
from hyperpod_kit.node.mounts.table import Entry


class Efs:
    """`mount -t efs`. A hard NFS mount that hangs waits for its server and then goes on: it is never torn away."""

    client = "/usr/sbin/mount.efs"
    package = "amazon-efs-utils"
    restart_when_hung = False

    def command(self, mount: EfsMount) -> Sequence[str]:
        options = ["_netdev", "noresvport"]
        if mount.tls:
            options.append("tls")
        if mount.iam:
            options.append("iam")
        if mount.access_point_id:
            options.append(f"accesspoint={mount.access_point_id}")
        return ("mount", "-t", "efs", "-o", ",".join(options), f"{mount.file_system_id}:/", mount.path)

    def identify(self, node: Node, mount: EfsMount, entry: Entry) -> Identity:
        wanted = described(mount)
        host, separator, export = entry.source.rpartition(":")
        if not separator or export != "/":
            return Identity(False, entry.source, f"expected {wanted}, found {entry.fs_type}")
        if not mount.tls and not host.startswith("127."):
            return self._without_tls(mount, entry, host)
        if not host.startswith("127."):
            return Identity(False, entry.source, f"expected {wanted} through TLS")
        gone = proxy_is_gone(entry)
        state = read_state(node, mount.path)
        if state is not None:
            found = f"{state['fsId']}:/" + (f" {state['accessPoint']}" if state.get("accessPoint") else "")
            return Identity(found == wanted, found, f"expected {wanted}", endpoint_gone=gone)
        # Without the helper's state file only our own note can tell: which kernel mount we made, and from what.
        record = read_json(node.paths.mount_record(mount.name))
        if record and (record["mount_id"], record["device"]) == (entry.mount_id, entry.device):
            same = record["mount"] == mount_to_dict(mount)
            return Identity(same, described_raw(record["mount"]), f"expected {wanted}", endpoint_gone=gone)
        return Identity(True, entry.source, "known by source and path only", endpoint_gone=gone)

    def _without_tls(self, mount: EfsMount, entry: Entry, host: str) -> Identity:
        # The helper mounts by name or, with a mount target's address, by number, which says nothing.
        if host.startswith("fs-"):
            return Identity(host.split(".")[0] == mount.file_system_id, entry.source, f"expected {described(mount)}")
        return Identity(True, entry.source, "known by source and path only")


def described(mount: EfsMount) -> str:
    """File system and access point as a person writes them."""
    return described_raw(mount_to_dict(mount))


def described_raw(mount: Dict[str, Any]) -> str:
    point = mount.get("access_point_id")
    return f"{mount.get('file_system_id')}:/" + (f" {point}" if point else "")


def read_state(node: Node, path: str) -> Optional[Dict[str, Any]]:
    """efs-utils' note on the mount at `path`: `fsId` and, where its version writes it, `accessPoint`; None without."""
    middle = "." + path.strip("/").replace("/", ".") + "."
    try:
        names = sorted(os.listdir(node.paths.efs_state))
    except OSError:
        return None
    for name in names:
        file_system, found, port = name.partition(middle)
        if not found or not file_system.startswith("fs-") or not port.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            raw = json.loads(read_text(f"{node.paths.efs_state}/{name}") or "null")
            if isinstance(raw, dict):
                return {**raw, "fsId": file_system}
    return None


def proxy_is_gone(entry: Entry) -> bool:
    """Whether nobody listens any more where this mount's TLS proxy was.

    The kernel then retries for ever and every process that looks at the mount hangs: dead, although it is listed.
    """
    port = entry.option("port")
    if port is None or not port.isdigit():
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(("127.0.0.1", int(port)))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
