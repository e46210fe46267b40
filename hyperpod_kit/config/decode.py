"""Plain values -> Settings. Only shape is judged here (unknown, missing, wrong type); meaning is for the rules."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from hyperpod_kit.config.access_points import AccessPoint
from hyperpod_kit.config.decode_clients import decode_packages
from hyperpod_kit.config.decode_cluster import decode_cluster
from hyperpod_kit.config.decode_fields import decode_dataclass
from hyperpod_kit.config.decode_mounts import decode_short_and_listed_mounts
from hyperpod_kit.config.decode_scripts import decode_scripts
from hyperpod_kit.config.decode_steps import decode_steps
from hyperpod_kit.config.findings import Finding
from hyperpod_kit.config.homes import HOMES_PATH, decode_homes, home_and_share_mounts
from hyperpod_kit.config.schema_recorder import KeyRead
from hyperpod_kit.config.section import Section
from hyperpod_kit.config.settings import BundleLocation, ProvisioningParameters, Settings, WorkerGroup
from hyperpod_kit.config.sourced import SourcedMount
from hyperpod_kit.model.node_config import HealthPolicy, User
from hyperpod_kit.model.secrets import Secret
from hyperpod_kit.model.shares import Group

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
