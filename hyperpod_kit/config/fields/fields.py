"""What each key of the configuration means, in one sentence: for editors (JSON Schema), for `init`, for the reference.

Keys, types and defaults are the decoder's (settings/schema_recorder.py); none of that is repeated here. `[]` stands for
any item of a list, `[KIND]` for a mount of that kind.
"""

from __future__ import annotations

from typing import Mapping, Optional

from hyperpod_kit.config.mounts.reference import MOUNT_FIELDS
from hyperpod_kit.config.settings import patterns
from hyperpod_kit.config.settings.field import Field
from hyperpod_kit.config.settings.patterns import Pattern
from hyperpod_kit.model.accelerators import ACTIONS
from hyperpod_kit.model.optional_steps import ENFORCED, LIMITS, PREEMPT_MODES, SCHEMAS
from hyperpod_kit.model.scripts import PLACES
from hyperpod_kit.model.secrets import ARN
from hyperpod_kit.model.states import LIFECYCLE_MODES, ROLES

# What the keys of the optional steps mean; `.accounting` is hyperpod_kit.steps.accounting.

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
    ".training_environment": Field(
        "A Python environment for jobs with this kit in it, made once from a lock file and checked at each login and "
        "compute node."
    ),
    ".training_environment.path": Field(
        "Directory that it is made in: on a mount that all login and compute nodes have, or below /opt or /var/lib on "
        "each node's own disk.",
        pattern=Pattern(
            "HPK-O041",
            r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*){1,12}",
            "`{value}` is not an absolute path",
            "Write it like /fsx/environments",
        ),
    ),
    ".training_environment.requirements": Field(
        "Lock files with hashes beside the configuration, by architecture: x86_64, arm64."
    ),
    ".training_environment.name": Field(
        "Name of its directory in `path`.",
        pattern=Pattern(
            "HPK-O042",
            patterns.MOUNT_NAME,
            "`{value}` is not the name of an environment",
            "Use 1 to 40 lower-case letters, digits and hyphens, no hyphen first",
        ),
    ),
    ".training_environment.python": Field(
        "The interpreter, which all login and compute nodes have.",
        pattern=Pattern(
            "HPK-O043",
            r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*){1,12}",
            "`{value}` is not the absolute path of an interpreter",
            "Write it like /usr/bin/python3.12",
        ),
    ),
    ".training_environment.owner": Field(
        "The user who makes it and whose files they are; who can act as this user decides what jobs run.",
        pattern=Pattern(
            "HPK-O044",
            rf"(?!root$){patterns.USER_NAME}",
            "`{value}` is not a user who could own it",
            "Name a user other than root: packages are not run as root, and shared mounts may refuse root",
        ),
    ),
    ".training_environment.timeout": Field(
        "Seconds that a node may take to make it, or to wait for the node that does."
    ),
}


# --- All keys, with those of optional steps among them ---------------------------------------------------------------

_PLAIN = "Use 1 to 63 letters, digits and hyphens, no hyphen first or last"
_SECURITY_GROUP, _SUBNET = (
    Pattern(
        "HPK-K008",
        rf"{letters}-[0-9a-f]{{8,17}}",
        "`{value}` is not an id of this kind",
        f"Write it like {letters}-0123456789abcdef0",
    )
    for letters in ("sg", "subnet")
)
_G = "InstanceGroups[]"
_BATCH = Pattern(
    "HPK-G026",
    r"[1-9]\d{0,4}|([1-9]\d?|100)%",
    "`{value}` is not a number of nodes at once",
    "Write a number such as 2, or a share of the group such as 10%",
)


def _rollout_fields(key: str, request: str) -> Mapping[str, Field]:
    return {
        key: Field("How an update goes through the group; all nodes at once without it."),
        f"{key}.batch": Field("How many nodes at once: `2`, or `10%` of the group.", pattern=_BATCH),
        f"{key}.rollback_batch": Field("The same for an update that is undone.", pattern=_BATCH),
        f"{key}.pause_seconds": Field("Seconds between two batches.", request=f"{request}.WaitIntervalInSeconds"),
        f"{key}.alarms": Field(
            "CloudWatch alarms that undo the update.", request=f"{request}.AutoRollbackConfiguration[].AlarmName"
        ),
    }


