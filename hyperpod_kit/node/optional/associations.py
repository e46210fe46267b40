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
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_text, write_if_different
from hyperpod_kit.node.slurm.controller import slurm_conf
from hyperpod_kit.node.slurm.hooks import settings
from hyperpod_kit.untrusted import by_descriptor

PROGRAMS = ("/opt/slurm/bin/sacctmgr", "/usr/bin/sacctmgr")
EVERYBODY = "users"
"""The account of everybody, where the configuration names none."""
LOGIN_USER = "ubuntu"
"""Of AWS's images."""
SECONDS = 60.0
RUNAWAYS = "accounting-runaways"
"""Noted while slurmdbd may know jobs as running that are not, since its database is one of some minutes ago."""
BUILT_IN_QOS = "normal"


def accounts_of(node: Node, asked: Accounting) -> Tuple[SlurmAccount, ...]:
    """The accounts of the configuration, parents first; one for everybody where it names none."""
    if not asked.accounts:
        return (SlurmAccount(EVERYBODY, (LOGIN_USER, *(user.name for user in node.config.users))),)
    found: List[SlurmAccount] = []
    left = list(asked.accounts)
    while left:
        ready = [one for one in left if one.parent == "root" or any(one.parent == made.name for made in found)]
        found += ready or left
        left = [one for one in left if one not in found]
    return tuple(found)


def pending(node: Node, asked: Accounting) -> str:
    """What `settle` would do, in words."""
    if read_text(node.paths.optional_stamp("accounting")) == _stamp(node, asked):
        return ""
    names = ", ".join(one.name for one in accounts_of(node, asked))
    return f"accounts {names}" + (f"; QOS {', '.join(one.name for one in asked.qos)}" if asked.qos else "")


def settle(node: Node, asked: Accounting) -> str:
    """Make slurmdbd know all of it; what was done, in words. Raises NodeError with what sacctmgr says."""
    if not pending(node, asked):
        return ""
    cluster = settings(slurm_conf(node)).get("clustername", node.config.cluster_name).lower()
    if cluster not in _names(node, "cluster"):
        _change(node, "add", "cluster", cluster)
    _settle_qos(node, asked)
    users = _settle_accounts(node, asked, cluster)
    said = pending(node, asked)
    write_if_different(node.paths.optional_stamp("accounting"), _stamp(node, asked))
    return f"{said}; {users} users"


def end_runaways(node: Node) -> None:
    """Have slurmdbd end the jobs that it takes for running and slurmctld does not know. Raises NodeError."""
    _sacctmgr(node, "--immediate", "show", "runawayjobs")


def _settle_qos(node: Node, asked: Accounting) -> None:
    there = _names(node, "qos")
    for one in asked.qos:
        if one.name not in there:
            _change(node, "add", "qos", one.name)
    for one in asked.qos:  # after all of them are there: one may make room for another
        limits = [f"{LIMITS[key]}={value}" for key, value in one.limits.items()]
        preempts = ",".join(one.preempts)
        _change(
            node,
            "modify",
            "qos",
            "where",
            f"name={one.name}",
            "set",
            f"Priority={one.priority}",
            f"Preempt={preempts}",
            *limits,
        )


def _settle_accounts(node: Node, asked: Accounting, cluster: str) -> int:
    """How many users are in them."""
    there = _associations(node, cluster)
    users: Set[str] = set()
    for account in accounts_of(node, asked):
        name = account.name
        if (name, "") not in there:
            where = [] if name in _names(node, "account") else [f"Description={name}", "Organization=hyperpod-kit"]
            _change(node, "add", "account", name, f"Cluster={cluster}", f"Parent={account.parent}", *where)
        qos = list(account.qos) or [BUILT_IN_QOS, *(one.name for one in asked.qos if one.name != BUILT_IN_QOS)]
        said = [f"Fairshare={account.fairshare}", f"QOS={','.join(qos)}", f"DefaultQOS={qos[0]}"]
        _change(node, "modify", "account", "where", f"name={name}", f"cluster={cluster}", "set", *said)
        for user in account.users:
            if (name, user) not in there:
                _change(node, "add", "user", user, f"Cluster={cluster}", f"Account={name}")
            users.add(user)
    return len(users)


def _associations(node: Node, cluster: str) -> Set[Tuple[str, str]]:
    """(account, user) of the cluster; user "" for the account itself."""
    said = _ask(node, "associations", f"cluster={cluster}", "format=account,user")
    return {(line[0], line[1]) for line in (line.split("|") for line in said) if len(line) > 1}


def _names(node: Node, what: str) -> Sequence[str]:
    """Of every `cluster`, `account` or `qos` that slurmdbd knows."""
    return [line.split("|")[0] for line in _ask(node, what, f"format={'name' if what == 'qos' else what}")]


def _ask(node: Node, *words: str) -> List[str]:
    return _sacctmgr(node, "--noheader", "--parsable2", "show", *words).splitlines()


def _change(node: Node, *words: str) -> None:
    _sacctmgr(node, "--immediate", "--quiet", *words)


def _sacctmgr(node: Node, *words: str) -> str:
    program = next((path for path in PROGRAMS if os.path.exists(node.paths.real(path))), "sacctmgr")
    try:
        return node.runner.run([program, *words], timeout=SECONDS).stdout
    except RunError as err:
        said = (err.stderr.strip() or err.stdout.strip() or err.message).splitlines()
        raise NodeError(f"sacctmgr {' '.join(words)}: {said[-1].strip()}", hint="journalctl -u slurmdbd") from err


def _stamp(node: Node, asked: Accounting) -> str:
    """Of all that it makes; of a database elsewhere, another one is another stamp."""
    words: Dict[str, object] = {**asdict(asked), "everybody": [asdict(one) for one in accounts_of(node, asked)]}
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest() + "\n"


def forget(node: Node) -> None:
    """Begin anew the next time; what slurmdbd knows stays in its database."""
    with contextlib.suppress(FileNotFoundError):
        by_descriptor.unlink(node.paths.optional_stamp("accounting"))
