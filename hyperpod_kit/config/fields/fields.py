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
    "HPK-O030", patterns.USER_NAME, "`{value}` is not a user's name", "Use the user's Linux login name"
)
_GROUP = Pattern(
    "HPK-O031",
    r"[A-Za-z_][A-Za-z0-9_.-]{0,63}",
    "`{value}` is not a group name that a login rule accepts",
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
        "The database user as which slurmdbd connects.",
        pattern=_WORD,
    ),
    ".accounting.database.name": Field(
        "Name of the database.",
        pattern=_WORD,
    ),
    ".accounting.database.port": Field("Its port."),
    ".accounting.accounts": Field("Slurm's accounts; default: one account named users for everybody."),
    ".accounting.accounts[].name": Field("Name of the account.", pattern=_SLURM_NAME),
    ".accounting.accounts[].users": Field(
        "The users in the account.",
        pattern=Pattern(
            "HPK-O015", patterns.USER_NAME, "`{value}` is not a user's name", "Use the user's Linux login name"
        ),
    ),
    ".accounting.accounts[].parent": Field("The parent account."),
    ".accounting.accounts[].fairshare": Field("Its share relative to its siblings."),
    ".accounting.accounts[].qos": Field(
        "The QOS that its jobs may request, the default first; if empty, normal and all of them."
    ),
    ".accounting.qos": Field("Slurm's qualities of service, in addition to its own, which is named normal."),
    ".accounting.qos[].name": Field("Name of the QOS.", pattern=_SLURM_NAME),
    ".accounting.qos[].priority": Field("Jobs with a higher value start earlier."),
    ".accounting.qos[].preempts": Field("The QOS whose running jobs its own jobs may preempt."),
    ".accounting.qos[].limits": Field(f"Of {', '.join(LIMITS)}: as sacctmgr writes their values."),
    ".accounting.enforce": Field(
        "The limits that slurmctld enforces (AccountingStorageEnforce); if empty, it only counts.", ENFORCED
    ),
    ".accounting.preempt_mode": Field("What happens to a preempted job.", PREEMPT_MODES),
    ".log_rotation": Field("Rotates the logs of Slurm, of this toolkit and of its scripts by their size."),
    ".log_rotation.size": Field(
        "The size at which a log is rotated.",
        pattern=Pattern("HPK-O016", r"[1-9][0-9]{0,5}[kMG]", "`{value}` is not a size", "Write it like 50M or 1G"),
    ),
    ".log_rotation.keep": Field("How many rotated logs are kept."),
    ".login_message": Field("Shows at login which node this is, and whether its mounts work."),
    ".login_message.text": Field("Your own lines below that."),
    ".ssh_between_nodes": Field(
        "Users can ssh from node to node without a password: nodes vouch for them, and have each other's host keys."
    ),
    ".ssh_between_nodes.mount": Field(
        "Name of the mount on which nodes find each other's host keys; default: the first that every node has."
    ),
    ".node_exporter": Field(
        "Prometheus' exporter of the node, with the metrics of mounts and checkpoints; on the controller with Slurm's."
    ),
    ".node_exporter.listen": Field(
        "The address on which it listens.",
        pattern=Pattern(
            "HPK-O017",
            r"([0-9.]{7,15}|\[[0-9a-fA-F:]{2,39}\])?:[1-9][0-9]{0,4}",
            "`{value}` is not an address with a port",
            "Write it like :9100 or 127.0.0.1:9100",
        ),
    ),
    ".docker": Field("Docker, with its images on the local NVMe, if the node has one."),
    ".docker.users": Field("Who may use it; these users are in effect root on the node.", pattern=_LOCAL_USER),
    ".podman": Field("Podman for everybody, with its images on the local NVMe, if the node has one."),
    ".enroot": Field("NVIDIA's enroot, with unpacked images on the local NVMe, if the node has one."),
    ".pyxis": Field("NVIDIA's pyxis: `srun --container-image` starts tasks in enroot containers."),
    ".pam_slurm_adopt": Field("On compute nodes: no ssh for users without a job on the node; root can always log in."),
    ".pam_slurm_adopt.users": Field("Users who may log in without a job.", pattern=_LOCAL_USER),
    ".pam_slurm_adopt.groups": Field("Groups whose members may log in without a job.", pattern=_GROUP),
    ".sssd": Field("Users and groups of a directory: LDAP or Active Directory."),
    ".sssd.uri": Field(
        "The server, or several separated by commas; a connection to ldap:// changes to TLS first.",
        pattern=Pattern(
            "HPK-O033",
            r"ldaps?://[A-Za-z0-9.\[\]:-]+(,ldaps?://[A-Za-z0-9.\[\]:-]+)*",
            "`{value}` is not the URI of a directory",
            "Write it like ldaps://ldap.example.com",
        ),
    ),
    ".sssd.search_base": Field("The entry below which users and groups are.", pattern=_DN),
    ".sssd.schema": Field("The schema of groups in the directory.", SCHEMAS),
    ".sssd.bind_dn": Field("The entry as which the directory is read; default: anonymous.", pattern=_DN),
    ".sssd.secret_arn": Field("ARN of an entry of hyperpod_kit.secrets for all roles: the password of bind_dn."),
    ".sssd.ca_file": Field(
        "The CA certificates on the node that the server's certificate is checked against; default: the system's.",
        pattern=Pattern(
            "HPK-O034", r"(/[A-Za-z0-9._-]+)*", "`{value}` is not an absolute path", "Write it like /etc/ldap/ca.pem"
        ),
    ),
    ".sssd.home": Field(
        "Home of each user, with %u for the name; created at the first login.",
        pattern=Pattern(
            "HPK-O035",
            r"(/[A-Za-z0-9._%-]+)*/%u",
            "`{value}` is not a path that ends in the user's name",
            "Write it like /home/%u or /fsx/%u",
        ),
    ),
    ".sssd.allow": Field("Groups whose members may log in; default: everybody.", pattern=_GROUP),
    ".sssd.sudo": Field("Groups whose members may use sudo.", pattern=_GROUP),
    ".device_checks": Field("GPUs and EFA devices of compute nodes are checked every minute, and before each job."),
    ".device_checks.action": Field(
        "The strongest reaction to a fault: report it, drain the node, have HyperPod reboot it, or have "
        "HyperPod replace it.",
        ACTIONS,
    ),
    ".device_checks.gate": Field("The Prolog checks too, and starts no job on a node with a fault."),
    ".device_checks.dcgm": Field("The Prolog also runs `dcgmi diag -r 1`, for 20 s at most."),
    ".device_checks.efa": Field(
        "EFA devices are counted; set to false if fewer are attached than the instance type has."
    ),
    ".training_environment": Field(
        "A Python environment for jobs that includes this kit, created once from a lock file and checked "
        "at each login and compute node."
    ),
    ".training_environment.path": Field(
        "The directory that contains it: on a mount that all login and compute nodes have, or below /opt "
        "or /var/lib on each node's own disk.",
        pattern=Pattern(
            "HPK-O041",
            r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*){1,12}",
            "`{value}` is not an absolute path",
            "Write it like /fsx/environments",
        ),
    ),
    ".training_environment.requirements": Field(
        "Lock files with hashes, beside the configuration, by architecture: x86_64, arm64."
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
        "The user who creates it and owns its files; whoever can act as this user decides what jobs run.",
        pattern=Pattern(
            "HPK-O044",
            rf"(?!root$){patterns.USER_NAME}",
            "`{value}` cannot own the environment",
            "Name a user other than root: packages are not run as root, and shared mounts may refuse root",
        ),
    ),
    ".training_environment.timeout": Field(
        "Maximum seconds in which a node creates it, or waits for the node that does."
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
    "`{value}` is not a batch size",
    "Write a number of nodes such as 2, or a share of the group such as 10%",
)


