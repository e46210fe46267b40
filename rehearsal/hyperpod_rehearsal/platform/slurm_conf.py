"""slurm.conf as the platform writes it on the controller.

AWS's own file is not public: every value here is an assumption, chosen so that what users report of HyperPod happens
here too (a replaced node stays DOWN until it is resumed; a requeued job waits for cred_expire).
"""

from __future__ import annotations

import json
import re
from typing import Dict, List, Mapping, Sequence

from hyperpod_kit.errors import RehearsalError
from hyperpod_rehearsal.agent.config_agent import BEGIN, END, MERGE, OVERWRITE
from hyperpod_rehearsal.platform.cluster_state import COMPUTE, CONTROLLER, LOGIN, RehearsedCluster, RehearsedNode
from hyperpod_rehearsal.records.profiles import BY_CGROUP, STOCK, Profile

DEFAULT_PARTITION = "dev"
CPUS_PER_NODE = 2

BASE = """\
ClusterName={name}
{heads}
AuthType=auth/munge
AuthInfo=cred_expire={cred_expire}
SlurmUser=root
SlurmctldParameters={parameters}
SlurmdParameters=config_overrides
MpiDefault=none
ProctrackType=proctrack/{tracking}
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=permit_job_expansion,batch_sched_delay=1,sched_interval=2,requeue_setup_env_fail
SlurmdTimeout={slurmd_timeout}
SlurmctldTimeout=30
ReturnToService=1
JobRequeue=1
MinJobAge=600
TreeWidth=64
MessageTimeout=10
BatchStartTimeout=5
JobAcctGatherType=jobacct_gather/linux
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
"""

UNTRACKED = "CgroupPlugin=disabled\n"
"""cgroup.conf (23.02 and later) where /proc/self/cgroup of a machine names hierarchies of this host besides its own: a
slurmd that finds v2 there ends with "Hybrid mode is not supported". Slurm hands it to the nodes with slurm.conf."""

TRACKED_V1 = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainCores=no
ConstrainDevices=no
ConstrainRAMSpace=no
ConstrainSwapSpace=no
"""
"""cgroup.conf where processes are tracked by the freezer of cgroup v1, and by nothing else of it."""


def slurm_node_types_and_partitions(
    request: Mapping[str, object],
    parameters: Mapping[str, object] | None,
) -> tuple[Dict[str, str], Dict[str, List[str]]]:
    """(group -> node type, partition -> groups) from SlurmConfig, or from a provisioning_parameters.json.

    Both empty for a cluster without Slurm. Raises RehearsalError when both sources are there, or no controller is.
    """
    groups: Sequence[Mapping[str, object]] = request.get("InstanceGroups", [])  # type: ignore[assignment]
    names = [str(group["InstanceGroupName"]) for group in groups]
    api: Dict[str, Mapping[str, object]] = {
        str(group["InstanceGroupName"]): group["SlurmConfig"]  # type: ignore[misc]
        for group in groups
        if group.get("SlurmConfig")
    }
    if api and parameters is not None:
        raise RehearsalError(
            "The LifeCycleConfig cannot include both a SLURM Orchestrator Config and a "
            "provisioning_parameters.json file simultaneously."
        )
    roles: Dict[str, str] = {}
    partitions: Dict[str, List[str]] = {DEFAULT_PARTITION: []}
    if api:
        for name, config in api.items():
            roles[name] = str(config["NodeType"])
            for partition in config.get("PartitionNames") or []:  # type: ignore[attr-defined]
                partitions.setdefault(str(partition), []).append(name)
    elif parameters is not None and parameters.get("controller_group") in names:
        roles[str(parameters["controller_group"])] = CONTROLLER
        if parameters.get("login_group") in names:
            roles[str(parameters["login_group"])] = LOGIN
        for worker in parameters.get("worker_groups") or []:  # type: ignore[attr-defined]
            name = worker["instance_group_name"]
            if name in names:
                roles[name] = COMPUTE
                if worker.get("partition_name"):
                    partitions.setdefault(worker["partition_name"], []).append(name)
    if not roles:
        return {}, {}
    if CONTROLLER not in roles.values():
        raise RehearsalError("no instance group is the Slurm controller")
    partitions[DEFAULT_PARTITION] = [name for name, role in roles.items() if role == COMPUTE]
    return roles, partitions


def provisioning_parameters_for(cluster: RehearsedCluster) -> Dict[str, object]:
    """The provisioning_parameters.json that the platform itself writes for a cluster with SlurmConfig."""

    def first(role: str) -> str:
        return next((name for name, node_type in cluster.slurm.items() if node_type == role), "")

    workers: List[Dict[str, str]] = []
    for partition, names in cluster.partitions.items():
        if partition != DEFAULT_PARTITION:
            workers += [{"instance_group_name": name, "partition_name": partition} for name in names]
    data: Dict[str, object] = {
        "version": "1.0.0",
        "workload_manager": "slurm",
        "controller_group": first(CONTROLLER),
        "worker_groups": workers,
    }
    if first(LOGIN):
        data["login_group"] = first(LOGIN)
    return data


def node_and_partition_lines(cluster: RehearsedCluster, memory_mb: int, profile: Profile = STOCK) -> str:
    """NodeName and PartitionName lines between the platform's marks. `memory_mb`: RealMemory of every node."""
    lines = [BEGIN]
    gres = ""
    if profile.step_retry:
        gres = " Gres=gpu:1"
    members: Dict[str, List[RehearsedNode]] = {name: cluster.nodes_in_group(name) for name in cluster.slurm}
    for name, role in cluster.slurm.items():
        if role == CONTROLLER:
            continue
        for node in members[name]:
            lines.append(
                f"NodeName={node.host} NodeAddr={node.ip} CPUs={CPUS_PER_NODE} RealMemory={memory_mb}{gres} "
                "State=UNKNOWN"
            )
    for partition, groups in cluster.partitions.items():
        hosts = ",".join(node.host for name in groups for node in members.get(name, []))
        if hosts:
            default = "NO"
            if partition == DEFAULT_PARTITION:
                default = "YES"
            lines.append(f"PartitionName={partition} Nodes={hosts} Default={default} MaxTime=INFINITE State=UP")
    return "\n".join([*lines, END, ""])