_KIT: Mapping[str, Field] = {
    "cluster": Field("The cluster itself: what CreateCluster gets."),
    "cluster.name": Field(
        "Name of the cluster.",
        request="ClusterName",
        pattern=Pattern("HPK-K001", patterns.CLUSTER_NAME, "`{value}` is not a cluster name", _PLAIN),
    ),
    "cluster.region": Field(
        "AWS region of the cluster.",
        pattern=Pattern("HPK-K002", patterns.REGION, "`{value}` is not a region", "Write it like us-east-1"),
    ),
    "cluster.execution_role": Field(
        "ARN of the IAM role that the nodes act as.",
        request=f"{_G}.ExecutionRole",
        pattern=Pattern(
            "HPK-K003",
            patterns.ROLE_ARN,
            "`{value}` is not the ARN of a role",
            "Write it like arn:aws:iam::111122223333:role/Name",
        ),
    ),
    "cluster.lifecycle_mode": Field(
        "on_init_complete: our script runs after HyperPod's own set-up of Slurm and FSx; on_create: instead of it; "
        "ami_only: no script of ours.",
        LIFECYCLE_MODES,
    ),
    "cluster.node_recovery": Field(
        "Automatic: HyperPod replaces or reboots broken nodes, which auto-resume waits for; None: nobody does.",
        ("Automatic", "None"),
    ),
    "cluster.node_provisioning_mode": Field(
        "Continuous: the cluster starts when some nodes are up, and HyperPod keeps provisioning the rest; "
        "without it a cluster comes whole or not at all. A cluster keeps what it was created with.",
        ("Continuous",),
    ),
    "cluster.slurm_config_strategy": Field(
        "What HyperPod does about changes of slurm.conf that are not its own; without it Merge, which leaves ours in.",
        ("Merge", "Managed", "Overwrite"),
    ),
    "cluster.vpc": Field("Where the nodes live. Needed for EFS and FSx."),
    "cluster.vpc.security_group_ids": Field(
        "Security groups of the nodes; with EFA each allows all traffic to itself.", pattern=_SECURITY_GROUP
    ),
    "cluster.vpc.subnet_ids": Field(
        "Private subnets, in the Availability Zone where the instances and FSx are.", pattern=_SUBNET
    ),
    "cluster.instance_groups": Field("Groups of nodes: one for the controller, others for login and compute nodes."),
    "cluster.instance_groups[].name": Field(
        "Name of the group.",
        request=f"{_G}.InstanceGroupName",
        pattern=Pattern("HPK-G007", patterns.CLUSTER_NAME, "`{value}` is not a group name", _PLAIN),
    ),
    "cluster.instance_groups[].instance_type": Field(
        "Type of its nodes, `ml.…`.",
        request=f"{_G}.InstanceType",
        pattern=Pattern(
            "HPK-G009",
            patterns.INSTANCE_TYPE,
            "`{value}` is not an instance type",
            "Write it with ml. in front, like ml.p5.48xlarge",
            patterns.INSTANCE_TYPE_PREFIX,
        ),
    ),
    "cluster.instance_groups[].instance_types": Field(
        "Several types in place of one: each node has the first for which there is capacity.",
        request=f"{_G}.InstanceRequirements.InstanceTypes",
        pattern=Pattern(
            "HPK-G024",
            patterns.INSTANCE_TYPE,
            "`{value}` is not an instance type",
            "Write it with ml. in front, like ml.p5.48xlarge",
            patterns.INSTANCE_TYPE_PREFIX,
        ),
    ),
    "cluster.instance_groups[].count": Field("How many nodes.", request=f"{_G}.InstanceCount"),
    "cluster.instance_groups[].min_count": Field(
        "With fewer nodes than that after three hours the group is rolled back.", request=f"{_G}.MinInstanceCount"
    ),
    "cluster.instance_groups[].threads_per_core": Field("1 turns multithreading off.", request=f"{_G}.ThreadsPerCore"),
    "cluster.instance_groups[].execution_role": Field(
        "ARN of this group's role where it is not the cluster's.", request=f"{_G}.ExecutionRole"
    ),
    "cluster.instance_groups[].vpc": Field("Where this group's nodes live, if not where the cluster's do."),
    "cluster.instance_groups[].vpc.security_group_ids": Field(
        "Security groups of this group's nodes.", pattern=_SECURITY_GROUP
    ),
    "cluster.instance_groups[].vpc.subnet_ids": Field("Subnets of this group's nodes.", pattern=_SUBNET),
    "cluster.instance_groups[].ebs_gib": Field(
        "GiB of an EBS volume at /opt/sagemaker.",
        request=f"{_G}.InstanceStorageConfigs[].EbsVolumeConfig.VolumeSizeInGB",
    ),
    "cluster.instance_groups[].ebs_kms_key": Field(
        "KMS key of that volume.", request=f"{_G}.InstanceStorageConfigs[].EbsVolumeConfig.VolumeKmsKeyId"
    ),
    "cluster.instance_groups[].root_kms_key": Field(
        "KMS key of the root volume.", request=f"{_G}.InstanceStorageConfigs[].EbsVolumeConfig.VolumeKmsKeyId"
    ),
    "cluster.instance_groups[].deep_health_checks": Field(
        "Tests of the hardware that new compute nodes pass before they serve; they take an hour or more.",
        request=f"{_G}.OnStartDeepHealthChecks",
    ),
    "cluster.instance_groups[].training_plan_arn": Field(
        "The training plan whose reserved capacity the group uses.", request=f"{_G}.TrainingPlanArn"
    ),
    "cluster.instance_groups[].capacity": Field(
        "Spot: AWS takes nodes away when it needs them; without it, or OnDemand: it does not.",
        ("Spot", "OnDemand"),
    ),
    "cluster.instance_groups[].network_interface": Field(
        "efa: its further network cards have addresses of the subnet; efa-only: they have none.",
        request=f"{_G}.NetworkInterface.InterfaceType",
    ),
    "cluster.instance_groups[].auto_patch": Field(
        "Security patches that HyperPod applies by itself: nodes take no new job until they have been idle and patched."
    ),
    "cluster.instance_groups[].auto_patch.strategy": Field(
        "WhenIdle: each node is patched when it is idle, and takes jobs again; WhenAllIdle: all of them together.",
        ("WhenIdle", "WhenAllIdle"),
    ),
    "cluster.instance_groups[].auto_patch.next_patch_date": Field(
        "When the next patch begins; without it, when AWS plans it.",
        pattern=Pattern(
            "HPK-G025",
            r"\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2})?(Z|[+-]\d{2}:\d{2})?)?",
            "`{value}` is not a date",
            "Write it like 2026-12-01 or 2026-12-01T03:00:00Z",
        ),
    ),
    "cluster.instance_groups[].auto_patch.idle_wait_seconds": Field(
        "How long nodes take no new job because others are not idle yet; a day without it.",
        request=f"{_G}.AutoPatchConfig.IdleWaitWindowInSeconds",
    ),
    "cluster.instance_groups[].scheduled_update": Field(
        "AMI updates by a clock, which looks at no job: what runs on a node then ends."
    ),
    "cluster.instance_groups[].scheduled_update.schedule": Field(
        "AWS's cron expression, such as cron(0 3 ? * SUN *).",
        request=f"{_G}.ScheduledUpdateConfig.ScheduleExpression",
    ),
    **_rollout_fields("cluster.instance_groups[].auto_patch.rollout", f"{_G}.AutoPatchConfig.DeploymentConfig"),
    **_rollout_fields(
        "cluster.instance_groups[].scheduled_update.rollout", f"{_G}.ScheduledUpdateConfig.DeploymentConfig"
    ),
    "cluster.tiered_storage": Field("AWS's managed tiered checkpointing, which AWS documents for clusters on EKS."),
    "cluster.tiered_storage.mode": Field("Whether it is on.", request="TieredStorageConfig.Mode"),
    "cluster.tiered_storage.memory_percent": Field(
        "Percent of each node's memory that it takes, beside what checkpoints take of /dev/shm.",
        request="TieredStorageConfig.InstanceMemoryAllocationPercentage",
    ),
    "cluster.instance_groups[].api": Field(
        "Further fields of this instance group in CreateCluster, passed on as they are."
    ),
    "cluster.accounting_database": Field(
        "A database outside of the cluster for Slurm's accounting; with continuous provisioning only."
    ),
    "cluster.accounting_database.endpoint": Field(
        "Its host name.", request="Orchestrator.Slurm.AccountingDatabase.Endpoint"
    ),
    "cluster.accounting_database.secret_arn": Field(
        "Secrets Manager's secret with user and password.", request="Orchestrator.Slurm.AccountingDatabase.SecretArn"
    ),
    "cluster.accounting_database.port": Field("Its port.", request="Orchestrator.Slurm.AccountingDatabase.Port"),
    "cluster.accounting_database.name": Field(
        "Name of the database.", request="Orchestrator.Slurm.AccountingDatabase.Name"
    ),
    "cluster.tags": Field("Tags of the cluster, key: value."),
    "cluster.api": Field("Further fields of CreateCluster, passed on as they are, for what has no key here."),
    "bundle": Field("Where lifecycle bundles are uploaded."),
    "bundle.bucket": Field(
        "The bucket; HyperPod's managed policy reads sagemaker-* only.",
        pattern=Pattern(
            "HPK-B001",
            patterns.BUCKET,
            "`{value}` is not a bucket name",
            "Use 3 to 63 lower-case letters, digits, dots and hyphens",
        ),
    ),
    "bundle.prefix": Field("Where in the bucket; ends in /."),
    "mounts": Field("File systems and buckets that nodes mount and keep mounted."),
    "users": Field("Accounts, the same on every node."),
    "users[].name": Field(
        "Login name.",
        pattern=Pattern(
            "HPK-U001",
            patterns.USER_NAME,
            "`{value}` is not a user name",
            "Use up to 32 lower-case letters, digits, _ and -, a letter first",
        ),
    ),
    "users[].uid": Field("User id; files belong to numbers, so never give one twice."),
    "users[].gid": Field("Id of the user's own group."),
    "groups": Field("Groups of users, the same on every node, with a directory that their members share."),
    "groups[].name": Field(
        "Name, and that of the directory.",
        pattern=Pattern(
            "HPK-U030",
            patterns.USER_NAME,
            "`{value}` is not a group name",
            "Use up to 32 lower-case letters, digits, _ and -, a letter first",
        ),
    ),
    "groups[].gid": Field("Group id; files belong to numbers, so never give one twice."),
    "groups[].members": Field("Names of `users`."),
    "groups[].mounts": Field(
        "Mounts of kind lustre or openzfs on which the group has a directory; none: an access point beside the homes, "
        "where there are homes."
    ),
    "groups[].archived": Field("Nobody gets in any more, and every file stays."),
    "homes": Field("Home directories on EFS, behind an access point for each user."),
    "homes.file_system_id": Field("The EFS file system."),
    "homes.path": Field("Where homes are on the nodes."),
    "homes.directory": Field(
        "Where homes are on the file system.",
        pattern=Pattern(
            "HPK-U011",
            patterns.ACCESS_POINT_PARENT,
            "`{value}` is not a directory that access points can lie in",
            "Use up to three levels like /home or /team/a/home",
        ),
    ),
    "homes.required": Field("Whether a node without them has failed."),
    "homes.roles": Field("Nodes that have them.", ROLES),
    "health": Field("How mounts are watched."),
    "health.interval": Field("Seconds between two checks."),
    "health.deadline": Field("Seconds after which a mount that does not answer is hung."),
    "health.degraded_after": Field("Failed checks in a row after which a mount is degraded."),
    "health.drain": Field("Whether the node is drained in Slurm then."),
    "health.refuse_when_full": Field(
        "Whether a file system without room keeps jobs away and drains the node. Every user can fill what all share."
    ),
    "health.textfile_directory": Field("Directory where the node exporter reads our metrics; empty for none."),
    "slurm": Field("Slurm's controller."),
    "slurm.state": Field(
        "Where slurmctld keeps its state: the name of a mount (Lustre, OpenZFS, or EFS without an access point), or "
        "own-disk; left out, the first mount that fits. On the controller's own disk all jobs are lost with it."
    ),
    "metadata_service": Field(
        "Closes the instance metadata service, and with it the role of the nodes, to all but root; without this key "
        "every process on a node has the role."
    ),
    "metadata_service.users": Field(
        "Users that may use it all the same.",
        pattern=Pattern(
            "HPK-I001",
            rf"(?!root$){patterns.USER_NAME}",
            "`{value}` is not the name of a user that this could be said of",
            "Name accounts other than root, which always may",
        ),
    ),
    "failure_pause": Field("Seconds that a failed node waits before it goes, so that CloudWatch has its last lines."),
    "clients": Field("Packages of mount clients that nodes install, each pinned by its digest."),
    "clients[].client": Field("The client that the package belongs to; a client's own package says it by its name."),
    "clients[].name": Field(
        "Name of the package.",
        pattern=Pattern(
            "HPK-P001", patterns.PACKAGE_NAME, "`{value}` is not a package name", "Copy it from dpkg-deb -I"
        ),
    ),
    "clients[].version": Field(
        "Its version, as in the package.",
        pattern=Pattern(
            "HPK-P002",
            patterns.PACKAGE_VERSION,
            "`{value}` is not a version that a package has",
            "Copy it from dpkg-deb -I; what changes under its name is not accepted",
        ),
    ),
    "clients[].arch": Field("Processors that it is for.", ("x86_64", "arm64", "all")),
    "clients[].sha256": Field(
        "SHA-256 of the file.",
        pattern=Pattern(
            "HPK-P004", patterns.SHA256, "not 64 lower-case hex digits", "Copy it from the output of sha256sum"
        ),
    ),
    "clients[].url": Field("Where nodes get it, if not from the bundle."),
    "clients[].file": Field("The file beside the configuration that goes into the bundle."),
    "scripts": Field("Scripts of your own, which travel in the bundle and run among our steps."),
    "scripts[].name": Field(
        "Name of its step, `script:NAME`.",
        pattern=Pattern(
            "HPK-O001",
            patterns.MOUNT_NAME,
            "`{value}` is not the name of a script",
            "Use 1 to 40 lower-case letters, digits and hyphens, no hyphen first",
        ),
    ),
    "scripts[].path": Field(
        "A file or a directory beside the configuration; all of it goes into the bundle.",
        pattern=Pattern(
            "HPK-O011",
            r"(?!\.?/*$)(?s:.+)",
            "`{value}` is not a file or directory beside the configuration",
            "Name a directory of the script's own, like scripts/docker",
        ),
    ),
    "scripts[].run": Field(
        "The file in the directory that is started; a single file is its own. One without #! is Bash's when its name "
        "ends in .sh, and Python's when it ends in .py."
    ),
    "scripts[].arguments": Field(
        "What it is started with; {role}, {group}, {cluster}, {controllers} and {logins} stand for what a node knows."
    ),
    "scripts[].when": Field(
        "Where among our steps: before-mounts, when users and clients are there; after-mounts, when mounts and homes "
        "are there and our Slurm daemons are not; after-slurm, when all is done.",
        PLACES,
    ),
    "scripts[].roles": Field("Nodes that run it.", ROLES),
    "scripts[].groups": Field("Instance groups that run it; all that have one of the roles when empty."),
    "scripts[].timeout": Field("Seconds after which it is killed and has failed."),
    "scripts[].required": Field("Whether a node on which it fails has failed."),
    "scripts[].always": Field("Whether it runs at each `node apply`; otherwise once for the same files and arguments."),
    "secrets": Field("Secrets that nodes fetch by themselves; never their values."),
    "secrets[].name": Field(
        "Name of the file on the node.",
        pattern=Pattern(
            "HPK-A001",
            patterns.MOUNT_NAME,
            "`{value}` is not the name of a secret",
            "Use 1 to 40 lower-case letters, digits and hyphens, no hyphen first",
        ),
    ),
    "secrets[].arn": Field(
        "ARN in Secrets Manager or Parameter Store.",
        # What stands there may be the secret itself: it is not repeated.
        pattern=Pattern(
            "HPK-A003",
            ARN.pattern,
            "this is not the ARN of a secret or of a parameter",
            "Write it like arn:aws:secretsmanager:us-east-1:111122223333:secret:name-a1b2c3",
        ),
    ),
    "secrets[].owner": Field(
        "User that may read it.",
        pattern=Pattern(
            "HPK-A004", patterns.USER_NAME, "`{value}` is not a user name", "Name the user who may read it"
        ),
    ),
    "secrets[].roles": Field("Nodes that get it.", ROLES),
}

