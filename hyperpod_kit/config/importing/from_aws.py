"""What AWS knows of a cluster -> the values of a configuration file.

Takes the request of CreateCluster, its instance groups alone, or the answer of DescribeCluster; and AWS's own
provisioning_parameters.json. Whatever the file cannot express becomes a note: nothing is dropped in silence.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Mapping, NamedTuple, Optional, Sequence

from hyperpod_kit.aws import request_shape
from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.config.emit import NODE_TYPES
from hyperpod_kit.config.mounts.form import StorageConfig
from hyperpod_kit.config.mounts.registry import FORMS
from hyperpod_kit.config.rules.passthrough_fields import keys_of_covered_member
from hyperpod_kit.config.settings.findings import is_key_path_at_or_inside
from hyperpod_kit.config.settings.patterns import INSTANCE_TYPE, INSTANCE_TYPE_PREFIX
from hyperpod_kit.errors import ConfigError
from hyperpod_kit.model.mounts.kinds import KINDS
from hyperpod_kit.model.states import LifecycleMode, Role

PARAMETERS = (
    "version",
    "workload_manager",
    "controller_group",
    "login_group",
    "worker_groups",
    "fsx_dns_name",
    "fsx_mountname",
    "fsx_openzfs_dns_name",
    "slurm_configurations",
)
"""AWS's own keys."""

WORKER = ("instance_group_name", "partition_name")
"""Of them, the keys of an entry of worker_groups."""

_ROLES = {node_type: role for role, node_type in NODE_TYPES.items()}
_PLAIN_GROUP_FIELDS = {
    "min_count": "MinInstanceCount",
    "threads_per_core": "ThreadsPerCore",
    "training_plan_arn": "TrainingPlanArn",
    "deep_health_checks": "OnStartDeepHealthChecks",
}


@dataclass(frozen=True)
class ImportedConfiguration:
    """`values`: of a configuration, without what nobody said; `notes`: what was left behind, one sentence each;
    `source`, `entry`: S3 URI of the lifecycle scripts and the one of them that HyperPod starts, "" for none."""

    values: dict[str, Any]
    notes: tuple[str, ...]
    source: str = ""
    entry: str = ""


def import_configuration(cluster: Any, parameters: Any) -> ImportedConfiguration:
    """Convert what JSON or boto3 gave of a cluster and of AWS's parameters, None for what is missing, to
    a configuration.

    Raises ConfigError for anything else.
    """
    reader = _RequestReader()
    if parameters is not None:
        values = reader.validate_and_clean_parameters(parameters)
    else:
        values = {}
    if cluster is not None:
        reader.fill_values_from_cluster_request(values, _normalise_slurm_request(cluster))
    else:
        reader.set_on_create_mode_and_drop_heads(values)
    mode = values.get("hyperpod_kit", {}).get("cluster", {}).get("lifecycle_mode", LifecycleMode.ON_CREATE)
    if mode == LifecycleMode.ON_CREATE:  # elsewhere they go to nobody, which `validate` says
        reader.notes += set_on_create_for_slurm_configurations(values)
    if cluster is None:
        source, entry = ("", "")
    else:
        source, entry = (first_lifecycle_scripts_uri(cluster) or "", _first_entry_script(cluster))
    return ImportedConfiguration(values, tuple(dict.fromkeys(reader.notes)), source, entry)


def first_lifecycle_scripts_uri(cluster: Any) -> Optional[str]:
    """The S3 URI of the lifecycle scripts of a cluster that has any: its provisioning_parameters.json lies there."""
    for group in _normalise_slurm_request(cluster)["InstanceGroups"]:
        lifecycle = group.get("LifeCycleConfig")
        if isinstance(lifecycle, Mapping) and isinstance(lifecycle.get("SourceS3Uri"), str):
            return str(lifecycle["SourceS3Uri"])
    return None


