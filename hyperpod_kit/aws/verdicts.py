"""The words of the service contract: what can be done with a field or an operation of SageMaker's cluster API."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Sequence


class FieldVerdict(Enum):
    """What the kit does with a field or an operation. The value is the word that people see."""

    CONFIGURED = "configured"
    ARGUMENT = "argument"
    PASSED_THROUGH = "passed through"
    REFUSED = "refused"
    READ = "read"
    IGNORED = "ignored"
    CALLED = "called"
    NOT_CALLED = "not called"

    @property
    def meaning(self) -> str:
        """What the word says, and what a row's source is then."""
        return _MEANINGS[self]


_MEANINGS = {
    FieldVerdict.CONFIGURED: "a key of the configuration says it; source: the key",
    FieldVerdict.ARGUMENT: "a command fills it in; source: the command",
    FieldVerdict.PASSED_THROUGH: "`api` takes it, with a finding that states its effect; source: the finding",
    FieldVerdict.REFUSED: "it cannot be sent; source: the finding that says so",
    FieldVerdict.READ: "it is read; source: the commands that act on it or show it",
    FieldVerdict.IGNORED: "nothing reads it, but for `--json`, which prints AWS's answers whole; source: none",
    FieldVerdict.CALLED: "a command calls it; source: the command",
    FieldVerdict.NOT_CALLED: "no command calls it; source: none",
}


@dataclass(frozen=True)
class Judgement:
    """A row of the table: what is done with some fields of a request or of an answer.

    source: see FieldVerdict.meaning; effect: what the field does on a Slurm cluster, or why it is not used.
    """

    verdict: FieldVerdict
    source: str
    effect: str
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Operation:
    """One operation of the API. `request`, `response`: of an operation that is called, every field of both."""

    verdict: FieldVerdict
    source: str
    effect: str
    request: tuple[Judgement, ...] = ()
    response: tuple[Judgement, ...] = ()


def configured(key: str, effect: str, *fields: str) -> Judgement:
    """A row of fields that a key of the configuration says."""
    return Judgement(FieldVerdict.CONFIGURED, key, effect, fields)


def argument(command: str, effect: str, *fields: str) -> Judgement:
    """A row of fields that a command fills in."""
    return Judgement(FieldVerdict.ARGUMENT, command, effect, fields)


def refused(reason: str, finding: str, *fields: str) -> Judgement:
    """A row of fields that cannot be sent."""
    return Judgement(FieldVerdict.REFUSED, finding, reason, fields)


def read(commands: str, effect: str, *fields: str) -> Judgement:
    """A row of fields that are read."""
    return Judgement(FieldVerdict.READ, commands, effect, fields)


def ignored(reason: str, *fields: str) -> Judgement:
    """A row of fields that nothing reads, or nobody sends."""
    return Judgement(FieldVerdict.IGNORED, "", reason, fields)


def below(prefix: str, *fields: str) -> tuple[str, ...]:
    """The fields below a structure."""
    return tuple(f"{prefix}.{field}" for field in fields)


def moved_below(prefix: str, judgements: Sequence[Judgement]) -> tuple[Judgement, ...]:
    """The same rows, of a structure that is a member of another."""
    return tuple(Judgement(row.verdict, row.source, row.effect, below(prefix, *row.fields)) for row in judgements)
