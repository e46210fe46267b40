"""What `init` is told, by flags or by questions: the one table of which flags, questions and answers are made."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import Any, Callable, Optional, Union

from hyperpod_kit.config.fields.fields import FIELDS
from hyperpod_kit.model.states import LIFECYCLE_MODES, LifecycleMode

CONTROLLER_TYPE, WORKER_TYPE = "ml.c5.xlarge", "ml.p5.48xlarge"

_C = "hyperpod_kit.cluster"
_TYPE = rf"{_C}\.instance_groups\[\d+\]\.instance_type"
_COUNT = rf"{_C}\.instance_groups\[\d+\]\.(count|min_count)"
_MOUNT = r"hyperpod_kit\.mounts\[\d+\]"


@dataclass(frozen=True)
class Question:
    """One answer, as it is asked for and as a flag.

    purpose: what it is for, below its prompt; about: the same for who sees no prompt. at: pattern of the paths whose
    findings the answer has to answer for. convert: text -> value, raises ValueError; several: any number of them;
    usual: the answer of an empty line, None where there is none; optional: an empty line means none of it; when:
    whether it makes sense after the answers so far. needed: without it there is no configuration.
    """

    prompt: str
    purpose: str
    about: str
    at: str
    flag: str = ""
    metavar: Optional[str] = None
    envvar: Optional[str] = None
    convert: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()
    several: bool = False
    usual: Union[str, Callable[[Answers], str], None] = None
    optional: bool = False
    when: Callable[[Answers], bool] = lambda answers: True
    needed: bool = False
    key: str = ""

    @property
    def explanation(self) -> str:
        """Return what is said before the question."""
        several = ""
        if self.several:
            several = "Several: with blanks between them."
        empty_note = ""
        if self.optional:
            empty_note = "Empty: none."
        return " ".join(filter(None, (self.purpose, several, empty_note)))

    @property
    def help(self) -> str:
        """Return what is said of the flag."""
        default = ""
        if isinstance(self.usual, str) and self.convert is not parse_yes_no:
            default = f"Default: {self.usual}."
        repeat_note = ""
        if self.several:
            repeat_note = "May be repeated."
        return " ".join(filter(None, (self.about, repeat_note, default)))

    def default_answer(self, answers: Answers) -> Optional[str]:
        """Return the answer that an empty line stands for, None where there is none."""
        if callable(self.usual):
            return self.usual(answers)
        return self.usual

    def parse(self, text: str) -> Any:
        """The value of a line. Raises ValueError."""
        if self.several:
            return tuple(self.convert(word) for word in re.split(r"[\s,]+", text) if word)
        if self.choices and text not in self.choices:
            raise ValueError(f"{text}: expected {', '.join(self.choices)}")
        return self.convert(text)


def parse_account(text: str) -> tuple[str, int]:
    """Parse NAME:UID. Raises ValueError."""
    name, _, uid = text.partition(":")
    if not name or not uid.isdecimal() or len(uid) > 10:
        raise ValueError(f"{text}: expected NAME:UID, like trainer:2001")
    return name, int(uid)


def parse_whole_number(text: str) -> int:
    """A whole number. Raises ValueError."""
    if not text.isdecimal() or len(text) > 10:
        raise ValueError(f"{text}: expected a whole number")
    return int(text)


def parse_yes_no(text: str) -> bool:
    """Parse y or n."""
    if text.lower() not in ("y", "yes", "n", "no"):
        raise ValueError(f"{text}: expected y or n")
    return text.lower().startswith("y")


def default_bucket(region: str, execution_role: str) -> str:
    """SageMaker's own default bucket of the account that the role belongs to."""
    parts = execution_role.split(":")
    if len(parts) > 4:
        return f"sagemaker-{region}-{parts[4]}"
    return f"sagemaker-{region}"


def _has_lifecycle_script(answers: Answers) -> bool:
    return answers.lifecycle_mode != LifecycleMode.AMI_ONLY


def _question_field(prompt: str, about: str, at: str = "", **more: Any) -> Any:
    """A field of Answers. `about`: what it is for, or the key of the configuration that says it in FIELDS."""
    documented = FIELDS.get(about)
    if documented:
        purpose, alone = (documented.text, documented.text)
    else:
        purpose, alone = (about, f"{prompt}. {about}")
    question = Question(prompt, purpose, alone, at or re.escape(about), **more)
    default: Any = None
    if question.several:
        default = ()
    return field(default=default, metadata={"question": question})