def _first_entry_script(cluster: Any) -> str:
    for group in _normalise_slurm_request(cluster)["InstanceGroups"]:
        lifecycle = group.get("LifeCycleConfig")
        for hook in ("OnCreate", "OnInitComplete") if isinstance(lifecycle, Mapping) else ():
            if lifecycle.get(hook):
                return str(lifecycle[hook])
    return ""


def _normalise_slurm_request(cluster: Any) -> Mapping[str, Any]:
    if isinstance(cluster, list):
        request = {"InstanceGroups": cluster}
    else:
        request = cluster
    groups = None
    if isinstance(request, Mapping):
        groups = request.get("InstanceGroups")
    if not isinstance(groups, list) or not all(
        isinstance(group, Mapping) and isinstance(group.get("InstanceGroupName"), str) for group in groups
    ):
        raise ConfigError(
            "this is not a cluster: expected the JSON of CreateCluster or DescribeCluster, or a list of groups",
            hint="aws sagemaker describe-cluster --cluster-name NAME > cluster.json",
        )
    if isinstance(request.get("Orchestrator"), Mapping) and "Eks" in request["Orchestrator"]:
        raise ConfigError("this cluster is orchestrated by EKS; only Slurm clusters can be described here")
    return dict(request)


class _RequestReader:
    """Gathers notes while it reads."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def validate_and_clean_parameters(self, given: Any) -> dict[str, Any]:
        """Return AWS's own parameters without empty values, and note unknown keys.

        Raises ConfigError when this is another file.
        """
        if not isinstance(given, Mapping):
            raise ConfigError("provisioning_parameters.json holds no object")
        if "hyperpod_kit" in given:
            raise ConfigError("this is a configuration of hyperpod-kit already", hint="hyperpod-kit validate FILE")
        for key in given:
            if key not in PARAMETERS:
                self.notes.append(f"`{key}` of provisioning_parameters.json: unknown")
        kept = {key: given[key] for key in PARAMETERS if given.get(key) not in (None, "", {})}
        if isinstance(kept.get("worker_groups"), list):
            kept["worker_groups"] = [self._keep_known_worker_keys(entry) for entry in kept["worker_groups"]]
        wrong = [
            finding
            for finding in decode_settings(kept)[1]
            if not is_key_path_at_or_inside(finding.path, "hyperpod_kit")
        ]
        if wrong:
            raise ConfigError(
                "this is not AWS's provisioning_parameters.json", findings=[finding.render() for finding in wrong]
            )
        return kept

    def set_on_create_mode_and_drop_heads(self, values: dict[str, Any]) -> None:
        """Set on_create mode, since no other reads AWS's file, and take controller and login groups out
        of worker_groups."""
        values.setdefault("hyperpod_kit", {}).setdefault("cluster", {})["lifecycle_mode"] = (
            LifecycleMode.ON_CREATE.value
        )
        heads = (values.get("controller_group"), values.get("login_group"))
        for entry in list(values.get("worker_groups", ())):
            if entry["instance_group_name"] in heads:
                self._note_head_among_workers(entry["instance_group_name"], entry.get("partition_name"))
                values["worker_groups"].remove(entry)

    def _note_head_among_workers(self, name: str, partition: Any) -> None:
        """Note that a controller or login group is listed among the workers, as AWS's Terraform module
        does."""
        self.notes.append(f"partition `{partition or name}` of group `{name}`: its nodes run no jobs here")

    def _keep_known_worker_keys(self, entry: Any) -> Any:
        """An entry of worker_groups with the keys that it has here; AWS's Terraform module writes others there."""
        if not isinstance(entry, Mapping):
            return entry
        for key in entry:
            if key not in WORKER:
                self.notes.append(f"`{key}` of an entry of worker_groups in provisioning_parameters.json: unknown")
        return {key: entry[key] for key in WORKER if key in entry}

    def fill_values_from_cluster_request(self, values: dict[str, Any], request: Mapping[str, Any]) -> None:
        """Put the cluster's part into the values; roles in AWS's own file count where the API has none."""
        groups: Sequence[Mapping[str, Any]] = [
            self._correct_field_spelling(group) for group in request["InstanceGroups"]
        ]
        request = {**request, "InstanceGroups": groups}
        self._fill_group_roles_and_workers(values, groups)
        cluster: dict[str, Any] = {}
        if request.get("ClusterName"):
            cluster["name"] = request["ClusterName"]
        if str(request.get("ClusterArn", "")).count(":") >= 5:
            cluster["region"] = str(request["ClusterArn"]).split(":")[3]
        cluster["lifecycle_mode"] = self._common_lifecycle_mode(groups)
        for key, field in (("node_recovery", "NodeRecovery"), ("node_provisioning_mode", "NodeProvisioningMode")):
            if request.get(field):
                cluster[key] = request[field]
        self._fill_cluster_from_orchestrator(cluster, request.get("Orchestrator"))
        roles = Counter(str(group["ExecutionRole"]) for group in groups if group.get("ExecutionRole"))
        if roles:
            cluster["execution_role"] = roles.most_common(1)[0][0]
        if request.get("VpcConfig"):
            cluster["vpc"] = _vpc_values(request["VpcConfig"])
        storage = ImportedStorage([str(group.get("InstanceGroupName")) for group in groups])
        cluster["instance_groups"] = [self._read_instance_group(group, cluster, storage) for group in groups]
        tiered = request.get("TieredStorageConfig")
        if isinstance(tiered, Mapping) and tiered.get("Mode"):
            cluster["tiered_storage"] = _without_empty(
                mode=tiered["Mode"], memory_percent=tiered.get("InstanceMemoryAllocationPercentage")
            )
        if isinstance(request.get("Tags"), list):
            tags = [tag for tag in request["Tags"] if isinstance(tag, Mapping)]
            cluster["tags"] = {str(tag.get("Key")): str(tag.get("Value")) for tag in tags}
        self._add_passthrough_fields(cluster, request, "", described="ClusterStatus" in request)
        kit = values.setdefault("hyperpod_kit", {})
        kit["cluster"] = cluster
        kit["mounts"] = storage.build_mounts_and_drop_short_forms(values)
        self.notes += storage.notes
        source = first_lifecycle_scripts_uri(request)
        if source is not None:
            kit["bundle"] = {"bucket": source.partition("://")[2].partition("/")[0]}
            self.notes.append(f"the lifecycle scripts at {source}: the bundle takes their place")

    def _fill_group_roles_and_workers(self, values: dict[str, Any], groups: Sequence[Mapping[str, Any]]) -> None:
        """controller_group, login_group and worker_groups, from SlurmConfig where the API has it."""
        partitions = {}
        for entry in values.get("worker_groups") or ():
            if isinstance(entry, Mapping) and isinstance(entry.get("instance_group_name"), str):
                partitions[entry["instance_group_name"]] = entry.get("partition_name")
        for group in groups:
            slurm = group.get("SlurmConfig")
            if isinstance(slurm, Mapping):
                role, name = _ROLES.get(str(slurm.get("NodeType")), Role.COMPUTE.value), group.get("InstanceGroupName")
                if role in (Role.CONTROLLER, Role.LOGIN):
                    values[f"{role}_group"] = name
                elif isinstance(slurm.get("PartitionNames"), list) and slurm["PartitionNames"]:
                    partitions[name], *other_partitions = slurm["PartitionNames"]
                    self.notes += [
                        f"partition `{other}` of group `{name}`: it has one here" for other in other_partitions
                    ]
        names = [group.get("InstanceGroupName") for group in groups]
        login = values.get("login_group")
        if login is not None and login not in names:
            # AWS's own template names one that its example's cluster has not, and AWS's scripts pass over it.
            self.notes.append(f"login_group `{login}`: the cluster has no instance group of that name")
            del values["login_group"]
        self.notes += set_heads_guessed_by_name(values, names)
        heads = (values.get("controller_group"), values.get("login_group"))
        workers = [name for name in names if name not in heads]
        for name in workers:
            if partitions.get(name) is None:
                self.notes.append(f"no partition of group `{name}` is known: it gets one of its own name")
        values.setdefault("version", "1.0.0")
        values.setdefault("workload_manager", "slurm")
        for name, partition in partitions.items():
            if name not in names:
                self.notes.append(f"worker group `{name}`: the cluster has no instance group of that name")
            elif name in heads:
                self._note_head_among_workers(name, partition)
        values["worker_groups"] = [
            {"instance_group_name": name, "partition_name": partitions.get(name) or name} for name in workers
        ]

    def _common_lifecycle_mode(self, groups: Sequence[Mapping[str, Any]]) -> str:
        modes = Counter(self._group_lifecycle_mode(group) for group in groups)
        if len(modes) > 1:
            chosen = LifecycleMode.ON_CREATE.value
            if LifecycleMode.ON_INIT_COMPLETE in modes:
                chosen = LifecycleMode.ON_INIT_COMPLETE.value
            self.notes.append(f"lifecycle modes differ from group to group: the file says {chosen} for all")
            return chosen
        return next(iter(modes), LifecycleMode.ON_INIT_COMPLETE.value)

    def _correct_field_spelling(self, group: Mapping[str, Any]) -> Mapping[str, Any]:
        """Correct the spelling of fields: listings of AWS's own blog have `lifecycleConfig`, which its API refuses."""
        spelling = {
            name.lower(): name for name in request_shape.field_names("sagemaker", "CreateCluster", "InstanceGroups")
        }
        corrected = dict(group)
        for key in group:
            right = spelling.get(str(key).lower(), key)
            if right != key and right not in group:
                corrected[right] = corrected.pop(key)
                self.notes.append(f"`{key}` of group `{group['InstanceGroupName']}` as it is spelled: AWS says {right}")
        return corrected

    def _group_lifecycle_mode(self, group: Mapping[str, Any]) -> str:
        lifecycle = group.get("LifeCycleConfig")
        name = group.get("InstanceGroupName")
        if not isinstance(lifecycle, Mapping):
            return LifecycleMode.AMI_ONLY.value
        hooks = [hook for hook in ("OnCreate", "OnInitComplete") if lifecycle.get(hook)]
        if len(hooks) != 1 or not lifecycle.get("SourceS3Uri"):
            wrong = "is incomplete"
            if len(hooks) == 2:
                wrong = "has both OnCreate and OnInitComplete"
            self.notes.append(f"LifeCycleConfig of group `{name}` {wrong}, which AWS refuses")
        if hooks == ["OnCreate"]:
            return LifecycleMode.ON_CREATE.value
        return LifecycleMode.ON_INIT_COMPLETE.value

    def _fill_cluster_from_orchestrator(self, cluster: dict[str, Any], orchestrator: Any) -> None:
        slurm = None
        if isinstance(orchestrator, Mapping):
            slurm = orchestrator.get("Slurm")
        if not isinstance(slurm, Mapping):
            return
        strategy = slurm.get("SlurmConfigStrategy")
        if (
            strategy
            and "node_provisioning_mode" not in cluster
            and cluster["lifecycle_mode"] != LifecycleMode.ON_CREATE
        ):
            cluster["slurm_config_strategy"] = strategy
        elif strategy:
            self.notes.append(f"SlurmConfigStrategy {strategy}: not in on_create mode nor beside NodeProvisioningMode")
        database = slurm.get("AccountingDatabase")
        if isinstance(database, Mapping):
            keys = {"endpoint": "Endpoint", "secret_arn": "SecretArn", "port": "Port", "name": "Name"}
            cluster["accounting_database"] = {key: database[field] for key, field in keys.items() if field in database}
        for field in slurm:
            if field not in ("SlurmConfigStrategy", "AccountingDatabase"):
                self.notes.append(f"Orchestrator.Slurm.{field}: there is no key for it")

    def _read_instance_group(
        self, group: Mapping[str, Any], cluster: Mapping[str, Any], storage: ImportedStorage
    ) -> dict[str, Any]:
        name = str(group.get("InstanceGroupName"))
        if group.get("InstanceType"):
            types = [group["InstanceType"]]
        else:
            types = _types_of_instance_requirements(group)
        entry: dict[str, Any] = {"name": name}
        if len(types) > 1:
            entry["instance_types"] = [self._add_missing_ml_prefix(name, given) for given in types]
        elif types:
            entry["instance_type"] = self._add_missing_ml_prefix(name, types[0])
        entry["count"] = group.get("InstanceCount", group.get("TargetCount"))
        for key, field in _PLAIN_GROUP_FIELDS.items():
            if group.get(field) is not None:
                entry[key] = group[field]
        if group.get("ExecutionRole") not in (None, cluster.get("execution_role")):
            entry["execution_role"] = group["ExecutionRole"]
        if group.get("OverrideVpcConfig"):
            entry["vpc"] = _vpc_values(group["OverrideVpcConfig"])
        entry |= _capacity_and_updates(group)
        entry |= storage.add_group_storage(name, group.get("InstanceStorageConfigs"))
        self._add_passthrough_fields(entry, group, f"group `{name}`: ", described="CurrentCount" in group)
        return entry

    def _add_missing_ml_prefix(self, name: str, given: Any) -> Any:
        """Name the type as SageMaker does: AWS's announcement of HyperPod has EC2's name for one."""
        if not isinstance(given, str):
            return given
        right = INSTANCE_TYPE_PREFIX + given
        if re.fullmatch(INSTANCE_TYPE, given) or not re.fullmatch(INSTANCE_TYPE, right):
            return given
        self.notes.append(f"`InstanceType` {given} of group `{name}` as it is spelled: AWS says {right}")
        return right

    def _add_passthrough_fields(
        self,
        entry: dict[str, Any],
        given: Mapping[str, Any],
        where: str,
        *,
        described: bool,
    ) -> None:
        """Put fields without a key of their own into `api` if CreateCluster takes them, and note the
        others.

        described: from DescribeCluster, whose other fields (counts, states, dates) are dropped without
        a note.
        """
        passthrough = {}
        prefix = ""
        if where:
            prefix = "InstanceGroups[]."
        for field, value in given.items():
            if keys_of_covered_member(prefix + field) or value in (None, [], {}):
                continue
            if _create_cluster_accepts(field, value, of_group=bool(where)):
                passthrough[field] = value
            elif not described or _is_create_cluster_field(field, of_group=bool(where)):
                self.notes.append(f"{where}{field}: CreateCluster does not take it like this")
        if passthrough:
            entry["api"] = passthrough


