"""Users and groups of a directory, LDAP or Active Directory, by SSSD: names for Slurm and the file systems, and logins.

A local user never depends on it: PAM asks the local files first, and a directory that does not answer is no users, not
a closed door. The password with which the directory is read lies in sssd.conf, which only root can read.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
from typing import Dict, List

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.model.optional_steps import Sssd
from hyperpod_kit.node.machine import deferred_actions, systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different
from hyperpod_kit.node.machine.step import StepOutcome
from hyperpod_kit.node.optional import password, software
from hyperpod_kit.node.optional.optional_step import OptionalStep
from hyperpod_kit.node.optional.software import Software
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor

# The program itself is of another package, which may be there without this one.
LDAP = f"/usr/lib/{os.uname().machine}-linux-gnu/sssd/libsss_ldap.so"
SSSD = Software((LDAP,), ("sssd",), ("libnss-sss", "libpam-sss"), os.R_OK)
UNIT = "sssd.service"
CONF, SUDOERS = "/etc/sssd/sssd.conf", "/etc/sudoers.d/60-hyperpod-kit-directory"
NAMES, SESSION = "/etc/nsswitch.conf", "/etc/pam.d/common-session"
STATE = "/var/lib/sss"
HEADER = "# Written by hyperpod-kit from the bundle's configuration: change that, not this file.\n"
RESTART = "sssd-restart"
DOMAIN = "hyperpod-kit"


def _configuration(node: Node) -> Sssd:
    configuration = node.config.steps.sssd
    assert configuration is not None, "the step is on"
    return configuration


def conf_text(configuration: Sssd, secret: str) -> str:
    """Render sssd.conf. `secret`: the password of `bind_dn`, "" without one."""
    domain = {
        "id_provider": "ldap",
        "auth_provider": "ldap",
        "chpass_provider": "none",
        # sudo comes from the groups of the configuration, and nothing else of the directory is asked for.
        "sudo_provider": "none",
        "autofs_provider": "none",
        "access_provider": "simple" if configuration.allow else "permit",
        "ldap_uri": configuration.uri.replace(",", ", "),
        "ldap_search_base": configuration.search_base,
        "ldap_schema": configuration.schema,
        # Active Directory has no uids of its own: the same one is made of a user's SID on every node.
        "ldap_id_mapping": str(configuration.schema == "ad"),
        "ldap_tls_reqcert": "demand",
        "ldap_id_use_start_tls": str("ldap://" in configuration.uri),
        "ldap_network_timeout": "5",
        "cache_credentials": "True",
        "enumerate": "False",
        "override_homedir": configuration.home,
        "default_shell": "/bin/bash",
    }
    if configuration.allow:
        domain["simple_allow_groups"] = ", ".join(configuration.allow)
    if configuration.ca_file:
        domain["ldap_tls_cacert"] = configuration.ca_file
    if configuration.bind_dn:
        domain["ldap_default_bind_dn"] = configuration.bind_dn
    if secret:
        domain["ldap_default_authtok_type"] = "password"
        domain["ldap_default_authtok"] = secret
    head = f"[sssd]\nconfig_file_version = 2\nservices = nss, pam\ndomains = {DOMAIN}\n"
    names = "[nss]\nfilter_users = root, ubuntu, slurm, munge\nfilter_groups = root\n"
    return f"{HEADER}{head}\n{names}\n[domain/{DOMAIN}]\n" + "".join(
        f"{key} = {value}\n" for key, value in domain.items()
    )


def sudoers_text(configuration: Sssd) -> str:
    """Render the file of sudo's; "" where nobody of the directory may become root."""
    if configuration.sudo:
        return HEADER + "".join(f"%{group} ALL=(ALL) NOPASSWD:ALL\n" for group in configuration.sudo)
    return ""


def _expected_files(node: Node) -> Dict[str, str]:
    """Path -> text; "" for a file that is not to be there. Raises NodeError."""
    configuration = _configuration(node)
    secret = ""
    if configuration.secret_arn:
        secret = password.read_password(node, configuration.secret_arn, forbidden_characters="")
    return {CONF: conf_text(configuration, secret), SUDOERS: sudoers_text(configuration)}


def _outdated_file_paths(node: Node) -> List[str]:
    return [
        path for path, text in _expected_files(node).items() if (read_text(node.paths.under_root(path)) or "") != text
    ]


