"""The rehearsal's network: one bridge with 10.x.0.1/16, one network namespace and veth pair per node.

Made by hand instead of by systemd-nspawn, so that a node's address is set from outside, as EC2 does, and the host end
of its link is ours: taking it down is a partition.
"""

from __future__ import annotations

import ipaddress
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Iterable, Tuple

from hyperpod_kit.errors import RehearsalError, RunError
from hyperpod_kit.run import LocalRunner, Runner
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal.metadata.instance_metadata import ADDRESS as METADATA
from hyperpod_rehearsal.records.layout import Layout

CANDIDATES: Tuple[int, ...] = (1, *range(101, 200))
"""Values of x in 10.x.0.0/16, in order of preference."""
_FORWARD_RULE = ("FORWARD", "-j", "ACCEPT")


def choose_free_second_octet(taken_cidrs: Iterable[str]) -> int:
    """The first candidate x whose 10.x.0.0/16 overlaps no network of `taken` (CIDR strings).

    Raises RehearsalError when every candidate is taken.
    """
    networks = []
    for text in taken_cidrs:
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:
            continue
        if network.version == 4 and network.prefixlen > 0:
            networks.append(network)
    for x in CANDIDATES:
        candidate = ipaddress.ip_network(f"10.{x}.0.0/16")
        if not any(candidate.overlaps(network) for network in networks):
            return x
    raise RehearsalError("no free network 10.x.0.0/16 is left on this machine", hint="hyperpod-kit rehearse down --all")


def networks_in_use(runner: Runner) -> list[str]:
    """Destinations of all routes and addresses of this machine, as CIDR strings."""
    networks: list[str] = []
    for route in json.loads(runner.run(["ip", "-j", "-4", "route", "show", "table", "all"]).stdout or "[]"):
        if route.get("dst", "default") != "default":
            networks.append(route["dst"])
    for link in json.loads(runner.run(["ip", "-j", "-4", "addr"]).stdout or "[]"):
        for address in link.get("addr_info", []):
            networks.append(f"{address['local']}/{address['prefixlen']}")
    return networks


def host_name_from_ip(ip: str) -> str:
    """EC2's name of an address: ip-10-1-41-18."""
    return "ip-" + ip.replace(".", "-")


