"""Plain values -> Settings. Only shape is judged here (unknown, missing, wrong type); meaning is for the rules."""

from __future__ import annotations

import collections.abc
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Mapping, Optional, TypeVar, cast, get_args, get_origin

from hyperpod_kit.config.mounts.registry import FORMS
from hyperpod_kit.config.settings.access_points import AccessPoint
from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.homes import HOMES_PATH, decode_homes, home_and_share_mounts
from hyperpod_kit.config.settings.schema_recorder import KeyRead
from hyperpod_kit.config.settings.section import Section
from hyperpod_kit.config.settings.settings import (
    BundleLocation,
    ListedPackage,
    ListedScript,
    ProvisioningParameters,
    Settings,
    WorkerGroup,
)
from hyperpod_kit.config.settings.sourced import SourcedMount
from hyperpod_kit.model.clients import Package, client_of_own_package_or_empty
from hyperpod_kit.model.cluster import (
    AccountingDatabase,
    AutoPatch,
    ClusterSpec,
    InstanceGroup,
    ScheduledUpdate,
    TieredStorage,
    Vpc,
)
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.mounts.kinds import KINDS
from hyperpod_kit.model.node_config import HealthPolicy, User
from hyperpod_kit.model.optional_steps import OptionalSteps
from hyperpod_kit.model.scripts import AFTER_MOUNTS, CustomScript
from hyperpod_kit.model.secrets import Secret
from hyperpod_kit.model.shares import Group
from hyperpod_kit.model.states import ROLES, LifecycleMode, Role
from hyperpod_kit.untrusted.dataclass_json import field_types

T = TypeVar("T")

PASSTHROUGH_KEYS = ("slurm_configurations", "fsx_openzfs_dns_name")
"""AWS's keys that go on to AWS's own scripts as they are."""


def decode_settings(
    values: dict[str, Any],
    access_points: Optional[Mapping[str, AccessPoint]] = None,
    reads: Optional[list[KeyRead]] = None,
) -> tuple[Settings, list[Finding]]:
    """Decode the whole file. The settings are complete, with placeholders where a finding says so.

    `access_points`: what is known of the homes' access points, by user name; `reads`: takes every key asked for.
    """
    findings: list[Finding] = []
    if reads is None:
        reads = []
    top = Section(values, "", findings, reads)
    top.read_optional_text("$schema")  # for the editor that the file is written with
    parameters = _parameters(top)
    kit = top.child_or_empty_stand_in("hyperpod_kit")
    top.report_unknown_keys()
    cluster = decode_cluster(kit.child_or_empty_stand_in("cluster"), parameters)
    location = kit.child_or_empty_stand_in("bundle")
    bundle = BundleLocation(
        location.read_text_or_report("bucket"), location.read_text_or_report("prefix", "hyperpod-kit/")
    )
    location.report_unknown_keys()
    mounts = decode_short_and_listed_mounts(kit, parameters)
    users = tuple(decode_dataclass(User, section) for section in kit.read_list_of_sections("users"))
    section = kit.child_or_empty_stand_in("homes", required=False)
    homes = None
    if kit.is_written_and_not_null("homes"):
        homes = decode_homes(section)
    groups = tuple(decode_dataclass(Group, section) for section in kit.read_list_of_sections("groups"))
    mounts += tuple(
        SourcedMount(mount, HOMES_PATH) for mount in home_and_share_mounts(homes, users, groups, access_points or {})
    )
    health = decode_dataclass(HealthPolicy, kit.child_or_empty_stand_in("health", required=False))
    slurm = kit.child_or_empty_stand_in("slurm", required=False)
    slurm_state = slurm.read_optional_text("state")
    slurm.report_unknown_keys()
    service = kit.child_or_empty_stand_in("metadata_service", required=False)
    metadata_users = None
    if kit.is_written_and_not_null("metadata_service"):
        metadata_users = service.read_texts_or_report("users", ())
    service.report_unknown_keys()
    failure_pause = kit.read_number_or_report("failure_pause", 60.0)
    packages = decode_packages(kit)
    scripts = decode_scripts(kit)
    steps = decode_steps(kit)
    secrets = tuple(decode_dataclass(Secret, section) for section in kit.read_list_of_sections("secrets"))
    kit.report_unknown_keys()
    settings = Settings(
        parameters,
        cluster,
        bundle,
        mounts,
        users,
        health,
        failure_pause,
        homes,
        packages,
        secrets,
        slurm_state,
        metadata_users,
        scripts,
        steps,
        groups,
        tuple(reads),
    )
    return settings, findings