def _types_of_instance_requirements(group: Mapping[str, Any]) -> list[str]:
    requirements = group.get("InstanceRequirements")
    if isinstance(requirements, Mapping):
        requirement_fields = requirements
    else:
        requirement_fields = {}
    # CreateCluster's name for it, and DescribeCluster's.
    types = requirement_fields.get("InstanceTypes") or requirement_fields.get("DesiredInstanceTypes")
    if isinstance(types, list):
        return [str(name) for name in types]
    return []


def _capacity_and_updates(group: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a group for what it is made of and how it is patched, from CreateCluster's or DescribeCluster's form."""
    capacity, network = _member(group, "CapacityRequirements"), _member(group, "NetworkInterface")
    patch, update = _member(group, "AutoPatchConfig"), _member(group, "ScheduledUpdateConfig")
    # CreateCluster's name for it, and DescribeCluster's two.
    schedules = (_member(patch, name) for name in ("PatchSchedule", "DesiredPatchSchedule", "CurrentPatchSchedule"))
    date = next((schedule["NextPatchDate"] for schedule in schedules if schedule.get("NextPatchDate")), None)
    if isinstance(date, datetime):
        date = date.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    auto_patch = scheduled_update = None
    if patch.get("PatchingStrategy"):
        auto_patch = _without_empty(
            strategy=patch["PatchingStrategy"],
            next_patch_date=date,
            idle_wait_seconds=patch.get("IdleWaitWindowInSeconds"),
            rollout=_rollout_values(_member(patch, "DeploymentConfig")),
        )
    if update.get("ScheduleExpression"):
        scheduled_update = _without_empty(
            schedule=update["ScheduleExpression"], rollout=_rollout_values(_member(update, "DeploymentConfig"))
        )
    return _without_empty(
        capacity=next((kind for kind in ("Spot", "OnDemand") if kind in capacity), None),
        network_interface=network.get("InterfaceType"),
        auto_patch=auto_patch,
        scheduled_update=scheduled_update,
    )


def _rollout_values(deployment: Mapping[str, Any]) -> dict[str, Any]:
    policy = _member(deployment, "RollingUpdatePolicy")
    alarms = deployment.get("AutoRollbackConfiguration")
    return _without_empty(
        batch=_batch_text(_member(policy, "MaximumBatchSize")),
        rollback_batch=_batch_text(_member(policy, "RollbackMaximumBatchSize")),
        pause_seconds=deployment.get("WaitIntervalInSeconds"),
        alarms=[alarm.get("AlarmName") for alarm in alarms] if isinstance(alarms, list) else None,
    )


def _batch_text(size: Mapping[str, Any]) -> Optional[str]:
    if "Value" not in size:
        return None
    if size.get("Type") == "CAPACITY_PERCENTAGE":
        return f"{size['Value']}%"
    return str(size["Value"])


def _member(structure: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A member that is a structure; an empty one where it is not there."""
    member = structure.get(name)
    if isinstance(member, Mapping):
        return member
    return {}


def _without_empty(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, [], {})}


