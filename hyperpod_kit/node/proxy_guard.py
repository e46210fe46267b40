"""Keep ordinary users away from the local proxies behind EFS mounts.

efs-utils' proxy listens on a port of 127.0.0.1 and speaks for its access point: whoever connects to it with an NFS
client of their own is that access point's user, past every directory of this node. (efs-proxy serves one connection
at a time, so there it takes a moment without one; stunnel, before efs-utils 2.0, serves any number.) Only root may
connect to those ports. The kernel's own NFS client passes: its sockets are root's or nobody's.

Rules do not outlive a reboot; every mount of a home asserts them before anything listens.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import configparser
import os
from typing import List, Optional, Tuple

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.node.context import Node

NFT, IPTABLES = "/usr/sbin/nft", "/usr/sbin/iptables"
EFS_UTILS_CONF = "/etc/amazon/efs/efs-utils.conf"
PORTS = (20049, 21049)
"""efs-utils' range where its configuration does not say another."""
TABLE = "hyperpod_kit"


def guard(node: Node) -> bool:
    """Have the rules in force; True when they were not. Raises NodeError where this node has no packet filter."""
    if is_guarded(node):
        return False
    low, high = ports(node)
    why = f"neither {NFT} nor {IPTABLES} is here"
    # nft in one transaction: its table is never without the rule. Not every kernel that has one tool serves the other.
    for program, argv, text in ((NFT, ["nft", "--file", "-"], rules(low, high)),
                                (IPTABLES, ["iptables", "--wait", "20", "--append", *_match(low, high)], None)):
        if not os.path.exists(node.paths.real(program)):
            continue
        try:
            node.runner.run(argv, timeout=40, input=text)
            return True
        except RunError as err:
            why = err.message
    raise NodeError(f"{why}: any user could speak to the proxies behind the homes",
                    hint="apt-get install nftables, in the image or as a package of the bundle (docs/clients.md)")


def is_guarded(node: Node) -> bool:
    """Whether the rules are in force for the ports that efs-utils uses now."""
    low, high = ports(node)
    if os.path.exists(node.paths.real(NFT)):
        done = node.runner.run(["nft", "--numeric", "list", "table", "inet", TABLE], timeout=30, check=False)
        if done.returncode == 0 and f"tcp dport {low}-{high} meta skuid != 0 reject" in done.stdout:
            return True
    if os.path.exists(node.paths.real(IPTABLES)):
        check = ["iptables", "--wait", "20", "--check", *_match(low, high)]
        return node.runner.run(check, timeout=40, check=False).returncode == 0
    return False


def rules(low: int, high: int) -> str:
    """Our table as nft reads it; a rule on `skuid` does not fit a socket that belongs to no process."""
    return (f"table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n"
            f"  chain efs_proxies {{\n    type filter hook output priority 0; policy accept;\n"
            f"    oifname \"lo\" tcp dport {low}-{high} meta skuid != 0 reject with tcp reset\n  }}\n}}\n")


def ports(node: Node) -> Tuple[int, int]:
    """First and last port that efs-utils gives to a proxy."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read(node.paths.real(EFS_UTILS_CONF), encoding="utf-8")
        bounds = [_number(parser, f"port_range_{side}_bound") for side in ("lower", "upper")]
    except configparser.Error:
        return PORTS
    low, high = bounds[0] or PORTS[0], bounds[1] or PORTS[1]
    return (low, high) if 0 < low <= high < 65536 else PORTS


def _number(parser: configparser.ConfigParser, key: str) -> Optional[int]:
    text = parser.get("mount", key, fallback="").strip()
    return int(text) if text.isdigit() else None


def _match(low: int, high: int) -> List[str]:
    # A range of uids and not `! --uid-owner 0`: the latter would fit sockets of the kernel, which have no owner.
    return ["OUTPUT", "--out-interface", "lo", "--protocol", "tcp", "--dport", f"{low}:{high}", "--match", "owner",
            "--uid-owner", "1-4294967294", "--jump", "REJECT", "--reject-with", "tcp-reset"]