def _parameters(top: Section) -> ProvisioningParameters:
    workers = []
    version = top.read_text_or_report("version", "1.0.0")
    manager = top.read_text_or_report("workload_manager", "slurm")
    controller = top.read_text_or_report("controller_group")
    login = top.read_optional_text("login_group")
    for section in top.read_list_of_sections("worker_groups", required=True):
        workers.append(decode_dataclass(WorkerGroup, section))
    passthrough = {key: value for key in PASSTHROUGH_KEYS if (value := top.read_untyped_value(key)) is not None}
    return ProvisioningParameters(
        version,
        manager,
        controller,
        login,
        tuple(workers),
        top.read_optional_text("fsx_dns_name"),
        top.read_optional_text("fsx_mountname"),
        passthrough,
        top.read_optional_text("bucketname"),
    )


# The packages of mount clients: hyperpod_kit.clients[], one entry a file.
#
# `client` may be left out where the name says it: a client's own package; a dependency has to say what it is for.


def decode_packages(kit: Section) -> tuple[ListedPackage, ...]:
    """Every package in the order of the file."""
    return tuple(_package(section) for section in kit.read_list_of_sections("clients"))


def _package(section: Section) -> ListedPackage:
    name = section.read_text_or_report("name")
    package = Package(
        client=section.read_text_or_report("client", client_of_own_package_or_empty(name)),
        name=name,
        version=section.read_text_or_report("version"),
        arch=section.read_text_or_report("arch"),
        sha256=section.read_text_or_report("sha256"),
        url=section.read_text_or_report("url", ""),
    )
    file = section.read_text_or_report("file", "")
    section.report_unknown_keys()
    return ListedPackage(package, file)


# The cluster: hyperpod_kit.cluster, with each group's role and partition from AWS's own keys.


def decode_cluster(section: Section, parameters: ProvisioningParameters) -> ClusterSpec:
    """Decode `hyperpod_kit.cluster`."""
    partitions = {worker.instance_group_name: worker.partition_name for worker in parameters.worker_groups}
    cluster = ClusterSpec(
        name=section.read_text_or_report("name"),
        region=section.read_text_or_report("region"),
        lifecycle_mode=section.read_text_or_report("lifecycle_mode", LifecycleMode.ON_INIT_COMPLETE.value),
        node_recovery=section.read_text_or_report("node_recovery", "Automatic"),
        node_provisioning_mode=section.read_optional_text("node_provisioning_mode"),
        slurm_config_strategy=section.read_optional_text("slurm_config_strategy"),
        execution_role=section.read_text_or_report("execution_role"),
        vpc=_optional_object(section, "vpc", Vpc),
        groups=tuple(
            _group(entry, parameters, partitions)
            for entry in section.read_list_of_sections("instance_groups", required=True)
        ),
        accounting_database=_optional_object(section, "accounting_database", AccountingDatabase),
        tiered_storage=_optional_object(section, "tiered_storage", TieredStorage),
        tags=section.read_texts_by_key("tags"),
        api=section.read_untyped_object("api"),
    )
    section.report_unknown_keys()
    return cluster


def _group(entry: Section, parameters: ProvisioningParameters, partitions: Mapping[str, str]) -> InstanceGroup:
    name = entry.read_text_or_report("name")
    group = InstanceGroup(
        name=name,
        instance_type=entry.read_optional_text("instance_type") or "",
        instance_types=entry.read_texts_or_report("instance_types", ()),
        count=entry.read_integer_or_report("count"),
        role=_node_role_of_group(name, parameters),
        partition=partitions.get(name),
        min_count=entry.read_optional_integer("min_count"),
        threads_per_core=entry.read_optional_integer("threads_per_core"),
        execution_role=entry.read_optional_text("execution_role"),
        vpc=_optional_object(entry, "vpc", Vpc),
        ebs_gib=entry.read_optional_integer("ebs_gib"),
        ebs_kms_key=entry.read_optional_text("ebs_kms_key"),
        root_kms_key=entry.read_optional_text("root_kms_key"),
        deep_health_checks=entry.read_texts_or_report("deep_health_checks", ()),
        training_plan_arn=entry.read_optional_text("training_plan_arn"),
        capacity=entry.read_optional_text("capacity"),
        network_interface=entry.read_optional_text("network_interface"),
        auto_patch=_optional_object(entry, "auto_patch", AutoPatch),
        scheduled_update=_optional_object(entry, "scheduled_update", ScheduledUpdate),
        api=entry.read_untyped_object("api"),
    )
    entry.report_unknown_keys()
    return group


def _optional_object(section: Section, key: str, cls: type[T]) -> Optional[T]:
    return cast(Optional[T], _read_dataclass_field(section, key, Optional[cls], cls))


def _node_role_of_group(group: str, parameters: ProvisioningParameters) -> str:
    if group and group == parameters.controller_group:
        return Role.CONTROLLER.value
    if group and group == parameters.login_group:
        return Role.LOGIN.value
    return Role.COMPUTE.value


# The mounts of a configuration: the long form under hyperpod_kit.mounts and the short forms of AWS's file.
#
# A short form is a key or two at the top of the file that stand for one mount, where AWS's own scripts mount it. The
# keys of the long form are the fields of the mount's dataclass, but for those that follow from the rest.

