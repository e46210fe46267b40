"""The rows on machines that boot: one controller and three workers of a rehearsal, seen and broken from the host."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import containers
from driver import CONFIG, Driver

from hyperpod_kit.model.states import LifecycleMode
from hyperpod_rehearsal import boot, mount_faults, targets
from hyperpod_rehearsal.machines import processes
from hyperpod_rehearsal.machines.machine import command_in_machine
from hyperpod_rehearsal.machines.network import set_node_link_state
from hyperpod_rehearsal.mounts.lustre import LUSTRE_MOUNT_NAME
from hyperpod_rehearsal.platform.node_files import SLURM_CONF
from hyperpod_rehearsal.records.layout import cache_dir
from hyperpod_rehearsal.records.profiles import PROFILES, STOCK
from tests.faults.profiles import CONTAINER, IN_S3, MOUNTPOINT, PROFILE
from tests.faults.roots import BUCKET, BucketRoot, FolderRoot, Root
from tests.faults.site import CAPTURER, FOREIGN, SYSTEM_PYTHON, TRAINER, in_image, settle
from tests.support import own_rehearsals
from tests.support.output import output
from tests.support.wait import until

UID = 2001
SHARED = "/fsx"
HELPER = "/usr/sbin/mount.lustre"
PLUGINS = "/opt/slurm/etc/plugstack.conf"
MOUNT_BY_HAND = (
    "systemd-run",
    "--quiet",
    "--wait",
    "--collect",
    "-p",
    "Type=oneshot",
    "-p",
    "KillMode=process",
    "mount",
)
"""The mount's daemon belongs to the machine then, and not to the test that has entered it."""
REASON = "hyperpod-kit:mount:fsx:"
"""How our reason for draining a node begins."""
WORKERS = 3
CLUSTER = PROFILE.name if PROFILE.name in PROFILES else STOCK.name
"""The kind of cluster that the machines are."""

PREEMPTION = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters={parameters}
PartitionName=urgent Nodes=ALL PriorityTier=10 State=UP
PartitionName=patient Nodes=ALL PriorityTier=1 GraceTime=60 State=UP
"""
"""What an administrator adds whose jobs are preempted; `parameters`: those of slurmctld."""
SENDS_SIGNAL = "preempt_send_user_signal"

IN_BUCKET = {
    "kind": "mountpoint-s3",
    "name": "checkpoints",
    "path": "/mnt/checkpoints",
    "bucket": BUCKET,
    "read_only": False,
    "allow_delete": True,
    "uid": UID,
    "gid": UID,
}
"""Where the profile `mountpoint` has its checkpoint roots."""


def configuration(directory: Path) -> Path:
    """The example's cluster, whose nodes look at their mounts often and tell Slurm."""
    values = json.loads(CONFIG.read_text())
    own = values["hyperpod_kit"]
    own["cluster"]["instance_groups"][1]["count"] = WORKERS
    own["cluster"]["lifecycle_mode"] = PROFILE.mode.value
    if PROFILE.agents:
        own["cluster"]["instance_groups"][1]["capacity"] = "Spot"
    own["mounts"] = [IN_BUCKET] if PROFILE == MOUNTPOINT else []
    own["health"] = {"interval": 5, "deadline": 2, "degraded_after": 2, "drain": True}
    path = directory / "provisioning_parameters.json"
    path.write_text(json.dumps(values))
    return path


def container_tree() -> Optional[Path]:
    """What nodes need besides for containers, in the profile with containers."""
    return containers.build(cache_dir()) if PROFILE == CONTAINER else None


