"""The cluster: hyperpod_kit.cluster, with each group's role and partition from AWS's own keys."""

from __future__ import annotations

from typing import Mapping, Optional

from hyperpod_kit.config.section import Section
from hyperpod_kit.config.settings import ProvisioningParameters
from hyperpod_kit.model.cluster import AccountingDatabase, ClusterSpec, InstanceGroup, Vpc
from hyperpod_kit.model.states import LifecycleMode, Role


def decode_cluster(section: Section, parameters: ProvisioningParameters) -> ClusterSpec:
    """Decode `hyperpod_kit.cluster`."""
    partitions = {worker.instance_group_name: worker.partition_name for worker in parameters.worker_groups}
    cluster = ClusterSpec(
        name=section.text("name"),
        region=section.text("region"),
        lifecycle_mode=section.text("lifecycle_mode", LifecycleMode.ON_INIT_COMPLETE.value),
        node_recovery=section.text("node_recovery", "Automatic"),
        node_provisioning_mode=section.optional_text("node_provisioning_mode"),
        slurm_config_strategy=section.optional_text("slurm_config_strategy"),
        execution_role=section.text("execution_role"),
        vpc=_vpc(section),
        groups=tuple(
            _group(entry, parameters, partitions) for entry in section.children("instance_groups", required=True)
        ),
        accounting_database=_accounting(section),
        tags=section.texts_by_key("tags"),
        api=section.things_by_key("api"),
    )
    section.report_unknown_keys()
    return cluster


def _group(entry: Section, parameters: ProvisioningParameters, partitions: Mapping[str, str]) -> InstanceGroup:
    name = entry.text("name")
    group = InstanceGroup(
        name=name,
        instance_type=entry.text("instance_type"),
        count=entry.integer("count"),
        role=_role(name, parameters),
        partition=partitions.get(name),
        min_count=entry.optional_integer("min_count"),
        threads_per_core=entry.optional_integer("threads_per_core"),
        execution_role=entry.optional_text("execution_role"),
        vpc=_vpc(entry),
        ebs_gib=entry.optional_integer("ebs_gib"),
        ebs_kms_key=entry.optional_text("ebs_kms_key"),
        root_kms_key=entry.optional_text("root_kms_key"),
        deep_health_checks=entry.texts("deep_health_checks", ()),
        training_plan_arn=entry.optional_text("training_plan_arn"),
        api=entry.things_by_key("api"),
    )
    entry.report_unknown_keys()
    return group


def _vpc(section: Section) -> Optional[Vpc]:
    network = section.child("vpc", required=False)
    if not section.has("vpc"):
        return None
    vpc = Vpc(network.texts("security_group_ids"), network.texts("subnet_ids"))
    network.report_unknown_keys()
    return vpc


def _accounting(section: Section) -> Optional[AccountingDatabase]:
    database = section.child("accounting_database", required=False)
    if not section.has("accounting_database"):
        return None
    accounting = AccountingDatabase(
        database.text("endpoint"),
        database.text("secret_arn"),
        database.optional_integer("port"),
        database.optional_text("name"),
    )
    database.report_unknown_keys()
    return accounting


def _role(group: str, parameters: ProvisioningParameters) -> str:
    if group and group == parameters.controller_group:
        return Role.CONTROLLER.value
    if group and group == parameters.login_group:
        return Role.LOGIN.value
    return Role.COMPUTE.value
