"""All rules that a configuration must follow, in the order in which their findings are reported.

A rule is a pure function Settings -> findings. It never raises and never asks the network.
"""

from __future__ import annotations

from typing import Callable, Iterable

from hyperpod_kit.config.findings import INFO, Finding, under
from hyperpod_kit.config.mounts.registry import FORMS
from hyperpod_kit.config.request_rules import find_refusals
from hyperpod_kit.config.rules import (
    bundle,
    clients,
    cluster,
    controllers,
    filesystems,
    groups,
    health,
    lifecycle,
    metadata_service,
    mount_paths,
    names,
    passthrough_fields,
    patterns,
    scripts,
    secrets,
    shares,
    slurm_state,
    steps,
    users,
)
from hyperpod_kit.config.settings import Settings

Rule = Callable[[Settings], Iterable[Finding]]

RULES: tuple[Rule, ...] = (
    patterns.check_texts,  # of several topics: what a text must look like
    cluster.check_cluster,  # HPK-K  VPC, recovery, tags
    groups.check_controller_group,  # HPK-G  which group plays which role
    controllers.check_several_controllers,
    groups.check_login_group,
    groups.check_instance_groups,
    groups.check_partitions,
    groups.check_partition_names,
    groups.check_options,
    lifecycle.check_mode,  # HPK-L  the three lifecycle modes
    lifecycle.check_slurm_config,
    lifecycle.check_continuous_provisioning,
    slurm_state.check_state_mount,
    passthrough_fields.check_api_fields,  # HPK-R  the request
    bundle.check_location,  # HPK-B  where the bundle goes
    names.check_mount_names,  # HPK-M  every mount
    names.check_mount_roles,
    names.check_mount_groups,
    mount_paths.check_absolute,
    mount_paths.check_reserved,
    mount_paths.check_suid_and_devices,
    mount_paths.check_disjoint,
    patterns.check_mount_texts,
    filesystems.check_platform_mounts,
    *(rule for form in FORMS.values() for rule in form.rules),  # each kind's own, config/mounts/
    clients.check_architecture,  # HPK-P  packages of mount clients
    clients.check_origin,
    clients.check_completeness,
    clients.check_no_kernel,
    clients.check_architectures,
    users.check_accounts,  # HPK-U
    secrets.check_names,  # HPK-A
    secrets.check_isolation,
    metadata_service.check_users,  # HPK-I
    users.check_homes,
    users.check_mounts_over_homes,
    shares.check_numbers,
    shares.check_members,
    shares.check_mounts,
    shares.check_archived_groups,
    scripts.check_names,  # HPK-O  scripts of one's own
    scripts.check_start,
    scripts.check_nodes,
    scripts.check_timeouts,
    steps.check_lifecycle_mode,  # optional steps
    steps.check_containers,
    steps.check_accounts,
    steps.check_qos,
    steps.check_database,
    steps.check_directory,
    steps.check_numbers,
    steps.check_devices,
    steps.check_host_keys,
    health.check_health,  # HPK-H
)


def validate(settings: Settings) -> list[Finding]:
    """Report everything that the rules find, in their order; then what else the service model would refuse.

    The same value is not reported twice: what a rule says about it is the better sentence.
    """
    findings = [finding for rule in RULES for finding in rule(settings)]
    reported_paths = [finding.path for finding in findings]
    for finding in find_refusals(settings):
        unsaid = not any(under(finding.path, path) or under(path, finding.path) for path in reported_paths)
        if unsaid or finding.severity == INFO:
            findings.append(finding)
            reported_paths.append(finding.path)
    return findings
