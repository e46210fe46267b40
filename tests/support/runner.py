"""A Runner that answers from a table and remembers what it was asked."""

from __future__ import annotations

import re
from typing import Callable, List, Mapping, Optional, Sequence, Tuple, Union

from hyperpod_kit.errors import RunError
from hyperpod_kit.run import Completed

Answer = Union[str, Tuple[int, str], Completed, Callable[[Sequence[str]], Union[str, Tuple[int, str], Completed]]]
"""Standard output, or (exit code, standard error), or all that a command left, or what gives one of these."""

_SQUEUE = {
    "JobID": "JobId",
    "ArrayJobID": "ArrayJobId",
    "ArrayTaskID": "ArrayTaskId",
    "HetJobID": "HetJobId",
    "State": "JobState",
    "RestartCnt": "Restarts",
    "UserID": "UserId",
    "GroupID": "GroupId",
    "UserName": "User",
    "tres-alloc": "AllocTRES",
    "exit_code": "ExitCode",
}


class RecordingRunner:
    """`answers`: beginning of a command line -> Answer, the longest one counts; `otherwise`: to all that is not there.

    A question for records of jobs is remembered as `squeue job 7`, and answered with lines of `Key=value`, as
    `scontrol show job` has them, which are printed as squeue would.
    """

    target = ""

    def __init__(
        self, answers: Optional[Mapping[str, Answer]] = None, *, otherwise: Answer = (127, "no answer")
    ) -> None:
        self.answers = dict(answers or {})
        self.calls: List[str] = []
        self._otherwise = otherwise

    def on(self, beginning: str, code: int = 0, out: str = "", *, do: Optional[Callable[[], object]] = None) -> None:
        """Answer commands that begin so; `do` runs first, for what the real command would change."""

        def answer(argv: Sequence[str]) -> Tuple[int, str]:
            if do is not None:
                do()
            return code, out

        self.answers[beginning] = answer

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        check: bool = True,
        input: Optional[str] = None,
        env: Optional[Mapping[str, Optional[str]]] = None,
    ) -> Completed:
        wanted = (env or {}).get("SQUEUE_FORMAT2")
        line = command(argv, env)
        self.calls.append(line)
        best = max((key for key in self.answers if line.startswith(key)), key=len, default=None)
        answer = self._otherwise if best is None else self.answers[best]
        said = answer(argv) if callable(answer) else answer
        if isinstance(said, Completed):
            return said
        code, text = said if isinstance(said, tuple) else (0, said)
        if wanted and not code:
            text = as_squeue(text, wanted)
        done = Completed(tuple(argv), code, "" if code else text, text if code else "")
        if check and code:
            raise RunError(argv, code, done.stdout, done.stderr)
        return done


def command(argv: Sequence[str], env: Optional[Mapping[str, Optional[str]]]) -> str:
    """What is remembered of a command."""
    if not (env or {}).get("SQUEUE_FORMAT2"):
        return " ".join(argv)
    return "squeue job" + (f" {argv[-1]}" if "-j" in argv else "")


def as_squeue(records: str, wanted: str) -> str:
    """Records, one a line, as squeue prints them when SQUEUE_FORMAT2 is `wanted`; what was printed with `@mark@`."""
    if "@mark@" in records:
        return records.replace("@mark@", wanted.partition(":0")[2].partition(",")[0])
    printed = []
    for line in records.splitlines():
        fields = dict(re.findall(r"(\w+)=(.*?)(?=\s+\w+=|\s*$)", line))
        for part in wanted.split(","):
            name, _, mark = part.partition(":0")
            value = fields.get(_SQUEUE.get(name, name), "N/A")
            printed.append(re.sub(r"^\w+\((\d+)\)$", r"\1", value) + mark)
        printed.append("\n")
    return "".join(printed)
