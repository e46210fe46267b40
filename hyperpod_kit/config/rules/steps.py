"""Optional steps: what they name exists, and what they promise can be kept."""

from __future__ import annotations

import re
from typing import Iterator, Sequence

from hyperpod_kit.config.fields.fields import fits_field_pattern_if_any
from hyperpod_kit.config.settings.findings import INFO, WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.accelerators import ACTIONS, efa_count, gpu_count
from hyperpod_kit.model.clients import CLIENTS
from hyperpod_kit.model.optional_steps import ENFORCED, LIMITS, LOGIN_USER, PREEMPT_MODES, SCHEMAS
from hyperpod_kit.model.slurm_state import mount_not_shared_by_all_nodes_reason
from hyperpod_kit.model.states import ROLES, LifecycleMode, Role

AT = "hyperpod_kit.steps"
ACCOUNTING = f"{AT}.accounting"
BUILT_IN_QOS = "normal"
_RESOURCE = r"[a-z][a-z0-9/:_.]*=[0-9]{1,9}[KMGT]?"
LIMIT = re.compile(rf"-1|[0-9]{{1,9}}|([0-9]+-)?[0-9]{{1,3}}(:[0-9]{{2}}){{1,2}}|{_RESOURCE}(,{_RESOURCE})*")
"""A number, a time as Slurm writes it, or resources: 8, 1-00:00:00, cpu=64,gres/gpu=8."""


def check_steps_can_run_and_accounting_once(settings: Settings) -> Iterator[Finding]:
    """Some script of ours runs that could do it, and nobody else sets accounting up."""
    cluster = settings.cluster
    if settings.steps.enabled_step_names and cluster.lifecycle_mode == LifecycleMode.AMI_ONLY:
        yield Finding(
            "HPK-O018",
            f"{AT}.{settings.steps.enabled_step_names[0]}",
            "in ami_only mode no script of ours runs on a node, so no step does",
            "Use on_create or on_init_complete, or remove hyperpod_kit.steps",
        )
    if settings.steps.accounting is not None and cluster.accounting_database is not None:
        yield Finding(
            "HPK-O019",
            ACCOUNTING,
            "HyperPod sets accounting up by itself with hyperpod_kit.cluster.accounting_database",
            "Keep one of the two",
        )


def check_pyxis_enroot_and_their_packages(settings: Settings) -> Iterator[Finding]:
    """Pyxis has something to start containers with, and both come from somewhere."""
    steps = settings.steps
    if steps.pyxis is not None and steps.enroot is None:
        yield Finding("HPK-O037", f"{AT}.pyxis", "pyxis starts containers by enroot", 'Add "enroot": {}')
    listed = {entry.package.name for entry in settings.packages}
    for key in ("enroot", "pyxis"):
        if getattr(steps, key) is not None and CLIENTS[key] not in listed:
            yield Finding(
                "HPK-O038",
                f"{AT}.{key}",
                f"no package source of Ubuntu's has {CLIENTS[key]}: nodes whose image has none do not come up",
                f'List its .deb under hyperpod_kit.clients with "client": "{key}" (hyperpod-kit describe-package FILE)',
                WARNING,
            )


def check_slurm_accounts(settings: Settings) -> Iterator[Finding]:
    """Every account, and everybody and every QOS that it names, exists."""
    accounting = settings.steps.accounting
    if accounting is None:
        return
    names = [account.name for account in accounting.accounts]
    known_qos = {BUILT_IN_QOS, *(entry.name for entry in accounting.qos)}
    users = {LOGIN_USER, "root", *(user.name for user in settings.users)}
    parents = {account.name: account.parent for account in accounting.accounts}
    circle = ""
    for index, account in enumerate(accounting.accounts):
        at = f"{ACCOUNTING}.accounts[{index}]"
        if account.name in names[:index] or account.name == "root":
            yield _duplicate_finding(at, "an account", account.name)
        if account.parent != "root" and account.parent not in names:
            yield _unknown_name_finding(f"{at}.parent", "account", account.parent, ["root", *names])
        elif account.parent != "root" and not circle and _has_cycle(account.name, parents):
            circle = account.name
            yield Finding(
                "HPK-O029", f"{at}.parent", f"`{account.name}` is below itself", "Let one of them belong to root"
            )
        for number, name in enumerate(account.qos):
            if name not in known_qos:
                yield _unknown_name_finding(f"{at}.qos[{number}]", "QOS", name, sorted(known_qos))
        for number, name in enumerate(account.users):
            if name not in users and fits_field_pattern_if_any(f"{ACCOUNTING}.accounts[].users", name):
                yield Finding(
                    "HPK-O021",
                    f"{at}.users[{number}]",
                    f"`{name}` is not a user of this configuration",
                    "That is right for a user of a directory; otherwise correct the name",
                    INFO,
                )
        if not 0 <= account.fairshare <= 2**31 - 1:
            yield _out_of_range_finding(f"{at}.fairshare", account.fairshare, "0 to 2147483647")