NICKNAMES = {nickname: kind for kind, form in FORMS.items() for nickname in form.nicknames}
"""What people write for a kind, for the hint."""


def decode_short_and_listed_mounts(kit: Section, parameters: ProvisioningParameters) -> tuple[SourcedMount, ...]:
    """Short forms first, then configuration order."""
    mounts = []
    for form in FORMS.values():
        if form.short_form is None:
            continue
        mount = form.short_form.mount(parameters)
        if mount is not None:
            mounts.append(SourcedMount(mount, form.short_form.first_key))
    for section in kit.read_list_of_sections("mounts"):
        mount = _decode_mount(section)
        if mount is not None:
            mounts.append(SourcedMount(mount, section.path))
    return tuple(mounts)


def _decode_mount(section: Section) -> Optional[Mount]:
    kind = section.read_text_or_report("kind")
    if kind not in KINDS:
        if kind in NICKNAMES:
            near = [NICKNAMES[kind]]
        else:
            near = get_close_matches(kind, KINDS, 1, 0.6)
        if kind or section.raw.get("kind") == "":
            hint = "Choose one of them"
            if near:
                hint = f"Did you mean `{near[0]}`?"
            section.record_finding(
                "HPK-C005",
                "kind",
                f"unknown kind `{kind}`: expected {', '.join(KINDS)}",
                hint,
            )
        return None
    mount: Mount = decode_dataclass(KINDS[kind], section)
    return mount


# The configuration's own scripts: hyperpod_kit.scripts[], in the order in which they run.


def decode_scripts(kit: Section) -> tuple[ListedScript, ...]:
    """Every script in the order of the file."""
    return tuple(_script(section) for section in kit.read_list_of_sections("scripts"))


def _script(section: Section) -> ListedScript:
    name, path = section.read_text_or_report("name"), section.read_text_or_report("path")
    script = CustomScript(
        name=name,
        # A file is its own program; of a directory the configuration says which.
        run=section.read_text_or_report("run", path.rstrip("/").rpartition("/")[2]),
        arguments=section.read_texts_or_report("arguments", ()),
        when=section.read_text_or_report("when", AFTER_MOUNTS),
        roles=section.read_texts_or_report("roles", ROLES),
        groups=section.read_texts_or_report("groups", ()),
        timeout=section.read_number_or_report("timeout", 300.0),
        required=section.read_boolean_or_report("required", True),
        always=section.read_boolean_or_report("always", False),
    )
    section.report_unknown_keys()
    return ListedScript(script, path)


# The optional steps: hyperpod_kit.steps, where a key that is written turns its step on.


def decode_steps(kit: Section) -> OptionalSteps:
    """Decode the optional steps that are on."""
    return decode_dataclass(OptionalSteps, kit.child_or_empty_stand_in("steps", required=False))


# A dataclass of the model, read from one object of the configuration by its fields' types and defaults.
#
# The keys of such an object are the fields, but for those that are marked as derived. A field of a dataclass is an
# object of its own, a tuple of them a list of objects; both are None or empty when they are not written.


def decode_dataclass(cls: type[T], section: Section) -> T:
    """Return what the object says, with a finding for each key that is missing, unknown or of another type."""
    hints = field_types(cls)
    values = {
        field.name: _read_field(section, field, hints[field.name])
        for field in fields(cast(Any, cls))
        if not field.metadata.get("derived")
    }
    section.report_unknown_keys()
    return cls(**values)


def _read_field(section: Section, field: Field[Any], hint: Any) -> Any:
    name = field.name
    arguments = get_args(hint)
    if arguments and is_dataclass(arguments[0]):
        return _read_dataclass_field(section, name, hint, cast(type, arguments[0]))
    if get_origin(hint) is collections.abc.Mapping:
        return dict(section.read_texts_by_key(name))
    if hint == Optional[str]:
        return section.read_optional_text(name)
    if hint == Optional[int]:
        return section.read_optional_integer(name)
    default: Any = None if field.default is MISSING else field.default
    if hint is bool:
        return section.read_boolean_or_report(name, default)
    if hint is int:
        return section.read_integer_or_report(name, default)
    if hint is float:
        return section.read_number_or_report(name, default)
    if hint is str:
        return section.read_text_or_report(name, default)
    return section.read_texts_or_report(name, default)


def _read_dataclass_field(section: Section, name: str, hint: Any, inner: type) -> Any:
    if get_origin(hint) is tuple:
        return tuple(decode_dataclass(inner, entry) for entry in section.read_list_of_sections(name))
    child = section.child_or_empty_stand_in(name, required=False)
    if not section.is_written_and_not_null(name):
        return None  # with its defaults asked for, the configuration written in full would turn it on
    return decode_dataclass(inner, child)