def _apply_sssd(node: Node) -> StepOutcome:
    current = read_text(node.paths.under_root(CONF))
    if current is not None and not current.startswith(HEADER):
        raise NodeError(f"{CONF} was not written by hyperpod-kit", hint="remove the file, or hyperpod_kit.steps.sssd")
    files, outdated, done = _expected_files(node), _outdated_file_paths(node), [software.ensure_installed(node, SSSD)]
    if outdated:
        deferred_actions.record_action(node, RESTART)
        for path in outdated:
            _write_or_delete_if_empty(node, path, files[path])
        done.append(f"wrote {', '.join(outdated)}")
    if not _is_mkhomedir_enabled(node):
        write_if_different(node.paths.optional_step_done_stamp(STEP.name), "mkhomedir\n")
        node.runner.run(["pam-auth-update", "--enable", "mkhomedir"], timeout=60)
        done.append("homes are created at the first login")
    systemd.enable(node, UNIT)
    try:
        if deferred_actions.is_recorded(node, RESTART):
            node.runner.run(["systemctl", "restart", UNIT], timeout=90)
        elif systemd.start(node, UNIT, timeout=90):
            done.append("started it")
    except RunError as err:
        raise NodeError(
            f"SSSD does not start: {systemd.last_log_line(node, UNIT) or err.message}", hint="journalctl -u sssd"
        ) from err
    deferred_actions.delete_action_record(node, RESTART)
    if " sss" not in (read_text(node.paths.under_root(NAMES)) or ""):
        raise NodeError(f"{NAMES} does not look up names in SSSD", hint="dpkg-reconfigure libnss-sss")
    summary = "; ".join(part for part in done if part)
    return StepOutcome(bool(summary), summary)


def _write_or_delete_if_empty(node: Node, path: str, text: str) -> None:
    """Write a file that only root reads, or delete it where `text` is empty. sudo's is checked by visudo
    first: a wrong one would close sudo to all."""
    real = node.paths.under_root(path)
    if not text:
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(real)
        return
    if path == SUDOERS:
        try:
            node.runner.run(["visudo", "--check", "--file", "-"], timeout=20, input=text)
        except RunError as err:
            raise NodeError(f"sudo rejects {path}: {err.stderr.strip() or err.message}") from err
    by_descriptor.make_parents(real)
    mode = 0o600
    if path == SUDOERS:
        mode = 0o440
    atomic_file.write_atomically(real, text.encode(), mode)


def _is_mkhomedir_enabled(node: Node) -> bool:
    return "pam_mkhomedir.so" in (read_text(node.paths.under_root(SESSION)) or "")


def _describe_pending_changes(node: Node) -> str:
    try:
        outdated = _outdated_file_paths(node)
    except NodeError:  # without its secret yet
        outdated = [CONF]
    runs = systemd.is_enabled(node, UNIT) and systemd.is_active(node, UNIT)
    parts = [software.describe_pending_install(node, SSSD)]
    if outdated:
        parts.append(f"write {', '.join(outdated)}")
    if not _is_mkhomedir_enabled(node):
        parts.append("create homes at the first login")
    if not runs:
        parts.append(f"enable and start {UNIT}")
    if runs and (outdated or deferred_actions.is_recorded(node, RESTART)):
        parts.append(f"restart {UNIT}")
    return "; ".join(part for part in parts if part)


def _undo_sssd(node: Node) -> str:
    if not (read_text(node.paths.under_root(CONF)) or HEADER).startswith(HEADER):
        return ""  # somebody else's: it was left alone
    node.runner.run(["systemctl", "disable", "--now", "--quiet", UNIT], timeout=60, check=False)
    if read_text(node.paths.optional_step_done_stamp(STEP.name)) is not None:
        node.runner.run(["pam-auth-update", "--package", "--remove", "mkhomedir"], timeout=60)
        by_descriptor.unlink(node.paths.optional_step_done_stamp(STEP.name))
    for path in (CONF, SUDOERS):
        if (read_text(node.paths.under_root(path)) or "").startswith(HEADER):
            by_descriptor.unlink(node.paths.under_root(path))
    # Names are served out of mc/ without any daemon, and db/ has what passwords are compared with.
    kept = [f"mc/{name}" for name in ("passwd", "group", "initgroups", "sid")]
    kept += [f"db/{name}_{DOMAIN}.ldb" for name in ("cache", "timestamps")]
    for name in kept:
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(node.paths.under_root(f"{STATE}/{name}"))
    deferred_actions.delete_action_record(node, RESTART)
    return "the directory's users are unknown on this node; their homes are kept"


STEP = OptionalStep("sssd", _apply_sssd, _describe_pending_changes, _undo_sssd)
