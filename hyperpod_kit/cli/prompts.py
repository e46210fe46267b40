"""Questions on a terminal: each with what it is for, asked again until the rules have nothing against the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hyperpod_kit.cli.output import out, prompted, say
from hyperpod_kit.config.init_answers import Answers, Question
from hyperpod_kit.config.questions import objections, open_questions


def interview(base: dict[str, Any], answers: Answers) -> Answers:
    """Ask everything that is open. Raises click.Abort on Ctrl-C and at the end of the input."""
    say("An empty line takes the answer in brackets. Ctrl-C leaves everything as it is.")
    for question in open_questions(base, answers):
        if question.when(answers):
            answers = replace(answers, **{question.key: _prompt_until_valid(base, answers, question)})
    return answers


def _prompt_until_valid(base: dict[str, Any], answers: Answers, question: Question) -> Any:
    usual = question.proposed(answers)
    out(f"\n{question.explanation}", dim=True, err=True)
    while True:
        if question.optional or usual is None:
            left_out = ""
        else:
            left_out = usual
        text = prompted(question.prompt, default=left_out, show_default=usual is not None).strip()
        if not text and not question.optional:
            say("This one has no answer that could be taken for granted: type one, or Ctrl-C.")
            continue
        if not text and question.optional:
            if getattr(answers, question.key) is None:
                return None
            return ()
        try:
            value = question.parse(text)
        except ValueError as err:
            say(str(err))
            continue
        wrong = objections(base, answers, question, value)
        for finding in wrong:
            say(f"{finding.message}. {finding.hint}")
        if not wrong:
            return value
