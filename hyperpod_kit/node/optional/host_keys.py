"""The host keys of a cluster's nodes, on a mount that all of them have:

    <mount>/.hyperpod-kit/<cluster>/ssh/hosts/<node>    each node's own, which it writes at its creation
    <mount>/.hyperpod-kit/<cluster>/ssh/all             all of them, which the controller writes

A node reads the one file when it has changed, so that no directory is read by every node. What it takes from there is
looked at line by line; all of it is root's.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from typing import Any, Dict, List, Sequence

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, read_text, write_if_different, write_json
from hyperpod_kit.node.slurm import state
from hyperpod_kit.node.slurm.hooks import with_kit_block
from hyperpod_kit.system import atomic_file
from hyperpod_kit.system.bounded_child import call_in_child
from hyperpod_kit.untrusted import by_descriptor

KNOWN_HOSTS, EQUIVALENT = "/etc/ssh/ssh_known_hosts2", "/etc/ssh/shosts.equiv"
"""sshd reads these two alone, and ssh the first of them."""
LINE = re.compile(r"([A-Za-z0-9._:,-]{1,600}) ((?:ssh|ecdsa)-[a-z0-9-]{2,40}) ([A-Za-z0-9+/=]{20,4000})")
LARGEST, MOST = 16 << 20, 20_000
"""Bytes of the file of all, lines that are taken of it."""
SECONDS = 60.0
NOTE = "ssh-between-nodes"


def local_known_hosts_lines(node: Node) -> List[str]:
    """`name,name,address type key` of each host key of this node. Raises NodeError when it has none."""
    names = [node.facts.node, node.facts.address]
    with contextlib.suppress(OSError):
        # As ssh signs: with the name that the node's address has, where it has one.
        names.append(socket.gethostbyaddr(node.facts.address)[0])
    who = ",".join(dict.fromkeys(name.lower() for name in names if re.fullmatch(r"[A-Za-z0-9._:-]{1,255}", name)))
    return [f"{who} {key}" for key in _public_keys_by_path(node).values()]


def _public_keys_by_path(node: Node) -> Dict[str, str]:
    """Return path of a host key -> type and key, read from the key itself: a file beside it may be another
    key's, or missing. Raises NodeError when there is none."""
    folder = node.paths.under_root("/etc/ssh")
    names = []
    if os.path.isdir(folder):
        names = os.listdir(folder)
    keys = {}
    for name in sorted(name for name in names if re.fullmatch(r"ssh_host_[a-z0-9]+_key", name)):
        output = node.runner.run(["ssh-keygen", "-y", "-f", f"{folder}/{name}"], timeout=20, check=False).stdout
        key = " ".join(output.split()[:2])
        if LINE.fullmatch(f"{node.facts.node} {key}"):
            keys[f"{folder}/{name}"] = key
    if not keys:
        raise NodeError(f"{folder} has no host key", hint="ssh-keygen -A; systemctl restart ssh")
    return keys


def are_local_keys_published(node: Node) -> bool:
    """Whether this node's keys, as they are now, have been put where the others find them."""
    return read_text(node.paths.optional_step_done_stamp(NOTE)) == "\n".join(local_known_hosts_lines(node))


def publish_local_keys(node: Node, mount: Mount) -> bool:
    """Write this node's host keys to the shared mount, where the others find them; True when they were not
    there. Raises NodeError."""
    for path, key in _public_keys_by_path(node).items():
        if not os.path.exists(f"{path}.pub"):
            write_if_different(f"{path}.pub", f"{key}\n")  # ssh offers no host key whose public half it does not find
    lines = local_known_hosts_lines(node)
    text = "\n".join(lines) + "\n"
    directory = _shared_directory(node, mount)

    def work() -> bool:
        state.ensure_cluster_directory(node.paths.under_root(mount.path), os.path.dirname(directory))
        state.make_or_require_root_directory(directory, 0o755)
        state.make_or_require_root_directory(f"{directory}/hosts", 0o755)
        return _write_if_different(f"{directory}/hosts/{node.facts.node}", text)

    changed = bool(call_in_child(f"this node's host keys on {mount.path}", work, SECONDS))
    stamped = write_if_different(node.paths.optional_step_done_stamp(NOTE), "\n".join(lines))
    return changed or stamped


