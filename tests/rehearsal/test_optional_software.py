"""Docker, Podman, SSSD and pam_slurm_adopt on machines: Debian's own packages, given, and a real slapd.

One cluster: made, used, a worker killed and replaced, each step killed in the middle, and all of it taken back.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, Iterator, List, Set

import pytest
from driver import CONFIG, Driver, wait_until

from tests.rehearsal.conftest import CACHE
from tests.rehearsal.given_packages import given

pytestmark = pytest.mark.full  # minutes of machines, and packages that only this test wants

NAME = "software"
STEPS = {
    "docker": {"users": ["ubuntu", "trainer"]},
    "podman": {},
    "pam_slurm_adopt": {},
    "sssd": {
        "uri": "ldaps://ldap.cluster.internal",
        "search_base": "dc=example,dc=com",
        "ca_file": "/etc/ssl/certs/directory-ca.pem",
        "allow": ["researchers"],
        "sudo": ["admins"],
    },
}
GIVEN = (
    ("docker", "docker.io"),
    ("podman", "podman uidmap slirp4netns fuse-overlayfs"),
    ("pam-slurm-adopt", "libpam-slurm-adopt"),
    ("sssd", "sssd-ldap libnss-sss libpam-sss"),
)
NVME = "/opt/dlami/nvme"
THEIRS = {"bridge": "none", "iptables": False, "ip-forward": False}
PASSWORD = "Correct-horse-7"
PEOPLE = """\
dn: dc=example,dc=com
objectClass: dcObject
objectClass: organization
o: example
dc: example

{entries}"""
PERSON = """\
dn: uid={name},dc=example,dc=com
objectClass: account
objectClass: posixAccount
uid: {name}
cn: {name}
uidNumber: {uid}
gidNumber: 7000
homeDirectory: /nowhere/{name}
userPassword: {password}

"""
GROUP = """\
dn: cn={name},dc=example,dc=com
objectClass: posixGroup
cn: {name}
gidNumber: {gid}
{members}

"""


def people() -> str:
    """carla may log in and become root, dora may log in, emil may not."""
    entries = [
        PERSON.format(name=name, uid=uid, password=PASSWORD)
        for name, uid in (("carla", 7001), ("dora", 7002), ("emil", 7003))
    ]
    for name, gid, members in (
        ("researchers", 7000, ("carla", "dora")),
        ("admins", 7010, ("carla",)),
        ("others", 7020, ("emil",)),
    ):
        entries.append(GROUP.format(name=name, gid=gid, members="\n".join(f"memberUid: {one}" for one in members)))
    # emil's own group is another: everybody whose gidNumber is a group's is one of its members.
    return PEOPLE.format(entries="".join(entries)).replace(
        "uidNumber: 7003\ngidNumber: 7000", "uidNumber: 7003\ngidNumber: 7020"
    )


def certificates(place: Path) -> None:
    """A CA of the test's own, and the server's certificate by it."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=place, check=True, capture_output=True, timeout=60)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    (place / "san").write_text("subjectAltName=DNS:ldap.cluster.internal\n")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "server.key", "-out", "csr", "-subj", "/CN=ldap")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "san")
    openssl("x509", "-req", "-in", "csr", *signing, "-out", "server.pem")
    for name in ("ca.key", "csr", "san", "ca.srl"):
        (place / name).unlink()