def _is_create_cluster_field(field: str, *, of_group: bool) -> bool:
    path = field
    if of_group:
        path = f"InstanceGroups[].{field}"
    return bool(request_shape.field_constraints("sagemaker", "CreateCluster", path))


def _create_cluster_accepts(field: str, value: Any, *, of_group: bool) -> bool:
    path, request = field, {field: value}
    if of_group:
        path, request = f"InstanceGroups[0].{field}", {"InstanceGroups": [{field: value}]}
    problems = request_shape.find_request_problems("sagemaker", "CreateCluster", request)
    return not any(problem.path == path or problem.path.startswith((f"{path}.", f"{path}[")) for problem in problems)


def _vpc_values(config: Any) -> Any:
    if not isinstance(config, Mapping):
        return config
    return {"security_group_ids": config.get("SecurityGroupIds"), "subnet_ids": config.get("Subnets")}


# Controllers and login nodes of a cluster that is imported: which groups they are, and what else is said of them.
#
# AWS's `slurm_configurations` are the settings of several controllers; some of it goes nowhere.
#
# What they mean is in AWS's multi_headnode_setup/headnode_setup.sh (awsome-distributed-training at 7217859) and in
# "Preparing and uploading lifecycle scripts" of its multi-head pages.

NAMED_BY_ROLE = (Role.CONTROLLER, Role.LOGIN)
"""Roles whose names stand in the names of groups, by which a listing without roles says what they are."""


