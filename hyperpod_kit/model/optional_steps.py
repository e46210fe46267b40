"""The steps that a node has only when the configuration asks for them: what each is told. None: it is off.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar, Dict, Mapping, Optional, Tuple

from hyperpod_kit.model.accelerators import REPORT
from hyperpod_kit.model.states import Role

LIMITS: Dict[str, str] = {
    "grp_jobs": "GrpJobs",
    "grp_submit_jobs": "GrpSubmitJobs",
    "grp_tres": "GrpTRES",
    "max_jobs_per_user": "MaxJobsPerUser",
    "max_submit_jobs_per_user": "MaxSubmitJobsPerUser",
    "max_tres_per_job": "MaxTRESPerJob",
    "max_tres_per_user": "MaxTRESPerUser",
    "max_wall": "MaxWall",
}
"""Limit of a QOS as the configuration has it -> as sacctmgr has it."""

ENFORCED = ("associations", "limits", "qos", "safe", "nojobs", "nosteps")
"""What AccountingStorageEnforce may name; wckeys are nothing that we set up."""

PREEMPT_MODES = ("requeue", "cancel")

LOGIN_USER = "ubuntu"
"""The user of HyperPod's image, who may become root."""

SCHEMAS = ("rfc2307", "rfc2307bis", "ad")
"""How a directory writes down groups: names (memberUid), entries (member), or Active Directory."""


@dataclass(frozen=True)
class OutsideDatabase:
    """A database of somebody else's. `secret_arn`: of a secret of the configuration: the password, or RDS's JSON."""

    host: str
    secret_arn: str
    user: str = "slurm"
    name: str = "slurm_acct_db"
    port: int = 3306


@dataclass(frozen=True)
class AccountingQos:
    """A quality of service. `preempts`: the QOS whose jobs make room for its own; `limits`: by keys of LIMITS."""

    name: str
    priority: int = 0
    preempts: Tuple[str, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SlurmAccount:
    """An account of Slurm's. `qos`: what its users may ask for, the first is what they get; all of them when empty."""

    name: str
    users: Tuple[str, ...] = ()
    parent: str = "root"
    fairshare: int = 1
    qos: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Accounting:
    """slurmdbd on the controller. `database`: None for a MariaDB beside it; `enforce`: of ENFORCED."""

    database: Optional[OutsideDatabase] = None
    accounts: Tuple[SlurmAccount, ...] = ()
    qos: Tuple[AccountingQos, ...] = ()
    enforce: Tuple[str, ...] = ()
    preempt_mode: str = "requeue"

    @property
    def preempts(self) -> bool:
        """Whether jobs of one QOS make room for those of another."""
        return any(qos.preempts for qos in self.qos)


@dataclass(frozen=True)
class LogRotation:
    """A log is put aside when it has `size` (of logrotate: 50M), and `keep` of them stay."""

    size: str = "50M"
    keep: int = 4


@dataclass(frozen=True)
class LoginMessage:
    """What whoever logs in reads first: where he is, whether its mounts serve, and `text`."""

    text: str = ""


@dataclass(frozen=True)
class SshBetweenNodes:
    """Users go from node to node without a password. `mount`: where nodes find each other's host keys."""

    mount: str = ""


@dataclass(frozen=True)
class NodeExporter:
    """Prometheus' exporter of the node. `listen`: address and port, of all addresses without one."""

    listen: str = ":9100"


@dataclass(frozen=True)
class Docker:
    """Docker, with its data on the local disk where there is one. `users`: who may use it, which makes them root."""

    users: Tuple[str, ...] = (LOGIN_USER,)


@dataclass(frozen=True)
class Podman:
    """Podman for everybody, with what it unpacks on the local disk where there is one."""


@dataclass(frozen=True)
class Enroot:
    """NVIDIA's enroot for everybody, with what it unpacks on the local disk where there is one."""


@dataclass(frozen=True)
class Pyxis:
    """NVIDIA's plugin of Slurm behind `srun --container-image`; it starts containers by enroot."""


@dataclass(frozen=True)
class PamSlurmAdopt:
    """On compute nodes: ssh only for who has a job there. `users`, `groups`: those who may without one, beside root."""

    users: Tuple[str, ...] = (LOGIN_USER,)
    groups: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Sssd:
    """Users and groups of a directory (LDAP, Active Directory).

    schema: of SCHEMAS; secret_arn: of a secret of the configuration, the password of `bind_dn`; ca_file: on the node,
    "" for the system's; home: with sssd's %u; allow: groups whose members may log in, everybody when empty;
    sudo: groups whose members may become root.
    """

    uri: str
    search_base: str
    schema: str = "rfc2307"
    bind_dn: str = ""
    secret_arn: str = ""
    ca_file: str = ""
    home: str = "/home/%u"
    allow: Tuple[str, ...] = ()
    sudo: Tuple[str, ...] = ()


@dataclass(frozen=True)
class DeviceChecks:
    """On compute nodes: GPUs and EFA devices are looked at every minute.

    action: of model/accelerators.py, the most that is done about a fault; gate: whether the Prolog looks too and lets
    no job start with one; dcgm: whether that runs `dcgmi diag -r 1` as well; efa: whether EFA devices are counted.
    """

    action: str = REPORT
    gate: bool = True
    dcgm: bool = False
    efa: bool = True


@dataclass(frozen=True)
class TrainingEnvironment:
    """A Python environment for jobs, on login and compute nodes.

    path: the directory that it is made in, on a mount or on a node's own disk; requirements: architecture (of
    model/clients.py) -> lock file beside the configuration; name: of its directory in `path`; python: the interpreter
    on the nodes; owner: the user who makes it and whose files they are; timeout: seconds that a node may take.
    """

    path: str
    requirements: Mapping[str, str] = field(default_factory=dict)
    name: str = "training"
    python: str = "/usr/bin/python3"
    owner: str = LOGIN_USER
    timeout: float = 900.0

    @property
    def directory(self) -> str:
        """Where its versions and links are."""
        return f"{self.path}/{self.name}"


def requirements_bundle_path(architecture: str) -> str:
    """Where a bundle has the lock file of the training environment for an architecture."""
    return f"training_environment/{architecture}.lock"


@dataclass(frozen=True)
class OptionalSteps:
    """What is on. Only that is written, so that a bundle without any does not change."""

    json_only_when_set: ClassVar[bool] = True

    accounting: Optional[Accounting] = None
    log_rotation: Optional[LogRotation] = None
    login_message: Optional[LoginMessage] = None
    ssh_between_nodes: Optional[SshBetweenNodes] = None
    node_exporter: Optional[NodeExporter] = None
    docker: Optional[Docker] = None
    podman: Optional[Podman] = None
    enroot: Optional[Enroot] = None
    pyxis: Optional[Pyxis] = None
    pam_slurm_adopt: Optional[PamSlurmAdopt] = None
    sssd: Optional[Sssd] = None
    device_checks: Optional[DeviceChecks] = None
    training_environment: Optional[TrainingEnvironment] = None

    @property
    def enabled_step_names(self) -> Tuple[str, ...]:
        """Keys of those that are on, in their order."""
        return tuple(step_field.name for step_field in fields(self) if getattr(self, step_field.name) is not None)

    def upkeep_steps_on(self, role: str) -> Tuple[str, ...]:
        """Return the keys of the enabled steps that need regular upkeep on nodes of that role."""
        upkeep_steps = ["log_rotation", "ssh_between_nodes", "podman", "enroot"]
        if role == Role.CONTROLLER:
            upkeep_steps += ["node_exporter", "accounting"]
        return tuple(name for name in upkeep_steps if name in self.enabled_step_names)