class Network:
    """The bridge of one rehearsal and the links on it. `subnet`: x of 10.x.0.0/16."""

    def __init__(self, layout: Layout, subnet: int, runner: Runner | None = None) -> None:
        self.layout = layout
        self.subnet = subnet
        self._runner = runner or LocalRunner()

    @property
    def gateway(self) -> str:
        return f"10.{self.subnet}.0.1"

    def instance_address(self, group_index: int, instance_index: int) -> str:
        """Address of the n-th instance of the n-th group: 10.x.41.18 is the very first."""
        host = 18 + instance_index
        return f"10.{self.subnet}.{41 + group_index + 32 * (host // 250)}.{host % 250}"

    def _run_ip(self, command: str, check: bool = True) -> None:
        self._runner.run(["ip", *command.split()], timeout=20, check=check)

    def create_bridge(self) -> None:
        """Make the bridge and give it the gateway's address. Raises RunError when the name or address is taken."""
        bridge = self.layout.bridge
        self._run_ip(f"link add {bridge} type bridge")
        self._run_ip(f"addr add {self.gateway}/16 dev {bridge}")
        self._run_ip(f"link set {bridge} up")
        # A node must never reach beyond the rehearsal, even where the host forwards for its containers.
        settings = Path(f"/proc/sys/net/ipv4/conf/{bridge}")
        by_descriptor.write_text(settings / "forwarding", "0")
        Path(f"/proc/sys/net/ipv6/conf/{bridge}/disable_ipv6").write_text("1")
        self._change_forward_rule("-I")

    def _change_forward_rule(self, iptables_action: str) -> None:
        """Insert (-I) or delete (-D) the rule that accepts this bridge's frames.

        Only where bridged frames pass the host's firewall (Docker loads br_netfilter).
        """
        switch = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
        if switch.exists() and switch.read_text().strip() == "1":
            bridge = self.layout.bridge
            chain, *target = _FORWARD_RULE
            # No iptables program, no iptables rules in the way.
            with suppress(RunError):
                self._runner.run(
                    ["iptables", "-w", iptables_action, chain, "-i", bridge, "-o", bridge, *target],
                    timeout=20,
                    check=False,
                )

    def create_node_namespace_and_link(self, instance_id: str, ip: str) -> None:
        """Make a node's network namespace with eth0 at `ip`/16, the default route and the metadata service's address.

        Raises RunError.
        """
        netns, veth = self.layout.netns(instance_id), self.layout.veth(instance_id)
        for command in (
            f"netns add {netns}",
            f"link add {veth} type veth peer name eth0 netns {netns}",
            f"link set {veth} master {self.layout.bridge} up",
            f"-n {netns} addr add {ip}/16 dev eth0",
            f"-n {netns} link set lo up",
            f"-n {netns} addr add {METADATA}/32 dev lo scope host",
            f"-n {netns} link set eth0 up",
            f"-n {netns} route add default via {self.gateway}",
        ):
            self._run_ip(command)

    def require_nodes_reach_gateway_port(self, port: int) -> None:
        """Connect to the gateway as a node would. Raises RehearsalError when this machine's firewall is in the way."""
        probe = "i-00000000000000000"
        self.create_node_namespace_and_link(probe, f"10.{self.subnet}.255.254")
        try:
            self._runner.run(
                [
                    "ip",
                    "netns",
                    "exec",
                    self.layout.netns(probe),
                    "timeout",
                    "5",
                    "bash",
                    "-c",
                    f"exec 3<>/dev/tcp/{self.gateway}/{port}",
                ],
                timeout=15,
            )
        except RunError as err:
            raise RehearsalError(
                f"nodes cannot reach the endpoint {self.gateway}:{port}: this machine's firewall drops what comes in "
                f"on {self.layout.bridge}",
                hint=f"iptables -I INPUT -i {self.layout.bridge} -j ACCEPT",
            ) from err
        finally:
            self.remove_node_namespace_and_link(probe)

    def remove_node_namespace_and_link(self, instance_id: str) -> None:
        """Remove a node's link and network namespace; missing ones are ignored."""
        self._run_ip(f"link del {self.layout.veth(instance_id)}", check=False)
        self._run_ip(f"netns del {self.layout.netns(instance_id)}", check=False)


def set_node_link_state(layout: Layout, instance_id: str, up: bool) -> None:
    """Connect a node or cut it off. Raises RunError when it has no link."""
    LocalRunner().run(["ip", "link", "set", layout.veth(instance_id), "up" if up else "down"], timeout=20)


def remove_rehearsal_network(layout: Layout, runner: Runner) -> None:
    """Remove every link, namespace and the bridge that carry this rehearsal's id, whoever made them."""
    Network(layout, 0, runner)._change_forward_rule("-D")
    prefix = layout.netns("")
    for netns in sorted(name for name in list_network_namespaces() if name.startswith(prefix)):
        runner.run(["ip", "netns", "del", netns], timeout=20, check=False)
    for link in list_links(runner):
        if link == layout.bridge or re.fullmatch(f"hv{layout.id}[0-9a-f]{{8}}", link):
            runner.run(["ip", "link", "del", link], timeout=20, check=False)


def list_network_namespaces() -> list[str]:
    """Names of all named network namespaces of this machine."""
    directory = Path("/run/netns")
    if directory.is_dir():
        return sorted(entry.name for entry in directory.iterdir())
    return []


def list_links(runner: Runner) -> list[str]:
    """Names of all links of this machine."""
    return [str(link["ifname"]) for link in json.loads(runner.run(["ip", "-j", "link"], timeout=20).stdout or "[]")]