def set_on_create_for_slurm_configurations(values: dict[str, Any]) -> list[str]:
    """Set on_create mode where `slurm_configurations` is given; return notes of its settings that are not
    taken over."""
    given = values.get("slurm_configurations")
    if not isinstance(given, Mapping):
        return []
    values.setdefault("hyperpod_kit", {}).setdefault("cluster", {}).setdefault(
        "lifecycle_mode", LifecycleMode.ON_CREATE.value
    )
    notes = []
    if given.get("slurm_shared_directory"):
        notes.append(
            f"the state that AWS's scripts keep below {given['slurm_shared_directory']}/aws/hyperpod is not taken "
            "over: here it is in .hyperpod-kit on the mount of slurm.state, so the jobs of a cluster that runs are not "
            "known to controllers with this bundle"
        )
    if given.get("slurm_database_endpoint"):
        notes.append("slurm_database_endpoint: there is no accounting on several controllers (HPK-G022)")
    if given.get("slurm_sns_arn"):
        notes.append("slurm_sns_arn: nobody is told of a failover; SlurmctldPrimaryOnProg of a script of yours can")
    return notes


def set_heads_guessed_by_name(values: dict[str, Any], groups: Sequence[Any]) -> list[str]:
    """Set controller_group and login_group from the names of the groups where nothing else says them;
    return notes.

    AWS's announcement of HyperPod has such a listing: its groups are `controller-group` and
    `worker-group`.
    """
    notes = []
    for role in NAMED_BY_ROLE:
        key = f"{role}_group"
        named = [name for name in groups if isinstance(name, str) and role.value in name.lower()]
        if key in values or len(named) != 1:
            continue
        values[key] = named[0]
        notes.append(f"who the {role} is, which nothing says: it is `{named[0]}` here, by its name ({key})")
    return notes


