"""explain: what a code in the output of a command means, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hyperpod_kit.cli.terminal.output import print_json, print_text
from hyperpod_kit.errors import Absent
from hyperpod_kit.exit_codes import ExitCode

if TYPE_CHECKING:
    from hyperpod_kit.cli.views.finding_texts import FindingText


@click.command()
@click.argument("code")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")  # terminal/options.py brings pathlib
def explain(code: str, as_json: bool) -> None:
    """Explain an error code, such as HPK-U020, J009 or S015, or the exit code of a command.

    Placeholders in ‹› are filled in by the program that reports the finding.

    \b
    Examples:
      hyperpod-kit explain HPK-U020
      hyperpod-kit explain 86
    """
    if code.isdigit():
        _explain_exit_code(int(code), as_json)
    else:
        _explain_finding(code.upper(), as_json)


def _explain_exit_code(code: int, as_json: bool) -> None:
    if code not in set(ExitCode):
        known = ", ".join(str(known_code) for known_code in ExitCode)
        raise Absent(f"{code} is not an exit code of hyperpod-kit", hint=f"its exit codes are {known}")
    meaning = ExitCode(code).meaning
    if as_json:
        print_json("explain", {"code": str(code), "topic": "Exit codes", "messages": [{"message": meaning}]})
        return
    print_text(f"Exit code {code}\n\n  {meaning}")


def _explain_finding(code: str, as_json: bool) -> None:
    from hyperpod_kit.cli.views import finding_texts

    texts = finding_texts.texts_of(code)
    if not texts:
        import difflib  # for a wrong code alone

        similar = difflib.get_close_matches(code, sorted(finding_texts.every_code()), n=3)
        raise Absent(
            f"{code} is not a code of this version of hyperpod-kit",
            hint=f"similar codes: {', '.join(similar)}" if similar else "a code looks like HPK-U020, J009 or S015",
        )
    if as_json:
        messages = [{"severity": text.severity, "message": text.message, "remedy": text.hint} for text in texts]
        print_json("explain", {"code": code, "topic": texts[0].topic, "messages": messages})
        return
    print_text(f"{code} ({texts[0].topic})")
    for text in texts:
        _print_finding(text)


def _print_finding(text: FindingText) -> None:
    print_text()
    print_text(f"  {text.severity}: {text.message}")
    if text.hint:
        print_text(f"  remedy: {text.hint}")
