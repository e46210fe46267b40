"""What of a rehearsal is real, what a stand-in, what absent: printed by `up`, so that nobody believes too much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

REAL, STAND_IN, ABSENT = "real", "stand-in", "absent"


@dataclass(frozen=True)
class FidelityRow:
    """`kind`: REAL, STAND_IN or ABSENT."""

    what: str
    kind: str
    detail: str


TABLE: Tuple[FidelityRow, ...] = (
    FidelityRow(
        "node operating system", REAL, "systemd, sshd, users, units of this machine's distribution, on its kernel"
    ),
    FidelityRow("machines", REAL, "nspawn: own disk, network, processes, uptime, /dev/shm; no security boundary"),
    FidelityRow(
        "Slurm and munge", REAL, "the distribution's version; slurm.conf and munge at boot are assumptions about AWS"
    ),
    FidelityRow(
        "control groups of forky's nodes",
        STAND_IN,
        "v2 without controllers where this host has v1 too: Slurm then tracks nothing by cgroup",
    ),
    FidelityRow(
        "process tracking (profile hyperpod)",
        REAL,
        "proctrack/cgroup, by the freezer of v1 where this host has it (HyperPod's nodes have v2), no memory limits",
    ),
    FidelityRow(
        "two Slurms (profile hyperpod-2026)",
        REAL,
        "24.11 of Debian 13 and 26.05 of Debian testing, a tree each below /opt, /opt/slurm a link; in the second's "
        "files the path of its plugins is changed. HyperPod has 24.11 and 25.11",
    ),
    FidelityRow(
        "agent of Slurm's configuration (hyperpod-2026)",
        STAND_IN,
        "rewrites slurm.conf by the strategy, keeps topology.conf and topology.yaml; when and in what form is assumed",
    ),
    FidelityRow(
        "hung job detection (hyperpod-2026)",
        STAND_IN,
        "HYPERPOD_HANG_RULES with `enabled`; `action`, `timeout_seconds` and scancel by root are assumed; events in a "
        "file of the node",
    ),
    FidelityRow("lifecycle scripts", REAL, "downloaded from S3, run as root with HyperPod's paths and variables"),
    FidelityRow("replacement of nodes", REAL, "new instance on the same address; seconds here, 20-30 minutes on AWS"),
    FidelityRow(
        "SageMaker cluster API", STAND_IN, "own endpoint, checked against AWS's service model; its calls are below"
    ),
    FidelityRow("software updates", STAND_IN, "a fresh root volume of the same image, lifecycle scripts run again"),
    FidelityRow(
        "automatic patches",
        STAND_IN,
        "AutoPatchConfig's WhenIdle and WhenAllIdle at NextPatchDate; a cordon is a drain, its reason is assumed; "
        "DrainFirst is for EKS alone",
    ),
    FidelityRow(
        "Spot and capacity",
        STAND_IN,
        "EC2's notice in the metadata, an event, the end; capacity that a test takes away and gives back; that Slurm "
        "is told nothing is assumed",
    ),
    FidelityRow(
        "S3", STAND_IN, "own endpoint on local disk: multipart, ranges, conditional writes; signatures checked"
    ),
    FidelityRow("Mountpoint for S3", STAND_IN, "FUSE, same command and documented semantics; its speed means nothing"),
    FidelityRow(
        "EFS", STAND_IN, "FUSE over a local directory; access points and policies hold; no NFS, node-local locks"
    ),
    FidelityRow("S3 Files", STAND_IN, "FUSE over a local directory, access points; nothing reaches S3, no NFS"),
    FidelityRow("FSx for Lustre", STAND_IN, "FUSE over a local directory; no striping, no lfs, node-local locks"),
    FidelityRow("FSx for OpenZFS", STAND_IN, "FUSE over a local directory; no NFS, no snapshots, node-local locks"),
    FidelityRow("NVMe instance store", STAND_IN, "a tmpfs at /opt/dlami/nvme, empty after each boot; no block devices"),
    FidelityRow(
        "instance metadata", STAND_IN, "IMDSv2 at 169.254.169.254: id, type, zone, addresses, role's credentials"
    ),
    FidelityRow("DNS of the VPC", STAND_IN, "ip-A-B-C-D names; no internet behind it"),
    FidelityRow(
        "IAM, security groups, quotas", ABSENT, "every credential is accepted (EFS mounts aside), all reach all"
    ),
    FidelityRow(
        "step retry (profile hyperpod)",
        STAND_IN,
        "SPANK plugin and cluster agent after public logs: words, order, a real job shrunk and expanded, GRES requeued",
    ),
    FidelityRow(
        "guessed of the step retry",
        STAND_IN,
        "step ids, srun's environment on new nodes, words of a requeue; unhealthy is who does not answer, is DOWN or "
        "Action:…; replaced in seconds; of a heterogeneous job it looks at the first component alone",
    ),
    FidelityRow(
        "pyxis and enroot",
        STAND_IN,
        "a SPANK plugin with pyxis's options where its sources are not given: a squashfs or directory of the node, no "
        "registry, no ENV or entrypoint of an image, namespaces for each task; only in tests and the demo",
    ),
    FidelityRow("GPU, EFA, NCCL, DCGM", ABSENT, "nodes have CPUs only; no deep health checks"),
    FidelityRow(
        "CloudWatch Logs", STAND_IN, "reads provisioning.log of each node when asked; one kind of filter pattern"
    ),
    FidelityRow("SSM, CloudWatch's metrics, all else", ABSENT, "use ssh and `hyperpod-kit rehearse logs`"),
)


def implemented_calls() -> Tuple[Tuple[str, Tuple[str, ...]], ...]:
    """(service, its operations that the endpoint has, sorted), for the services whose operations are few."""
    from hyperpod_rehearsal.efs.protocol import ROUTES
    from hyperpod_rehearsal.logs import protocol as logs
    from hyperpod_rehearsal.sagemaker.protocol import OPERATIONS

    return (
        ("SageMaker", tuple(sorted(OPERATIONS))),
        ("EFS", tuple(sorted({name for _, _, name, _ in ROUTES}))),
        ("CloudWatch Logs", tuple(sorted(logs.OPERATIONS))),
    )
