"""Rules about what in a batch script keeps ranks in a container (`--container-image`, or one that the script starts)
from starting or from coming back."""

from __future__ import annotations

import re
import shlex
from typing import Iterator, List, Tuple

from hyperpod_kit.job.lint.lint_finding import LintFinding
from hyperpod_kit.job.lint.script import Command, Script
from hyperpod_kit.job.step import container, script_containers


def find_container_problems(script: Script) -> Iterator[LintFinding]:
    """Yield the findings about each `hyperpod-kit job run …` of the script."""
    for command in script.commands:
        if re.search(r"hyperpod-kit\s+job\s+run\b", command.text):
            yield from _find_problems_of_job_run(command)


def _find_problems_of_job_run(command: Command) -> Iterator[LintFinding]:
    try:
        arguments = shlex.split(command.text)
    except ValueError:
        return
    run_arguments, rest = _split_at_double_dash(arguments)
    root = _value(run_arguments, "--checkpoint-root")
    inside = container.container_from_options_or_env(_srun_args(run_arguments), {})
    if inside is None:
        yield from _find_problems_of_self_started_container(command.line, rest, root)
        return
    has_literal_paths = root.startswith("/") and not any("$" in path for path in inside.mounts)
    if has_literal_paths and not container.covered(root, inside.mounts):
        mount_path = container.top(root)
        yield LintFinding(
            "J017",
            "warning",
            command.line,
            f"{root} is in none of --container-mounts: without it no rank starts",
            f"--container-mounts={mount_path}:{mount_path}, unless the nodes mount it into every container "
            "(/etc/enroot/mounts.d)",
        )
    scripts = [word for word in rest if word.endswith((".py", ".sh")) and not word.startswith(("/", "$", "-"))]
    if scripts and not inside.workdir:
        yield LintFinding(
            "J018",
            "warning",
            command.line,
            f"{scripts[0]}: a container begins in the image's directory or $HOME",
            "--container-workdir=DIR, below a mount, or an absolute path",
        )
    if "ipc" in inside.unshare:
        yield LintFinding(
            "J019",
            "warning",
            command.line,
            "--container-unshare=ipc: what is captured in memory goes with the container",
            "Leave it out: resume from memory needs the node's own /dev/shm",
        )


def _find_problems_of_self_started_container(line: int, rank_command: List[str], root: str) -> Iterator[LintFinding]:
    """Yield the findings about a container that the command of the ranks starts itself."""
    inside = script_containers.container_started_by_command(rank_command)
    if inside is None:
        return
    has_literal_paths = root.startswith("/") and not any("$" in mount_path for mount_path in inside.mounts)
    if has_literal_paths and not container.covered(root, inside.mounts):
        message = f"{root} is in none of {inside.program}'s mounts: the trainer does not find it"
        yield LintFinding("J027", "warning", line, message, inside.mount(container.top(root)))
    for what, option in inside.losses_with_remedies():
        yield LintFinding("J028", "warning", line, f"{inside.program}: {what}", option)


def _split_at_double_dash(arguments: List[str]) -> Tuple[List[str], List[str]]:
    """Return the arguments before the first `--`, and those after it."""
    if "--" not in arguments:
        return arguments, []
    separator_index = arguments.index("--")
    return arguments[:separator_index], arguments[separator_index + 1 :]


def _srun_args(arguments: List[str]) -> List[str]:
    srun_arguments: List[str] = []
    for number, word in enumerate(arguments):
        if word == "--srun-args":
            srun_arguments += shlex.split(" ".join(arguments[number + 1 : number + 2]))
        elif word.startswith("--srun-args="):
            srun_arguments += shlex.split(word.split("=", 1)[1])
    return srun_arguments


def _value(arguments: List[str], name: str) -> str:
    for number, word in enumerate(arguments):
        if word == name:
            return " ".join(arguments[number + 1 : number + 2])
        if word.startswith(name + "="):
            return word.split("=", 1)[1]
    return ""