class MachineSite:
    """`name`: of the rehearsal, which is up and has the cluster."""

    kind = "machines"
    run = "/opt/hyperpod-kit/current/bin/hyperpod-kit job run --json-lines"
    library = "/opt/hyperpod-kit/current/lib"
    python = SYSTEM_PYTHON
    user = (UID, UID)
    container = in_image(f"{SHARED}:{SHARED}")

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        layout, _ = boot.require_running(driver.name)
        self._layout = layout
        place = layout.file_systems["fsx"] / LUSTRE_MOUNT_NAME / "faults"
        place.mkdir(mode=0o777)
        place.chmod(0o777)
        self.here, self.there = place, f"{SHARED}/faults"
        for program in (TRAINER, FOREIGN, CAPTURER):
            shutil.copy(program, place)
        self.nodes: List[str] = []
        self.configure()
        self.list_nodes()
        # srun that is asked before the nodes have registered with the slurmctld just started waits 60 s in silence.
        settle(self)
        # Of AWS itself a node knows where it is, and with its role everything else.
        self._exported = {"AWS_ENDPOINT_URL": driver.endpoint_of_nodes()} if IN_S3 else {}

    def list_nodes(self) -> None:
        """The workers that there are now."""
        self.nodes = [node["host"] for node in self._all() if node["role"] != "Controller"]

    def set_workers(self, count: int) -> None:
        """What the configuration says of them; `update-cluster` makes it true."""
        values = json.loads(self.config.read_text())
        values["hyperpod_kit"]["cluster"]["instance_groups"][1]["count"] = count
        self.config.write_text(json.dumps(values))

    @property
    def config(self) -> Path:
        """The cluster's configuration."""
        return self.driver.config

    def configure(self) -> None:
        """What an administrator adds to slurm.conf; the platform's file of a new controller does not have it."""
        self.add_to_slurm_conf(f"cat >>{SLURM_CONF}")
        if PROFILE == CONTAINER:
            line = f"required {containers.PLUGIN} runtime_path=/run/pyxis"
            self.on("controller", "sh", "-c", f"echo '{line}' >>{PLUGINS}")
        self.start_controller()
        if PROFILE == CONTAINER:
            self.slurm("scontrol", "reconfigure")
            for node in self._all():
                if node["role"] != "Controller":
                    self.on(node["host"], "systemctl", "restart", "slurmd")

    def add_to_slurm_conf(self, take: str) -> None:
        """Have a shell line take an administrator's lines from its input, and slurmctld what it makes of them."""
        added = PREEMPTION.format(parameters=",".join((*PROFILE.parameters, SENDS_SIGNAL)))
        self.on("controller", "sh", "-c", f"printf '%s' \"$0\" | {take}; systemctl restart slurmctld", added)

    def _all(self) -> List[Dict[str, Any]]:
        return targets.all_nodes(boot.require_running(self.driver.name)[1])

    def _node(self, name: str) -> Dict[str, Any]:
        return targets.find_node(boot.require_running(self.driver.name)[1], name)

    def on(self, node: str, *argv: str, check: bool = True) -> str:
        """A command in a machine, as root."""
        leaders = processes.children(self._node(node)["pid"])
        if not leaders and not check:
            return f"{node} does not run"
        assert leaders, f"{node} does not run"
        return output(command_in_machine(leaders[0], argv), check=check)

    def slurm(self, *argv: str, check: bool = True, user: bool = False) -> str:
        who = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"] if user else []
        return self.on("controller", *who, *argv, check=check)

    def root(self, name: str) -> Root:
        if not IN_S3:
            return FolderRoot(self.here / name, f"{self.there}/{name}")
        found = BucketRoot(name, self.driver.environment, self._exported, None, self.here, self.there)
        if PROFILE == MOUNTPOINT:
            found.told, found.script = f"{IN_BUCKET['path']}/{name}", ""
        return found

    def kill_machine(self, name: str) -> None:
        """SIGKILL all of it; the platform replaces it."""
        targets.kill_machine(self._node(name))

    def cut_off(self, name: str, *, heal: bool = False) -> None:
        """Take a machine off the network, or connect it again; it runs on."""
        set_node_link_state(self._layout, self._node(name)["instance_id"], up=heal)

    def kill_controller(self) -> None:
        self.on("controller", "systemctl", "kill", "--signal=KILL", "slurmctld")

    def start_controller(self) -> None:
        self.on("controller", "systemctl", "start", "slurmctld")
        until(lambda: "UP" in self.slurm("scontrol", "ping", check=False), what="slurmctld")

    def saved_at(self) -> float:
        """When slurmctld last wrote its jobs down, Unix seconds; 0.0 while it exchanges the file."""
        [jobs] = [folder / "job_state" for folder in self.here.parent.glob(".hyperpod-kit/*/slurmctld")]
        try:
            return jobs.stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def update_workers(self, **fields: object) -> None:
        """UpdateCluster with these fields of the workers' group beside those that it has."""
        [cluster] = boot.require_running(self.driver.name)[1]["clusters"]
        [group] = [
            entry
            for entry in cluster["request"]["InstanceGroups"]
            if cluster["slurm"].get(entry["InstanceGroupName"]) == "Compute"
        ]
        text = json.dumps([{**group, **fields}])
        self.driver.aws("sagemaker", "update-cluster", "--cluster-name", cluster["name"], "--instance-groups", text)
        until(lambda: self.cluster_status() == "InService", 120, what="cluster in service")

    def cluster_status(self) -> str:
        """As the control plane has it."""
        [cluster] = boot.require_running(self.driver.name)[1]["clusters"]
        return str(cluster["status"])

    def instance(self, node: str) -> str:
        """The id of the instance that a node is now."""
        return str(self._node(node)["instance_id"])

    def runs(self, node: str) -> bool:
        """Whether a node's machine runs."""
        return targets.is_running(self._node(node))

    def message(self, node: str) -> str:
        """What the platform says of a node, "" where all is well."""
        return str(self._node(node)["message"])

    def give_spot_notice(self, node: str, seconds: float) -> None:
        """EC2 takes a node's Spot instance back after so many seconds."""
        targets.give_spot_notice(self._layout, self._node(node), seconds)

    def set_capacity(self, instances: Optional[int]) -> None:
        """How many instances EC2 still has, None for any number."""
        targets.set_capacity(self._layout, instances)

    def replace_controller(self) -> None:
        """Its machine is killed; returns when the slurmctld of the machine in its place answers."""
        old = self._node("controller")["instance_id"]
        self.kill_machine("controller")

        def another() -> bool:
            node = self._node("controller")
            return bool(node["instance_id"] != old and node["status"] == "Running")

        until(another, 240, what="another controller")
        until(lambda: "UP" in self.slurm("scontrol", "ping", check=False), what="slurmctld")

    def reboot_controller(self) -> None:
        """Returns when it answers again: what is asked inside while it goes down is ended with it, or holds it up."""
        before = processes.children(self._node("controller")["pid"])
        self.on("controller", "systemctl", "reboot", "--force", check=False)
        until(lambda: processes.children(self._node("controller")["pid"]) not in ([], before), what="another boot")
        until(lambda: "UP" in self.slurm("scontrol", "ping", check=False), what="slurmctld")

    def break_mount(self, node: str, fault: str, undo: bool = False) -> None:
        """A fault of rehearsal/mount_faults.py at the shared file system of one node."""
        faults = mount_faults.UNDO if undo else mount_faults.FAULTS
        faults[fault](mount_faults.mount_point_of_running_node(self._layout, self._node(node), SHARED))

    def lose_mount(self, node: str) -> None:
        """The mount is gone and its server refuses a new one, until `give_mount_back`."""
        self.on(node, "mount", "--bind", "/bin/false", HELPER)
        self.break_mount(node, "kill-daemon")
        # A daemon that was killed serves until it has ended.
        look = f"mountpoint -q {SHARED} 2>/dev/null || echo lost"
        until(lambda: self.on(node, "bash", "-c", look, check=False), what="the end of the mount")

    def give_mount_back(self, node: str) -> None:
        self.on(node, "umount", HELPER, check=False)
        if PROFILE.mode is not LifecycleMode.ON_CREATE:
            # HyperPod's own mount, which no unit of ours makes again: a person does, by its line of fstab.
            self.on(node, "umount", "--lazy", SHARED, check=False)
            self.on(node, *MOUNT_BY_HAND, SHARED)

    def node(self, name: str) -> Tuple[str, str]:
        """(state, reason without its author) of a node in Slurm."""
        text = self.slurm("scontrol", "-o", "show", "node", name)
        state, reason = re.search(r"\bState=(\S+)", text), re.search(r"\bReason=(.*?)(?: \[|$)", text, re.M)
        assert state, text
        return state.group(1), reason.group(1).strip() if reason else ""

    def waiting(self, node: str) -> List[str]:
        """Processes of ours that wait in the kernel and cannot be ended (state D)."""
        lines = self.on(node, "ps", "-e", "-o", "stat=,args=").splitlines()
        return [line for line in lines if line.startswith("D") and "hyperpod-kit" in line]

    def settle(self) -> None:
        with contextlib.suppress(AssertionError):
            until(lambda: all(targets.is_running(node) for node in self._all()), what="workers")
        settle(self, timeout=120)


@contextlib.contextmanager
def machine_site(directory: Path) -> Iterator[MachineSite]:
    own_rehearsals.use()
    # By its profile: another profile's run on the same host is left alone.
    driver = Driver(f"faults-{PROFILE.name}", directory)
    driver.config = configuration(directory)
    driver.down()  # what an interrupted run left up would be taken for a fresh one
    try:
        trees = [f"--tree={tree}" for tree in (container_tree(),) if tree]
        driver.kit("rehearse", "up", "--name", driver.name, "--profile", CLUSTER, *trees, "--quiet", timeout=900)
        driver.up({})
        if IN_S3:
            driver.aws("s3api", "create-bucket", "--bucket", BUCKET)
        driver.kit("upload", str(driver.config))
        driver.kit("create-cluster", str(driver.config), "--wait", "--interval", "1", "--timeout", "200")
        yield MachineSite(driver)
    finally:
        driver.down()
