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

import contextlib
import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, read_text, try_write_volatile_json
from hyperpod_kit.node.machine.step import Step, StepOutcome
from hyperpod_kit.node.packets import ruleset
from hyperpod_kit.untrusted import by_descriptor

NFT, IPTABLES, IP6TABLES = "/usr/sbin/nft", "/usr/sbin/iptables", "/usr/sbin/ip6tables"
TABLE = "hyperpod_kit"
NFS = 2049
METADATA4, METADATA6 = "169.254.169.254", "fd00:ec2::254"
LOCAL4, LOCAL6 = "127.0.0.1", "::1"


@dataclass(frozen=True)
class ExpectedRules:
    """nfs: whether an NFS mount is configured; required: whether nothing may run without the rules (homes, the metadata
    service); metadata: uids besides root that may use the metadata service, None where everybody may; ports: of the
    proxies; unknown_names: names in the configuration that no account here has."""

    nfs: bool
    required: bool
    metadata: Optional[Tuple[int, ...]]
    ports: Tuple[int, int]
    unknown_names: Tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.nfs or self.metadata is not None


@dataclass(frozen=True)
class RulesState:
    """What a look found. in_force: whether the rules are in force, None where none are wanted; message: a line for a
    person, "" when nothing is new; reason: what keeps them from being set."""

    in_force: Optional[bool] = None
    message: str = ""
    reason: str = ""
    required: bool = False


def expected_rules(node: Node) -> ExpectedRules:
    """What the configuration asks for on this node."""
    nfs = [mount for mount in node.mounts if mount.traits.nfs]
    homes = any(mount.owner for mount in nfs)
    names, uids = node.config.metadata_users, None
    unknown_names: List[str] = []
    if names is not None:
        if names:
            accounts = _local_uids_by_name(node)
        else:
            accounts = {}
        accounts.update((user.name, user.uid) for user in node.config.users)
        uids = tuple(sorted({accounts[name] for name in names if name in accounts} | {0}))
        unknown_names = [name for name in names if name not in accounts]
    if nfs:
        ports = proxy_port_range(node)
    else:
        ports = PORTS
    return ExpectedRules(bool(nfs), homes or names is not None, uids, ports, tuple(unknown_names))


def ensure_rules_and_reserve_ports(node: Node) -> bool:
    """Have the rules in force; True when they were not. Raises NodeError where that cannot be."""
    expected = expected_rules(node)
    if expected.nfs:
        try_newly_reserve_ports_in_kernel(node, *expected.ports)
    if _tool_enforcing_rules_or_empty(node, expected):
        return False
    reason = f"neither {NFT} nor {IPTABLES} is installed"
    if _is_program_present(node, NFT):
        try:
            # In one transaction: the table is never without its rules.
            node.runner.run(["nft", "--file", "-"], timeout=40, input=nft_table(expected))
            return True
        except RunError as err:
            reason = err.message
    # Not every kernel that has one tool serves the other.
    if expected and _is_program_present(node, IPTABLES):
        try:
            for rule in _missing_iptables_rules(node, expected):
                # First of all: what somebody accepts further down must not come before it.
                node.runner.run([rule[0], "--wait", "20", "--insert", *rule[1:]], timeout=40)
            return True
        except RunError as err:
            reason = err.message
    if not expected:
        return False
    raise NodeError(
        f"{reason}: {exposure_without_rules(expected)}",
        hint="apt-get install nftables, in the image or as a package of the bundle",
    )


def remove_rules(node: Node) -> None:
    """Take the rules of the configuration away again, with either tool; what is not there is fine."""
    if _is_program_present(node, NFT):
        node.runner.run(["nft", "--file", "-"], timeout=40, input=f"table inet {TABLE}\ndelete table inet {TABLE}\n")
    for rule in _iptables_rules(expected_rules(node)):
        if _is_program_present(node, f"/usr/sbin/{rule[0]}"):
            node.runner.run([rule[0], "--wait", "20", "--delete", *rule[1:]], timeout=40, check=False)


def are_rules_configured_and_settable(node: Node) -> bool:
    """Return whether rules are configured, and there is a tool to set them or nothing may run without."""
    expected = expected_rules(node)
    return bool(expected) and (
        expected.required or _is_program_present(node, NFT) or _is_program_present(node, IPTABLES)
    )


def are_rules_in_force(node: Node) -> bool:
    """Whether the rules are in force now."""
    return bool(_tool_enforcing_rules_or_empty(node, expected_rules(node)))


