"""A user with an NFS client of his own, or on his way to the node's role: real rules and sockets, in a namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.users import ROOT

CHECKOUT = Path(__file__).parents[2]
NAMESPACE = ["unshare", "--net", "--mount", "--propagation", "private"]


pytestmark = [ROOT, pytest.mark.needs("packet-filter")]

BEGIN = """
import os, socket, subprocess, sys, threading
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.node_config import NodeConfig, User
from hyperpod_kit.node.packets import packet_rules
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.facts import NodeFacts
from hyperpod_kit.node.machine.files import read_json
from hyperpod_kit.node.machine.paths import NodePaths
from hyperpod_kit.node.machine.timing import Clock
from hyperpod_kit.run import LocalRunner
from tests.support.wait import until

ATTACKER, LISTED = 4001, 4002
EFS = EfsMount("data", "/efs", "fs-0123456789abcdef0")
HOME = EfsMount("home-alice", "/home/.homes/alice/home", "fs-0123456789abcdef0", "fsap-0123456789abcdef0", iam=True,
                owner="alice")

class Counting(LocalRunner):
    calls = 0
    def run(self, argv, **more):
        Counting.calls += 1
        return super().run(argv, **more)

def node_of(*mounts, metadata=None):
    config = NodeConfig("demo", "on_create", {"g": "compute"}, mounts,
                        (User("alice", LISTED, LISTED),), metadata_users=metadata)
    return Node(NodePaths(""), config, NodeFacts("n", "10.0.0.1", "i-1", "g", "compute", "us-east-1", "aws", None),
                Counting(), Clock())

