"""Enroot and pyxis as optional steps, on machines: packages of the real ones, given; `srun --container-image`.

One cluster: made, used, a worker killed and replaced, the steps killed in the middle, and both taken back.
"""

from __future__ import annotations

import json
import platform
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, Iterator, List

import containers
import pytest
from containers import IMAGES, PYTHON, SH
from driver import CONFIG, Driver, wait_until

from tests.rehearsal.conftest import CACHE
from tests.rehearsal.given_packages import ARCHITECTURES, entry, given

pytestmark = [
    pytest.mark.full,  # minutes of machines of its own
    pytest.mark.needs("pyxis"),
    pytest.mark.needs("containers"),
]

NAME = "images"
NVME = "/opt/dlami/nvme/enroot"
PLUGSTACK = "/opt/slurm/etc/plugstack.conf"
LIBRARY = f"usr/lib/{platform.machine()}-linux-gnu/slurm"
BARE = """\
#!/bin/bash
# These machines have both without packages, for other tests.
dpkg-query -W enroot >/dev/null 2>&1 && exit 0
rm -rf /usr/bin/enroot* /usr/lib/enroot /etc/enroot /usr/lib/slurm/spank_pyxis.so /usr/lib/tmpfiles.d/enroot.conf
"""
CONTROL = """\
Package: {name}
Version: {version}
Architecture: {arch}
Maintainer: nobody <nobody@example.com>
Description: built from NVIDIA's sources by a test
"""


def packages(beside: Path) -> List[Dict[str, Any]]:
    """Entries of hyperpod_kit.clients for enroot, what it calls, and pyxis."""
    tree = beside / "tree"
    subprocess.run(
        ["bash", str(containers.sources() / "build.sh"), str(tree)], check=True, capture_output=True, timeout=300
    )
    plugin = beside / "plugin" / LIBRARY
    plugin.mkdir(parents=True)
    shutil.move(str(tree / containers.PLUGIN[1:]), str(plugin))
    shutil.rmtree(tree / "usr/lib/slurm")
    made = [_deb(tree, "enroot", "4.1.2-1"), _deb(beside / "plugin", "nvslurm-plugin-pyxis", "0.24.0-1")]
    others = given("enroot", "squashfs-tools bsdextrautils", beside, CACHE)
    return [*others, *(entry(client, path, beside) for client, path in zip(("enroot", "pyxis"), made))]


def _deb(root: Path, name: str, version: str) -> Path:
    asked = subprocess.check_output(["dpkg", "--print-architecture"], text=True)
    arch = asked.strip()
    assert arch in ARCHITECTURES
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN/control").write_text(CONTROL.format(name=name, version=version, arch=arch))
    made = root.parent / f"{name}_{version}_{arch}.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", str(root), str(made)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return made


class Site:
    """The cluster `images` of the session's rehearsal."""

    def __init__(self, driver: Driver, config: Path) -> None:
        self.driver, self.config = driver, config

    def nodes(self, group: str) -> List[str]:
        found = self.driver.data("list-cluster-nodes", str(self.config))["nodes"]
        return [node["instance_id"] for node in found if node["group"] == group and node["status"] == "Running"]

    @property
    def head(self) -> str:
        return self.nodes("controller-machine")[0]

    @property
    def worker(self) -> str:
        return self.nodes("worker-group")[0]

    def on(self, command: str, node: str, user: str = "") -> str:
        line = f"cd /tmp; exec 2>&1; {command}"
        words = f"runuser -u {user} -- bash -c {shlex.quote(line)}" if user else line
        return self.driver.on(node, words, check=False, timeout=300).strip()

    def srun(self, command: str, *options: str, image: str = SH) -> str:
        line = ["srun", "-Q", "-t2", f"--container-image={IMAGES}/{image}", *options, "sh", "-c", command]
        return self.on(shlex.join(line), self.head, "trainer")

    def all_idle(self) -> None:
        def idle() -> bool:
            return self.on("sinfo -h -o %t | sort -u", self.head).split() == ["idle"]

        wait_until("idle nodes", idle, timeout=240)

    def is_settled(self, node: str) -> None:
        assert self.on("hyperpod-kit node plan", node).splitlines()[-1] == "changed=0"

    def applies(self, node: str) -> str:
        said = self.on("hyperpod-kit node apply", node)
        assert " ok: " in said.splitlines()[-1] and "failed" not in said, said
        return said