@dataclass(frozen=True)
class Answers:
    """What flags and questions say, in the order of the questions; None and (): nothing, so what is there stays."""

    name: Optional[str] = _question_field("Cluster name", f"{_C}.name", needed=True)
    region: Optional[str] = _question_field("Region", f"{_C}.region", needed=True, envvar="AWS_DEFAULT_REGION")
    execution_role: Optional[str] = _question_field(
        "Execution role", f"{_C}.execution_role", needed=True, metavar="ARN"
    )
    security_groups: tuple[str, ...] = _question_field(
        "Security groups",
        f"{_C}.vpc.security_group_ids",
        rf"{_C}\.vpc(\.security_group_ids.*)?",
        needed=True,
        several=True,
        flag="--security-group",
        metavar="SG",
    )
    subnets: tuple[str, ...] = _question_field(
        "Subnets",
        f"{_C}.vpc.subnet_ids",
        rf"{_C}\.vpc(\.subnet_ids.*)?",
        needed=True,
        several=True,
        flag="--subnet",
        metavar="SUBNET",
    )
    bucket: Optional[str] = _question_field(
        "Bucket for the bundle",
        "HyperPod's managed policy reads sagemaker-* only; SageMaker's own is sagemaker-REGION-ACCOUNT.",
        r"hyperpod_kit\.bundle\.bucket",
        usual=lambda answers: default_bucket(answers.region or "", answers.execution_role or ""),
    )
    lifecycle_mode: Optional[str] = _question_field(
        "Lifecycle mode", f"{_C}.lifecycle_mode", choices=LIFECYCLE_MODES, usual=LifecycleMode.ON_INIT_COMPLETE.value
    )
    continuous: Optional[bool] = _question_field(
        "Continuous provisioning, y or n",
        f"{_C}.node_provisioning_mode",
        convert=parse_yes_no,
        usual="n",
        when=lambda answers: answers.lifecycle_mode != LifecycleMode.ON_CREATE,
    )
    controller_type: Optional[str] = _question_field(
        "Instance type of the controller",
        "Runs slurmctld; a small instance is sufficient.",
        _TYPE,
        metavar="TYPE",
        usual=CONTROLLER_TYPE,
    )
    login_type: Optional[str] = _question_field(
        "Instance type of a login node",
        "Users log in here instead of on the controller.",
        _TYPE,
        metavar="TYPE",
        optional=True,
    )
    worker_type: Optional[str] = _question_field(
        "Instance type of the workers", "Nodes that run jobs.", _TYPE, metavar="TYPE", usual=WORKER_TYPE
    )
    workers: Optional[int] = _question_field(
        "Number of workers", "Can be changed later with update-cluster.", _COUNT, convert=parse_whole_number, usual="1"
    )
    fsx_dns_name: Optional[str] = _question_field(
        "DNS name of FSx for Lustre",
        "File system for checkpoints and data, mounted at /fsx.",
        "fsx_dns_name",
        metavar="DNS",
        optional=True,
    )
    fsx_mountname: Optional[str] = _question_field(
        "Mount name of FSx for Lustre",
        "fsx_mountname",
        metavar="NAME",
        when=lambda answers: answers.fsx_dns_name is not None,
    )
    efs: Optional[str] = _question_field(
        "EFS file system",
        "Mounted at /efs.",
        rf"{_MOUNT}(\.file_system_id)?",
        metavar="FS",
        optional=True,
        when=_has_lifecycle_script,
    )
    efs_access_point: Optional[str] = _question_field(
        "Access point of EFS",
        "Without it, the root of the file system is mounted.",
        rf"{_MOUNT}\.access_point_id",
        metavar="FSAP",
        optional=True,
        when=lambda answers: answers.efs is not None,
    )
    data_bucket: Optional[str] = _question_field(
        "Bucket with training data",
        "Mounted read-only at /mnt/data.",
        rf"{_MOUNT}(\.bucket)?",
        optional=True,
        when=_has_lifecycle_script,
    )
    data_prefix: Optional[str] = _question_field(
        "Prefix of the training data",
        "Ends in /.",
        rf"{_MOUNT}\.prefix",
        metavar="PREFIX/",
        optional=True,
        when=lambda answers: answers.data_bucket is not None,
    )
    homes: Optional[str] = _question_field(
        "EFS file system for homes",
        "Each user gets a home directory with its own access point; see `users apply`.",
        r"hyperpod_kit\.homes.*",
        metavar="FS",
        optional=True,
        when=_has_lifecycle_script,
    )
    users: tuple[tuple[str, int], ...] = _question_field(
        "Users, NAME:UID",
        "Accounts that exist on every node.",
        r"hyperpod_kit\.(users|homes).*",
        convert=parse_account,
        several=True,
        flag="--user",
        metavar="NAME:UID",
        optional=True,
    )


QUESTIONS = tuple(
    replace(question, key=answer_field.name, flag=question.flag or "--" + answer_field.name.replace("_", "-"))
    for answer_field in fields(Answers)
    for question in (answer_field.metadata["question"],)
)
