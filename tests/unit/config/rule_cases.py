"""Changes to the example configuration, and for every rule the ones that break it."""

from __future__ import annotations

from typing import Any, Callable

Change = Callable[[dict[str, Any]], Any]
C = "hyperpod_kit.cluster"
M = "hyperpod_kit.mounts"
H = "hyperpod_kit.homes"
HOMES = "fs-0fffffffffffffff0"


def cluster(**changes: Any) -> Change:
    return lambda values: values["hyperpod_kit"]["cluster"].update(changes)


def group(index: int, **changes: Any) -> Change:
    return lambda values: values["hyperpod_kit"]["cluster"]["instance_groups"][index].update(changes)


def mount(index: int, **changes: Any) -> Change:
    return lambda values: values["hyperpod_kit"]["mounts"][index].update(changes)


def add_mount(**fields: Any) -> Change:
    return lambda values: values["hyperpod_kit"]["mounts"].append(fields)


def kit(**changes: Any) -> Change:
    return lambda values: values["hyperpod_kit"].update(changes)


def top(**changes: Any) -> Change:
    return lambda values: values.update(changes)


def both(*changes: Change) -> Change:
    return lambda values: [change(values) for change in changes]


def homes(gid: int = 2002, **fields: Any) -> Change:
    """Homes on EFS for two users; `gid`: of the second one."""
    users = [{"name": "alice", "uid": 2001, "gid": 2001}, {"name": "a_b", "uid": 2002, "gid": gid}]
    return kit(homes={"file_system_id": HOMES, **fields}, users=users)


def group_of(**fields: Any) -> Change:
    """One group of a user; `fields`: of the group."""
    users = [{"name": "alice", "uid": 2001, "gid": 2001}]
    return kit(users=users, groups=[{"name": "vision", "gid": 3001, "members": ["alice"], **fields}])


def types(*names: str) -> Change:
    """The worker group with several instance types."""
    return group(1, instance_type=None, instance_types=list(names))


def patch(**fields: Any) -> Change:
    """The worker group is patched by AWS; `fields`: of auto_patch."""
    return group(1, auto_patch={"strategy": "WhenIdle", "idle_wait_seconds": 3600, **fields})


PATCH = f"{C}.instance_groups[1].auto_patch"
SUNDAYS = {"schedule": "cron(0 3 ? * SUN *)"}
PLAN = "arn:aws:sagemaker:us-east-1:111122223333:training-plan/mine"
LUSTRE = {
    "kind": "lustre",
    "name": "second",
    "path": "/fsx2",
    "mount_name": "abc",
    "dns_name": "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com",
}
ZFS = {"kind": "openzfs", "name": "homes", "path": "/home", "dns_name": LUSTRE["dns_name"]}
NVME = {"kind": "nvme", "name": "scratch", "path": "/scratch", "required": False, "uid": 2001}
S3FILES = {"kind": "s3files", "name": "files", "path": "/files", "file_system_id": "fs-0123456789abcdef0"}
WRITES = {"read_only": False, "uid": 2001}
WORKERS = [{"instance_group_name": "worker-group", "partition_name": "train"}]
STEPS = "hyperpod_kit.steps"
G = "hyperpod_kit.groups"
SQL = {"host": "db", "secret_arn": "arn:aws:secretsmanager:us-east-1:111122223333:secret:db-a1b2c3"}
ACCOUNTS = f"{STEPS}.accounting"
ENVIRONMENT = f"{STEPS}.training_environment"
LDAP = {"uri": "ldaps://ldap.example.com", "search_base": "dc=example,dc=com"}


OWN_DISK = kit(slurm={"state": "own-disk"})
TYPO = {"name": "a", "limits": {"max_wal": "1"}}


def with_gpus(values: dict[str, Any]) -> None:
    for group in values["hyperpod_kit"]["cluster"]["instance_groups"]:
        group["instance_type"] = "ml.g5.8xlarge"


def step(**steps: Any) -> Change:
    return kit(steps=steps)


def environment(**fields: Any) -> Change:
    """A training environment on the example's Lustre."""
    return step(training_environment={"path": "/fsx/environments", "requirements": {"x86_64": "a.lock"}, **fields})


def accounting(*accounts: Any, **fields: Any) -> Change:
    secrets = kit(secrets=[{"name": "db", "arn": SECRET["arn"]}]) if "database" in fields else kit()
    return both(secrets, _accounting(*accounts, **fields))


def _accounting(*accounts: Any, **fields: Any) -> Change:
    return step(accounting={**fields, **({"accounts": list(accounts)} if accounts else {})})


STATE = "hyperpod_kit.slurm.state"
NO_FSX = both(lambda values: values.pop("fsx_dns_name"), lambda values: values.pop("fsx_mountname"))
AMI_ONLY = both(cluster(lifecycle_mode="ami_only"), OWN_DISK, kit(mounts=[]), NO_FSX)
INIT = cluster(lifecycle_mode="on_init_complete")
CONTINUOUS = cluster(lifecycle_mode="on_init_complete", node_provisioning_mode="Continuous")
DATABASE = {
    "endpoint": "db.example.com",
    "secret_arn": "arn:aws:secretsmanager:us-east-1:111122223333:secret:db-a1b2c3",
}
VPC = {"security_group_ids": ["sg-0123456789abcdef0"], "subnet_ids": ["subnet-0123456789abcdef0"]}


def fsx_gone(values: dict[str, Any]) -> None:
    for key in ("fsx_dns_name", "fsx_mountname"):
        values.pop(key, None)


def package(**changes: Any) -> Change:
    """The example with one package of mount-s3, pinned to a URL, and these changes to it."""
    pinned = {
        "name": "mount-s3",
        "version": "1.22.0",
        "arch": "x86_64",
        "sha256": "a" * 64,
        "url": "https://packages.example.com/1.22.0/mount-s3.deb",
    }
    return kit(clients=[{key: value for key, value in {**pinned, **changes}.items() if value is not None}])


