"""AWS's own scripts (base-config), unchanged, each as a script of the configuration, beside our bundle on machines.

A controller, a login node and two workers without the internet; a worker is replaced. What each script does there is
the table of docs/how-to/beyond-the-kit.md. HPK_AWS_SCRIPTS: a directory with AWS's files, which are not ours to carry.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence

import pytest
from driver import CONFIG, Driver, wait_until

from tests.rehearsal.conftest import CACHE
from tests.rehearsal.given_packages import given

BASE = os.environ.get("HPK_AWS_SCRIPTS", "")
pytestmark = [
    pytest.mark.full,
    pytest.mark.needs("aws-scripts"),
]

NAME = "moved"
BUCKET = "sagemaker-hyperpod-kit-data"
URL = "https://aps.example.com/api/v1/remote_write"
NOBODY = "https://database.example.com"
PARAMETERS = {
    "version": "1.0.0",
    "workload_manager": "slurm",
    "controller_group": "controller-machine",
    "login_group": "login-group",
    "worker_groups": [{"instance_group_name": "worker-group", "partition_name": "train"}],
}
PACKAGES = {"aws-all": "ansible-core rsync", "aws-controller": "mariadb-server apg expect"}
RESOURCES = "/opt/ml/config/resource_config.json"
KEPT = "/var/lib/hyperpod-kit/scripts"


class Own(NamedTuple):
    """A script of AWS's set as an entry of the configuration, on nodes of `roles`, each with `timeout` seconds."""

    name: str
    run: str
    arguments: Sequence[str] = ()
    when: str = "after-slurm"
    roles: Sequence[str] = ("controller", "login", "compute")
    timeout: int = 60
    path: str = "base-config"

    def entry(self, required: bool) -> Dict[str, Any]:
        named = self._asdict()
        return {**named, "arguments": list(self.arguments), "roles": list(self.roles), "required": required}


WORK = (
    Own("hold", "hotfix/hold-lustre-client.sh", when="before-mounts"),
    Own("users", "add_users.sh", when="after-mounts"),
    Own("ubuntu-home", "utils/fsx_ubuntu.sh", ("0",), when="after-mounts"),
    Own("detect", "utils/fsx_auto_detect.sh", when="after-mounts"),
    Own("motd", "utils/motd.sh", ("{role}", "{controllers}", "{logins}"), when="after-mounts"),
    Own("mariadb", "setup_mariadb_accounting.sh", when="after-mounts", roles=("controller",), timeout=300),
    Own("start", "start_slurm.sh", ("{role}", "{controllers}")),
    Own("associations", "setup_user_associations.sh", roles=("controller",)),
    Own("keys", "utils/gen-keypair-ubuntu.sh", timeout=600),
    Own("ssh", "utils/ssh-to-compute.sh"),
    Own("rotation", "utils/enable_slurm_log_rotation.sh"),
    Own("plugstack", "utils/slurm_fix_plugstackconf.sh"),
    Own("s3", "utils/mount-s3.sh", (BUCKET,), roles=("compute",)),
)
"""What works without the internet."""

FAIL = {
    Own("ansible", "utils/install_ansible.sh", roles=("login",)): "Unable to locate package python3-pip",
    Own("hotfix", "apply_hotfix.sh", ("{role}",), roles=("login",)): "Module nvidia not found",
    Own("docker", "utils/install_docker.sh", roles=("login",)): "Package 'gnupg' has no installation candidate",
    Own("enroot", "utils/install_enroot_pyxis.sh", ("{role}",), roles=("login",), timeout=40): "not end within 40 s",
    Own("neuron", "utils/update_neuron_sdk.sh", roles=("compute",)): "wget: command not found",
    Own("sssd", "setup_sssd.py", ("--node-type", "{role}"), roles=("login",)): "Certificate file not found",
    Own(
        "rds", "setup_rds_accounting.sh", (NOBODY,), roles=("controller",)
    ): "Enter the password to connect to the RDS database",
    Own("heads", "multi_headnode_setup/headnode_setup.sh", roles=("controller",)): "required fields are missing",
    Own(
        "exporters",
        "install_observability.py",
        ("--node-type", "{role}", "--prometheus-remote-write-url", URL),
        roles=("compute",),
        timeout=40,
        path="base-config/observability",
    ): "not end within 40 s",
    Own("whole", "on_create.sh", roles=("login",), timeout=120): "['sudo', 'bash', './utils/install_ansible.sh']",
    Own(
        "main", "lifecycle_script.py", ("-rc", RESOURCES, "-pp", "provisioning_parameters.json"), roles=("compute",)
    ): "/usr/bin/env: ‘python’: No such file or directory",
}
"""What does not, with words of its line in provisioning.log."""


