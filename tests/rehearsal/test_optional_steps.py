"""Optional steps on machines, with the real MariaDB, slurmdbd, logrotate and exporter, from given packages alone.

One cluster: made, used, its controller killed in the middle of nothing and of a step, and all of it taken back.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
from driver import CONFIG, Driver, wait_until

from tests.rehearsal.conftest import CACHE
from tests.rehearsal.given_packages import given
from tests.support.ports import free_port

pytestmark = pytest.mark.full  # five minutes of machines, and packages that only this test wants

NAME = "optional"
STEPS = {
    "accounting": {
        "accounts": [
            {"name": "research", "users": ["trainer"], "qos": ["normal", "high"]},
            {"name": "vision", "parent": "research", "users": ["ann"]},
        ],
        "qos": [{"name": "high", "priority": 100, "preempts": ["normal"], "limits": {"max_jobs_per_user": "4"}}],
        "enforce": ["associations", "limits", "qos"],
    },
    "log_rotation": {"size": "10k", "keep": 2},
    "login_message": {"text": "Ask in #cluster."},
    "ssh_between_nodes": {},
    "node_exporter": {},
}
GIVEN = (("mariadb", "mariadb-server"), ("logrotate", "logrotate"), ("node-exporter", "prometheus-node-exporter"))
RUNS = "systemctl is-active mariadb slurmdbd slurmctld prometheus-node-exporter"


class Site:
    """The cluster `optional` of the session's rehearsal."""

    def __init__(self, driver: Driver, config: Path) -> None:
        self.driver, self.config = driver, config

    def nodes(self, group: str) -> List[str]:
        found = self.driver.data("list-cluster-nodes", str(self.config))["nodes"]
        return [node["instance_id"] for node in found if node["group"] == group]

    @property
    def head(self) -> str:
        return self.nodes("controller-machine")[0]

    def on(self, command: str, user: str = "", node: str = "") -> str:
        line = f"cd /tmp; exec 2>&1; {command}"
        words = f"runuser -u {user} -- bash -c {shlex.quote(line)}" if user else line
        return self.driver.on(node or self.head, words, check=False, timeout=300).strip()

    def records(self, more: str = "") -> List[List[str]]:
        said = self.on(
            f"sacct {more} --allusers --allocations --noheader --parsable2 --format jobid,user,account,qos,state"
        )
        return [line.split("|") for line in said.splitlines()]

    def submit(self, options: str, command: str = "sleep 300") -> str:
        return self.on(f"sbatch --parsable -c2 --requeue {options} --wrap {shlex.quote(command)}", "trainer")


