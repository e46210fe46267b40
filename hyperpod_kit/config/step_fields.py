"""What the keys of the optional steps mean; `.accounting` is hyperpod_kit.steps.accounting."""

from __future__ import annotations

from typing import Mapping

from hyperpod_kit.config import patterns
from hyperpod_kit.config.field import Field
from hyperpod_kit.config.patterns import Pattern
from hyperpod_kit.model.accelerators import ACTIONS
from hyperpod_kit.model.optional_steps import ENFORCED, LIMITS, PREEMPT_MODES, SCHEMAS

_WORD = Pattern(
    "HPK-O013",
    r"[A-Za-z_][A-Za-z0-9_]{0,31}",
    "`{value}` is not the name of a database or of its user",
    "Use letters, digits and _",
)
_SLURM_NAME = Pattern(
    "HPK-O014",
    r"[a-z0-9][a-z0-9_.-]{0,39}",
    "`{value}` is not the name of an account or a QOS",
    "Use 1 to 40 lower-case letters, digits, hyphens, dots and underscores",
)
_LOCAL_USER = Pattern(
    "HPK-O030", patterns.USER_NAME, "`{value}` is not a user's name", "Use the name that Linux has for the user"
)
_GROUP = Pattern(
    "HPK-O031",
    r"[A-Za-z_][A-Za-z0-9_.-]{0,63}",
    "`{value}` is not a group that a rule of login can name",
    "Use letters, digits, hyphens, dots and underscores, without blanks",
)
_DN = Pattern(
    "HPK-O032",
    r"([A-Za-z][A-Za-z0-9-]*=[^,=\\\x00-\x1f\x7f]+(, ?[A-Za-z][A-Za-z0-9-]*=[^,=\\\x00-\x1f\x7f]+)*)?",
    "`{value}` is not a distinguished name",
    "Write it like cn=reader,ou=people,dc=example,dc=com",
)

