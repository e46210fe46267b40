"""What `init` asks, in order: each question fills one field of Answers, and is judged by the rules about its value."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, Optional

from hyperpod_kit.config import starter, text
from hyperpod_kit.config.decode import decode
from hyperpod_kit.config.fields import FIELDS
from hyperpod_kit.config.findings import Finding, errors
from hyperpod_kit.config.starter import Answers
from hyperpod_kit.config.validate import validate
from hyperpod_kit.model.cluster import LIFECYCLE_MODES

C = "hyperpod_kit.cluster"
SEVERAL = "Several: with blanks between them."


@dataclass(frozen=True)
class Question:
    """One question. `at`: pattern of the paths whose findings an answer has to answer for.

    why: what it is for; parse: text -> value, raises ValueError; usual: the answer of an empty line, None where there
    is none; optional: an empty line means none of it; when: whether it makes sense after the answers so far.
    """

    key: str
    prompt: str
    at: str
    why: str
    parse: Callable[[str], Any] = str
    usual: Callable[[Answers], Optional[str]] = lambda answers: None
    optional: bool = False
    when: Callable[[Answers], bool] = lambda answers: True


def account(text: str) -> tuple[str, int]:
    """NAME:UID. Raises ValueError."""
    name, _, uid = text.partition(":")
    if not name or not uid.isdecimal() or len(uid) > 10:
        raise ValueError(f"{text}: expected NAME:UID, like trainer:2001")
    return name, int(uid)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"[\s,]+", text) if word)


def _accounts(text: str) -> tuple[tuple[str, int], ...]:
    return tuple(account(word) for word in _words(text))


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 10:
        raise ValueError(f"{text}: expected a whole number")
    return int(text)


def _mode(text: str) -> str:
    if text not in LIFECYCLE_MODES:
        raise ValueError(f"{text}: expected {', '.join(LIFECYCLE_MODES)}")
    return text


def _yes(text: str) -> bool:
    if text.lower() not in ("y", "yes", "n", "no"):
        raise ValueError(f"{text}: expected y or n")
    return text.lower().startswith("y")


def _ours(answers: Answers) -> bool:
    return answers.lifecycle_mode != "ami_only"


_TYPE = rf"{C}\.instance_groups\[\d+\]\.instance_type"
_MOUNT = r"hyperpod_kit\.mounts\[\d+\]"

QUESTIONS = (
    Question("name", "Cluster name", rf"{C}\.name", FIELDS[f"{C}.name"].text),
    Question("region", "Region", rf"{C}\.region", FIELDS[f"{C}.region"].text),
    Question("execution_role", "Execution role", rf"{C}\.execution_role", FIELDS[f"{C}.execution_role"].text),
    Question(
        "security_groups",
        "Security groups",
        rf"{C}\.vpc(\.security_group_ids.*)?",
        f"{FIELDS[f'{C}.vpc.security_group_ids'].text} {SEVERAL}",
        _words,
    ),
    Question(
        "subnets", "Subnets", rf"{C}\.vpc(\.subnet_ids.*)?", f"{FIELDS[f'{C}.vpc.subnet_ids'].text} {SEVERAL}", _words
    ),
    Question(
        "bucket",
        "Bucket for the bundle",
        r"hyperpod_kit\.bundle\.bucket",
        FIELDS["hyperpod_kit.bundle.bucket"].text,
        usual=lambda answers: starter.default_bucket(answers.region or "", answers.execution_role or ""),
    ),
    Question(
        "lifecycle_mode",
        "Lifecycle mode",
        rf"{C}\.lifecycle_mode",
        FIELDS[f"{C}.lifecycle_mode"].text,
        _mode,
        usual=lambda answers: "on_init_complete",
    ),
    Question(
        "continuous",
        "Continuous provisioning, y or n",
        rf"{C}\.node_provisioning_mode",
        FIELDS[f"{C}.node_provisioning_mode"].text,
        _yes,
        usual=lambda answers: "n",
        when=lambda answers: answers.lifecycle_mode != "on_create",
    ),
    Question(
        "controller_type",
        "Instance type of the controller",
        _TYPE,
        "One node that runs slurmctld. A small one does.",
        usual=lambda answers: starter.CONTROLLER_TYPE,
    ),
    Question(
        "login_type",
        "Instance type of a login node",
        _TYPE,
        "A node for people, so that nobody works on the controller. Empty: none.",
        optional=True,
    ),
    Question(
        "worker_type",
        "Instance type of the workers",
        _TYPE,
        "The nodes that compute.",
        usual=lambda answers: starter.WORKER_TYPE,
    ),
    Question(
        "workers",
        "Number of workers",
        rf"{C}\.instance_groups\[\d+\]\.(count|min_count)",
        "It can be changed later: update-cluster.",
        _count,
        usual=lambda answers: "1",
    ),
    Question(
        "fsx_dns_name",
        "DNS name of FSx for Lustre",
        "fsx_dns_name",
        "A file system for checkpoints and data, mounted at /fsx. Empty: none.",
        optional=True,
    ),
    Question(
        "fsx_mountname",
        "Its mount name",
        "fsx_mountname",
        FIELDS["fsx_mountname"].text,
        when=lambda answers: answers.fsx_dns_name is not None,
    ),
    Question(
        "efs",
        "EFS file system",
        rf"{_MOUNT}(\.file_system_id)?",
        "Mounted at /efs. Empty: none.",
        optional=True,
        when=_ours,
    ),
    Question(
        "efs_access_point",
        "Its access point",
        rf"{_MOUNT}\.access_point_id",
        "Empty: none, the file system's root.",
        optional=True,
        when=lambda answers: answers.efs is not None,
    ),
    Question(
        "data_bucket",
        "Bucket with training data",
        rf"{_MOUNT}(\.bucket)?",
        "Mounted read-only at /mnt/data. Empty: none.",
        optional=True,
        when=_ours,
    ),
    Question(
        "data_prefix",
        "Only this prefix of it",
        rf"{_MOUNT}\.prefix",
        "Ends in /. Empty: the whole bucket.",
        optional=True,
        when=lambda answers: answers.data_bucket is not None,
    ),
    Question(
        "homes",
        "EFS file system for homes",
        r"hyperpod_kit\.homes.*",
        "A home for each user behind an access point of its own. Empty: none.",
        optional=True,
        when=_ours,
    ),
    Question(
        "users",
        "Users, NAME:UID",
        r"hyperpod_kit\.(users|homes).*",
        f"Accounts, the same on every node. {SEVERAL} Empty: none.",
        _accounts,
        optional=True,
    ),
)


def open_questions(base: dict[str, Any], answers: Answers) -> Iterator[Question]:
    """What neither a flag nor an imported file has answered. Of an imported cluster only what it lacks is asked."""
    known = _known(base)
    for question in QUESTIONS:
        given = getattr(answers, question.key)
        if (given is None or given == ()) and question.key not in known:
            yield question


def _known(base: dict[str, Any]) -> set[str]:
    kit = base.get("hyperpod_kit", {})
    cluster = kit.get("cluster", {})
    known = {key for key in ("name", "region", "execution_role", "lifecycle_mode") if key in cluster}
    if "instance_groups" in cluster:
        # A cluster that there is: its network and storage are decided, also where it has none.
        known |= {question.key for question in QUESTIONS} - {"name", "region", "execution_role"}
    if "fsx_dns_name" in base:
        known |= {"fsx_dns_name", "fsx_mountname"}
    return known


def needed(base: dict[str, Any], answers: Answers) -> list[str]:
    """The flags without which there is no configuration."""
    must = {
        "name": "--name",
        "region": "--region",
        "execution_role": "--execution-role",
        "security_groups": "--security-group",
        "subnets": "--subnet",
    }
    return [must[question.key] for question in open_questions(base, answers) if question.key in must]


def objections(base: dict[str, Any], answers: Answers, question: Question, value: Any) -> list[Finding]:
    """What the rules say against this answer."""
    values = starter.fill(base, replace(answers, **{question.key: value}))
    settings, found = decode(values)
    found = [*text.findings(values), *found, *validate(settings)]
    return [finding for finding in errors(found) if re.fullmatch(question.at, finding.path)]