@pytest.fixture(scope="module")
def site(endpoint: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    beside = tmp_path_factory.mktemp("images")
    (beside / "bare.sh").write_text(BARE)
    (beside / "bare.sh").chmod(0o755)
    values: Dict[str, Any] = json.loads(CONFIG.read_text())
    kit = values["hyperpod_kit"]
    kit["cluster"]["name"] = NAME
    kit["cluster"]["instance_groups"][1].update(count=2, instance_type="ml.p5.48xlarge")
    kit["steps"] = {"enroot": {}, "pyxis": {}}
    kit["scripts"] = [{"name": "bare", "path": "bare.sh", "when": "before-mounts", "timeout": 60}]
    kit["clients"] = packages(beside)
    config = beside / "config.json"
    config.write_text(json.dumps(values))
    endpoint.kit("validate", str(config))
    endpoint.kit("upload", str(config))
    try:
        endpoint.kit("create-cluster", str(config), "--wait", timeout=900)
        yield Site(endpoint, config)
    finally:
        endpoint.kit("delete-cluster", "--cluster", NAME, "--yes", check=False)
        wait_until(
            "end of the cluster",
            lambda: NAME not in endpoint.kit("list-clusters", "--json", check=False),
            timeout=240,
        )


def test_a_user_trains_in_an_image(site: Site) -> None:
    site.all_idle()
    assert site.srun("id -u; type python3", "-N2", image=PYTHON).split().count("2001") == 2
    assert site.srun("type python3 || echo none").splitlines()[-1] == "none", "it is the image that it should be"
    for node in (site.head, *site.nodes("worker-group")):
        site.is_settled(node)


def test_what_is_unpacked_is_on_the_local_disk_and_everybodys_own(site: Site) -> None:
    host = site.on("hostname", site.worker)
    assert site.srun("echo kept", "--container-name=kept", "-w", host) == "kept"
    assert site.on(f"ls {NVME}/data-2001", site.worker) == "pyxis_kept"
    assert site.on(f"ls {NVME}/data-2001", site.worker, "ubuntu").endswith("Permission denied")
    assert site.on("ls -d /home/*/.local/share/enroot /var/lib/enroot/data-* 2>/dev/null", site.worker) == ""


def test_a_replaced_worker_has_both(site: Site) -> None:
    old = site.worker
    site.driver.kit("rehearse", "kill-node", "--name", site.driver.name, old)
    wait_until("another worker", lambda: old not in site.nodes("worker-group"), timeout=120)
    wait_until("two of them", lambda: len(site.nodes("worker-group")) == 2, timeout=400, every=2.0)
    site.all_idle()
    assert site.srun("id -u", "-N2").split() == ["2001"] * 2


@pytest.mark.parametrize("after", [0.5, 2, 4])
def test_killed_in_the_middle_and_run_again(site: Site, after: float) -> None:
    node = site.worker
    site.on("dpkg --purge --force-depends nvslurm-plugin-pyxis enroot; rm -rf /etc/enroot /etc/tmpfiles.d/hyp*", node)
    site.on(f"timeout -s KILL {after} hyperpod-kit node apply", node)
    site.applies(node)
    site.is_settled(node)
    assert site.srun("id -u", "-w", site.on("hostname", node)) == "2001"


def test_taken_back_and_there_again(site: Site) -> None:
    place, nodes = "/opt/hyperpod-kit/current/node_config.json", [site.head, *site.nodes("worker-group")]
    assert "spank_pyxis" in site.on(f"cat {PLUGSTACK}", site.head)
    for node in nodes:
        site.on(f"cp {place} /root/with; jq '.steps = {{}}' /root/with >{place}", node)
        said = site.applies(node)
        assert "enroot off" in said and "pyxis off" in said, said
        assert site.on("ls /etc/enroot/enroot.conf.d /etc/tmpfiles.d | grep hyperpod-kit", node) == ""
        site.is_settled(node)
    assert "spank_pyxis" not in site.on(f"cat {PLUGSTACK}", site.head)
    assert "unrecognized option" in site.srun("id -u")
    assert site.on("srun -Q -t2 id -u", site.head, "trainer") == "2001", "everybody else's jobs go on"
    for node in nodes:
        site.on(f"cp /root/with {place}", node)
        site.applies(node)
    for node in nodes[1:]:
        site.on("systemctl restart slurmd", node)
    site.all_idle()
    assert site.srun("id -u", "-N2").split() == ["2001"] * 2
