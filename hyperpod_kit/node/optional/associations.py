"""The cluster, its QOS, its accounts and who belongs to them, in slurmdbd.

Made once for the same words of the configuration: what an admin says to sacctmgr later stays said. What the
configuration names no more is left, as jobs have run under it.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict
from typing import Dict, List, Sequence, Set, Tuple

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.model.optional_steps import LIMITS, Accounting, SlurmAccount
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different
from hyperpod_kit.node.slurm.controller import read_slurm_conf
from hyperpod_kit.node.slurm.hooks import parse_slurm_conf_settings
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.text import counted

PROGRAMS = ("/opt/slurm/bin/sacctmgr", "/usr/bin/sacctmgr")
EVERYBODY = "users"
"""The account of everybody, where the configuration names none."""
LOGIN_USER = "ubuntu"
"""Of AWS's images."""
SECONDS = 60.0
RUNAWAYS = "accounting-runaways"
"""Noted while slurmdbd may know jobs as running that are not, since its database is one of some minutes ago."""
BUILT_IN_QOS = "normal"


def configured_accounts_parents_first(node: Node, accounting: Accounting) -> Tuple[SlurmAccount, ...]:
    """The accounts of the configuration, parents first; one for everybody where it names none."""
    if not accounting.accounts:
        return (SlurmAccount(EVERYBODY, (LOGIN_USER, *(user.name for user in node.config.users))),)
    ordered: List[SlurmAccount] = []
    remaining = list(accounting.accounts)
    while remaining:
        ready = [
            account
            for account in remaining
            if account.parent == "root" or any(account.parent == made.name for made in ordered)
        ]
        ordered += ready or remaining
        remaining = [account for account in remaining if account not in ordered]
    return tuple(ordered)


def describe_pending_changes(node: Node, accounting: Accounting) -> str:
    """Return what `ensure_associations` would do, in words; "" for nothing."""
    if read_text(node.paths.optional_step_done_stamp("accounting")) == _configuration_digest(node, accounting):
        return ""
    names = ", ".join(account.name for account in configured_accounts_parents_first(node, accounting))
    if not accounting.qos:
        return f"accounts {names}"
    return f"accounts {names}; QOS {', '.join(qos.name for qos in accounting.qos)}"


def ensure_associations(node: Node, accounting: Accounting) -> str:
    """Make the cluster, QOS, accounts and users known to slurmdbd, and stamp that; return what was done, in
    words, "" for nothing. Raises NodeError with sacctmgr's error."""
    if not describe_pending_changes(node, accounting):
        return ""
    cluster = parse_slurm_conf_settings(read_slurm_conf(node)).get("clustername", node.config.cluster_name).lower()
    if cluster not in _query_names(node, "cluster"):
        _sacctmgr_change(node, "add", "cluster", cluster)
    _ensure_qos(node, accounting)
    users = _ensure_accounts_and_count_users(node, accounting, cluster)
    summary = describe_pending_changes(node, accounting)
    write_if_different(node.paths.optional_step_done_stamp("accounting"), _configuration_digest(node, accounting))
    return f"{summary}; {counted(users, 'user')}"


def end_runaway_jobs(node: Node) -> None:
    """Have slurmdbd end the jobs that it takes for running and slurmctld does not know. Raises NodeError."""
    _sacctmgr(node, "--immediate", "show", "runawayjobs")


def _ensure_qos(node: Node, accounting: Accounting) -> None:
    existing = _query_names(node, "qos")
    for qos in accounting.qos:
        if qos.name not in existing:
            _sacctmgr_change(node, "add", "qos", qos.name)
    for qos in accounting.qos:  # after all of them are there: one may make room for another
        limits = [f"{LIMITS[key]}={value}" for key, value in qos.limits.items()]
        preempts = ",".join(qos.preempts)
        _sacctmgr_change(
            node,
            "modify",
            "qos",
            "where",
            f"name={qos.name}",
            "set",
            f"Priority={qos.priority}",
            f"Preempt={preempts}",
            *limits,
        )


def _ensure_accounts_and_count_users(node: Node, accounting: Accounting, cluster: str) -> int:
    """Create and update the accounts and their users in slurmdbd; return how many users are in them."""
    existing = _query_account_user_pairs(node, cluster)
    users: Set[str] = set()
    for account in configured_accounts_parents_first(node, accounting):
        name = account.name
        if (name, "") not in existing:
            if name in _query_names(node, "account"):
                creation = []
            else:
                creation = [f"Description={name}", "Organization=hyperpod-kit"]
            _sacctmgr_change(node, "add", "account", name, f"Cluster={cluster}", f"Parent={account.parent}", *creation)
        qos = list(account.qos) or [
            BUILT_IN_QOS,
            *(configured.name for configured in accounting.qos if configured.name != BUILT_IN_QOS),
        ]
        attributes = [f"Fairshare={account.fairshare}", f"QOS={','.join(qos)}", f"DefaultQOS={qos[0]}"]
        _sacctmgr_change(node, "modify", "account", "where", f"name={name}", f"cluster={cluster}", "set", *attributes)
        for user in account.users:
            if (name, user) not in existing:
                _sacctmgr_change(node, "add", "user", user, f"Cluster={cluster}", f"Account={name}")
            users.add(user)
    return len(users)


def _query_account_user_pairs(node: Node, cluster: str) -> Set[Tuple[str, str]]:
    """(account, user) of the cluster; user "" for the account itself."""
    lines = _sacctmgr_show_lines(node, "associations", f"cluster={cluster}", "format=account,user")
    return {(line[0], line[1]) for line in (line.split("|") for line in lines) if len(line) > 1}


def _query_names(node: Node, what: str) -> Sequence[str]:
    """Query the name of every `cluster`, `account` or `qos` that slurmdbd knows."""
    column = what
    if what == "qos":
        column = "name"
    return [line.split("|")[0] for line in _sacctmgr_show_lines(node, what, f"format={column}")]


def _sacctmgr_show_lines(node: Node, *arguments: str) -> List[str]:
    return _sacctmgr(node, "--noheader", "--parsable2", "show", *arguments).splitlines()


def _sacctmgr_change(node: Node, *arguments: str) -> None:
    _sacctmgr(node, "--immediate", "--quiet", *arguments)


def _sacctmgr(node: Node, *arguments: str) -> str:
    program = next((path for path in PROGRAMS if os.path.exists(node.paths.under_root(path))), "sacctmgr")
    try:
        return node.runner.run([program, *arguments], timeout=SECONDS).stdout
    except RunError as err:
        output = (err.stderr.strip() or err.stdout.strip() or err.message).splitlines()
        raise NodeError(f"sacctmgr {' '.join(arguments)}: {output[-1].strip()}", hint="journalctl -u slurmdbd") from err


def _configuration_digest(node: Node, accounting: Accounting) -> str:
    """Return a digest of all that is made in slurmdbd; of a database elsewhere, another one is another digest."""
    fields: Dict[str, object] = {
        **asdict(accounting),
        "everybody": [asdict(account) for account in configured_accounts_parents_first(node, accounting)],
    }
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest() + "\n"


def delete_stamp(node: Node) -> None:
    """Delete the stamp, so that the next run begins anew; what slurmdbd knows stays in its database."""
    with contextlib.suppress(FileNotFoundError):
        by_descriptor.unlink(node.paths.optional_step_done_stamp("accounting"))