# InstanceStorageConfigs of a cluster's groups -> volumes of the groups, and mounts of the whole file.


class _Storage(NamedTuple):
    """A kind of mount that an entry of InstanceStorageConfigs can name. `short`: keys of its short form."""

    kind: str
    config: StorageConfig
    short: tuple[str, ...]


_BY_ENTRY = {
    KINDS[kind].traits.storage_config: _Storage(
        kind, form.storage_config, tuple(form.short_form.keys.values()) if form.short_form else ()
    )
    for kind, form in FORMS.items()
    if form.storage_config is not None
}


class ImportedStorage:
    """Takes the storage of one group after the other. `groups`: the names of all of them."""

    def __init__(self, groups: Sequence[str]) -> None:
        self._all = list(groups)
        self._mounts: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
        self.notes: list[str] = []

    def add_group_storage(self, group: str, configs: Any) -> dict[str, Any]:
        """Return the group's keys for its EBS volumes, and keep its file systems for
        `build_mounts_and_drop_short_forms`."""
        keys: dict[str, Any] = {}
        for config in configs if isinstance(configs, list) else ():
            if isinstance(config, Mapping) and config:
                kind, given = next(iter(config.items()))
            else:
                kind, given = ("", None)
            if kind == "EbsVolumeConfig" and isinstance(given, Mapping):
                keys |= _ebs_volume_keys(given)
            elif kind in _BY_ENTRY and isinstance(given, Mapping):
                form = _BY_ENTRY[kind]
                path = str(given.get("MountPath") or form.config.path)
                values = tuple(str(given.get(key, "")) for key in form.config.keys)
                self._mounts.setdefault((kind, path, values), []).append(group)
            else:
                self.notes.append(f"group `{group}`: InstanceStorageConfigs.{kind or '?'}: there is no key for it")
        return keys

    def build_mounts_and_drop_short_forms(self, configuration_values: dict[str, Any]) -> list[dict[str, Any]]:
        """Make one mount for each file system and path, with the groups that have it where those are not
        all.

        The short forms of AWS's file are removed from `configuration_values` where they name the same
        file system.
        """
        mounts = []
        names: set[str] = set()
        for (entry, path, given), groups in self._mounts.items():
            form = _BY_ENTRY[entry]
            name = base = form.config.name
            number = 1
            while name in names:
                number += 1
                name = f"{base}-{number}"
            names.add(name)
            mount: dict[str, Any] = {"kind": form.kind, "name": name, "path": path}
            mount.update(zip(form.config.keys.values(), given))
            if sorted(groups) != sorted(self._all):
                mount["groups"] = groups
            mounts.append(mount)
            if form.short and configuration_values.get(form.short[0]) == given[0]:
                for key in form.short:
                    configuration_values.pop(key, None)
        return mounts


def _ebs_volume_keys(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("RootVolume"):
        return {"root_kms_key": given.get("VolumeKmsKeyId")}
    keys = {"ebs_gib": given.get("VolumeSizeInGB"), "ebs_kms_key": given.get("VolumeKmsKeyId")}
    return {key: value for key, value in keys.items() if value is not None}