STEP_FIELDS: Mapping[str, Field] = {
    "": Field("Optional steps of a node's set-up: each key that is written turns its step on, {} with defaults."),
    ".accounting": Field(
        "Slurm accounting: slurmdbd on the controller with a MariaDB beside it, or with a database of yours."
    ),
    ".accounting.database": Field("A MySQL or MariaDB outside of the cluster; without it one on the controller."),
    ".accounting.database.host": Field(
        "Its name or address.",
        pattern=Pattern(
            "HPK-O012",
            r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?",
            "`{value}` is not the name or the address of a host",
            "Copy the endpoint's name, without a port",
        ),
    ),
    ".accounting.database.secret_arn": Field(
        "ARN of an entry of hyperpod_kit.secrets for the controller: the password, or RDS's own JSON with one."
    ),
    ".accounting.database.user": Field(
        "As whom slurmdbd comes there.",
        pattern=_WORD,
    ),
    ".accounting.database.name": Field(
        "Of the database.",
        pattern=_WORD,
    ),
    ".accounting.database.port": Field("Its port."),
    ".accounting.accounts": Field("Slurm's accounts; without any, one named users for everybody."),
    ".accounting.accounts[].name": Field("Name of the account.", pattern=_SLURM_NAME),
    ".accounting.accounts[].users": Field(
        "Who is in it.",
        pattern=Pattern(
            "HPK-O015", patterns.USER_NAME, "`{value}` is not a user's name", "Use the name that Linux has for the user"
        ),
    ),
    ".accounting.accounts[].parent": Field("The account that it belongs to."),
    ".accounting.accounts[].fairshare": Field("Its share beside its siblings."),
    ".accounting.accounts[].qos": Field(
        "The QOS that its jobs may ask for, the first is the one that they get; without any, normal and all of them."
    ),
    ".accounting.qos": Field("Slurm's qualities of service, beside its own, which is named normal."),
    ".accounting.qos[].name": Field("Name of the QOS.", pattern=_SLURM_NAME),
    ".accounting.qos[].priority": Field("The higher, the earlier its jobs start."),
    ".accounting.qos[].preempts": Field("The QOS whose running jobs make room for its own."),
    ".accounting.qos[].limits": Field(f"Of {', '.join(LIMITS)}: as sacctmgr writes their values."),
    ".accounting.enforce": Field(
        "What slurmctld refuses jobs for (AccountingStorageEnforce); without any it only counts.", ENFORCED
    ),
    ".accounting.preempt_mode": Field("What becomes of a job that makes room.", PREEMPT_MODES),
    ".log_rotation": Field("Rotates the logs of Slurm, of this toolkit and of its scripts by their size."),
    ".log_rotation.size": Field(
        "The size at which a log is put aside.",
        pattern=Pattern("HPK-O016", r"[1-9][0-9]{0,5}[kMG]", "`{value}` is not a size", "Write it like 50M or 1G"),
    ),
    ".log_rotation.keep": Field("How many that were put aside stay."),
    ".login_message": Field("Tells whoever logs in which node this is, and whether its mounts serve."),
    ".login_message.text": Field("Lines of your own below that."),
    ".ssh_between_nodes": Field(
        "Users go from node to node by ssh without a password: nodes vouch for them, and know each other's host keys."
    ),
    ".ssh_between_nodes.mount": Field(
        "Name of the mount on which nodes find each other's host keys; left out, the first that every node has."
    ),
    ".node_exporter": Field(
        "Prometheus' exporter of the node, with the metrics of mounts and checkpoints; on the controller with Slurm's."
    ),
    ".node_exporter.listen": Field(
        "Where it listens.",
        pattern=Pattern(
            "HPK-O017",
            r"([0-9.]{7,15}|\[[0-9a-fA-F:]{2,39}\])?:[1-9][0-9]{0,4}",
            "`{value}` is not an address with a port",
            "Write it like :9100 or 127.0.0.1:9100",
        ),
    ),
    ".docker": Field("Docker, with its images on the local NVMe where there is one."),
    ".docker.users": Field("Who may use it; whoever may is root on the node.", pattern=_LOCAL_USER),
    ".podman": Field("Podman for everybody, with its images on the local NVMe where there is one."),
    ".enroot": Field("NVIDIA's enroot, with what it unpacks on the local NVMe where there is one."),
    ".pyxis": Field("NVIDIA's pyxis: `srun --container-image` starts tasks in containers of enroot's."),
    ".pam_slurm_adopt": Field("On compute nodes: no ssh for users who have no job there; root is never kept out."),
    ".pam_slurm_adopt.users": Field("Users who may without a job.", pattern=_LOCAL_USER),
    ".pam_slurm_adopt.groups": Field("Groups whose members may without a job.", pattern=_GROUP),
    ".sssd": Field("Users and groups of a directory: LDAP or Active Directory."),
    ".sssd.uri": Field(
        "The server, or several with commas between them; ldap:// goes over to TLS before anything else.",
        pattern=Pattern(
            "HPK-O033",
            r"ldaps?://[A-Za-z0-9.\[\]:-]+(,ldaps?://[A-Za-z0-9.\[\]:-]+)*",
            "`{value}` is not the URI of a directory",
            "Write it like ldaps://ldap.example.com",
        ),
    ),
    ".sssd.search_base": Field("Below which entry users and groups are.", pattern=_DN),
    ".sssd.schema": Field("How the directory writes down groups.", SCHEMAS),
    ".sssd.bind_dn": Field("As whom it is read; left out, as nobody.", pattern=_DN),
    ".sssd.secret_arn": Field("ARN of an entry of hyperpod_kit.secrets for all roles: the password of bind_dn."),
    ".sssd.ca_file": Field(
        "The certificates that the server's is checked against, on the node; left out, the system's.",
        pattern=Pattern(
            "HPK-O034", r"(/[A-Za-z0-9._-]+)*", "`{value}` is not an absolute path", "Write it like /etc/ldap/ca.pem"
        ),
    ),
    ".sssd.home": Field(
        "Home of each user, %u being the name; made at the first login.",
        pattern=Pattern(
            "HPK-O035",
            r"(/[A-Za-z0-9._%-]+)*/%u",
            "`{value}` is not a path that ends in the user's name",
            "Write it like /home/%u or /fsx/%u",
        ),
    ),
    ".sssd.allow": Field("Groups whose members may log in; left out, everybody.", pattern=_GROUP),
    ".sssd.sudo": Field("Groups whose members may become root with sudo.", pattern=_GROUP),
    ".device_checks": Field("GPUs and EFA devices of compute nodes are looked at every minute, and before each job."),
    ".device_checks.action": Field(
        "The most that is done about a fault: nothing but to report it, drain the node, have HyperPod reboot it, or "
        "have HyperPod replace it.",
        ACTIONS,
    ),
    ".device_checks.gate": Field("The Prolog looks too, and lets no job start on a node with a fault."),
    ".device_checks.dcgm": Field("The Prolog also runs `dcgmi diag -r 1`, for 20 s at most."),
    ".device_checks.efa": Field("EFA devices are counted; false where fewer are attached than the instance type has."),
}
