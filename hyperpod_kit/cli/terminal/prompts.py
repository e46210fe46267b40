"""Questions on a terminal: each with what it is for, asked again until the rules have nothing against the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hyperpod_kit.cli.terminal.output import ask_line, print_text, print_to_stderr
from hyperpod_kit.config.starting.init_answers import Answers, Question
from hyperpod_kit.config.starting.questions import errors_of_answer, unanswered_questions


def ask_unanswered_questions(base: dict[str, Any], answers: Answers) -> Answers:
    """Ask everything that is open. Raises click.Abort on Ctrl-C and at the end of the input."""
    print_to_stderr("An empty line accepts the answer in brackets. Ctrl-C ends without changes.")
    for question in unanswered_questions(base, answers):
        if question.when(answers):
            answers = replace(answers, **{question.key: _prompt_until_valid(base, answers, question)})
    return answers


def _prompt_until_valid(base: dict[str, Any], answers: Answers, question: Question) -> Any:
    usual = question.default_answer(answers)
    print_text(f"\n{question.explanation}", dim=True, err=True)
    while True:
        if question.optional or usual is None:
            left_out = ""
        else:
            left_out = usual
        text = ask_line(question.prompt, default=left_out, show_default=usual is not None).strip()
        if not text and not question.optional:
            print_to_stderr("This question has no default: type an answer, or press Ctrl-C.")
            continue
        if not text and question.optional:
            if getattr(answers, question.key) is None:
                return None
            return ()
        try:
            value = question.parse(text)
        except ValueError as err:
            print_to_stderr(str(err))
            continue
        wrong = errors_of_answer(base, answers, question, value)
        for finding in wrong:
            print_to_stderr(f"{finding.message}. {finding.hint}")
        if not wrong:
            return value