def render_slurm_conf(
    cluster: RehearsedCluster, memory_mb: int, cred_expire: int, slurmd_timeout: int, profile: Profile = STOCK
) -> str:
    """Return the text of slurm.conf for a new controller. Raises RehearsalError when the cluster has none."""
    heads = cluster.controllers
    if not heads:
        raise RehearsalError(f"cluster {cluster.name} has no Slurm controller")
    base = BASE.format(
        name=cluster.name,
        heads="\n".join(f"SlurmctldHost={head.host}({head.ip})" for head in heads),
        cred_expire=cred_expire,
        slurmd_timeout=slurmd_timeout,
        tracking=profile.tracking,
        parameters=",".join(profile.parameters),
    )
    if profile.step_retry:
        base += "GresTypes=gpu\n"  # a device that jobs may ask for: HyperPod requeues those that do
    if profile.agents:
        base += "TopologyPlugin=topology/tree\n"
    return base + node_and_partition_lines(cluster, memory_mb, profile)


PAUSES = (20.0, 70.0)
"""Seconds between two rewritings of slurm.conf by HyperPod's agent; how often the real one does it is not public."""


def render_agent_files(cluster: RehearsedCluster) -> Dict[str, str]:
    """What HyperPod's agent of the configuration keeps on the controller besides slurm.conf: name -> text.

    All compute nodes are below one switch, as with instances of one placement group. topology.yaml is for 25.05 and
    later, which take it and not topology.conf. A cluster without a strategy is taken for one with Merge.
    """
    hosts = [
        node.host for name, role in cluster.slurm.items() if role == COMPUTE for node in cluster.nodes_in_group(name)
    ]
    strategy = ((cluster.request.get("Orchestrator") or {}).get("Slurm") or {}).get("SlurmConfigStrategy")
    settings = {"strategy": OVERWRITE if strategy == OVERWRITE else MERGE, "seed": 1, "pauses": PAUSES}
    files = {"agent.json": json.dumps(settings)}
    if hosts:
        nodes = ",".join(hosts)
        files["topology.conf"] = f"SwitchName=network-node-1 Nodes={nodes}\n"
        files["topology.yaml"] = TOPOLOGY_YAML.format(nodes=nodes)
    return files


TOPOLOGY_YAML = """\
- topology: default
  cluster_default: true
  tree:
    switches:
      - switch: network-node-1
        nodes: {nodes}
"""


def render_cgroup_conf(profile: Profile, *, has_v1_freezer: bool, v2_only_nodes_on_mixed_host: bool) -> str:
    """The file beside slurm.conf, "" for none: Slurm finds v2 by itself where it is alone.

    v1: this host has the freezer of version 1. untracked: nodes do not boot with it, and find it all the same.
    Raises RehearsalError when the profile tracks by cgroup and that cannot be had.
    """
    if profile.tracking != BY_CGROUP:
        if v2_only_nodes_on_mixed_host:
            return UNTRACKED
        return ""
    if v2_only_nodes_on_mixed_host:
        raise RehearsalError(
            f"profile {profile.name} tracks processes by cgroup; its nodes boot with version 2 alone, and this host "
            "has version 1 too",
            hint="take an older --release, or a host with version 2 alone",
        )
    if has_v1_freezer:
        return TRACKED_V1
    return ""


def replace_or_append_platform_lines(existing: str, node_lines_text: str) -> str:
    """`existing` with the platform's node lines replaced; everything that others added stays (strategy Merge)."""
    pattern = re.compile(re.escape(BEGIN) + r".*?" + re.escape(END) + r"\n?", re.S)
    if pattern.search(existing):
        return pattern.sub(lambda match: node_lines_text, existing, count=1)
    return existing.rstrip("\n") + "\n" + node_lines_text
