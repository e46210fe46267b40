"""A Runner that answers from a table and remembers what it was asked."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

from hyperpod_kit.errors import RunError
from hyperpod_kit.run import Completed

Answer = Union[str, Tuple[int, str]]


class RecordingRunner:
    """`answers`: beginning of a command line -> standard output, or (exit code, standard error)."""

    target = ""

    def __init__(self, answers: Optional[Dict[str, Answer]] = None) -> None:
        self.answers = dict(answers or {})
        self.calls: List[str] = []

    def run(self, argv: Sequence[str], *, timeout: float = 60.0, check: bool = True, input: Optional[str] = None,
            env: Optional[Mapping[str, str]] = None) -> Completed:
        line = " ".join(argv)
        self.calls.append(line)
        best = max((key for key in self.answers if line.startswith(key)), key=len, default=None)
        answer = (127, "no answer") if best is None else self.answers[best]
        code, text = answer if isinstance(answer, tuple) else (0, answer)
        done = Completed(tuple(argv), code, "" if code else text, text if code else "")
        if check and code:
            raise RunError(argv, code, done.stdout, done.stderr)
        return done
