"""Which questions `init` has to ask, and what the rules say of an answer."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Iterator

from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.config.reading import text_checks
from hyperpod_kit.config.settings.findings import Finding, select_errors
from hyperpod_kit.config.starting import starter
from hyperpod_kit.config.starting.init_answers import QUESTIONS, Answers, Question
from hyperpod_kit.config.validate import validate


def unanswered_questions(base: dict[str, Any], answers: Answers) -> Iterator[Question]:
    """Yield the questions that neither a flag nor an imported file has answered.

    Of an imported cluster only what it lacks is asked.
    """
    answered_keys = _answered_keys(base)
    for question in QUESTIONS:
        given = getattr(answers, question.key)
        if (given is None or given == ()) and question.key not in answered_keys:
            yield question


def _answered_keys(base: dict[str, Any]) -> set[str]:
    kit = base.get("hyperpod_kit", {})
    cluster = kit.get("cluster", {})
    keys = {key for key in ("name", "region", "execution_role", "lifecycle_mode") if key in cluster}
    if "instance_groups" in cluster:
        # A cluster that there is: its network and storage are decided, also where it has none.
        keys |= {question.key for question in QUESTIONS} - {"name", "region", "execution_role"}
    if "fsx_dns_name" in base:
        keys |= {"fsx_dns_name", "fsx_mountname"}
    return keys


def missing_required_flags(base: dict[str, Any], answers: Answers) -> list[str]:
    """Return the flags of unanswered questions without which there is no configuration."""
    return [question.flag for question in unanswered_questions(base, answers) if question.needed]


def errors_of_answer(base: dict[str, Any], answers: Answers, question: Question, value: Any) -> list[Finding]:
    """Return the errors that the rules find in the configuration because of this answer."""
    values = starter.copy_with_answers_and_defaults(base, replace(answers, **{question.key: value}))
    settings, findings = decode_settings(values)
    findings = [*text_checks.find_secrets_and_unfit_texts(values), *findings, *validate(settings)]
    return [finding for finding in select_errors(findings) if re.fullmatch(question.at, finding.path)]
