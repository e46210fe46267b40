"""All rules that a configuration must follow, in the order in which their findings are reported.

A rule is a pure function Settings -> findings. It never raises and never asks the network.
"""

from __future__ import annotations

from typing import Callable, Iterable

from hyperpod_kit.config.mounts import mount_paths
from hyperpod_kit.config.mounts.registry import FORMS
from hyperpod_kit.config.request_rules import find_create_cluster_refusals
from hyperpod_kit.config.rules import (
    bundle,
    capacity,
    clients,
    cluster,
    controllers,
    filesystems,
    groups,
    health,
    lifecycle,
    metadata_service,
    names,
    passthrough_fields,
    patching,
    patterns,
    scripts,
    secrets,
    shares,
    slurm_state,
    steps,
    training_environment,
    users,
)
from hyperpod_kit.config.settings.findings import INFO, Finding, is_key_path_at_or_inside
from hyperpod_kit.config.settings.settings import Settings

Rule = Callable[[Settings], Iterable[Finding]]

RULES: tuple[Rule, ...] = (
    patterns.check_text_patterns_outside_mounts,  # of several topics: what a text must look like
    cluster.check_recovery_vpc_and_tags,  # HPK-K  VPC, recovery, tags
    groups.check_controller_group,  # HPK-G  which group plays which role
    controllers.check_several_controllers_mode_state_accounting,
    groups.check_login_group,
    groups.check_group_names_and_counts,
    groups.check_compute_groups_have_one_partition,
    groups.check_partition_names_fit_api,
    groups.check_deep_checks_min_count_ebs_key,
    capacity.check_instance_types,
    capacity.check_spot,
    capacity.check_training_plans,
    patching.check_patches_and_jobs,
    patching.check_tiered_storage_memory,
    lifecycle.check_lifecycle_mode_and_workload_manager,  # HPK-L  the three lifecycle modes
    lifecycle.check_slurm_config_strategy,
    lifecycle.check_continuous_provisioning,
    slurm_state.check_state_mount,
    patching.check_updates_of_controller,
    passthrough_fields.check_passthrough_fields_and_images,  # HPK-R  the request
    bundle.check_bundle_location,  # HPK-B  where the bundle goes
    names.check_mount_names,  # HPK-M  every mount
    names.check_mount_node_roles,
    names.check_mount_groups,
    mount_paths.check_paths_absolute_and_plain,
    mount_paths.check_paths_not_reserved,
    mount_paths.warn_of_suid_and_devices,
    mount_paths.check_paths_disjoint,
    patterns.check_mount_text_patterns,
    filesystems.check_platform_mounts_same_in_all_groups,
    *(rule for form in FORMS.values() for rule in form.rules),  # each kind's own, config/mounts/
    clients.check_package_architectures,  # HPK-P  packages of mount clients
    clients.check_package_sources,
    clients.check_packages_have_client_and_unique,
    clients.check_no_kernel_packages,
    clients.check_clients_cover_group_architectures,
    users.check_user_names_and_ids,  # HPK-U
    secrets.check_names_unique_and_node_roles,  # HPK-A
    secrets.check_secrets_isolated_by_execution_role,
    metadata_service.check_users_unique,  # HPK-I
    users.check_gids_unique_and_home_paths_short,
    users.check_no_mount_hides_home,
    shares.check_names_and_gids,
    shares.check_members,
    shares.check_mounts_hold_shares,
    shares.check_archived_groups_name_mounts,
    scripts.check_names_unique,  # HPK-O  scripts of one's own
    scripts.check_step_position_and_run_file,
    scripts.check_scripts_name_existing_roles_and_groups,
    scripts.check_timeouts_and_their_group_sums,
    steps.check_steps_can_run_and_accounting_once,  # optional steps
    steps.check_pyxis_enroot_and_their_packages,
    steps.check_slurm_accounts,
    steps.check_qos_enforce_and_preempt_mode,
    steps.check_accounting_database,
    steps.check_sssd_schema_and_bind_secret,
    steps.check_log_keep_and_exporter_port,
    steps.check_device_checks_have_gate_and_devices,
    steps.check_host_key_mount,
    training_environment.check_environment_place,
    training_environment.check_environment_requirements,
    training_environment.check_environment_owner_and_time,
    health.check_health_timing_and_textfile_directory,  # HPK-H
)


def validate(settings: Settings, *, with_service_model: bool = True) -> list[Finding]:
    """Report everything that the rules find, in their order; then what else the service model would refuse, unless
    `with_service_model` is False.

    The same value is not reported twice: what a rule says about it is the better sentence.
    """
    findings = [finding for rule in RULES for finding in rule(settings)]
    if not with_service_model:
        return findings
    reported_paths = [finding.path for finding in findings]
    for finding in find_create_cluster_refusals(settings):
        unsaid = not any(
            is_key_path_at_or_inside(finding.path, path) or is_key_path_at_or_inside(path, finding.path)
            for path in reported_paths
        )
        if unsaid or finding.severity == INFO:
            findings.append(finding)
            reported_paths.append(finding.path)
    return findings