class Site:
    """The cluster `software` of the session's rehearsal."""

    def __init__(self, driver: Driver, config: Path) -> None:
        self.driver, self.config = driver, config
        self._with_passwords: Set[str] = set()

    def nodes(self, group: str) -> List[str]:
        found = self.driver.data("list-cluster-nodes", str(self.config))["nodes"]
        return [node["instance_id"] for node in found if node["group"] == group and node["status"] == "Running"]

    @property
    def head(self) -> str:
        return self.nodes("controller-machine")[0]

    @property
    def worker(self) -> str:
        return self.nodes("worker-group")[0]

    def on(self, command: str, user: str = "", node: str = "") -> str:
        line = f"cd /tmp; exec 2>&1; {command}"
        words = f"runuser -u {user} -- bash -c {shlex.quote(line)}" if user else line
        return self.driver.on(node or self.worker, words, check=False, timeout=300).strip()

    def logs_in(self, name: str, password: str = PASSWORD) -> str:
        """What `id -un` says after ssh from the controller to the worker with a password."""
        worker = self.worker
        if worker not in self._with_passwords:  # another one, once the first was replaced
            self.on(f"echo ubuntu:{PASSWORD} | chpasswd; echo trainer:{PASSWORD} | chpasswd", node=worker)
            self._with_passwords.add(worker)
        address = self.on("hostname -I", node=worker).split()[0]
        ssh = (
            "ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o NumberOfPasswordPrompts=1 "
            f"-o PubkeyAuthentication=no -o LogLevel=ERROR {name}@{address} id -un"
        )
        ask = f"printf '#!/bin/sh\\necho {password}\\n' >/root/ask; chmod 700 /root/ask; "
        return self.on(f"{ask} SSH_ASKPASS=/root/ask SSH_ASKPASS_REQUIRE=force setsid {ssh}", node=self.head)

    def knows(self, name: str, uid: str, node: str = "") -> None:
        wait_until(name, lambda: self.on(f"id -u {name}", node=node) == uid, timeout=120)

    def is_settled(self) -> None:
        assert self.on("hyperpod-kit node plan").splitlines()[-1] == "changed=0"