def restore_rules(
    node: Node, query_generation: Callable[[], str] = ruleset.packet_filter_generation_or_empty
) -> RulesState:
    """Set the rules again where they are missing, and record the state. Runs no command while nobody has
    changed the packet filter. Never raises."""
    expected = expected_rules(node)
    last = _last_note(node)
    if not expected and not last.get("digest"):
        return RulesState()
    digest, generation = _sha256(nft_table(expected)), query_generation()
    is_unchanged = (last.get("generation"), last.get("digest")) == (generation, digest)
    if is_unchanged and generation and last.get("holds"):
        return RulesState(True, required=expected.required)
    reason, changed = "", False
    try:
        changed = ensure_rules_and_reserve_ports(node)
    except NodeError as err:
        reason = err.message
    # Noted is what was before the last look: what somebody changes after it is news to the next one.
    if changed:
        generation = query_generation()
    tool = ""
    if not reason:
        tool = _tool_enforcing_rules_or_empty(node, expected)
    in_force = bool(tool)
    if tool != "nft":
        generation = ""  # it does not count the rules of the old iptables
    message = ""
    if changed and last.get("digest") == digest and last.get("holds"):
        message = _restored_message(in_force)
    elif reason and (last.get("digest"), last.get("why")) != (digest, reason):
        message = f"no packet rules: {reason}"
    note = {"holds": in_force, "why": reason, "generation": generation, "digest": digest if expected else ""}
    if note != last:
        try_write_volatile_json(node.paths.packet_rules_note, note)
    return RulesState(in_force if expected else None, message, reason, expected.required)


def _last_note(node: Node) -> Dict[str, Any]:
    recorded = read_json(node.paths.packet_rules_note)
    if isinstance(recorded, dict):
        return recorded
    return {}


def _restored_message(in_force: bool) -> str:
    if in_force:
        return "the packet rules were gone: set again"
    return "the packet rules were missing and cannot be set again"


def warnings(node: Node) -> List[str]:
    """Return what reports say of the rules, by their recorded state: runs no command."""
    expected = expected_rules(node)
    lines = [
        f"metadata_service.users names {name}, but this node has no such account" for name in expected.unknown_names
    ]
    noted = None
    if expected:
        noted = read_json(node.paths.packet_rules_note)
    if isinstance(noted, dict) and noted.get("holds") is False:
        lines.append(f"no packet rules: {noted.get('why')}")
    return lines


def exposure_without_rules(expected: ExpectedRules) -> str:
    """What is open without the rules."""
    parts = []
    if expected.nfs:
        parts = ["any user could speak NFS to the servers behind the mounts"]
    if expected.metadata is not None:
        parts.append("any user has the node's role from the metadata service")
    return ", and ".join(parts)


def nft_table(expected: ExpectedRules) -> str:
    """Render the kit's table as nft reads it; without rules it is only deleted. A rule on `skuid` does not fit
    a socket without a process.

    A rule is recognised by its comment: how nft lists a rule differs from version to version.
    """
    begin = f"table inet {TABLE}\ndelete table inet {TABLE}\n"
    if not expected:
        return begin
    chains = ""
    for hook in ("output", "forward"):
        lines = "".join(f'    {rule} comment "{_rule_comment(rule)}"\n' for rule in _nft_rules_of_hook(expected, hook))
        chains += f"  chain {hook} {{\n    type filter hook {hook} priority 0; policy accept;\n{lines}  }}\n"
    return f"{begin}table inet {TABLE} {{\n{chains}}}\n"


def _nft_rules_of_hook(expected: ExpectedRules, hook: str) -> List[str]:
    """Render the rules of one hook. What is forwarded comes from a container or a machine with a network of
    its own, and belongs to no user here."""
    who = ""
    if hook == "output":
        who = " meta skuid != 0"
    rules = []
    if expected.nfs:
        rules += [f"tcp dport {NFS}{who} reject with tcp reset", f"udp dport {NFS}{who} reject"]
    if expected.nfs and hook == "output":
        low, high = expected.ports
        for ip, local in (("ip", LOCAL4), ("ip6", LOCAL6)):
            rules += [
                f'oifname "lo" {ip} daddr {local} tcp dport {low}-{high}{who} reject with tcp reset',
                f'oifname "lo" {ip} saddr {local} tcp sport {low}-{high} '
                f"tcp flags & (syn | ack) == syn | ack{who} drop",
            ]
    if expected.metadata is not None:
        if who:
            who = f" meta skuid != {{ {', '.join(map(str, expected.metadata))} }}"
        else:
            who = ""
        rules += [f"ip daddr {METADATA4}{who} reject", f"ip6 daddr {METADATA6}{who} reject"]
    return rules