def join_published_keys_into_one_file(node: Node, mount: Mount) -> bool:
    """Join the published host keys of all nodes into one file, when any has come; True when it did. For the
    controller. Raises NodeError."""
    directory = _shared_directory(node, mount)
    before: Any = read_json(_gathered_keys_stamp_path(node))

    def work() -> List[Any]:
        hosts = f"{directory}/hosts"
        # Only whether it is the same time as before: it may be another machine's, whose clock is another.
        changed_at = os.stat(hosts).st_mtime_ns
        if before == [changed_at, True] and os.path.exists(f"{directory}/all"):
            return [False, before]
        texts = [read_text(f"{hosts}/{name}") or "" for name in sorted(os.listdir(hosts)) if "." not in name]
        came = _write_if_different(f"{directory}/all", "".join(texts))
        # Read twice at one time: what comes while it is read may leave the same.
        return [came, [changed_at, isinstance(before, list) and before[:1] == [changed_at]]]

    came, stamp = call_in_child(f"the host keys on {mount.path}", work, SECONDS)
    write_json(_gathered_keys_stamp_path(node), stamp)
    return bool(came)


def update_known_hosts_from_joined_keys(node: Node, mount: Mount) -> bool:
    """Update this node's known hosts from the gathered keys; True when they changed. Raises NodeError."""
    directory = _shared_directory(node, mount)
    last: Any = _read_seen_keys_stamp(node)

    def work() -> List[Any]:
        try:
            status = os.stat(f"{directory}/all")
            with open(f"{directory}/all", encoding="utf-8", errors="replace") as stream:
                file_stamp = [status.st_mtime_ns, status.st_size]
                return [file_stamp, None if file_stamp == last else stream.read(LARGEST)]
        except FileNotFoundError:
            return [[0, 0], ""]

    file_stamp, text = call_in_child(f"the host keys on {mount.path}", work, SECONDS)
    if text is None and os.path.exists(node.paths.under_root(KNOWN_HOSTS)):
        return False
    changed = _write_known_and_trusted_hosts(node, valid_known_hosts_lines(text or ""))
    write_json(_seen_keys_stamp_path(node), file_stamp)
    return changed


def valid_known_hosts_lines(text: str) -> List[str]:
    """The lines that are names with a key, each once; whatever else stands there is left out."""
    lines = (line for line in text.splitlines()[:MOST] if LINE.fullmatch(line))
    return list(dict.fromkeys(lines))


def count_trusted_host_names(node: Node) -> int:
    """Return how many host names this node trusts for hostbased authentication."""
    text = read_text(node.paths.under_root(EQUIVALENT)) or ""
    return sum(1 for line in text.splitlines() if line and not line.startswith("#"))


def delete_stamps(node: Node) -> None:
    """Delete the stamps, so that the next run begins anew."""
    for path in (node.paths.optional_step_done_stamp(NOTE), _seen_keys_stamp_path(node)):
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(path)


def _write_known_and_trusted_hosts(node: Node, lines: Sequence[str]) -> bool:
    own_lines = local_known_hosts_lines(node)
    lines_of_all = [*own_lines, *(line for line in lines if line not in own_lines)]
    names: Dict[str, None] = {}
    for line in lines_of_all:
        names.update(dict.fromkeys(line.split(" ")[0].split(",")))
    changed = False
    for path, content in ((KNOWN_HOSTS, lines_of_all), (EQUIVALENT, list(names))):
        real = node.paths.under_root(path)
        changed = write_if_different(real, with_kit_block(read_text(real) or "", content)) or changed
    return changed


def _shared_directory(node: Node, mount: Mount) -> str:
    return f"{node.paths.under_root(state.cluster_directory(node, mount))}/ssh"


def _seen_keys_stamp_path(node: Node) -> str:
    return node.paths.under_root("/var/lib/hyperpod-kit/steps/ssh-between-nodes/seen.json")


def _gathered_keys_stamp_path(node: Node) -> str:
    return node.paths.under_root("/var/lib/hyperpod-kit/steps/ssh-between-nodes/gathered.json")


def _read_seen_keys_stamp(node: Node) -> Any:
    return read_json(_seen_keys_stamp_path(node))


def _write_if_different(path: str, text: str) -> bool:
    if read_text(path) == text:
        return False
    atomic_file.write_atomically(path, text.encode("utf-8", "replace"), 0o644)
    return True