def check_qos_enforce_and_preempt_mode(settings: Settings) -> Iterator[Finding]:
    """Every QOS has its name once, and what it names exists."""
    accounting = settings.steps.accounting
    if accounting is None:
        return
    names = [entry.name for entry in accounting.qos]
    for index, entry in enumerate(accounting.qos):
        at = f"{ACCOUNTING}.qos[{index}]"
        if entry.name in names[:index]:
            yield _duplicate_finding(at, "a QOS", entry.name)
        for number, name in enumerate(entry.preempts):
            if name not in (BUILT_IN_QOS, *names) or name == entry.name:
                yield _unknown_name_finding(
                    f"{at}.preempts[{number}]",
                    "other QOS",
                    name,
                    [BUILT_IN_QOS, *(two for two in names if two != entry.name)],
                )
        for key, value in entry.limits.items():
            if key not in LIMITS:
                yield _unknown_name_finding(f"{at}.limits.{key}", "limit", key, list(LIMITS))
            elif not LIMIT.fullmatch(value):
                yield Finding(
                    "HPK-O024",
                    f"{at}.limits.{key}",
                    f"`{value}` is not a limit as Slurm writes it",
                    "Write a number, a time like 1-00:00:00, or resources like cpu=64,gres/gpu=8",
                )
        if not 0 <= entry.priority <= 2**31 - 1:
            yield _out_of_range_finding(f"{at}.priority", entry.priority, "0 to 2147483647")
    for index, name in enumerate(accounting.enforce):
        if name not in ENFORCED:
            yield _unknown_name_finding(
                f"{ACCOUNTING}.enforce[{index}]", "word of AccountingStorageEnforce", name, list(ENFORCED)
            )
    if accounting.preempt_mode not in PREEMPT_MODES:
        yield _unknown_name_finding(f"{ACCOUNTING}.preempt_mode", "mode", accounting.preempt_mode, list(PREEMPT_MODES))
    if any(entry.limits for entry in accounting.qos) and not {"limits", "safe"} & set(accounting.enforce):
        yield Finding(
            "HPK-O025",
            f"{ACCOUNTING}.qos",
            "the limits of a QOS have no effect: `enforce` does not name limits",
            'Add "enforce": ["associations", "limits", "qos"]',
            WARNING,
        )


def check_accounting_database(settings: Settings) -> Iterator[Finding]:
    """The password comes from a secret of the controller's; what lies on its disk goes with it."""
    accounting = settings.steps.accounting
    if accounting is None:
        return
    if accounting.database is None:
        if not settings.slurm_state_mount_name and settings.cluster.lifecycle_mode != LifecycleMode.AMI_ONLY:
            yield Finding(
                "HPK-O026",
                ACCOUNTING,
                "the database is on the controller's own disk, and there is no mount for its copies: the "
                "accounting is lost when that machine is replaced",
                "Mount FSx or EFS on the controller and require it, or name an outside `database`",
                WARNING,
            )
        return
    yield from _check_secret_fetched_for_root_on_roles(
        settings, f"{ACCOUNTING}.database.secret_arn", accounting.database.secret_arn, (Role.CONTROLLER,)
    )
    if not 1 <= accounting.database.port <= 65535:
        yield _out_of_range_finding(f"{ACCOUNTING}.database.port", accounting.database.port, "1 to 65535")


def check_sssd_schema_and_bind_secret(settings: Settings) -> Iterator[Finding]:
    """Report errors of sssd: an unknown schema, and a bind_dn whose password's secret is missing or not
    on every node."""
    sssd = settings.steps.sssd
    if sssd is None:
        return
    if sssd.schema not in SCHEMAS:
        yield _unknown_name_finding(f"{AT}.sssd.schema", "schema", sssd.schema, list(SCHEMAS))
    if bool(sssd.bind_dn) != bool(sssd.secret_arn):
        if sssd.bind_dn:
            given, missing = ("bind_dn", "secret_arn")
        else:
            given, missing = ("secret_arn", "bind_dn")
        yield Finding(
            "HPK-O036",
            f"{AT}.sssd.{missing}",
            f"{given} is given, and this is not",
            "Give both, or neither where the directory can be read by anybody",
        )
    if sssd.secret_arn:
        yield from _check_secret_fetched_for_root_on_roles(settings, f"{AT}.sssd.secret_arn", sssd.secret_arn, ROLES)


