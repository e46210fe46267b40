"""Runners of a private Slurm's commands, and where a node finds its files."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import List, Mapping, Optional, Sequence

from hyperpod_kit.errors import RunError
from hyperpod_kit.node.machine.paths import NodePaths
from hyperpod_kit.run import Completed


class AnsweringRunner:
    """A Runner whose commands are answered by `answer`; one that fails raises as with any other."""

    target = ""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        check: bool = True,
        input: Optional[str] = None,
        env: Optional[Mapping[str, Optional[str]]] = None,
    ) -> Completed:
        given = {key: value for key, value in (env or {}).items() if value is not None}
        completed = self.answer(list(argv), given, input)
        if check and completed.returncode:
            raise RunError(argv, completed.returncode, completed.stdout, completed.stderr)
        return completed

    def answer(self, argv: List[str], env: Mapping[str, str], input: Optional[str]) -> Completed:
        raise NotImplementedError


class SlurmCommands(AnsweringRunner):
    """Runs Slurm's commands, found by their names, with `environment`. `systemctl` stands for systemd."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.calls: List[str] = []

    def answer(self, argv: List[str], env: Mapping[str, str], input: Optional[str]) -> Completed:
        program = Path(argv[0]).name
        self.calls.append(" ".join([program, *argv[1:]]))
        if program == "systemctl":
            code, output = self.systemctl(argv[1:])
            return Completed(tuple(argv), code, output, "")
        finished = subprocess.run(
            [program, *argv[1:]],
            env={**self.environment, **env},
            text=True,
            capture_output=True,
            timeout=60,
            input=input or "",
        )
        return Completed(tuple(argv), finished.returncode, finished.stdout, finished.stderr)

    def systemctl(self, arguments: List[str]) -> tuple[int, str]:
        return 0, ""


@dataclass(frozen=True)
class PrivateSlurmPaths(NodePaths):
    """What lies in the private Slurm's directory `base` is where it is; all else is below `root`."""

    base: str = ""

    def under_root(self, path: str) -> str:
        return path if path.startswith(self.base) else self.root + path

    @property
    def slurm_conf(self) -> str:
        return f"{self.base}/slurm.conf"
