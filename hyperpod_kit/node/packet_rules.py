"""Rules of this node's packet filter: what only root may connect to.

- NFS (port 2049, every interface), where a mount of an NFS kind is configured. A server that takes the numbers of its
  clients for their word (EFS without a policy of its own, AUTH_SYS anywhere) makes every process with an NFS client in
  its own memory root of the file system. The kernel's own client passes: its sockets are root's or nobody's.
- efs-utils' local proxies (ports 20049 to 21049 of 127.0.0.1, where they listen), likewise: a proxy speaks for its
  access point, past every directory of this node. And only root answers there: who finds a dead proxy's port free must
  not become the kernel's server. The same ports of this node's other addresses belong to jobs, whose first rank
  reaches its own address over the loopback device, too.
- The instance metadata service, where the configuration says so: whoever reaches it has the node's role.

Rules do not outlive a reboot, nor an operator's `nft flush ruleset`: mounts, the health check and the gate set them.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.node import efs_ports, ruleset
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import jot, read_json, read_text
from hyperpod_kit.node.step import Step, StepOutcome

NFT, IPTABLES, IP6TABLES = "/usr/sbin/nft", "/usr/sbin/iptables", "/usr/sbin/ip6tables"
TABLE = "hyperpod_kit"
NFS = 2049
METADATA4, METADATA6 = "169.254.169.254", "fd00:ec2::254"
LOCAL4, LOCAL6 = "127.0.0.1", "::1"


@dataclass(frozen=True)
class Wanted:
    """nfs: whether an NFS mount is configured; required: whether nothing may run without the rules (homes, the metadata
    service); metadata: uids besides root that may use the metadata service, None where everybody may; ports: of the
    proxies; strangers: names in the configuration that no account here has."""

    nfs: bool
    required: bool
    metadata: Optional[Tuple[int, ...]]
    ports: Tuple[int, int]
    strangers: Tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.nfs or self.metadata is not None


@dataclass(frozen=True)
class Guarded:
    """What a look found. holds: whether the rules are in force, None where none are wanted; said: a line for a person,
    "" when nothing is new; why: what keeps them from being set."""

    holds: Optional[bool] = None
    said: str = ""
    why: str = ""
    required: bool = False


def wanted(node: Node) -> Wanted:
    """What the configuration asks for on this node."""
    nfs = [mount for mount in node.mounts if mount.traits.nfs]
    homes = any(mount.owner for mount in nfs)
    names, uids = node.config.metadata_users, None
    strangers: List[str] = []
    if names is not None:
        known = _accounts(node) if names else {}
        known.update((user.name, user.uid) for user in node.config.users)
        uids = tuple(sorted({known[name] for name in names if name in known} | {0}))
        strangers = [name for name in names if name not in known]
    ports = efs_ports.ports(node) if nfs else efs_ports.PORTS
    return Wanted(bool(nfs), homes or names is not None, uids, ports, tuple(strangers))


def guard(node: Node) -> bool:
    """Have the rules in force; True when they were not. Raises NodeError where that cannot be."""
    asked = wanted(node)
    if asked.nfs:
        efs_ports.reserve(node, *asked.ports)
    if _held_by(node, asked):
        return False
    why = f"neither {NFT} nor {IPTABLES} is here"
    if _there(node, NFT):
        try:
            # In one transaction: the table is never without its rules.
            node.runner.run(["nft", "--file", "-"], timeout=40, input=text(asked))
            return True
        except RunError as err:
            why = err.message
    # Not every kernel that has one tool serves the other.
    if asked and _there(node, IPTABLES):
        try:
            for rule in _missing(node, asked):
                # First of all: what somebody accepts further down must not come before it.
                node.runner.run([rule[0], "--wait", "20", "--insert", *rule[1:]], timeout=40)
            return True
        except RunError as err:
            why = err.message
    if not asked:
        return False
    raise NodeError(
        f"{why}: {consequence(asked)}",
        hint="apt-get install nftables, in the image or as a package of the bundle (docs/clients.md)",
    )


def could(node: Node) -> bool:
    """Whether rules are wanted, and there is a tool to set them or nothing may run without."""
    asked = wanted(node)
    return bool(asked) and (asked.required or _there(node, NFT) or _there(node, IPTABLES))


def is_guarded(node: Node) -> bool:
    """Whether the rules are in force now."""
    return bool(_held_by(node, wanted(node)))


def see_to(node: Node, ask: Callable[[], str] = ruleset.generation) -> Guarded:
    """Look, and set again what is gone. Runs no command while nobody has changed the packet filter. Never raises."""
    asked = wanted(node)
    noted = read_json(node.paths.packet_rules)
    before = noted if isinstance(noted, dict) else {}
    if not asked and not before.get("digest"):
        return Guarded()
    digest, generation = _sha256(text(asked)), ask()
    known = (before.get("generation"), before.get("digest")) == (generation, digest)
    if known and generation and before.get("holds"):
        return Guarded(True, required=asked.required)
    why, changed = "", False
    try:
        changed = guard(node)
    except NodeError as err:
        why = err.message
    # Noted is what was before the last look: what somebody changes after it is news to the next one.
    generation = ask() if changed else generation
    by = "" if why else _held_by(node, asked)
    holds = bool(by)
    if by != "nft":
        generation = ""  # it does not count the rules of the old iptables
    same = before.get("digest") == digest
    said = ""
    if changed and same and before.get("holds"):
        said = f"the packet rules were gone: {'set again' if holds else 'and cannot be set again'}"
    elif why and not (same and before.get("why") == why):
        said = f"no packet rules: {why}"
    note = {"holds": holds, "why": why, "generation": generation, "digest": digest if asked else ""}
    if note != before:
        jot(node.paths.packet_rules, note)
    return Guarded(holds if asked else None, said, why, asked.required)


def warnings(node: Node) -> List[str]:
    """What reports say of the rules, by the last look at them: runs no command."""
    asked = wanted(node)
    found = [f"metadata_service.users names {name}, and no account here is called so" for name in asked.strangers]
    noted = read_json(node.paths.packet_rules) if asked else None
    if isinstance(noted, dict) and noted.get("holds") is False:
        found.append(f"no packet rules: {noted.get('why')}")
    return found


def consequence(asked: Wanted) -> str:
    """What is open without the rules."""
    words = ["any user could speak NFS to the servers behind the mounts"] if asked.nfs else []
    if asked.metadata is not None:
        words.append("any user has the node's role from the metadata service")
    return ", and ".join(words)


def text(asked: Wanted) -> str:
    """Our table as nft reads it; without rules it only goes. A rule on `skuid` does not fit a socket without a process.

    A rule is known by its comment: how nft lists a rule differs from version to version.
    """
    begin = f"table inet {TABLE}\ndelete table inet {TABLE}\n"
    if not asked:
        return begin
    chains = ""
    for hook in ("output", "forward"):
        lines = "".join(f'    {rule} comment "{_mark(rule)}"\n' for rule in _rules(asked, hook))
        chains += f"  chain {hook} {{\n    type filter hook {hook} priority 0; policy accept;\n{lines}  }}\n"
    return f"{begin}table inet {TABLE} {{\n{chains}}}\n"


def _rules(asked: Wanted, hook: str) -> List[str]:
    """What is forwarded comes from a container or a machine with a network of its own, and belongs to no user here."""
    who = " meta skuid != 0" if hook == "output" else ""
    rules = []
    if asked.nfs:
        rules += [f"tcp dport {NFS}{who} reject with tcp reset", f"udp dport {NFS}{who} reject"]
    if asked.nfs and hook == "output":
        low, high = asked.ports
        for ip, local in (("ip", LOCAL4), ("ip6", LOCAL6)):
            rules += [
                f'oifname "lo" {ip} daddr {local} tcp dport {low}-{high}{who} reject with tcp reset',
                f'oifname "lo" {ip} saddr {local} tcp sport {low}-{high} '
                f"tcp flags & (syn | ack) == syn | ack{who} drop",
            ]
    if asked.metadata is not None:
        who = f" meta skuid != {{ {', '.join(map(str, asked.metadata))} }}" if who else ""
        rules += [f"ip daddr {METADATA4}{who} reject", f"ip6 daddr {METADATA6}{who} reject"]
    return rules


def _mark(rule: str) -> str:
    return f"hyperpod-kit {_sha256(rule)[:12]}"


def _sha256(words: str) -> str:
    import hashlib  # loads OpenSSL: not for nodes that want no rules

    return hashlib.sha256(words.encode()).hexdigest()


def _held_by(node: Node, asked: Wanted) -> str:
    """`nft` or `iptables`, by whichever the rules are in force; "" when they are not."""
    if _there(node, NFT):
        done = node.runner.run(["nft", "--numeric", "list", "table", "inet", TABLE], timeout=30, check=False)
        if not asked:
            return "nft" if done.returncode != 0 else ""
        marks = [f'comment "{_mark(rule)}"' for hook in ("output", "forward") for rule in _rules(asked, hook)]
        listed = [line.strip() for line in done.stdout.splitlines()]
        rules = [line for line in listed if line and not line.startswith(("table ", "chain ", "type ", "}"))]
        hooks = [line for line in listed if line.startswith("type filter hook ") and "policy accept" in line]
        # All of them, in their order and nothing between: an `accept` before a rule would undo it.
        if (
            done.returncode == 0
            and len(hooks) == 2
            and len(rules) == len(marks)
            and all(rule.endswith(mark) for rule, mark in zip(rules, marks))
        ):
            return "nft"
    if not asked:
        return "nothing"
    return "iptables" if _there(node, IPTABLES) and not _missing(node, asked) else ""


def _missing(node: Node, asked: Wanted) -> List[Sequence[str]]:
    rules = [rule for rule in _old_rules(asked) if _there(node, f"/usr/sbin/{rule[0]}")]
    return [
        rule
        for rule in rules
        if node.runner.run([rule[0], "--wait", "20", "--check", *rule[1:]], timeout=40, check=False).returncode != 0
    ]


def _old_rules(asked: Wanted) -> List[Sequence[str]]:
    """The same for iptables and ip6tables: the command, then what follows `--insert`, in the order of insertion."""
    # A range of uids and not `! --uid-owner 0`: the latter would fit sockets of the kernel, which have no owner.
    user = ["--match", "owner", "--uid-owner", "1-4294967294"]
    reset = ["--jump", "REJECT", "--reject-with", "tcp-reset"]
    found: List[Sequence[str]] = []
    for command, address, local in (("iptables", METADATA4, LOCAL4), ("ip6tables", METADATA6, LOCAL6)):
        if asked.nfs:
            tcp, ports = ["--protocol", "tcp"], f"{asked.ports[0]}:{asked.ports[1]}"
            lo = ["OUTPUT", "--out-interface", "lo", *tcp]
            there, here = ["--destination", local, "--dport", ports], ["--source", local, "--sport", ports]
            found += [
                [command, "OUTPUT", *tcp, "--dport", str(NFS), *user, *reset],
                [command, "FORWARD", *tcp, "--dport", str(NFS), *reset],
                [command, *lo, *there, *user, *reset],
                [command, *lo, *here, "--tcp-flags", "SYN,ACK", "SYN,ACK", *user, "--jump", "DROP"],
            ]
        if asked.metadata is not None:
            found += [
                [command, "FORWARD", "--destination", address, "--jump", "REJECT"],
                [command, "OUTPUT", "--destination", address, *user, "--jump", "REJECT"],
                # Inserted after it, so before it.
                *(
                    [
                        command,
                        "OUTPUT",
                        "--destination",
                        address,
                        "--match",
                        "owner",
                        "--uid-owner",
                        str(uid),
                        "--jump",
                        "RETURN",
                    ]
                    for uid in asked.metadata
                    if uid
                ),
            ]
    return found


def _accounts(node: Node) -> Dict[str, int]:
    """The accounts of this node's own file: a directory service may hang."""
    lines = (read_text(node.paths.real("/etc/passwd")) or "").splitlines()
    fields = [line.split(":") for line in lines]
    return {found[0]: int(found[2]) for found in fields if len(found) == 7 and found[2].isdigit()}


def _there(node: Node, program: str) -> bool:
    return os.path.exists(node.paths.real(program))


def _run(node: Node) -> StepOutcome:
    try:
        return StepOutcome(guard(node))
    except NodeError as err:
        if wanted(node).required:
            raise
        return StepOutcome(detail=f"not set: {err.message}")


def _pending(node: Node) -> str:
    return "set them" if could(node) and not is_guarded(node) else ""


STEP = Step("packet-rules", _run, _pending)