P = "hyperpod_kit.clients[0]"
FUSE = {"name": "libfuse2", "version": "2.9.9-5ubuntu3", "arch": "x86_64", "sha256": "b" * 64, "file": "libfuse2.deb"}

NVIDIAS = {"client": "pyxis", "version": "1", "arch": "x86_64", "sha256": "a" * 64, "file": "a.deb"}
SCRIPT = {"name": "docker", "path": "own/docker", "run": "install.sh"}
SECRET = {"name": "db", "arn": "arn:aws:secretsmanager:us-east-1:111122223333:secret:db-a1b2c3"}

CASES: list[tuple[str, str, Change]] = [
    ("HPK-K001", f"{C}.name", cluster(name="a_b")),
    ("HPK-K001", f"{C}.name", cluster(name="a" * 64)),
    ("HPK-K002", f"{C}.region", cluster(region="Ireland")),
    ("HPK-R004", f"{C}.region", cluster(region="us-west-9")),
    ("HPK-K003", f"{C}.execution_role", cluster(execution_role="arn:aws:iam::1:role/x")),
    ("HPK-K003", f"{C}.execution_role", cluster(execution_role="arn:aws:iam::111122223333:role/../x")),
    ("HPK-K004", f"{C}.node_recovery", cluster(node_recovery="automatic")),
    ("HPK-K005", f"{C}.node_recovery", cluster(node_recovery="None")),
    ("HPK-K006", f"{C}.vpc", cluster(vpc=None)),
    ("HPK-K006", f"{C}.vpc", both(cluster(vpc=None), fsx_gone, kit(mounts=[ZFS]))),
    ("HPK-K008", f"{C}.instance_groups[1].vpc.subnet_ids[0]", group(1, vpc={**VPC, "subnet_ids": ["subnet-x"]})),
    ("HPK-K009", f"{C}.tags.team", cluster(tags={"team": "a;b"})),
    ("HPK-K007", f"{C}.vpc.subnet_ids", cluster(vpc={**VPC, "subnet_ids": []})),
    (
        "HPK-K008",
        f"{C}.vpc.security_group_ids[0]",
        cluster(vpc={**VPC, "security_group_ids": ["subnet-0123456789abcdef0"]}),
    ),
    (
        "HPK-G002",
        f"{C}.instance_groups[2].name",
        lambda values: values["hyperpod_kit"]["cluster"]["instance_groups"].append(
            {"name": "controller-machine", "instance_type": "ml.c5.xlarge", "count": 1}
        ),
    ),
    ("HPK-G003", f"{C}.instance_groups[0].count", group(0, count=0)),
    ("HPK-G020", f"{C}.instance_groups[0].count", both(INIT, group(0, count=2))),
    ("HPK-G021", f"{C}.instance_groups[0].count", both(OWN_DISK, group(0, count=2))),
    ("HPK-G022", ACCOUNTS, both(accounting(), group(0, count=2))),
    (
        "HPK-G023",
        "slurm_configurations.slurm_shared_directory",
        both(group(0, count=2), top(slurm_configurations={"slurm_shared_directory": "/fsx2"})),
    ),
    ("HPK-G004", "login_group", top(login_group="controller-machine")),
    ("HPK-G005", "login_group", top(login_group="login")),
    (
        "HPK-G007",
        f"{C}.instance_groups[1].name",
        both(group(1, name="a_b"), top(worker_groups=[{"instance_group_name": "a_b", "partition_name": "train"}])),
    ),
    (
        "HPK-G008",
        f"{C}.instance_groups[2].name",
        lambda values: values["hyperpod_kit"]["cluster"]["instance_groups"].append(
            {"name": "worker-group", "instance_type": "ml.c5.xlarge", "count": 1}
        ),
    ),
    ("HPK-G009", f"{C}.instance_groups[1].instance_type", group(1, instance_type="p5.48xlarge")),
    ("HPK-G010", f"{C}.instance_groups[1].count", group(1, count=-1)),
    (
        "HPK-G011",
        "worker_groups[1].instance_group_name",
        top(worker_groups=[*WORKERS, {"instance_group_name": "nobody", "partition_name": "x"}]),
    ),
    (
        "HPK-G012",
        "worker_groups[1].instance_group_name",
        top(worker_groups=[*WORKERS, {"instance_group_name": "controller-machine", "partition_name": "x"}]),
    ),
    ("HPK-G013", "worker_groups[1].instance_group_name", top(worker_groups=[*WORKERS, *WORKERS])),
    (
        "HPK-G014",
        "worker_groups[0].partition_name",
        top(worker_groups=[{"instance_group_name": "worker-group", "partition_name": "a b"}]),
    ),
    (
        "HPK-G014",
        "worker_groups[0].partition_name",
        top(worker_groups=[{"instance_group_name": "worker-group", "partition_name": "Default"}]),
    ),
    (
        "HPK-G019",
        "worker_groups[0].partition_name",
        both(
            cluster(lifecycle_mode="on_init_complete"),
            top(worker_groups=[{"instance_group_name": "worker-group", "partition_name": "ml.p5.48xlarge"}]),
        ),
    ),
    ("HPK-G015", f"{C}.instance_groups[1].name", top(worker_groups=[])),
    ("HPK-G016", f"{C}.instance_groups[0].deep_health_checks", group(0, deep_health_checks=["InstanceStress"])),
    ("HPK-G017", f"{C}.instance_groups[1].min_count", group(1, min_count=4)),
    ("HPK-G018", f"{C}.instance_groups[1].ebs_kms_key", group(1, ebs_kms_key="abc")),
    ("HPK-L004", f"{C}.slurm_config_strategy", both(INIT, cluster(slurm_config_strategy="merge"))),
    ("HPK-L005", f"{C}.slurm_config_strategy", cluster(slurm_config_strategy="Merge")),
    ("HPK-L006", f"{C}.slurm_config_strategy", both(INIT, cluster(slurm_config_strategy="Managed"))),
    ("HPK-L006", f"{C}.slurm_config_strategy", both(INIT, cluster(slurm_config_strategy="Overwrite"))),
    ("HPK-L007", "slurm_configurations", both(INIT, top(slurm_configurations={"slurm_database_endpoint": "db"}))),
    ("HPK-L008", f"{C}.node_provisioning_mode", both(INIT, cluster(node_provisioning_mode="continuous"))),
    ("HPK-L009", f"{C}.node_provisioning_mode", cluster(node_provisioning_mode="Continuous")),
    ("HPK-L010", f"{C}.slurm_config_strategy", both(CONTINUOUS, cluster(slurm_config_strategy="Merge"))),
    ("HPK-L011", f"{C}.accounting_database", both(INIT, cluster(accounting_database=DATABASE))),
    ("HPK-L012", STATE, kit(slurm={"state": "nothing"})),
    ("HPK-L012", STATE, kit(slurm={"state": "data"})),  # a bucket
    ("HPK-L012", STATE, kit(slurm={"state": "home"})),  # behind an access point
    ("HPK-L012", STATE, both(add_mount(**{**LUSTRE, "roles": ["compute"]}), kit(slurm={"state": LUSTRE["name"]}))),
    ("HPK-L012", STATE, both(add_mount(**{**ZFS, "required": False}), kit(slurm={"state": ZFS["name"]}))),
    ("HPK-L013", STATE, NO_FSX),
    ("HPK-L013", STATE, both(NO_FSX, add_mount(**{**LUSTRE, "roles": ["compute", "login"]}))),
    ("HPK-R001", f"{C}.api.VpcConfig", cluster(api={"VpcConfig": {}})),
    ("HPK-R001", f"{C}.instance_groups[0].api.LifeCycleConfig", group(0, api={"LifeCycleConfig": {"OnCreate": "x"}})),
    ("HPK-R001", f"{C}.api.TieredStorageConfig", cluster(api={"TieredStorageConfig": {"Mode": "Enable"}})),
    (
        "HPK-R001",
        f"{C}.instance_groups[1].api.InstanceRequirements",
        group(1, api={"InstanceRequirements": {"InstanceTypes": ["ml.c5.large"]}}),
    ),
    ("HPK-R002", f"{C}.api.AutoScaling", cluster(api={"AutoScaling": {"Mode": "Enable"}})),
    ("HPK-R002", f"{C}.instance_groups[1].api.KubernetesConfig", group(1, api={"KubernetesConfig": {"Labels": {}}})),
    ("HPK-R006", f"{C}.api.ClusterRole", cluster(api={"ClusterRole": "arn:aws:iam::111122223333:role/Scaling"})),
    ("HPK-G024", f"{C}.instance_groups[1].instance_types[1]", types("ml.c5.large", "c5.large")),
    ("HPK-G025", f"{PATCH}.next_patch_date", patch(next_patch_date="tomorrow")),
    ("HPK-G026", f"{PATCH}.rollout.batch", patch(rollout={"batch": "101%"})),
    (
        "HPK-G026",
        f"{C}.instance_groups[0].scheduled_update.rollout.rollback_batch",
        group(
            0, scheduled_update={"schedule": "cron(0 3 ? * SUN *)", "rollout": {"batch": "1", "rollback_batch": "0"}}
        ),
    ),
    ("HPK-G027", f"{C}.instance_groups[1].instance_type", group(1, instance_type=None)),
    ("HPK-G027", f"{C}.instance_groups[1].instance_type", group(1, instance_types=["ml.c5.large"])),
    ("HPK-G028", f"{C}.instance_groups[1].instance_types", types("ml.p5.48xlarge", "ml.p5.48xlarge")),
    ("HPK-G029", f"{C}.instance_groups[1].instance_types", types("ml.p5.48xlarge", "ml.g5.xlarge")),
    (
        "HPK-G029",
        f"{C}.instance_groups[1].instance_types",
        both(kit(mounts=[]), NO_FSX, types("ml.c5.large", "ml.c7g.large"), kit(slurm={"state": "own-disk"})),
    ),
    ("HPK-G030", f"{C}.instance_groups[1].capacity", group(1, capacity="spot")),
    ("HPK-G031", f"{C}.instance_groups[0].capacity", both(CONTINUOUS, group(0, capacity="Spot"))),
    (
        "HPK-G033",
        f"{C}.instance_groups[1].capacity",
        both(CONTINUOUS, group(1, capacity="Spot", training_plan_arn=PLAN)),
    ),
    ("HPK-G034", f"{C}.instance_groups[1].capacity", group(1, capacity="Spot")),
    (
        "HPK-G036",
        f"{C}.instance_groups[1].training_plan_arn",
        both(types("ml.p5.48xlarge", "ml.p5e.48xlarge"), group(1, training_plan_arn=PLAN)),
    ),
    ("HPK-G037", f"{C}.instance_groups[0].training_plan_arn", group(0, training_plan_arn=PLAN)),
    ("HPK-G038", f"{PATCH}.strategy", patch(strategy="DrainFirst")),
    ("HPK-G039", f"{PATCH}.strategy", patch(strategy="WhenAllIdle")),
    ("HPK-G040", f"{PATCH}.idle_wait_seconds", patch(idle_wait_seconds=None)),
    (
        "HPK-G041",
        f"{C}.instance_groups[1].scheduled_update",
        both(patch(), group(1, scheduled_update=SUNDAYS)),
    ),
    (
        "HPK-G042",
        f"{C}.instance_groups[1].scheduled_update",
        group(1, scheduled_update=SUNDAYS),
    ),
    (
        "HPK-L014",
        f"{C}.instance_groups[0].auto_patch",
        both(kit(slurm={"state": "own-disk"}), group(0, auto_patch={"strategy": "WhenIdle"})),
    ),
    (
        "HPK-L014",
        f"{C}.instance_groups[0].scheduled_update",
        both(kit(slurm={"state": "own-disk"}), group(0, scheduled_update=SUNDAYS)),
    ),
    ("HPK-K010", f"{C}.tiered_storage.mode", cluster(tiered_storage={"mode": "Enable", "memory_percent": 20})),
    ("HPK-F007", f"{M}[2].efa", add_mount(**LUSTRE, efa=True)),
    (
        "HPK-P013",
        f"{C}.instance_groups[1].instance_type",
        both(
            mount(1, groups=["worker-group"]),
            mount(0, groups=["controller-machine"]),
            NO_FSX,
            kit(slurm={"state": "own-disk"}),
            group(1, instance_type="ml.c7g.large"),
        ),
    ),
    ("HPK-R003", f"{C}.instance_groups[1].api.ImageId", both(INIT, group(1, api={"ImageId": "ami-0123456789abcdef0"}))),
    ("HPK-R004", f"{C}.instance_groups[1].instance_type", group(1, instance_type="ml.p99.48xlarge")),
    ("HPK-R004", f"{C}.instance_groups[1].threads_per_core", group(1, threads_per_core=3)),
    ("HPK-R004", f"{C}.instance_groups[1].ebs_gib", group(1, ebs_gib=20_000)),
    ("HPK-R004", f"{C}.instance_groups[1].root_kms_key", group(1, root_kms_key="a key")),
    ("HPK-R004", f"{C}.instance_groups[1].training_plan_arn", group(1, training_plan_arn="plan")),
    ("HPK-R004", f"{C}.instance_groups[1].execution_role", group(1, execution_role="role")),
    ("HPK-R004", f"{C}.instance_groups[1].deep_health_checks[0]", group(1, deep_health_checks=["Stress"])),
    ("HPK-R004", f"{C}.instance_groups[1].api.OfTomorrow", group(1, api={"OfTomorrow": {"Yes": True}})),
    ("HPK-R004", f"{C}.api.OfTomorrow", cluster(api={"OfTomorrow": 1})),
    ("HPK-R004", "hyperpod_kit.bundle", kit(bundle={"bucket": "sagemaker-x", "prefix": "a/" * 500})),
    ("HPK-R004", f"{C}.tags", cluster(tags={f"key-{number}": "x" for number in range(51)})),
    (
        "HPK-R004",
        f"{C}.accounting_database.port",
        both(CONTINUOUS, cluster(accounting_database={**DATABASE, "port": 70_000})),
    ),
    (
        "HPK-M012",
        f"{M}[2].path",
        both(INIT, add_mount(**{**ZFS, "path": "/" + "d/" * 512 + "e"})),
    ),
    ("HPK-L001", f"{C}.lifecycle_mode", cluster(lifecycle_mode="on-create")),
    ("HPK-L002", "workload_manager", top(workload_manager="eks")),
    ("HPK-B001", "hyperpod_kit.bundle.bucket", kit(bundle={"bucket": "Sagemaker-x"})),
    ("HPK-B002", "hyperpod_kit.bundle.bucket", kit(bundle={"bucket": "my-bucket"})),
    ("HPK-B003", "hyperpod_kit.bundle.prefix", kit(bundle={"bucket": "sagemaker-x", "prefix": "a"})),
    ("HPK-B004", "hyperpod_kit.bundle.prefix", kit(bundle={"bucket": "sagemaker-x", "prefix": "/a b/"})),
    ("HPK-B004", "hyperpod_kit.bundle.prefix", kit(bundle={"bucket": "sagemaker-x", "prefix": "a/../"})),
    ("HPK-B005", f"{M}[1].prefix", mount(1, **WRITES, bucket="sagemaker-hyperpod-kit-demo", prefix="")),
    ("HPK-B005", f"{M}[1].prefix", mount(1, **WRITES, bucket="sagemaker-hyperpod-kit-demo", prefix="hyperpod-kit/x/")),
    ("HPK-A006", "hyperpod_kit.secrets[0].roles", kit(secrets=[{**SECRET, "roles": ["controller"]}])),
    ("HPK-I001", "hyperpod_kit.metadata_service.users[1]", kit(metadata_service={"users": ["alice", "root"]})),
    ("HPK-I001", "hyperpod_kit.metadata_service.users[0]", kit(metadata_service={"users": ["0 } accept; #"]})),
    ("HPK-I002", "hyperpod_kit.metadata_service.users[1]", kit(metadata_service={"users": ["alice", "alice"]})),
    ("HPK-M001", f"{M}[1].name", mount(1, name="Data; rm -rf /")),
    ("HPK-M002", f"{M}[1].name", mount(1, name="home")),
    ("HPK-M003", f"{M}[1].roles[1]", mount(1, roles=["compute", "worker"])),
    ("HPK-M004", f"{M}[1].roles", mount(1, roles=[])),
    ("HPK-M005", f"{M}[1].groups[1]", mount(1, groups=["worker-group", "worker-grup"])),
    ("HPK-M006", f"{M}[1].groups", mount(1, groups=["worker-group"], roles=["login"])),
    ("HPK-M007", f"{M}[0].region", mount(0, region="eu-west-1; reboot")),
    ("HPK-M007", f"{M}[1].region", mount(1, region="")),
    ("HPK-M007", f"{M}[2].region", add_mount(**S3FILES, region="x")),
    ("HPK-M010", f"{M}[1].path", mount(1, path="mnt/data")),
    ("HPK-M011", f"{M}[1].path", mount(1, path="/mnt/../data")),
    ("HPK-M012", f"{M}[1].path", mount(1, path="/mnt/da ta")),
    ("HPK-M012", f"{M}[1].path", mount(1, path="/mnt/" + 300 * "a")),
    ("HPK-M013", f"{M}[1].path", mount(1, path="/home")),
    ("HPK-M013", f"{M}[1].path", mount(1, path="/opt/slurm/etc")),
    ("HPK-M013", f"{M}[2].path", add_mount(**{**NVME, "path": "/opt/dlami/nvme"})),
    ("HPK-M016", f"{M}[0].suid_and_devices", mount(0, suid_and_devices=True)),
    ("HPK-M014", f"{M}[1].path", mount(1, path="/fsx")),
    ("HPK-M015", f"{M}[1].path", mount(1, path="/fsx/data")),
    ("HPK-E001", f"{M}[0].file_system_id", mount(0, file_system_id="fsap-0123456789abcdef0")),
    ("HPK-E002", f"{M}[0].access_point_id", mount(0, access_point_id="fs-0123456789abcdef0")),
    ("HPK-E001", f"{M}[2].file_system_id", add_mount(**{**S3FILES, "file_system_id": "bucket"})),
    ("HPK-E002", f"{M}[2].access_point_id", add_mount(**S3FILES, access_point_id="fsap-0123456789abcdef")),
    ("HPK-E003", f"{M}[0].tls", mount(0, tls=False, iam=False)),
    ("HPK-F001", "fsx_dns_name", top(fsx_dns_name="lustre.example.com")),
    ("HPK-F001", "fsx_dns_name", top(fsx_dns_name="fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com.evil.com")),
    ("HPK-F001", "fsx_dns_name", top(fsx_dns_name="fs-0123456789abcdef0.evil.com")),
    ("HPK-F002", "fsx_mountname", top(fsx_mountname="toolongname")),
    ("HPK-F002", "fsx_mountname", top(fsx_mountname="--help")),
    ("HPK-F003", "fsx_mountname", both(kit(slurm={"state": "own-disk"}), lambda values: values.pop("fsx_mountname"))),
    ("HPK-F004", f"{M}[2].dns_name", add_mount(**{**ZFS, "dns_name": "10.0.0.1"})),
    ("HPK-F004", "fsx_openzfs_dns_name", top(fsx_openzfs_dns_name="zfs.example.com")),
    ("HPK-F005", f"{M}[2].export", add_mount(**ZFS, export="/fsx/../etc")),
    (
        "HPK-F006",
        f"{M}[3]",
        both(
            cluster(lifecycle_mode="on_init_complete"),
            add_mount(**ZFS, groups=["worker-group"]),
            add_mount(**{**ZFS, "name": "other", "path": "/other"}),
        ),
    ),
    ("HPK-S001", f"{M}[1].bucket", mount(1, bucket="s3://data")),
    ("HPK-S001", f"{M}[1].bucket", mount(1, bucket="192.168.0.1")),
    ("HPK-S001", "bucketname", top(bucketname="UPPER")),
    ("HPK-S002", f"{M}[1].prefix", mount(1, prefix="corpus")),
    ("HPK-S003", f"{M}[1].prefix", mount(1, prefix="a%b/")),
    ("HPK-S003", f"{M}[1].prefix", mount(1, prefix="../")),
    ("HPK-S004", f"{M}[1].allow_overwrite", mount(1, allow_overwrite=True)),
    ("HPK-S005", f"{M}[1].dir_mode", mount(1, dir_mode="rwx")),
    ("HPK-S006", f"{M}[1].file_mode", mount(1, file_mode="0666")),
    ("HPK-S007", f"{M}[1].uid", mount(1, uid=-1)),
    ("HPK-S008", f"{M}[1].incremental_upload", mount(1, **WRITES, incremental_upload=True)),
    ("HPK-S009", f"{M}[1].world_writable", mount(1, world_writable=True)),
    ("HPK-S024", f"{M}[1].read_only", mount(1, read_only=False)),
    ("HPK-S024", f"{M}[1].read_only", mount(1, read_only=False, uid=2001, dir_mode="0555")),
    ("HPK-S024", f"{M}[1].read_only", mount(1, read_only=False, gid=2001, dir_mode="0755")),
    ("HPK-S023", "bucketname", top(bucketname="my-data")),
    ("HPK-S010", f"{M}[1].cache_mib", mount(1, cache_mib=100)),
    ("HPK-S011", f"{M}[1].cache_dir", mount(1, cache_dir="/scratch/../etc")),
    ("HPK-S011", f"{M}[1].cache_dir", mount(1, cache_dir="")),
    ("HPK-S012", f"{M}[1].cache_dir", mount(1, cache_dir="/etc/cache")),
    ("HPK-S013", f"{M}[1].cache_dir", mount(1, cache_dir="/fsx/cache")),
    ("HPK-S014", f"{M}[1].metadata_ttl", mount(1, metadata_ttl="1h")),
    ("HPK-S015", f"{M}[1].write_part_size_mib", mount(1, write_part_size_mib=4)),
    ("HPK-S016", f"{M}[1].max_threads", mount(1, max_threads=0)),
    ("HPK-S017", f"{M}[1].largest_file_gib", mount(1, **WRITES, largest_file_gib=79)),
    ("HPK-S018", f"{M}[1].endpoint_url", mount(1, endpoint_url="file:///etc")),
    ("HPK-S019", f"{M}[1].expected_bucket_owner", mount(1, expected_bucket_owner="me")),
    ("HPK-S020", f"{M}[1].storage_class", mount(1, storage_class="COLD")),
    ("HPK-S021", f"{M}[1].sse", mount(1, sse="rot13")),
    ("HPK-S022", f"{M}[1].sse_kms_key_id", mount(1, sse_kms_key_id="alias/mine")),
    ("HPK-S022", f"{M}[1].sse_kms_key_id", mount(1, sse="aws:kms", sse_kms_key_id="my key")),
    ("HPK-N001", f"{M}[2].uid", add_mount(**{**NVME, "uid": -1})),
    ("HPK-N002", f"{M}[2].mode", add_mount(**NVME, mode="0999")),
    ("HPK-N003", f"{M}[2].mode", add_mount(**NVME, mode="1777")),
    ("HPK-N004", f"{M}[2].mode", add_mount(**NVME, mode="0777", world_writable=True)),
    ("HPK-N006", f"{M}[2].groups", add_mount(**{**NVME, "required": True}, groups=["worker-group"])),
    ("HPK-N007", f"{M}[2].mode", add_mount(**{**NVME, "uid": 0})),
    ("HPK-N007", f"{M}[2].mode", add_mount(**{**NVME, "uid": 0}, gid=2001)),
    ("HPK-N005", f"{M}[2].world_writable", add_mount(**NVME, world_writable=True)),
    ("HPK-O001", "hyperpod_kit.scripts[0].name", kit(scripts=[{**SCRIPT, "name": "Docker"}])),
    ("HPK-O002", "hyperpod_kit.scripts[1].name", kit(scripts=[SCRIPT, SCRIPT])),
    ("HPK-O003", "hyperpod_kit.scripts[0].when", kit(scripts=[{**SCRIPT, "when": "after-mount"}])),
    ("HPK-O004", "hyperpod_kit.scripts[0].run", kit(scripts=[{**SCRIPT, "run": "../install.sh"}])),
    ("HPK-O004", "hyperpod_kit.scripts[0].run", kit(scripts=[{**SCRIPT, "run": ""}])),
    ("HPK-O005", "hyperpod_kit.scripts[0].roles[0]", kit(scripts=[{**SCRIPT, "roles": ["worker"]}])),
    ("HPK-O006", "hyperpod_kit.scripts[0].groups[0]", kit(scripts=[{**SCRIPT, "groups": ["workers"]}])),
    ("HPK-O007", "hyperpod_kit.scripts[0].roles", kit(scripts=[{**SCRIPT, "roles": []}])),
    ("HPK-O008", "hyperpod_kit.scripts[0].timeout", kit(scripts=[{**SCRIPT, "timeout": 0}])),
    ("HPK-O011", "hyperpod_kit.scripts[0].path", kit(scripts=[{**SCRIPT, "path": "./"}])),
    (
        "HPK-O009",
        "hyperpod_kit.scripts",
        kit(scripts=[{**SCRIPT, "timeout": 700}, {**SCRIPT, "name": "b", "timeout": 700}]),
    ),
    ("HPK-O012", f"{ACCOUNTS}.database.host", accounting(database={"host": "db:3306", "secret_arn": SECRET["arn"]})),
    (
        "HPK-O013",
        f"{ACCOUNTS}.database.user",
        accounting(database={**SQL, "user": "a;b"}),
    ),
    ("HPK-O014", f"{ACCOUNTS}.accounts[0].name", accounting({"name": "R&D"})),
    ("HPK-O014", f"{ACCOUNTS}.qos[0].name", accounting(qos=[{"name": "Night shift"}])),
    ("HPK-O015", f"{ACCOUNTS}.accounts[0].users[0]", accounting({"name": "a", "users": ["Ann"]})),
    ("HPK-O016", f"{STEPS}.log_rotation.size", step(log_rotation={"size": "50 MB"})),
    ("HPK-O017", f"{STEPS}.node_exporter.listen", step(node_exporter={"listen": "9100"})),
    (
        "HPK-O018",
        f"{STEPS}.login_message",
        both(cluster(lifecycle_mode="ami_only"), OWN_DISK, kit(mounts=[]), NO_FSX, step(login_message={})),
    ),
    (
        "HPK-O019",
        ACCOUNTS,
        both(
            CONTINUOUS,
            cluster(accounting_database=DATABASE),
            accounting(),
        ),
    ),
    ("HPK-O020", f"{ACCOUNTS}.accounts[1].name", accounting({"name": "a"}, {"name": "a"})),
    ("HPK-O020", f"{ACCOUNTS}.accounts[0].name", accounting({"name": "root"})),
    (
        "HPK-O029",
        f"{ACCOUNTS}.accounts[0].parent",
        accounting({"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}),
    ),
    ("HPK-O020", f"{ACCOUNTS}.qos[1].name", accounting(qos=[{"name": "a"}, {"name": "a"}])),
    ("HPK-O021", f"{ACCOUNTS}.accounts[0].users[0]", accounting({"name": "a", "users": ["ann"]})),
    ("HPK-O022", f"{ACCOUNTS}.accounts[0].fairshare", accounting({"name": "a", "fairshare": -1})),
    ("HPK-O022", f"{STEPS}.log_rotation.keep", step(log_rotation={"keep": 0})),
    ("HPK-O022", f"{STEPS}.node_exporter.listen", step(node_exporter={"listen": ":91000"})),
    ("HPK-O023", f"{ACCOUNTS}.accounts[0].parent", accounting({"name": "a", "parent": "b"})),
    ("HPK-O023", f"{ACCOUNTS}.accounts[0].qos[0]", accounting({"name": "a", "qos": ["fast"]})),
    ("HPK-O023", f"{ACCOUNTS}.qos[0].preempts[0]", accounting(qos=[{"name": "a", "preempts": ["a"]}])),
    (
        "HPK-O023",
        f"{ACCOUNTS}.qos[0].limits.max_wal",
        accounting(enforce=["safe"], qos=[TYPO]),
    ),
    ("HPK-O023", f"{ACCOUNTS}.enforce[0]", accounting(enforce=["all"])),
    ("HPK-O023", f"{ACCOUNTS}.preempt_mode", accounting(preempt_mode="suspend")),
    (
        "HPK-O024",
        f"{ACCOUNTS}.qos[0].limits.max_wall",
        accounting(enforce=["limits"], qos=[{"name": "a", "limits": {"max_wall": "one day"}}]),
    ),
    ("HPK-O025", f"{ACCOUNTS}.qos", accounting(qos=[{"name": "a", "limits": {"max_wall": "60"}}])),
    (
        "HPK-O026",
        ACCOUNTS,
        both(accounting(), OWN_DISK),
    ),
    (
        "HPK-O027",
        f"{ACCOUNTS}.database.secret_arn",
        accounting(database={**SQL, "secret_arn": HOMES}),
    ),
    ("HPK-O030", f"{STEPS}.docker.users[0]", step(docker={"users": ["Ann"]})),
    ("HPK-O030", f"{STEPS}.pam_slurm_adopt.users[0]", step(pam_slurm_adopt={"users": ["root:x"]})),
    ("HPK-O031", f"{STEPS}.pam_slurm_adopt.groups[0]", step(pam_slurm_adopt={"groups": ["domain admins"]})),
    ("HPK-O031", f"{STEPS}.sssd.sudo[0]", step(sssd={**LDAP, "sudo": ["%all"]})),
    ("HPK-O032", f"{STEPS}.sssd.search_base", step(sssd={**LDAP, "search_base": "example.com"})),
    (
        "HPK-O032",
        f"{STEPS}.sssd.bind_dn",
        both(
            step(sssd={**LDAP, "bind_dn": "cn=a\nldap_uri = x", "secret_arn": SECRET["arn"]}),
            kit(secrets=[{**SECRET, "roles": ["controller", "login", "compute"]}]),
        ),
    ),
    ("HPK-O033", f"{STEPS}.sssd.uri", step(sssd={**LDAP, "uri": "ldap.example.com"})),
    ("HPK-O034", f"{STEPS}.sssd.ca_file", step(sssd={**LDAP, "ca_file": "ca.pem"})),
    ("HPK-O035", f"{STEPS}.sssd.home", step(sssd={**LDAP, "home": "/home"})),
    ("HPK-O037", f"{STEPS}.pyxis", both(step(pyxis={}), kit(clients=[{**NVIDIAS, "name": "nvslurm-plugin-pyxis"}]))),
    ("HPK-O038", f"{STEPS}.enroot", step(enroot={})),
    ("HPK-O036", f"{STEPS}.sssd.secret_arn", step(sssd={**LDAP, "bind_dn": "cn=a,dc=b"})),
    ("HPK-O027", f"{STEPS}.sssd.secret_arn", step(sssd={**LDAP, "bind_dn": "cn=a,dc=b", "secret_arn": "x"})),
    ("HPK-O023", f"{STEPS}.sssd.schema", step(sssd={**LDAP, "schema": "nis"})),
    ("HPK-O023", f"{STEPS}.device_checks.action", both(step(device_checks={"action": "explode"}), with_gpus)),
    ("HPK-O039", f"{STEPS}.device_checks.dcgm", both(step(device_checks={"gate": False, "dcgm": True}), with_gpus)),
    ("HPK-O040", f"{STEPS}.device_checks", step(device_checks={})),
    ("HPK-O041", f"{ENVIRONMENT}.path", environment(path="fsx/environments")),
    ("HPK-O041", f"{ENVIRONMENT}.path", environment(path="/fsx/../etc")),
    ("HPK-O042", f"{ENVIRONMENT}.name", environment(name="Training")),
    ("HPK-O043", f"{ENVIRONMENT}.python", environment(python="python3")),
    ("HPK-O044", f"{ENVIRONMENT}.owner", environment(owner="root")),
    ("HPK-O045", f"{ENVIRONMENT}.path", environment(path="/fxs/environments")),
    ("HPK-O046", f"{ENVIRONMENT}.path", both(environment(path="/mnt/data/environments"), mount(1, **WRITES))),
    ("HPK-O046", f"{ENVIRONMENT}.path", both(environment(path="/fsx2/x"), add_mount(**LUSTRE, roles=["login"]))),
    ("HPK-O047", f"{ENVIRONMENT}.requirements.x64", environment(requirements={"x86_64": "a.lock", "x64": "a.lock"})),
    ("HPK-O048", f"{ENVIRONMENT}.requirements", environment(requirements={"arm64": "a.lock"})),
    ("HPK-O049", f"{ENVIRONMENT}.owner", environment(owner="somebody")),
    ("HPK-O050", f"{ENVIRONMENT}.timeout", environment(timeout=1300)),
    (
        "HPK-O051",
        f"{ENVIRONMENT}.timeout",
        both(environment(), kit(scripts=[{"name": "own", "path": "a.sh", "timeout": 400}])),
    ),
    ("HPK-O028", f"{STEPS}.ssh_between_nodes.mount", step(ssh_between_nodes={"mount": "data"})),
    ("HPK-A001", "hyperpod_kit.secrets[0].name", kit(secrets=[{**SECRET, "name": "Db password"}])),
    ("HPK-A002", "hyperpod_kit.secrets[1].name", kit(secrets=[SECRET, SECRET])),
    ("HPK-A003", "hyperpod_kit.secrets[0].arn", kit(secrets=[{**SECRET, "arn": "arn:aws:s3:::bucket"}])),
    ("HPK-A003", "hyperpod_kit.secrets[0].arn", kit(secrets=[{**SECRET, "arn": "hunter2"}])),
    ("HPK-A004", "hyperpod_kit.secrets[0].owner", kit(secrets=[{**SECRET, "owner": "a:b"}])),
    ("HPK-A005", "hyperpod_kit.secrets[0].roles[1]", kit(secrets=[{**SECRET, "roles": ["login", "worker"]}])),
    ("HPK-A005", "hyperpod_kit.secrets[0].roles", kit(secrets=[{**SECRET, "roles": []}])),
    ("HPK-U001", "hyperpod_kit.users[0].name", kit(users=[{"name": "Ann", "uid": 2001, "gid": 2001}])),
    ("HPK-U001", "hyperpod_kit.users[0].name", kit(users=[{"name": "fs-", "uid": 2001, "gid": 2001}])),
    ("HPK-U002", "hyperpod_kit.users[0].name", kit(users=[{"name": "systemd-network", "uid": 2001, "gid": 2001}])),
    ("HPK-U002", "hyperpod_kit.users[0].name", kit(users=[{"name": "slurm", "uid": 2001, "gid": 2001}])),
    (
        "HPK-U003",
        "hyperpod_kit.users[1].name",
        kit(users=[{"name": "a", "uid": 2001, "gid": 2001}, {"name": "a", "uid": 2002, "gid": 2002}]),
    ),
    ("HPK-U004", "hyperpod_kit.users[0].uid", kit(users=[{"name": "a", "uid": 0, "gid": 2001}])),
    (
        "HPK-U005",
        "hyperpod_kit.users[1].uid",
        kit(users=[{"name": "a", "uid": 2001, "gid": 2001}, {"name": "b", "uid": 2001, "gid": 2002}]),
    ),
    ("HPK-U011", f"{H}.directory", homes(directory="/a/b/c/d")),
    ("HPK-U011", f"{H}.directory", homes(directory="home")),
    ("HPK-U012", "hyperpod_kit.users[1].gid", homes(gid=2001)),
    ("HPK-U013", f"{H}.directory", homes(directory="/" + "d" * 94)),
    ("HPK-U014", f"{M}[0].path", both(homes(), mount(0, path="/home/alice"))),
    ("HPK-U015", f"{M}[0].access_point_id", both(homes(), mount(0, file_system_id=HOMES, access_point_id=None))),
    ("HPK-U016", f"{M}[0].iam", both(homes(), mount(0, file_system_id=HOMES, iam=False))),
    ("HPK-U030", f"{G}[0].name", group_of(name="Vision")),
    ("HPK-U031", f"{G}[0].name", group_of(name="alice")),
    ("HPK-U031", f"{G}[0].name", group_of(name="slurm")),
    ("HPK-U032", f"{G}[0].gid", group_of(gid=100)),
    ("HPK-U036", f"{G}[0].gid", group_of(gid=2001)),
    ("HPK-U033", f"{G}[0].members[1]", group_of(members=["alice", "carol"])),
    ("HPK-U034", f"{G}[0].members", group_of(archived=True, mounts=["fsx"])),
    ("HPK-U035", f"{G}[0].mounts[0]", group_of(mounts=["data"])),
    ("HPK-U035", f"{G}[0].mounts[0]", group_of(mounts=["nowhere"])),
    ("HPK-U037", f"{G}[0]", group_of(archived=True, members=[])),
    ("HPK-H001", "hyperpod_kit.health.interval", kit(health={"interval": 2, "deadline": 1})),
    ("HPK-H001", "hyperpod_kit.health.interval", kit(health={"interval": 1e30, "deadline": 1})),
    ("HPK-H001", "hyperpod_kit.health.interval", kit(health={"interval": 2**63, "deadline": 1})),
    ("HPK-H002", "hyperpod_kit.health.deadline", kit(health={"interval": 30, "deadline": 30})),
    ("HPK-H002", "hyperpod_kit.health.deadline", kit(health={"interval": 30, "deadline": 1e-320})),
    ("HPK-H005", "hyperpod_kit.health.deadline", kit(health={"interval": 60, "deadline": 31})),
    ("HPK-H006", "hyperpod_kit.health.textfile_directory", kit(health={"textfile_directory": "var/lib/x"})),
    ("HPK-H007", "hyperpod_kit.health.textfile_directory", kit(health={"textfile_directory": "/fsx/metrics"})),
    ("HPK-H003", "hyperpod_kit.health.degraded_after", kit(health={"degraded_after": 0})),
    ("HPK-H004", "hyperpod_kit.failure_pause", kit(failure_pause=-1)),
    ("HPK-P002", f"{P}.version", package(version="latest")),
    ("HPK-P002", f"{P}.version", package(version="1.0/../../etc")),
    ("HPK-P003", f"{P}.arch", package(arch="amd64")),
    ("HPK-P004", f"{P}.sha256", package(sha256="A" * 64)),
    ("HPK-P004", f"{P}.sha256", package(sha256="")),
    ("HPK-P005", P, package(file="mount-s3.deb")),
    ("HPK-P005", P, package(url=None)),
    ("HPK-P006", f"{P}.url", package(url="ftp://example.com/mount-s3.deb")),
    ("HPK-P006", f"{P}.url", package(url="https://me:secret@example.com/mount-s3.deb")),
    ("HPK-P006", f"{P}.url", package(url="https://example.com/mount-s3.deb\nX: y")),
    ("HPK-P007", f"{P}.url", package(url="https://packages.example.com/latest/x86_64/mount-s3.deb")),
    ("HPK-P008", f"{P}.client", package(client="s3fs")),
    ("HPK-P009", P, kit(clients=[{**FUSE, "client": "mount-s3"}])),
    ("HPK-P010", "hyperpod_kit.clients[1]", kit(clients=[{**FUSE, "name": "mount-s3"}] * 2)),
    ("HPK-P011", f"{P}.name", package(name="lustre-client-modules-aws")),
    ("HPK-P012", f"{C}.instance_groups[1].instance_type", both(package(), group(1, instance_type="ml.c7gn.4xlarge"))),
    (
        "HPK-P012",
        f"{C}.instance_groups[1].instance_type",
        both(package(), group(1, instance_type="ml.p6e-gb200.36xlarge")),
    ),
]