def check_device_checks_have_gate_and_devices(settings: Settings) -> Iterator[Finding]:
    """Report unknown actions, a diagnostic without its gate, and device checks where no group has
    devices."""
    device_checks = settings.steps.device_checks
    if device_checks is None:
        return
    at = f"{AT}.device_checks"
    if device_checks.action not in ACTIONS:
        yield _unknown_name_finding(f"{at}.action", "action", device_checks.action, list(ACTIONS))
    if device_checks.dcgm and not device_checks.gate:
        yield Finding(
            "HPK-O039",
            f"{at}.dcgm",
            "the diagnostic runs in the gate alone, and the gate is off",
            'Set "gate": true, or remove dcgm',
        )
    groups = [group for group in settings.cluster.groups if group.role == Role.COMPUTE]
    types = sorted({name for group in groups for name in group.types})
    if not any(gpu_count(name) or efa_count(name) for name in types):
        yield Finding(
            "HPK-O040",
            at,
            f"no compute group is known to have GPUs or EFA devices ({', '.join(types) or 'no group'}): only GPUs on "
            "the PCI bus are looked at",
            "Remove device_checks where there are none",
            WARNING,
        )


def check_log_keep_and_exporter_port(settings: Settings) -> Iterator[Finding]:
    """Report log_rotation.keep and the node exporter's port when they are out of range."""
    steps = settings.steps
    if steps.log_rotation is not None and not 1 <= steps.log_rotation.keep <= 1000:
        yield _out_of_range_finding(f"{AT}.log_rotation.keep", steps.log_rotation.keep, "1 to 1000")
    port = ""
    if steps.node_exporter is not None:
        port = steps.node_exporter.listen.rpartition(":")[2]
    if steps.node_exporter is not None and re.fullmatch(r"[0-9]{1,6}", port) and int(port) > 65535:
        yield _out_of_range_finding(f"{AT}.node_exporter.listen", int(port), "a port up to 65535")


def check_host_key_mount(settings: Settings) -> Iterator[Finding]:
    """There is a mount on which every node finds the others' host keys."""
    ssh = settings.steps_with_host_key_mount.ssh_between_nodes
    if ssh is None:
        return
    mount = next((mount for mount in settings.mounts if mount.name == ssh.mount), None)
    if mount is None and not ssh.mount:
        problem = "no mount is on every node"
    else:
        if mount:
            problem = mount_not_shared_by_all_nodes_reason(mount, settings.cluster)
        else:
            problem = f"there is no mount `{ssh.mount}`"
    if problem:
        key = ""
        if ssh.mount:
            key = ".mount"
        yield Finding(
            "HPK-O028",
            f"{AT}.ssh_between_nodes" + key,
            f"nodes cannot find each other's host keys: {problem}",
            "Name a required Lustre, OpenZFS or EFS mount that every group has, or remove the key",
        )


def _check_secret_fetched_for_root_on_roles(
    settings: Settings, at: str, arn: str, node_roles: Sequence[str]
) -> Iterator[Finding]:
    """Report a secret that is not fetched for root on nodes of all these roles, where a step needs it."""
    secret = next((candidate for candidate in settings.secrets if candidate.arn == arn), None)
    lacking = [role for role in node_roles if secret is not None and role not in secret.roles]
    if secret is None:
        problem = "hyperpod_kit.secrets does not have it"
    elif lacking:
        if len(node_roles) == 1:
            problem = f"the {lacking[0]} does not fetch it"
        else:
            problem = f"it is not for {', '.join(lacking)} nodes"
    elif secret.owner != "root":
        problem = f"it is {secret.owner}'s, and the step that reads it is root's"
    else:
        return
    roles_text = ", ".join(f'"{role}"' for role in node_roles)
    yield Finding(
        "HPK-O027",
        at,
        f"`{arn}`: {problem}",
        f'Add it to hyperpod_kit.secrets with "roles": [{roles_text}] and no owner',
    )


def _duplicate_finding(at: str, what: str, name: str) -> Finding:
    return Finding("HPK-O020", f"{at}.name", f"there is {what} `{name}` already", "Rename one of them")


def _out_of_range_finding(at: str, value: int, allowed: str) -> Finding:
    return Finding("HPK-O022", at, f"{value} is out of range", f"Use {allowed}")


def _unknown_name_finding(at: str, what: str, name: str, expected: list[str]) -> Finding:
    return Finding("HPK-O023", at, f"there is no {what} `{name}`", f"Use {', '.join(expected)}")


def _has_cycle(name: str, parents: dict[str, str]) -> bool:
    visited, at = {name}, parents.get(name, "root")
    while at in parents:
        if at in visited:
            return True
        visited.add(at)
        at = parents[at]
    return False