FIELDS: Mapping[str, Field] = {
    "$schema": Field("Where an editor finds the JSON Schema of this file; nobody else reads it."),
    "version": Field("Version of AWS's file format."),
    "workload_manager": Field("Always slurm.", ("slurm",)),
    "controller_group": Field("Name of the instance group that is the controller."),
    "login_group": Field("Name of the instance group of the login nodes, if there are any."),
    "worker_groups": Field("Which partition each compute group serves."),
    "worker_groups[].instance_group_name": Field("Name of the instance group."),
    "worker_groups[].partition_name": Field(
        "Name of its partition.",
        pattern=Pattern(
            "HPK-G014",
            patterns.PARTITION,
            "`{value}` is not a partition name",
            "Use 1 to 63 letters, digits, hyphens, dots and underscores, no hyphen or dot first",
        ),
    ),
    "fsx_dns_name": Field("Short form of one FSx for Lustre mount at /fsx, with fsx_mountname."),
    "fsx_mountname": Field("Its mount name, as FSx shows it."),
    "fsx_openzfs_dns_name": Field("Short form of one FSx for OpenZFS mount at /home."),
    "bucketname": Field("Short form of one read-only Mountpoint mount at /mount-s3."),
    "slurm_configurations": Field("AWS's settings of several controllers, passed on in on_create mode."),
    "hyperpod_kit": Field("Everything that is not in AWS's own file."),
    **{f"hyperpod_kit.{key}": field for key, field in _KIT.items()},
    **{f"hyperpod_kit.mounts{key}": field for key, field in MOUNT_FIELDS.items()},
    **{f"hyperpod_kit.steps{key}": field for key, field in STEP_FIELDS.items()},
}


def field_at(path: str, kind: str = "") -> Field:
    """Return the field at a path such as `hyperpod_kit.mounts[].path`; `kind`: of the mount.

    Raises KeyError.
    """
    kind_path = path
    if kind:
        kind_path = path.replace("hyperpod_kit.mounts[]", f"hyperpod_kit.mounts[{kind}]", 1)
    if kind_path in FIELDS:
        return FIELDS[kind_path]
    return FIELDS[path]


def pattern_at(path: str) -> Optional[Pattern]:
    """Return the pattern of the field at a path; None when it has none, or the path is not a field (a
    tag)."""
    try:
        return field_at(path).pattern
    except KeyError:
        return None


def fits_field_pattern_if_any(path: str, text: str) -> bool:
    """Return whether a text matches the pattern of the field at `path`; True when that has none."""
    pattern = pattern_at(path)
    return pattern is None or pattern.fits(text)