@pytest.fixture(scope="module")
def site(endpoint: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    beside = tmp_path_factory.mktemp("optional")
    values: dict[str, Any] = json.loads(CONFIG.read_text())
    kit = values["hyperpod_kit"]
    kit["cluster"]["name"] = NAME
    kit["cluster"]["instance_groups"][1]["count"] = 2
    kit["users"].append({"name": "ann", "uid": 2002, "gid": 2002})
    kit["steps"] = STEPS
    kit["clients"] = [entry for client, name in GIVEN for entry in given(client, name, beside, CACHE)]
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


def test_a_qos_makes_room_for_another(site: Site) -> None:
    held = [site.submit("-A research --qos normal") for _ in range(2)]
    wait_until("both running", lambda: site.on("squeue -h -o %T").split() == ["RUNNING"] * 2, timeout=120)
    urgent = site.submit("-A research --qos high", "true")
    done = wait_until(
        "its end", lambda: [urgent, "trainer", "research", "high", "COMPLETED"] in site.records(), timeout=180
    )
    assert done
    again = [record for record in site.records("--duplicates") if record[0] in held]
    assert "PREEMPTED" in {record[4] for record in again}, again
    assert "Invalid account" in site.on("srun -A vision true", "trainer"), "associations are enforced"
    site.on(f"scancel {' '.join(held)}")


def test_users_go_from_node_to_node_and_nobody_else_does(site: Site) -> None:
    first, second = sorted(site.on("sinfo -hN -o %N").split())[0], sorted(site.on("sinfo -hN -o %N").split())[-1]
    ssh = "ssh -o BatchMode=yes"
    wait_until(
        "host keys of all",
        lambda: site.on(f"{ssh} {first} {ssh} {second} hostname", "ann").splitlines()[-1] == second,
        timeout=300,
    )
    assert site.on(f"{ssh} {first} id -un", "ubuntu") == "ubuntu"
    assert "Permission denied" in site.on(f"{ssh} trainer@{first} id", "ann")
    assert "Permission denied" in site.on(f"{ssh} {first} id"), "root is nobody's word"
    assert site.on("find /home /fsx -name 'id_*' 2>/dev/null") == "", "no key lies anywhere"


@pytest.fixture
def prometheus(site: Site, tmp_path: Path) -> Iterator[str]:
    """Address of a real Prometheus (Debian's) that scrapes every node of the cluster, from outside of it."""
    given("prometheus", "prometheus", tmp_path, CACHE)
    [package] = (tmp_path / "packages/prometheus").glob("prometheus_*.deb")
    subprocess.run(["dpkg-deb", "-x", str(package), str(tmp_path / "root")], check=True, timeout=120)
    nodes = site.driver.data("list-cluster-nodes", str(site.config))["nodes"]
    targets = ", ".join(f'"{node["address"]}:9100"' for node in nodes)
    (tmp_path / "prometheus.yml").write_text(
        f"global: {{scrape_interval: 2s}}\nscrape_configs:\n"
        f"  - job_name: hyperpod\n    static_configs: [{{targets: [{targets}]}}]\n"
    )
    address = f"127.0.0.1:{free_port()}"
    program = str(tmp_path / "root/usr/bin/prometheus")
    options = (f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data")
    with open(tmp_path / "log", "wb") as log:
        running = subprocess.Popen([program, *options, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        yield address
    finally:
        running.terminate()
        running.wait(60)


def asked(address: str, query: str) -> Dict[str, float]:
    """Instance (and state, where there is one) -> value of each series that Prometheus has; {} before it answers."""
    try:
        words = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"http://{address}/api/v1/query?{words}", timeout=10) as answer:
            found = json.load(answer)["data"]["result"]
    except OSError:
        return {}
    return {
        " ".join((one["metric"]["instance"].split(":")[0], one["metric"].get("state", ""))).strip(): float(
            one["value"][1]
        )
        for one in found
    }


def test_prometheus_scrapes_every_node(site: Site, prometheus: str) -> None:
    nodes = site.driver.data("list-cluster-nodes", str(site.config))["nodes"]
    everyone = {node["address"]: 1.0 for node in nodes}
    wait_until("all of them", lambda: asked(prometheus, 'up{job="hyperpod"}') == everyone, timeout=120)
    served = wait_until(
        "the mounts of all nodes",
        lambda: set(asked(prometheus, "hyperpod_kit_mount_healthy")) == set(everyone),
        timeout=180,
    )
    assert served
    [head] = [node["address"] for node in nodes if node["group"] == "controller-machine"]
    counted = wait_until("Slurm's numbers", lambda: asked(prometheus, "hyperpod_kit_slurm_nodes"), timeout=180)
    assert sum(counted.values()) == 2 and {key.split()[0] for key in counted} == {head}


def test_metrics_logs_and_the_message(site: Site) -> None:
    wait_until(
        "Slurm's metrics",
        lambda: 'hyperpod_kit_slurm_nodes{state="' in site.on("curl -s localhost:9100/metrics"),
        timeout=180,
    )
    site.on("head -c 50000 /dev/zero >>/var/log/slurmctld.log; systemctl start hyperpod-kit-upkeep")
    assert site.on("stat -c %s /var/log/slurmctld.log.1").isdigit()
    site.on("scontrol reconfigure")
    wait_until(
        "a line in the new log", lambda: site.on("test -s /var/log/slurmctld.log && echo yes") == "yes", timeout=60
    )
    message = site.on("run-parts /etc/update-motd.d")
    assert "mounts      ok" in message and "controller-machine" in message and "Ask in #cluster." in message


def test_the_next_controller_knows_who_ran_what(site: Site) -> None:
    """Killed while a job runs that its last copy knows as running, and that is over when the next one looks."""
    job = site.submit("-A research", "sleep 90")  # a busy machine takes seconds for one look
    wait_until("running", lambda: [job, "trainer", "research", "normal", "RUNNING"] in site.records(), timeout=120)
    site.on("rm -f /var/lib/hyperpod-kit/accounting/copied; systemctl start hyperpod-kit-upkeep")
    before, old = site.records(), site.head
    site.driver.kit("rehearse", "kill-node", "--name", site.driver.name, old)
    wait_until("another controller", lambda: site.head != old, timeout=120)
    wait_until("its steps", lambda: site.on(RUNS).split() == ["active"] * 4, timeout=400, every=2.0)
    known = {tuple(record[:4]) for record in site.records()}
    assert {tuple(record[:4]) for record in before} <= known, "what was copied is known"
    wait_until(
        "no job that runs for ever",
        lambda: [record[4] for record in site.records() if record[0] == job] == ["COMPLETED"],
        timeout=300,
        every=2.0,
    )
    assert "vision|ann" in site.on("sacctmgr -nP show assoc format=account,user")
    assert site.on("srun -A vision -t1 hostname", "ann").startswith("ip-")
    assert site.on("hyperpod-kit node plan").splitlines()[-1] == "changed=0"


@pytest.mark.parametrize("after", [1, 3, 6])
def test_killed_in_the_middle_and_run_again(site: Site, after: int) -> None:
    """On a controller that has lost MariaDB, its database and slurmdbd's file: SIGKILL, then once more."""
    site.on(
        "systemctl stop slurmctld slurmdbd mariadb; rm -rf /var/lib/mysql /opt/slurm/etc/slurmdbd.conf "
        "/etc/mysql/mariadb.conf.d/90-hyperpod-kit.cnf /var/lib/hyperpod-kit/steps; "
        "dpkg --purge --force-depends mariadb-server mariadb-server-core"
    )
    site.on(f"timeout -s KILL {after} hyperpod-kit node apply")
    said = site.on("hyperpod-kit node apply")
    assert " ok: " in said.splitlines()[-1], said
    assert site.on(RUNS).split() == ["active"] * 4
    assert "vision|ann" in site.on("sacctmgr -nP show assoc format=account,user")
    assert site.on("hyperpod-kit node plan").splitlines()[-1] == "changed=0"


def test_taken_back_and_there_again(site: Site) -> None:
    """A worker's bundle too: the step is one; here the controller's, which has all of them."""
    place = "/opt/hyperpod-kit/current/node_config.json"
    records = site.records()
    site.on(f"cp {place} /root/with; jq '.steps = {{}}' /root/with >{place}")
    said = site.on("hyperpod-kit node apply")
    assert " ok: " in said.splitlines()[-1] and "accounting-database off" in said, said
    assert site.on(RUNS).split() == ["inactive", "inactive", "active", "inactive"]
    assert "AccountingStorageType" not in site.on("cat /opt/slurm/etc/slurm.conf")
    left = site.on("ls /etc/hyperpod-kit/logrotate.conf /etc/ssh/sshd_config.d/50* /etc/update-motd.d/60* 2>/dev/null")
    assert left == "" and "hyperpod-kit-upkeep.timer" not in site.on("systemctl list-timers --all")
    assert site.on("srun -t1 hostname", "trainer").startswith("ip-"), "jobs run without accounting"
    assert site.on("hyperpod-kit node plan").splitlines()[-1] == "changed=0"
    site.on(f"cp /root/with {place}; hyperpod-kit node apply")
    assert site.on(RUNS).split() == ["active"] * 4 and records[0] in site.records(), "its database was kept"
