"""Names on the host, and the way back from what a person types to a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperpod_kit.environment import HPK_REHEARSAL_STATE
from hyperpod_kit.errors import RehearsalError
from hyperpod_rehearsal import targets
from hyperpod_rehearsal.machines import cgroups, host_mounts
from hyperpod_rehearsal.records import layout
from hyperpod_rehearsal.records.layout import Layout

HYBRID = """\
31 20 0:27 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro
32 31 0:28 / /sys/fs/cgroup/unified rw shared:5 - cgroup2 cgroup2 rw
33 31 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
34 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
36 31 0:32 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices
37 31 0:33 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
38 31 0:34 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
"""


def test_every_name_carries_the_id_and_fits_the_kernel():
    layout, other_layout = Layout(Path("/var/tmp/x/demo")), Layout(Path("/var/tmp/x/demo2"))
    assert layout.id != other_layout.id and layout.id == Layout(Path("/var/tmp/x/demo")).id
    for name in (layout.bridge, layout.veth("i-0123456789abcdef0"), layout.netns("i-0123456789abcdef0"), layout.cgroup):
        assert layout.id in name
    assert len(layout.bridge) <= 15 and len(layout.veth("i-0123456789abcdef0")) <= 15


def test_existing_rehearsals_are_directories_with_a_name(tmp_path, monkeypatch):
    monkeypatch.setenv(HPK_REHEARSAL_STATE, str(tmp_path / "base"))
    assert layout.existing_rehearsals() == []
    (tmp_path / "base/demo").mkdir(parents=True)
    (tmp_path / "base/.hidden").mkdir()
    (tmp_path / "base/file").touch()
    assert [existing.root.name for existing in layout.existing_rehearsals()] == ["demo"]


def test_hierarchies_of_a_hybrid_host():
    mounts = {entry.kind: str(entry.mount) for entry in cgroups.mounted_hierarchies(HYBRID)}
    assert mounts == {
        "v2": "/sys/fs/cgroup/unified",
        "name=systemd": "/sys/fs/cgroup/systemd",
        "memory": "/sys/fs/cgroup/memory",
        "devices": "/sys/fs/cgroup/devices",
        "freezer": "/sys/fs/cgroup/freezer",
        "pids": "/sys/fs/cgroup/pids",
    }


def test_hierarchies_of_a_v2_host():
    hierarchies = cgroups.mounted_hierarchies(
        "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    assert [(entry.kind, str(entry.mount)) for entry in hierarchies] == [("v2", "/sys/fs/cgroup")]


def test_mounts_below_are_newest_first_and_unescaped():
    text = """\
10 1 0:1 / / rw - ext4 /dev/vda rw
11 10 0:2 / /var/tmp/x/demo/image ro - squashfs /dev/loop0 ro
12 10 0:3 / /var/tmp/x/demo/nodes/i-1/root rw - overlay o rw
13 10 0:4 / /var/tmp/x/demo2/image ro - squashfs /dev/loop1 ro
14 12 0:5 / /var/tmp/x/demo/a\\040b rw - tmpfs tmpfs rw
"""
    assert [str(point) for point in host_mounts.mount_points_below(Path("/var/tmp/x/demo"), text)] == [
        "/var/tmp/x/demo/a b",
        "/var/tmp/x/demo/nodes/i-1/root",
        "/var/tmp/x/demo/image",
    ]


def node(instance_id, stable_name, ip, role=""):
    return {
        "instance_id": instance_id,
        "place": stable_name,
        "ip": ip,
        "host": "ip-" + ip.replace(".", "-"),
        "role": role,
    }


STATE = {
    "clusters": [
        {
            "name": "demo",
            "nodes": [node("i-1", "head/0", "10.1.41.18", "Controller"), node("i-2", "gpu/0", "10.1.42.18")],
        },
        {"name": "other", "nodes": [node("i-3", "gpu/0", "10.1.42.19")]},
    ]
}


@pytest.mark.parametrize(
    "text", ["i-1", "ip-10-1-41-18", "ip-10-1-41-18.ec2.internal", "10.1.41.18", "head/0", "controller"]
)
def test_a_node_is_found_by_all_its_names(text):
    assert targets.find_node(STATE, text)["instance_id"] == "i-1"


def test_an_ambiguous_name_lists_the_candidates():
    with pytest.raises(RehearsalError, match=r"i-2 of demo, i-3 of other"):
        targets.find_node(STATE, "gpu/0")


def test_an_unknown_name_lists_what_is_there():
    with pytest.raises(RehearsalError, match=r"no node gpu/7; there are: head/0, gpu/0, gpu/0"):
        targets.find_node(STATE, "gpu/7")


def test_ssh_verifies_the_host_key(tmp_path):
    line = " ".join(targets.ssh_command(Layout(tmp_path), STATE["clusters"][0]["nodes"][0], ["uptime"], tty=False))
    assert "StrictHostKeyChecking=yes" in line and str(tmp_path / "known_hosts") in line
    assert line.endswith("root@10.1.41.18 uptime")
