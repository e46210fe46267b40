"""All checks, in the order in which their findings are reported. docs/preflight.md has the table of codes."""

from __future__ import annotations

from typing import Callable, Iterable

from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.preflight.checks import buckets, fsx, groups, limits, network, not_queried, role, shared
from hyperpod_kit.preflight.facts import AccountFacts
from hyperpod_kit.preflight.mounts.registry import INQUIRIES

Check = Callable[[Settings, AccountFacts], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    not_queried.check_all_queried,  # HPK-V0  what could not be asked
    buckets.check_buckets_exist_and_listable,  # HPK-V1  buckets
    buckets.check_region,
    buckets.check_directory_bucket_zones,
    buckets.check_read_only_mounts_not_empty,
    role.check_roles_exist_and_trust_sagemaker,  # HPK-V2  the nodes' role
    role.check_permissions,
    network.check_subnets_and_groups_exist,  # HPK-V3  network
    network.check_one_vpc,
    network.check_route_tables_visible,
    network.check_subnets_private,
    network.check_s3_route,
    network.check_service_endpoints,
    network.check_vpc_dns_enabled,
    network.check_free_addresses,
    network.check_instance_type_zones,
    groups.check_efa_rules,
    groups.check_slurm_ports_between_nodes,
    groups.check_s3_egress,
    shared.check_file_systems_exist_and_available,  # HPK-V4  EFS, S3 Files
    shared.check_mount_target_in_each_node_zone,
    shared.check_nfs_port,
    shared.check_access_points_exist_and_match,
    *(check for its in INQUIRIES.values() for check in its.checks),  # each kind's own, preflight/mounts/
    fsx.check_file_systems_exist_and_available,  # HPK-V5  FSx
    fsx.check_type_and_names_match,
    fsx.check_vpc_and_zones,
    fsx.check_file_system_has_wanted_efa,
    fsx.check_efa_capacity,
    fsx.check_efa_traffic,
    fsx.check_interfaces_visible,
    fsx.check_ports,
    limits.check_quotas,  # HPK-V6  quotas
    limits.check_cluster_name_unused,
    limits.check_secrets_exist,  # HPK-V7  secrets
)


def run_all_preflight_checks(settings: Settings, facts: AccountFacts) -> list[Finding]:
    """Run all checks and list their findings, each once."""
    return list(dict.fromkeys(finding for check in CHECKS for finding in check(settings, facts)))
