"""The ports that efs-utils gives to its local proxies, and keeping the kernel from giving them to anybody else.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
from typing import List, Tuple

from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_text
from hyperpod_kit.untrusted import by_descriptor

EFS_UTILS_CONF = "/etc/amazon/efs/efs-utils.conf"
PORTS = (20049, 21049)
"""efs-utils' range where its configuration does not say another."""

RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"
"""Of both address families: ports that no connection is given for its own end unless it asks for one by number."""


def proxy_port_range(node: Node) -> Tuple[int, int]:
    """First and last port that efs-utils gives to a proxy."""
    values = {}
    section = ""
    # Read by hand: a parser of such files costs the check more than all of its probes.
    for line in (read_text(node.paths.under_root(EFS_UTILS_CONF)) or "").splitlines():
        line_text = line.split("#", 1)[0].strip()
        if line_text.startswith("[") and line_text.endswith("]"):
            section = line_text[1:-1].strip()
        delimiter = ":"
        if "=" in line_text:
            delimiter = "="
        key, separator, value = line_text.partition(delimiter)
        if section == "mount" and separator:
            values[key.strip()] = value.strip()
    low, high = (
        _number_or_zero(values.get(f"port_range_{side}_bound", "")) or usual
        for side, usual in zip(("lower", "upper"), PORTS)
    )
    if 0 < low <= high < 65536:
        return (low, high)
    return PORTS


def try_newly_reserve_ports_in_kernel(node: Node, low: int, high: int) -> bool:
    """Add the range to the kernel's reserved ports, which stay; True when it was not among them. Without it a
    connection of any program may hold a port that a proxy is to have, and the rules would cut one that got
    such a port by chance."""
    path = node.paths.under_root(RESERVED)
    with contextlib.suppress(OSError, ValueError):
        present = (read_text(path) or "").strip()
        if _is_range_covered(present, low, high):
            return False
        with by_descriptor.open_stream_for_writing(path, "w", encoding="ascii") as stream:
            stream.write(",".join(part for part in (present, f"{low}-{high}") if part) + "\n")
        return True
    return False


def _is_range_covered(listed: str, low: int, high: int) -> bool:
    spans: List[Tuple[int, int]] = []
    for part in listed.split(",") if listed else []:
        begin, _, end = part.partition("-")
        spans.append((int(begin), int(end or begin)))
    for first, last in sorted(spans):
        if first <= low <= last:
            low = last + 1
    return low > high


def _number_or_zero(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    return 0