class Site:
    """The cluster `moved` of the session's rehearsal."""

    def __init__(self, driver: Driver, config: Path) -> None:
        self.driver, self.config = driver, config

    def nodes(self, group: str = "") -> List[str]:
        found = self.driver.data("list-cluster-nodes", str(self.config))["nodes"]
        return [node["instance_id"] for node in found if group in ("", node["group"]) and node["status"] == "Running"]

    @property
    def head(self) -> str:
        return self.nodes("controller-machine")[0]

    @property
    def login(self) -> str:
        return self.nodes("login-group")[0]

    def on(self, node: str, command: str, user: str = "") -> str:
        line = f"cd /tmp; exec 2>&1; {command}"
        words = f"runuser -u {user} -- bash -c {shlex.quote(line)}" if user else line
        return self.driver.on(node, words, check=False, timeout=300).strip()

    def steps(self, node: str) -> Dict[str, Dict[str, Any]]:
        """The last line of each step in provisioning.log; AWS's scripts write into that file too."""
        lines = self.on(node, "cat /var/log/provision/provisioning.log").splitlines()
        return {entry["step"]: entry for entry in map(json.loads, (line for line in lines if line[:1] == "{"))}

    def said(self, node: str, name: str) -> str:
        """What a script printed."""
        return self.on(node, f"cat /var/log/provision/script-{name}.log")

    def by_hand(self, node: str, run: str) -> List[str]:
        """A line in a fresh copy of base-config: what it printed, and its status as the last line."""
        place = f"rm -rf /root/again; cp -a {KEPT}/plugstack/files /root/again; cd /root/again"
        return self.on(node, f"{place}; {run}; echo $?").splitlines()

    def ssh(self, source: str, target: str, user: str) -> str:
        """Who one is on `target`, as a user of `source` with what keys and settings are there."""
        address = self.on(target, "hostname")
        return self.on(source, f"ssh -o BatchMode=yes -o LogLevel=ERROR {address} id -un", user)


