"""All rules that a configuration must follow, in the order in which their findings are reported.

A rule is a pure function Settings -> findings. It never raises and never asks the network.
"""

from __future__ import annotations

from typing import Callable, Iterable

from hyperpod_kit.config.findings import INFO, Finding, under
from hyperpod_kit.config.mounts.registry import FORMS
from hyperpod_kit.config.request_rules import refused
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
    patterns.match,  # of several topics: what a text must look like
    cluster.identity,  # HPK-K  VPC, recovery, tags
    groups.one_controller,  # HPK-G  which group plays which role
    controllers.several,
    groups.login_group_exists,
    groups.instance_groups,
    groups.partitions,
    groups.partitions_of_the_api,
    groups.options,
    lifecycle.mode,  # HPK-L  the three lifecycle modes
    lifecycle.slurm_config,
    lifecycle.continuous,
    slurm_state.kept,
    passthrough_fields.api,  # HPK-R  the request
    bundle.location,  # HPK-B  where the bundle goes
    names.mount_names,  # HPK-M  every mount
    names.mount_roles,
    names.mount_groups,
    mount_paths.absolute,
    mount_paths.reserved,
    mount_paths.protected,
    mount_paths.disjoint,
    patterns.of_mounts,
    filesystems.by_the_platform,
    *(rule for form in FORMS.values() for rule in form.rules),  # each kind's own, config/mounts/
    clients.architecture,  # HPK-P  packages of mount clients
    clients.origin,
    clients.complete,
    clients.no_kernel,
    clients.architectures,
    users.accounts,  # HPK-U
    secrets.named_once,  # HPK-A
    secrets.kept_apart,
    metadata_service.users,  # HPK-I
    users.homes,
    users.beside_homes,
    shares.numbers,
    shares.members,
    shares.places,
    shares.archived,
    scripts.named_once,  # HPK-O  scripts of one's own
    scripts.placed,
    scripts.on_nodes,
    scripts.in_time,
    steps.in_this_mode,  # optional steps
    steps.containers,
    steps.accounts,
    steps.qos,
    steps.database,
    steps.directory,
    steps.numbers,
    steps.devices,
    steps.host_keys,
    health.health,  # HPK-H
)


def validate(settings: Settings) -> list[Finding]:
    """Everything that the rules find, in their order; then what else the service model would refuse.

    The same value is not reported twice: what a rule says about it is the better sentence.
    """
    found = [finding for rule in RULES for finding in rule(settings)]
    said = [finding.path for finding in found]
    for finding in refused(settings):
        unsaid = not any(under(finding.path, place) or under(place, finding.path) for place in said)
        if unsaid or finding.severity == INFO:
            found.append(finding)
            said.append(finding.path)
    return found