def _rollout_fields(key: str, request: str) -> Mapping[str, Field]:
    return {
        key: Field("How an update proceeds through the group; default: all nodes at once."),
        f"{key}.batch": Field("How many nodes at once: `2`, or `10%` of the group.", pattern=_BATCH),
        f"{key}.rollback_batch": Field("The same for a rollback.", pattern=_BATCH),
        f"{key}.pause_seconds": Field("Seconds between two batches.", request=f"{request}.WaitIntervalInSeconds"),
        f"{key}.alarms": Field(
            "CloudWatch alarms that roll the update back.", request=f"{request}.AutoRollbackConfiguration[].AlarmName"
        ),
    }


_KIT: Mapping[str, Field] = {
    "cluster": Field("The cluster itself: the fields of CreateCluster."),
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
        "ARN of the nodes' IAM role.",
        request=f"{_G}.ExecutionRole",
        pattern=Pattern(
            "HPK-K003",
            patterns.ROLE_ARN,
            "`{value}` is not the ARN of a role",
            "Write it like arn:aws:iam::111122223333:role/Name",
        ),
    ),
    "cluster.lifecycle_mode": Field(
        "on_init_complete: our script runs after HyperPod's own set-up of Slurm and FSx; on_create: our "
        "script replaces it; ami_only: no script of ours runs.",
        LIFECYCLE_MODES,
    ),
    "cluster.node_recovery": Field(
        "Automatic: HyperPod replaces or reboots broken nodes, which auto-resume waits for; None: broken nodes stay.",
        ("Automatic", "None"),
    ),
    "cluster.node_provisioning_mode": Field(
        "Continuous: the cluster starts with the first nodes, and HyperPod keeps provisioning the rest; "
        "default: all nodes or none. It cannot be changed after creation.",
        ("Continuous",),
    ),
    "cluster.slurm_config_strategy": Field(
        "What HyperPod does with changes of slurm.conf that it did not make; default: Merge, which keeps ours.",
        ("Merge", "Managed", "Overwrite"),
    ),
    "cluster.vpc": Field("The network of the nodes. Required for EFS and FSx."),
    "cluster.vpc.security_group_ids": Field(
        "Security groups of the nodes; with EFA each allows all traffic to itself.", pattern=_SECURITY_GROUP
    ),
    "cluster.vpc.subnet_ids": Field(
        "Private subnets, in the Availability Zone of the instances and FSx.", pattern=_SUBNET
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
            "Write it with the prefix ml., like ml.p5.48xlarge",
            patterns.INSTANCE_TYPE_PREFIX,
        ),
    ),
    "cluster.instance_groups[].instance_types": Field(
        "Several types instead of one: each node gets the first type that has capacity.",
        request=f"{_G}.InstanceRequirements.InstanceTypes",
        pattern=Pattern(
            "HPK-G024",
            patterns.INSTANCE_TYPE,
            "`{value}` is not an instance type",
            "Write it with the prefix ml., like ml.p5.48xlarge",
            patterns.INSTANCE_TYPE_PREFIX,
        ),
    ),
    "cluster.instance_groups[].count": Field("How many nodes.", request=f"{_G}.InstanceCount"),
    "cluster.instance_groups[].min_count": Field(
        "The group is rolled back if it has fewer nodes than this after three hours.", request=f"{_G}.MinInstanceCount"
    ),
    "cluster.instance_groups[].threads_per_core": Field("1 turns multithreading off.", request=f"{_G}.ThreadsPerCore"),
    "cluster.instance_groups[].execution_role": Field(
        "ARN of this group's role; default: the cluster's role.", request=f"{_G}.ExecutionRole"
    ),
    "cluster.instance_groups[].vpc": Field("The network of this group's nodes; default: the cluster's network."),
    "cluster.instance_groups[].vpc.security_group_ids": Field(
        "Security groups of this group's nodes.", pattern=_SECURITY_GROUP
    ),
    "cluster.instance_groups[].vpc.subnet_ids": Field("Subnets of this group's nodes.", pattern=_SUBNET),
    "cluster.instance_groups[].ebs_gib": Field(
        "GiB of an EBS volume mounted at /opt/sagemaker.",
        request=f"{_G}.InstanceStorageConfigs[].EbsVolumeConfig.VolumeSizeInGB",
    ),
    "cluster.instance_groups[].ebs_kms_key": Field(
        "KMS key of that volume.", request=f"{_G}.InstanceStorageConfigs[].EbsVolumeConfig.VolumeKmsKeyId"
    ),
    "cluster.instance_groups[].root_kms_key": Field(
        "KMS key of the root volume.", request=f"{_G}.InstanceStorageConfigs[].EbsVolumeConfig.VolumeKmsKeyId"
    ),
    "cluster.instance_groups[].deep_health_checks": Field(
        "Hardware tests that new compute nodes must pass before they take jobs; they take an hour or more.",
        request=f"{_G}.OnStartDeepHealthChecks",
    ),
    "cluster.instance_groups[].training_plan_arn": Field(
        "The training plan whose reserved capacity the group uses.", request=f"{_G}.TrainingPlanArn"
    ),
    "cluster.instance_groups[].capacity": Field(
        "Spot: AWS reclaims nodes when it needs them; OnDemand (the default): AWS does not.",
        ("Spot", "OnDemand"),
    ),
    "cluster.instance_groups[].network_interface": Field(
        "efa: additional network cards get addresses from the subnet; efa-only: they get none.",
        request=f"{_G}.NetworkInterface.InterfaceType",
    ),
    "cluster.instance_groups[].auto_patch": Field(
        "Security patches that HyperPod applies automatically: nodes take no new job until they are idle and patched."
    ),
    "cluster.instance_groups[].auto_patch.strategy": Field(
        (
            "WhenIdle: each node is patched when it is idle, and then takes jobs again; WhenAllIdle: all nodes "
            "are patched together."
        ),
        ("WhenIdle", "WhenAllIdle"),
    ),
    "cluster.instance_groups[].auto_patch.next_patch_date": Field(
        "When the next patch begins; default: AWS decides.",
        pattern=Pattern(
            "HPK-G025",
            r"\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2})?(Z|[+-]\d{2}:\d{2})?)?",
            "`{value}` is not a date",
            "Write it like 2026-12-01 or 2026-12-01T03:00:00Z",
        ),
    ),
    "cluster.instance_groups[].auto_patch.idle_wait_seconds": Field(
        "How long nodes take no new job while others are not idle yet; default: a day.",
        request=f"{_G}.AutoPatchConfig.IdleWaitWindowInSeconds",
    ),
    "cluster.instance_groups[].scheduled_update": Field(
        "AMI updates on a schedule that ignores jobs: whatever runs on a node then ends."
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
        "Percent of each node's memory for the daemon, in addition to what checkpoints use of /dev/shm.",
        request="TieredStorageConfig.InstanceMemoryAllocationPercentage",
    ),
    "cluster.instance_groups[].api": Field(
        "Additional CreateCluster fields of this instance group, passed on unchanged."
    ),
    "cluster.accounting_database": Field(
        "A database outside of the cluster for Slurm's accounting; with continuous provisioning only."
    ),
    "cluster.accounting_database.endpoint": Field(
        "Its host name.", request="Orchestrator.Slurm.AccountingDatabase.Endpoint"
    ),
    "cluster.accounting_database.secret_arn": Field(
        "The Secrets Manager secret with user and password.", request="Orchestrator.Slurm.AccountingDatabase.SecretArn"
    ),
    "cluster.accounting_database.port": Field("Its port.", request="Orchestrator.Slurm.AccountingDatabase.Port"),
    "cluster.accounting_database.name": Field(
        "Name of the database.", request="Orchestrator.Slurm.AccountingDatabase.Name"
    ),
    "cluster.tags": Field("Tags of the cluster, key: value."),
    "cluster.api": Field(
        "Additional CreateCluster fields, passed on unchanged, for settings without a key of their own."
    ),
    "bundle": Field("Where lifecycle bundles are uploaded."),
    "bundle.bucket": Field(
        "The bucket; HyperPod's managed policy reads only sagemaker-* buckets.",
        pattern=Pattern(
            "HPK-B001",
            patterns.BUCKET,
            "`{value}` is not a bucket name",
            "Use 3 to 63 lower-case letters, digits, dots and hyphens",
        ),
    ),
    "bundle.prefix": Field("The prefix in the bucket; ends in /."),
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
    "users[].uid": Field("User id; files belong to numbers, so never reuse one."),
    "users[].gid": Field("Id of the user's own group."),
    "groups": Field("Groups of users, the same on every node, with a directory that their members share."),
    "groups[].name": Field(
        "Name of the group and of its directory.",
        pattern=Pattern(
            "HPK-U030",
            patterns.USER_NAME,
            "`{value}` is not a group name",
            "Use up to 32 lower-case letters, digits, _ and -, a letter first",
        ),
    ),
    "groups[].gid": Field("Group id; files belong to numbers, so never reuse one."),
    "groups[].members": Field("Names of `users`."),
    "groups[].mounts": Field(
        "Mounts of kind lustre or openzfs on which the group has a directory; if empty, an access point "
        "beside the homes, if there are homes."
    ),
    "groups[].archived": Field("Nobody can access the directory any more; all files are kept."),
    "homes": Field("Home directories on EFS, behind an access point for each user."),
    "homes.file_system_id": Field("The EFS file system."),
    "homes.path": Field("Directory of the homes on the nodes."),
    "homes.directory": Field(
        "Directory of the homes on the file system.",
        pattern=Pattern(
            "HPK-U011",
            patterns.ACCESS_POINT_PARENT,
            "`{value}` is not a directory that can hold access points",
            "Use up to three levels like /home or /team/a/home",
        ),
    ),
    "homes.required": Field("Whether a node without them has failed."),
    "homes.roles": Field("Nodes that have them.", ROLES),
    "health": Field("How mounts are watched."),
    "health.interval": Field("Seconds between two checks."),
    "health.deadline": Field("Seconds without an answer after which a mount counts as hung."),
    "health.degraded_after": Field("Failed checks in a row after which a mount is degraded."),
    "health.drain": Field("Whether a degraded node is drained in Slurm."),
    "health.refuse_when_full": Field(
        "Whether a full file system keeps jobs away and drains the node. On a shared file system, any user "
        "can cause that."
    ),
    "health.textfile_directory": Field("Directory from which the node exporter reads our metrics; empty for none."),
    "slurm": Field("Slurm's controller."),
    "slurm.state": Field(
        "Where slurmctld keeps its state: the name of a mount (Lustre, OpenZFS, or EFS without an access point), or "
        "own-disk; left out, the first mount that fits. On the controller's own disk all jobs are lost with it."
    ),
    "metadata_service": Field(
        "Closes the instance metadata service, and with it the nodes' role, to everybody but root; without "
        "this key every process on a node has the role."
    ),
    "metadata_service.users": Field(
        "Users who may still use it.",
        pattern=Pattern(
            "HPK-I001",
            rf"(?!root$){patterns.USER_NAME}",
            "`{value}` is not the name of a user who can be exempted",
            "Name accounts other than root, which always has access",
        ),
    ),
    "failure_pause": Field(
        "Seconds that a failed node waits before it exits, so that its last lines reach CloudWatch."
    ),
    "clients": Field("Packages of mount clients that nodes install, each pinned by its digest."),
    "clients[].client": Field(
        "The client that the package belongs to; optional for a client's own package, whose name identifies it."
    ),
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
            "`{value}` is not a package version",
            "Copy it from dpkg-deb -I; a name that can point to other contents is not accepted",
        ),
    ),
    "clients[].arch": Field("Processor architecture of the package.", ("x86_64", "arm64", "all")),
    "clients[].sha256": Field(
        "SHA-256 of the file.",
        pattern=Pattern(
            "HPK-P004", patterns.SHA256, "not 64 lower-case hex digits", "Copy it from the output of sha256sum"
        ),
    ),
    "clients[].url": Field("URL from which nodes download it, if it is not in the bundle."),
    "clients[].file": Field("The file beside the configuration that goes into the bundle."),
    "scripts": Field("Your own scripts, which are part of the bundle and run between our steps."),
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
            "Name a directory that contains only the script, like scripts/docker",
        ),
    ),
    "scripts[].run": Field(
        "The file in the directory to start; optional if there is only one file. Without #!, a file whose "
        "name ends in .sh is started with Bash, and one in .py with Python."
    ),
    "scripts[].arguments": Field(
        "Its arguments; {role}, {group}, {cluster}, {controllers} and {logins} are replaced with the node's values."
    ),
    "scripts[].when": Field(
        "When it runs: before-mounts, after users and clients are set up; after-mounts, after mounts and "
        "homes, before our Slurm daemons; after-slurm, at the end.",
        PLACES,
    ),
    "scripts[].roles": Field("Nodes that run it.", ROLES),
    "scripts[].groups": Field("Instance groups that run it; if empty, all groups with one of the roles."),
    "scripts[].timeout": Field("Seconds after which it is killed and counts as failed."),
    "scripts[].required": Field("Whether the node fails if it fails."),
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
        "User who may read it.",
        pattern=Pattern(
            "HPK-A004", patterns.USER_NAME, "`{value}` is not a user name", "Name the user who may read it"
        ),
    ),
    "secrets[].roles": Field("Nodes that get it.", ROLES),
}

FIELDS: Mapping[str, Field] = {
    "$schema": Field("Path of this file's JSON Schema, for editors; everything else ignores it."),
    "version": Field("Version of AWS's file format."),
    "workload_manager": Field("Always slurm.", ("slurm",)),
    "controller_group": Field("Name of the instance group that is the controller."),
    "login_group": Field("Name of the instance group of the login nodes, if any."),
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
    "hyperpod_kit": Field("All settings that AWS's own file does not have."),
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