@pytest.fixture(scope="module")
def site(endpoint: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    beside = tmp_path_factory.mktemp("software")
    own = beside / "directory"
    own.mkdir()
    shutil.copy(Path(__file__).with_name("directory_server.sh"), own)
    certificates(own)
    (own / "people.ldif").write_text(people())
    (own / "daemon.json").write_text(json.dumps(THEIRS))
    given("slapd", "slapd", beside, CACHE)
    shutil.move(beside / "packages" / "slapd", own / "packages")
    values: dict[str, Any] = json.loads(CONFIG.read_text())
    kit = values["hyperpod_kit"]
    kit["cluster"]["name"] = NAME
    kit["cluster"]["instance_groups"][1].update(count=2, instance_type="ml.p5.48xlarge")
    kit["steps"] = STEPS
    kit["scripts"] = [
        {
            "name": f"directory-{role}",
            "path": "directory",
            "run": "directory_server.sh",
            "arguments": [role],
            "roles": [role],
            "when": "before-mounts",
            "timeout": 120,
        }
        for role in ("controller", "compute")
    ]
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


def test_docker_and_podman_have_their_data_on_the_local_disk(site: Site) -> None:
    assert site.on("docker info --format '{{.DockerRootDir}}'", "trainer") == f"{NVME}/docker"
    assert "permission denied" in site.on("docker info", "nobody")
    root = site.on("podman info --format '{{.Store.GraphRoot}}'")
    assert root == f"{NVME}/podman/root"
    own = site.on("env -u XDG_RUNTIME_DIR podman info --format '{{.Store.GraphRoot}}'", "trainer").splitlines()[-1]
    assert own == f"{NVME}/podman/2001"
    site.is_settled()


def test_the_directorys_users_are_known_everywhere(site: Site) -> None:
    for node in (site.head, *site.nodes("worker-group")):
        site.knows("carla", "7001", node)
    assert site.on("getent passwd dora").split(":")[5:] == ["/home/dora", "/bin/bash"]
    assert "researchers" in site.on("id dora")
    site.on("mkdir -p /home/dora && chown dora: /home/dora", node=site.head)
    assert site.on("cd /; srun -N1 id -un", "dora", site.head) == "dora", "Slurm takes them"
    assert "(root) NOPASSWD" in site.on("sudo -l -U carla") or "(ALL) NOPASSWD: ALL" in site.on("sudo -l -U carla")
    assert "not allowed" in site.on("sudo -l -U dora")


def test_ssh_is_for_who_has_a_job_and_for_the_admins(site: Site) -> None:
    assert site.logs_in("ubuntu") == "ubuntu", "the login user is never kept out"
    assert site.logs_in("trainer") != "trainer", "local users too, whom SSSD's profile of PAM lets through early"
    assert site.logs_in("dora") != "dora"
    host = site.on("hostname")
    job = site.on(f"sbatch --parsable -w {host} --chdir /tmp --output /dev/null --wrap 'sleep 300'", "dora", site.head)
    wait_until("running", lambda: site.on(f"squeue -h -j {job} -o %T", node=site.head) == "RUNNING", timeout=120)
    assert site.logs_in("dora") == "dora"
    assert site.logs_in("dora", "wrong") != "dora"
    assert site.on("stat -c %U /home/dora") == "dora", "made at the first login"
    wait = site.on(f"sbatch --parsable -w {host} --chdir /tmp --output /dev/null --wrap 'sleep 300'", "emil", site.head)
    wait_until("running", lambda: site.on(f"squeue -h -j {wait} -o %T", node=site.head) == "RUNNING", timeout=120)
    assert site.logs_in("emil") != "emil", "has a job and is not in `allow`"
    site.on(f"scancel {wait}", node=site.head)
    site.on(f"scancel {job}", node=site.head)
    wait_until("its end", lambda: site.logs_in("dora") != "dora", timeout=120)


def test_nobody_local_depends_on_the_directory_or_on_the_module(site: Site) -> None:
    site.on("systemctl stop sssd; mv /lib/security/pam_slurm_adopt.so /root/")
    assert site.logs_in("ubuntu") == "ubuntu"
    assert "install" in site.on("hyperpod-kit node plan")
    said = site.on("hyperpod-kit node apply")
    assert " ok: " in said.splitlines()[-1] and "failed" not in said, said
    assert site.logs_in("trainer") != "trainer"
    site.is_settled()


def test_a_replaced_worker_has_all_of_it(site: Site) -> None:
    old = site.worker
    site.driver.kit("rehearse", "kill-node", "--name", site.driver.name, old)
    wait_until("another worker", lambda: old not in site.nodes("worker-group"), timeout=120)
    wait_until("two of them", lambda: len(site.nodes("worker-group")) == 2, timeout=400, every=2.0)
    new = site.nodes("worker-group")[-1]
    for node in site.nodes("worker-group"):
        site.knows("carla", "7001", node)
        assert site.on("docker info --format '{{.DockerRootDir}}'", node=node) == f"{NVME}/docker"
        assert site.on("hyperpod-kit node plan", node=node).splitlines()[-1] == "changed=0", new


@pytest.mark.parametrize("after", [1, 3, 6])
def test_killed_in_the_middle_and_run_again(site: Site, after: int) -> None:
    """On a worker that has lost all four: SIGKILL, then once more. The login user gets in at each moment."""
    site.on(
        "systemctl stop docker docker.socket sssd; rm -f /etc/sssd/sssd.conf /etc/containers/storage.conf; "
        f"echo '{json.dumps(THEIRS)}' >/etc/docker/daemon.json; "
        "sed -i '/>>> hyperpod-kit/,/<<< hyperpod-kit/d' /etc/pam.d/sshd; "
        "dpkg --purge --force-depends docker.io podman sssd-ldap libpam-slurm-adopt"
    )
    site.on(f"timeout -s KILL {after} hyperpod-kit node apply")
    assert site.logs_in("ubuntu") == "ubuntu"
    said = site.on("hyperpod-kit node apply")
    assert " ok: " in said.splitlines()[-1] and "failed" not in said, said
    assert site.on("docker info --format '{{.DockerRootDir}}'") == f"{NVME}/docker"
    assert site.logs_in("ubuntu") == "ubuntu" and site.logs_in("trainer") != "trainer"
    site.knows("carla", "7001")
    site.is_settled()


def test_taken_back(site: Site) -> None:
    place = "/opt/hyperpod-kit/current/node_config.json"
    site.on(f"cp {place} /root/with; jq '.steps = {{}}' /root/with >{place}")
    said = site.on("hyperpod-kit node apply")
    assert " ok: " in said.splitlines()[-1] and "docker off" in said and "sssd off" in said, said
    assert site.on("systemctl is-active docker docker.socket sssd").split() == ["inactive"] * 3
    assert "no such user" in site.on("id carla")
    left = site.on("ls /etc/containers/storage.conf /etc/sssd/sssd.conf /etc/sudoers.d/60* 2>/dev/null")
    assert left == "" and "hyperpod-kit" not in site.on("cat /etc/pam.d/sshd")
    assert site.logs_in("trainer") == "trainer" and site.logs_in("ubuntu") == "ubuntu"
    assert "trainer" not in site.on("getent group docker")
    site.is_settled()
    site.on(f"cp /root/with {place}; hyperpod-kit node apply")
    site.knows("carla", "7001")
    assert site.logs_in("trainer") != "trainer"