def serve(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.create_server((address, port), family=family)
    def answer():
        while True:
            connection, _ = server.accept()
            connection.sendall(b"served")
            connection.close()
    threading.Thread(target=answer, daemon=True).start()

def serve_as(uid, address, port):
    "The same by a process of that user; its pid."
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([]); os.setgid(uid); os.setuid(uid)
        server = socket.create_server((address, port))
        os.write(writer, b"x")
        while True:
            connection, _ = server.accept()
            connection.sendall(b"served")
            connection.close()
    assert os.read(reader, 1) == b"x"
    return pid

def reaches(uid, address, port, family=socket.AF_INET, protocol=0):
    "Whether a process of that user gets a byte from there."
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([]); os.setgid(uid); os.setuid(uid)
            with socket.socket(family, socket.SOCK_STREAM, protocol) as sock:
                sock.settimeout(20)
                sock.connect((address, port))
                os._exit(0 if sock.recv(10) == b"served" else 1)
        except OSError:
            os._exit(1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

def nft(*words):
    return subprocess.run(["nft", *words], check=True, text=True, stdout=subprocess.PIPE, timeout=20).stdout

subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
# Without nodad the kernel lets nobody bind the address of IPv6 until it has looked for others that have it, later on.
# Its route comes later all the same, from a kernel thread: until then, nobody reaches the address.
for words in (["link", "set", "lo", "up"], ["addr", "add", "10.99.0.1/32", "dev", "lo"],
              ["addr", "add", "169.254.169.254/32", "dev", "lo"],
              ["addr", "add", "fd00:ec2::254/128", "dev", "lo", "nodad"]):
    subprocess.run(["ip", *words], check=True)
def has_route(address):
    return address in subprocess.run(["ip", "-6", "route", "show", "table", "local"], text=True, check=True,
                                     stdout=subprocess.PIPE).stdout
until(lambda: has_route("fd00:ec2::254"), 20, what="a route to the address of IPv6")
"""

NFS = (
    BEGIN
    + """
WAYS = [("10.99.0.1", socket.AF_INET, 0), ("127.0.0.1", socket.AF_INET, 0), ("::1", socket.AF_INET6, 0),
        ("::ffff:10.99.0.1", socket.AF_INET6, 0)]
try:
    socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).close()
    WAYS += [("10.99.0.1", socket.AF_INET, 262), ("::1", socket.AF_INET6, 262)]  # MPTCP
except OSError:
    pass
serve("0.0.0.0", 2049)
serve("::1", 2049)
serve("127.0.0.1", 20050)
serve("::1", 20050)
assert all(reaches(ATTACKER, address, 2049, family, protocol) for address, family, protocol in WAYS), "the attack works"
assert reaches(ATTACKER, "127.0.0.1", 20050)
node = node_of(EFS)
assert packet_rules.ensure_rules_and_reserve_ports(node) and not packet_rules.ensure_rules_and_reserve_ports(node)
for address, family, protocol in WAYS:
    assert not reaches(ATTACKER, address, 2049, family, protocol), (address, protocol)
    assert reaches(0, address, 2049, family, protocol), (address, protocol)
assert not reaches(ATTACKER, "127.0.0.1", 20050) and reaches(0, "127.0.0.1", 20050)
assert not reaches(ATTACKER, "::1", 20050, socket.AF_INET6) and reaches(0, "::1", 20050, socket.AF_INET6)
assert not reaches(ATTACKER, "::ffff:127.0.0.1", 20050, socket.AF_INET6), "a mapped address"
# Rank 0 of a job reaches its own address by the loopback device: whose port that is, is the job's business.
serving = serve_as(ATTACKER, "10.99.0.1", 20060)
assert reaches(ATTACKER, "10.99.0.1", 20060) and reaches(LISTED, "10.99.0.1", 20060)
os.kill(serving, 9)
# Root of a user namespace of his own is still nobody here; with a network of his own he reaches nothing at all.
tell = ("import socket; s = socket.socket(); s.settimeout(20); s.connect(('10.99.0.1', 2049)); "
        "print(s.recv(10).decode())")
for namespace in (["--user", "--map-root-user"], ["--user", "--map-root-user", "--net"]):
    done = subprocess.run(["setpriv", "--reuid=4001", "--regid=4001", "--clear-groups", "unshare", *namespace,
                           "python3", "-c", tell], text=True, timeout=60, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE)
    assert "served" not in done.stdout, namespace
# Datagrams: a send on a connected socket hears of the refusal.
pid = os.fork()
if pid == 0:
    os.setgroups([]); os.setgid(ATTACKER); os.setuid(ATTACKER)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(("10.99.0.1", 2049))
    try:
        sock.send(b"x")
    except OSError:
        os._exit(0)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
# A server beside a table of others' that accepts everything.
nft("add", "table", "inet", "other")
nft("add", "chain", "inet", "other", "out", "{ type filter hook output priority -10 ; policy accept ; }")
nft("add", "rule", "inet", "other", "out", "accept")
assert not reaches(ATTACKER, "10.99.0.1", 2049)
print("all of it")
"""
)

DEAD_PROXY = (
    BEGIN
    + """
node = node_of(EFS)

def root_is_served(port):
    with socket.socket() as sock:
        sock.settimeout(2.5)
        try:
            sock.connect(("127.0.0.1", port))
            return sock.recv(10) == b"served"
        except OSError:
            return False

pid = serve_as(ATTACKER, "127.0.0.1", 20051)
assert root_is_served(20051), "the attack works"
packet_rules.ensure_rules_and_reserve_ports(node)
assert not root_is_served(20051)
os.kill(pid, 9)
os.waitpid(pid, 0)
# Nor does chance give a proxy's port to anybody: the kernel does not hand it out.
with open("/proc/sys/net/ipv4/ip_local_port_range", "w") as file:
    file.write("20050 20053")
with socket.socket() as sock:
    try:
        sock.bind(("127.0.0.1", 0))
        found = sock.getsockname()[1]
    except OSError:
        found = 0
assert not 20049 <= found <= 21049, found
print("all of it")
"""
)

GONE = (
    BEGIN
    + """
serve("10.99.0.1", 2049)
node = node_of(HOME)
first = packet_rules.restore_rules(node)
assert first.in_force and first.required and read_json(node.paths.packet_rules_note)["generation"], first
Counting.calls = 0
assert packet_rules.restore_rules(node).in_force
assert Counting.calls == 0, "a look costs no process while nobody changed anything"
for change in (("flush", "ruleset"), ("delete", "table", "inet", "hyperpod_kit"),
               ("flush", "chain", "inet", "hyperpod_kit", "output"),
               ("insert", "rule", "inet", "hyperpod_kit", "output", "accept")):
    nft(*change)
    assert reaches(ATTACKER, "10.99.0.1", 2049), change
    found = packet_rules.restore_rules(node)
    assert found.in_force and found.message == "the packet rules were gone: set again", (change, found)
    assert not reaches(ATTACKER, "10.99.0.1", 2049), change
# What others do with tables of their own is looked at, and nothing is said.
nft("add", "table", "inet", "docker")
assert packet_rules.restore_rules(node).message == "" and packet_rules.warnings(node) == []
# A configuration without any of it leaves nothing behind.
gone = packet_rules.restore_rules(node_of(LustreMount("fsx", "/fsx", "fs-1", "abcdefgh")))
assert gone.in_force is None and "hyperpod_kit" not in nft("list", "ruleset")
Counting.calls = 0
assert packet_rules.restore_rules(node_of()).in_force is None and Counting.calls == 0
# And where it cannot be set, it is said once, by the report for as long as it lasts, and the gate closes for homes.
packet_rules.NFT = packet_rules.IPTABLES = packet_rules.IP6TABLES = "/nowhere"
found = packet_rules.restore_rules(node)
assert found.in_force is False and "could speak NFS" in found.message, found
assert packet_rules.restore_rules(node).message == "" and "could speak NFS" in packet_rules.warnings(node)[0]
from hyperpod_kit.node.commands import prolog_gate
assert "could speak NFS" in prolog_gate.restore_rules_or_reason(node)
assert prolog_gate.restore_rules_or_reason(node_of(EFS)) == "", "what is no home stays usable"
print("all of it")
"""
)

METADATA = (
    BEGIN
    + """
ROLE = [("169.254.169.254", socket.AF_INET), ("fd00:ec2::254", socket.AF_INET6)]
WAYS = [(address, 80, family) for address, family in ROLE]
for address, _ in ROLE:
    serve(address, 80)
def who():
    found = {uid: [reaches(uid, *way) for way in WAYS] for uid in (0, ATTACKER, LISTED)}
    return {uid for uid in found if all(found[uid])}, {uid for uid in found if any(found[uid])}
assert packet_rules.restore_rules(node_of()).in_force is None and who() == ({0, ATTACKER, LISTED},) * 2
assert packet_rules.restore_rules(node_of(metadata=())).in_force and who() == ({0}, {0})
listed = node_of(metadata=("alice", "nobody-of-that-name"))
assert packet_rules.restore_rules(listed).in_force and who() == ({0, LISTED},) * 2
assert "nobody-of-that-name" in packet_rules.warnings(listed)[0]
nft("flush", "ruleset")
assert packet_rules.restore_rules(listed).message and who() == ({0, LISTED},) * 2
assert packet_rules.restore_rules(node_of()).in_force is None and who() == ({0, ATTACKER, LISTED},) * 2
# What comes out of a container's own network is nobody's of this node: closed too.
table = packet_rules.nft_table(packet_rules.expected_rules(listed))
assert "ip daddr 169.254.169.254 reject" in table.partition("chain forward")[2]
print("all of it")
"""
)

OLD = (
    BEGIN
    + """
if subprocess.run(["iptables", "--list"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
    print("no iptables here: all of it")
    sys.exit()
packet_rules.NFT = "/nowhere"
serve("10.99.0.1", 2049)
for address in ("169.254.169.254", "fd00:ec2::254"):
    serve(address, 80)
for command in ("iptables", "ip6tables"):
    subprocess.run([command, "--append", "OUTPUT", "--jump", "ACCEPT"], check=True)
node = node_of(EFS, metadata=("alice",))
assert packet_rules.ensure_rules_and_reserve_ports(node) and not packet_rules.ensure_rules_and_reserve_ports(node)
assert not reaches(ATTACKER, "10.99.0.1", 2049) and reaches(0, "10.99.0.1", 2049)
for address, family in (("169.254.169.254", socket.AF_INET), ("fd00:ec2::254", socket.AF_INET6)):
    found = [reaches(uid, address, 80, family) for uid in (0, ATTACKER, LISTED)]
    assert found == [True, False, True], (address, found)
for address, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
    serve(address, 20050)
    assert not reaches(ATTACKER, address, 20050, family) and reaches(0, address, 20050, family)
serving = serve_as(ATTACKER, "10.99.0.1", 20060)
assert reaches(ATTACKER, "10.99.0.1", 20060)
os.kill(serving, 9)
assert packet_rules.restore_rules(node).in_force
assert read_json(node.paths.packet_rules_note)["generation"] == "", "the old tables are not counted: each check looks"
subprocess.run(["iptables", "--flush"], check=True)
assert packet_rules.restore_rules(node).message == "the packet rules were gone: set again"
assert not reaches(ATTACKER, "10.99.0.1", 2049)
print("all of it")
"""
)


def run(program: str) -> None:
    # Its servers end with it, however it ends.
    done = subprocess.run(
        [*NAMESPACE, "--pid", "--fork", "--kill-child", sys.executable, "-c", program],
        text=True,
        timeout=200,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "HPK_ROOT": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.stdout.endswith("all of it\n"), done.stdout


def test_nfs_by_every_way_there_is() -> None:
    """IPv4, IPv6, a mapped address, MPTCP, datagrams, a user namespace; beside a table that accepts everything."""
    run(NFS)


def test_the_port_of_a_dead_proxy() -> None:
    """Whoever finds it free may listen there, and is not heard by root."""
    run(DEAD_PROXY)


def test_rules_that_somebody_took_away() -> None:
    run(GONE)


def test_the_role_of_the_node() -> None:
    run(METADATA)


def test_with_the_tools_of_before() -> None:
    """iptables, where a rule of somebody's accepts everything."""
    run(OLD)