@pytest.fixture(scope="module")
def site(endpoint: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    beside = tmp_path_factory.mktemp("moved")
    shutil.copytree(BASE, beside / "base-config")
    sample = (beside / "base-config/shared_users_sample.txt").read_text().splitlines(keepends=True)
    # Of two users: for each, a script starts ansible four or five times.
    (beside / "base-config/shared_users.txt").write_text("".join(sample[:2]))
    (beside / "base-config/provisioning_parameters.json").write_text(json.dumps(PARAMETERS))
    image = beside / "image"
    image.mkdir()
    shutil.copy(Path(__file__).with_name("node_of_aws.sh"), image)
    for client, names in PACKAGES.items():
        given(client, names, beside, CACHE)
    shutil.move(beside / "packages", image / "packages")
    values: Dict[str, Any] = json.loads(CONFIG.read_text())
    values["login_group"] = "login-group"
    kit = values["hyperpod_kit"]
    kit["cluster"]["name"] = NAME
    kit["cluster"]["instance_groups"][1]["count"] = 2
    kit["cluster"]["instance_groups"].append({"name": "login-group", "instance_type": "ml.c5.xlarge", "count": 1})
    first = Own("image", "node_of_aws.sh", ("{role}",), when="before-mounts", timeout=200, path="image")
    kit["scripts"] = [one.entry(required=True) for one in (first, *WORK)]
    kit["scripts"] += [one.entry(required=False) for one in FAIL]
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


def everywhere(site: Site) -> Iterator[tuple[str, str]]:
    for group, role in (("controller-machine", "controller"), ("login-group", "login"), ("worker-group", "compute")):
        for node in site.nodes(group):
            yield node, role


def did(site: Site, node: str, role: str) -> None:
    """Each script of this role has run, or has failed as it must, and a node that is well says so."""
    steps = site.steps(node)
    for one in WORK:
        if role in one.roles:
            assert steps[f"script:{one.name}"]["status"] == "changed", steps[f"script:{one.name}"]
    for one, words in FAIL.items():
        if role in one.roles:
            step = steps[f"script:{one.name}"]
            assert step["status"] == "failed" and words in step["error"], step
    passwd = {line.split(":")[0]: line.split(":") for line in site.on(node, "getent passwd").splitlines()}
    assert passwd["ubuntu"][5] == "/fsx/ubuntu" and passwd["user2"][2] == "2002" and passwd["user2"][5] == "/fsx/user2"
    assert "user1" not in passwd and "UID 2001 is already in use" in site.said(node, "users")
    assert "lustre-client-modules-aws" in site.said(node, "hold")
    assert "/fsx is a mountpoint but NOT a Lustre filesystem" in site.said(node, "detect")
    message = site.on(node, "cat /etc/motd")
    kind = "ml.c5.4xlarge" if role == "compute" else "ml.c5.xlarge"
    assert kind in message and f"You're on the \x1b[32m{role}" in message and "Login Node IP" in message
    assert "Start Slurm Script completed" in site.said(node, "start")
    assert site.on(node, "grep -c 'rotate 2' /etc/logrotate.d/sagemaker-hyperpod-slurm") == "1"
    assert site.on(node, "grep -c '^Match host' /etc/ssh/ssh_config.d/initsmhp-ssh.conf") == "1"
    if role == "compute":
        assert site.on(node, f"mountpoint -q /mnt/{BUCKET} && ls /mnt/{BUCKET}") == "corpus"


def test_each_script_on_each_node(site: Site) -> None:
    for node, role in everywhere(site):
        did(site, node, role)
    assert site.on(site.head, "sinfo -h -p train -o '%t %D'") == "idle 2"


def test_accounting_has_jobs_and_users(site: Site) -> None:
    job = site.on(site.head, "sbatch --parsable --wait --chdir /tmp --output /dev/null --wrap true", "trainer")
    wait_until(
        "its record", lambda: site.on(site.head, f"sacct -nXj {job} -o state").strip() == "COMPLETED", timeout=60
    )
    known = site.on(site.head, "sacctmgr -nP show assoc format=account,user").splitlines()
    assert {"root|ubuntu", "root|user2"} <= set(known)
    assert "root|user1" not in known and "root|trainer" not in known


def test_users_go_from_node_to_node(site: Site) -> None:
    first, second = site.nodes("worker-group")
    for user in ("ubuntu", "user2"):
        assert site.ssh(first, second, user) == user
    assert site.on(second, "test ! -e /home/ubuntu || readlink /home/ubuntu/.ssh") in ("", "/fsx/ubuntu/.ssh")


def test_run_again_by_hand(site: Site) -> None:
    login = site.login
    assert site.by_hand(login, "bash utils/ssh-to-compute.sh")[-1] == "0"
    assert site.by_hand(login, "bash utils/enable_slurm_log_rotation.sh")[-1] == "0"
    assert site.on(login, "grep -c 'rotate 2' /etc/logrotate.d/sagemaker-hyperpod-slurm") == "2"
    assert site.on(login, "grep -c '^Match host' /etc/ssh/ssh_config.d/initsmhp-ssh.conf") == "2"
    installed = "mkdir -p /root/bin; install -m 755 /bin/true /root/bin/docker; PATH=/root/bin:$PATH"
    said = site.by_hand(login, f"{installed} bash utils/install_docker.sh")
    assert said[-1] == "0" and "Docker is already installed and in the PATH." in said
    gone = "unshare -m bash -c 'umount -l /fsx; bash utils/fsx_ubuntu.sh 0; echo $? after $SECONDS s'"
    said = site.by_hand(login, gone)
    assert "Mount not ready after 60 seconds" in said and re.fullmatch(r"1 after [5-9]\d s", said[-2]), said
    away = "place=$(command -v mount-s3); mv $place $place.away"
    said = site.by_hand(login, f"{away}; bash utils/mount-s3.sh {BUCKET}; code=$?; mv $place.away $place; (exit $code)")
    assert said[-1] == "0" and "Enabled the mount-s3 service to start on boot" in said
    assert site.on(login, f"mountpoint -q /mnt/{BUCKET}; echo $?") != "0"


def test_a_replaced_worker_has_all_of_it(site: Site) -> None:
    kept, old = sorted(site.nodes("worker-group"))
    site.driver.kit("rehearse", "kill-node", "--name", site.driver.name, old)
    wait_until("another worker", lambda: old not in site.nodes("worker-group"), timeout=120)
    wait_until("two of them", lambda: len(site.nodes("worker-group")) == 2, timeout=600, every=2.0)
    [new] = set(site.nodes("worker-group")) - {kept}
    did(site, new, "compute")
    assert site.ssh(kept, new, "user2") == "user2" and site.ssh(new, kept, "ubuntu") == "ubuntu"
    wait_until("two idle", lambda: site.on(site.head, "sinfo -h -p train -o '%t %D'") == "idle 2", timeout=120)
    assert site.on(new, "hyperpod-kit node plan").splitlines()[-1].startswith("changed=")


def test_pam_slurm_adopt_locks_everybody_out(site: Site) -> None:
    """Without the internet it ends well, with a module in sshd's stack that is not there."""
    one, other = site.nodes("worker-group")
    assert site.ssh(other, one, "user2") == "user2"
    renamed = f"sed s/login-group/doors/ {RESOURCES} >/root/other.json; mount --bind /root/other.json {RESOURCES}"
    said = site.by_hand(one, f"unshare -m bash -c '{renamed}; bash utils/pam_adopt_cgroup_wheel.sh'")
    assert "nothing to do for pam_adopt on login node" in said and said[-1] == "0"
    assert "pam_slurm_adopt" not in site.on(one, "cat /etc/pam.d/sshd")
    said = site.by_hand(one, "bash utils/pam_adopt_cgroup_wheel.sh")
    assert said[-1] == "0"
    assert site.ssh(other, one, "user2") != "user2" and site.on(one, "id -un") == "", "nor does root get in"