def _rule_comment(rule: str) -> str:
    return f"hyperpod-kit {_sha256(rule)[:12]}"


def _sha256(text: str) -> str:
    import hashlib  # loads OpenSSL: not for nodes that want no rules

    return hashlib.sha256(text.encode()).hexdigest()


def _tool_enforcing_rules_or_empty(node: Node, expected: ExpectedRules) -> str:
    """`nft` or `iptables`, by whichever the rules are in force; "" when they are not."""
    if _is_program_present(node, NFT):
        done = node.runner.run(["nft", "--numeric", "list", "table", "inet", TABLE], timeout=30, check=False)
        if not expected:
            if done.returncode != 0:
                return "nft"
            return ""
        comments = [
            f'comment "{_rule_comment(rule)}"'
            for hook in ("output", "forward")
            for rule in _nft_rules_of_hook(expected, hook)
        ]
        listed = [line.strip() for line in done.stdout.splitlines()]
        rules = [line for line in listed if line and not line.startswith(("table ", "chain ", "type ", "}"))]
        hooks = [line for line in listed if line.startswith("type filter hook ") and "policy accept" in line]
        # All of them, in their order and nothing between: an `accept` before a rule would undo it.
        if (
            done.returncode == 0
            and len(hooks) == 2
            and len(rules) == len(comments)
            and all(rule.endswith(comment) for rule, comment in zip(rules, comments))
        ):
            return "nft"
    if not expected:
        return "nothing"
    if _is_program_present(node, IPTABLES) and not _missing_iptables_rules(node, expected):
        return "iptables"
    return ""


def _missing_iptables_rules(node: Node, expected: ExpectedRules) -> List[Sequence[str]]:
    rules = [rule for rule in _iptables_rules(expected) if _is_program_present(node, f"/usr/sbin/{rule[0]}")]
    return [
        rule
        for rule in rules
        if node.runner.run([rule[0], "--wait", "20", "--check", *rule[1:]], timeout=40, check=False).returncode != 0
    ]


def _iptables_rules(expected: ExpectedRules) -> List[Sequence[str]]:
    """The same for iptables and ip6tables: the command, then what follows `--insert`, in the order of insertion."""
    # A range of uids and not `! --uid-owner 0`: the latter would fit sockets of the kernel, which have no owner.
    user = ["--match", "owner", "--uid-owner", "1-4294967294"]
    reset = ["--jump", "REJECT", "--reject-with", "tcp-reset"]
    rules: List[Sequence[str]] = []
    for command, address, local in (("iptables", METADATA4, LOCAL4), ("ip6tables", METADATA6, LOCAL6)):
        if expected.nfs:
            tcp, ports = ["--protocol", "tcp"], f"{expected.ports[0]}:{expected.ports[1]}"
            lo = ["OUTPUT", "--out-interface", "lo", *tcp]
            to_proxy, from_proxy = ["--destination", local, "--dport", ports], ["--source", local, "--sport", ports]
            rules += [
                [command, "OUTPUT", *tcp, "--dport", str(NFS), *user, *reset],
                [command, "FORWARD", *tcp, "--dport", str(NFS), *reset],
                [command, *lo, *to_proxy, *user, *reset],
                [command, *lo, *from_proxy, "--tcp-flags", "SYN,ACK", "SYN,ACK", *user, "--jump", "DROP"],
            ]
        if expected.metadata is not None:
            rules += [
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
                    for uid in expected.metadata
                    if uid
                ),
            ]
    return rules


def _local_uids_by_name(node: Node) -> Dict[str, int]:
    """Return the uid of each account of this node's own file: a directory service may hang."""
    lines = (read_text(node.paths.under_root("/etc/passwd")) or "").splitlines()
    rows = [line.split(":") for line in lines]
    return {
        account_fields[0]: int(account_fields[2])
        for account_fields in rows
        if len(account_fields) == 7 and account_fields[2].isdigit()
    }


def _is_program_present(node: Node, program: str) -> bool:
    return os.path.exists(node.paths.under_root(program))


def _apply_packet_rules(node: Node) -> StepOutcome:
    try:
        return StepOutcome(ensure_rules_and_reserve_ports(node))
    except NodeError as err:
        if expected_rules(node).required:
            raise
        return StepOutcome(detail=f"not set: {err.message}")


def _describe_pending_changes(node: Node) -> str:
    if are_rules_configured_and_settable(node) and not are_rules_in_force(node):
        return "set them"
    return ""


STEP = Step("packet-rules", _apply_packet_rules, _describe_pending_changes)


# The ports that efs-utils gives to its local proxies, and keeping the kernel from giving them to anybody else.

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
