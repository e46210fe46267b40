"""The cluster: hyperpod_kit.cluster, with each group's role and partition from AWS's own keys."""

from __future__ import annotations

from typing import Mapping, Optional

from hyperpod_kit.config.decode_fields import decode_dataclass
from hyperpod_kit.config.section import Section
from hyperpod_kit.config.settings import ProvisioningParameters
from hyperpod_kit.model.cluster import AccountingDatabase, ClusterSpec, InstanceGroup, Vpc
from hyperpod_kit.model.states import LifecycleMode, Role


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
        vpc=_vpc(section),
        groups=tuple(
            _group(entry, parameters, partitions)
            for entry in section.read_list_of_sections("instance_groups", required=True)
        ),
        accounting_database=_accounting(section),
        tags=section.read_texts_by_key("tags"),
        api=section.read_untyped_object("api"),
    )
    section.report_unknown_keys()
    return cluster


def _group(entry: Section, parameters: ProvisioningParameters, partitions: Mapping[str, str]) -> InstanceGroup:
    name = entry.read_text_or_report("name")
    group = InstanceGroup(
        name=name,
        instance_type=entry.read_text_or_report("instance_type"),
        count=entry.read_integer_or_report("count"),
        role=_node_role_of_group(name, parameters),
        partition=partitions.get(name),
        min_count=entry.read_optional_integer("min_count"),
        threads_per_core=entry.read_optional_integer("threads_per_core"),
        execution_role=entry.read_optional_text("execution_role"),
        vpc=_vpc(entry),
        ebs_gib=entry.read_optional_integer("ebs_gib"),
        ebs_kms_key=entry.read_optional_text("ebs_kms_key"),
        root_kms_key=entry.read_optional_text("root_kms_key"),
        deep_health_checks=entry.read_texts_or_report("deep_health_checks", ()),
        training_plan_arn=entry.read_optional_text("training_plan_arn"),
        api=entry.read_untyped_object("api"),
    )
    entry.report_unknown_keys()
    return group


def _vpc(section: Section) -> Optional[Vpc]:
    network = section.child_or_empty_stand_in("vpc", required=False)
    if not section.is_written_and_not_null("vpc"):
        return None
    return decode_dataclass(Vpc, network)


def _accounting(section: Section) -> Optional[AccountingDatabase]:
    database = section.child_or_empty_stand_in("accounting_database", required=False)
    if not section.is_written_and_not_null("accounting_database"):
        return None
    return decode_dataclass(AccountingDatabase, database)


def _node_role_of_group(group: str, parameters: ProvisioningParameters) -> str:
    if group and group == parameters.controller_group:
        return Role.CONTROLLER.value
    if group and group == parameters.login_group:
        return Role.LOGIN.value
    return Role.COMPUTE.value
