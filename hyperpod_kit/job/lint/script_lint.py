"""`job lint`: finds what in a batch script will keep a job from coming back, before a fault shows it.

Each rule is a function of the parsed script; `RULES` holds all of them. Codes are stable.
"""

from __future__ import annotations

import re
import shlex
from typing import Callable, Iterator, List, Tuple

from hyperpod_kit.environment import HPK_CHECKPOINT_ROOT
from hyperpod_kit.job.lint import lint_captures, lint_environment, lint_parts
from hyperpod_kit.job.lint.lint_finding import LintFinding
from hyperpod_kit.job.lint.lint_parts import NODE_LOCAL
from hyperpod_kit.job.lint.script import Command, Script, lines_of_variables_set, minutes
from hyperpod_kit.job.step import container, script_containers

# Rules about what in a batch script keeps ranks in a container (`--container-image`, or one that the script starts)
# from starting or from coming back.


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
            f"{scripts[0]}: a container starts in the image's directory or $HOME",
            "--container-workdir=DIR, below a mount, or an absolute path",
        )
    if "ipc" in inside.unshare:
        yield LintFinding(
            "J019",
            "warning",
            command.line,
            "--container-unshare=ipc: captures in memory are lost with the container",
            "Leave it out: to resume from memory, the job needs the node's own /dev/shm",
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


# --- Rules about a script as a whole ---------------------------------------------------------------------------------

REPLACEMENT_MINUTES = 45.0
"""A HyperPod node is replaced in 20 to 30 minutes (field report), and the job must load its checkpoint after that."""

WARN_SECONDS = 60
"""Slurm may send --signal up to 60 s early or late (man sbatch), and the step gets 90 s to save."""


def lint(
    script: Script, read_file: lint_captures.Reader = lambda name: None, environment: str = ""
) -> List[LintFinding]:
    """Return all findings, by line. `read_file`: returns the text of a file that a command names; `environment`:
    directory of the training environment that the nodes have, "" for none."""
    findings = [finding for rule in RULES for finding in rule(script)]
    findings += lint_captures.find_manager_argument_problems(script, read_file)
    findings += lint_environment.find_environment_problems(script, environment)
    return sorted(findings, key=lambda finding: (finding.line, finding.code))


def _has_auto_resume(script: Script) -> bool:
    option = script.option("--auto-resume")
    return option is not None and option.value != "0"


def _runs(script: Script) -> List[Command]:
    return [command for command in script.commands if re.search(r"hyperpod-kit\s+job\s+run\b", command.text)]


def _bare_sruns(script: Script) -> List[Command]:
    return [command for command in script.commands if re.search(r"(?:^|[;&|(]\s*|exec\s+)srun\b", command.text)]


def find_missing_interpreter(script: Script) -> Iterator[LintFinding]:
    """Find a script whose first line names no interpreter."""
    if not script.text.startswith("#!"):
        yield LintFinding(
            "J001",
            "error",
            1,
            "the first line does not name an interpreter: sbatch refuses the script",
            "Begin with #!/bin/bash",
        )


def misplaced_options(script: Script) -> Iterator[LintFinding]:
    """Find #SBATCH lines behind the first command."""
    for line in script.misplaced:
        yield LintFinding(
            "J002",
            "error",
            line,
            "sbatch reads no #SBATCH line after the first command",
            "Move it above the first command",
        )


def find_job_run_without_auto_resume(script: Script) -> Iterator[LintFinding]:
    """Find `job run` in a script without auto-resume."""
    if not _has_auto_resume(script) and _runs(script):
        yield LintFinding(
            "J003",
            "warning",
            _runs(script)[0].line,
            "auto-resume is off: the job is tried once only",
            "Add #SBATCH --auto-resume=1, or give it to sbatch",
        )


def find_auto_resume_without_rank_start(script: Script) -> Iterator[LintFinding]:
    """Find auto-resume in a script that starts no ranks."""
    option = script.option("--auto-resume")
    if option and _has_auto_resume(script) and not _runs(script) and not _bare_sruns(script):
        yield LintFinding(
            "J004",
            "error",
            option.line,
            "neither `hyperpod-kit job run` nor srun starts the ranks",
            "hyperpod-kit job run --checkpoint-root DIR -- COMMAND",
        )


def bare_srun_without_root(script: Script) -> Iterator[LintFinding]:
    """Find an srun with auto-resume whose ranks get no checkpoint root."""
    if (
        _has_auto_resume(script)
        and not _runs(script)
        and _bare_sruns(script)
        and HPK_CHECKPOINT_ROOT not in lines_of_variables_set(script)
    ):
        yield LintFinding(
            "J005",
            "error",
            _bare_sruns(script)[0].line,
            f"{HPK_CHECKPOINT_ROOT} is not set: the ranks of this srun get no checkpoint",
            f"export {HPK_CHECKPOINT_ROOT}=DIR, or use hyperpod-kit job run",
        )


def log_is_truncated(script: Script) -> Iterator[LintFinding]:
    """Find a log that a requeue truncates."""
    option = script.option("--open-mode")
    line = 1
    if option:
        line = option.line
    if _has_auto_resume(script) and (option is None or option.value != "append"):
        yield LintFinding(
            "J006",
            "warning",
            line,
            "a requeue truncates the log",
            "Add #SBATCH --open-mode=append",
        )


def find_no_requeue_option(script: Script) -> Iterator[LintFinding]:
    """Find --no-requeue with auto-resume."""
    option = script.option("--no-requeue")
    if option and _has_auto_resume(script):
        yield LintFinding(
            "J007",
            "error",
            option.line,
            "--no-requeue: the job cannot continue after it has lost a node, nor, with GRES, after HyperPod has "
            "replaced one of its nodes",
            "Use --requeue",
        )


def find_no_kill_option(script: Script) -> Iterator[LintFinding]:
    """Find --no-kill, with which a job may stay RUNNING without its script."""
    option = script.option("--no-kill")
    if option and option.value != "off":
        yield LintFinding(
            "J008",
            "warning",
            option.line,
            "when the batch host dies, the job stays RUNNING without a script until the sweep finds it",
            "On the controller: hyperpod-kit job sweep",
        )


def find_too_short_time_limit(script: Script) -> Iterator[LintFinding]:
    """Find a time limit that is over before a node is replaced."""
    option = script.option("--time")
    if option is None:
        return
    limit = minutes(option.value)
    if limit is not None and _has_auto_resume(script) and limit < REPLACEMENT_MINUTES:
        yield LintFinding(
            "J009",
            "warning",
            option.line,
            f"a limit of {limit:g} min ends the job before a node is replaced (20 to 30 min) and the checkpoint is "
            "loaded",
            f"Use --time={REPLACEMENT_MINUTES:g} or more",
        )


def find_missing_or_wrong_signal_option(script: Script) -> Iterator[LintFinding]:
    """Find a script whose `job run` gets no USR1, or gets it too late, before the time limit."""
    option = script.option("--signal")
    if not (_has_auto_resume(script) and _runs(script)):
        return
    if option is None:
        yield LintFinding(
            "J010",
            "warning",
            1,
            "at the time limit the steps since the last checkpoint are lost",
            "Add #SBATCH --signal=B:USR1@120",
        )
        return
    match = re.fullmatch(r"(?:([RB]+):)?(?:SIG)?(\w+)(?:@(\d+))?", option.value)
    if match is None or "B" not in (match.group(1) or "") or match.group(2) not in ("USR1", "10"):
        yield LintFinding(
            "J010",
            "warning",
            option.line,
            f"--signal={option.value} does not reach `job run` as USR1",
            "Use --signal=B:USR1@120",
        )
    elif int(match.group(3) or 60) < WARN_SECONDS:
        yield LintFinding(
            "J010",
            "warning",
            option.line,
            f"{match.group(3)} s may be too short: Slurm's timing is off by up to 60 s",
            "Use --signal=B:USR1@120",
        )


_RENDEZVOUS = re.compile(r"\b(MASTER_ADDR|RDZV_ENDPOINT|HEAD_NODE\w*|head_node\w*)=.*(?:\$\(|`)")


def rendezvous_outside(script: Script) -> Iterator[LintFinding]:
    """Find a rendezvous address that is computed outside of the step."""
    if not _has_auto_resume(script):
        return
    for command in script.commands:
        match = _RENDEZVOUS.search(command.text)
        if match and not re.search(r"\b(?:srun|job\s+run)\b.*" + match.group(1), command.text):
            yield LintFinding(
                "J011",
                "error",
                command.line,
                f"{match.group(1)} is computed outside the step, which may be retried on other nodes",
                "Compute it inside the step, from SLURM_STEP_NODELIST",
            )


def local_root(script: Script) -> Iterator[LintFinding]:
    """Find a checkpoint root on the node itself."""
    for command in _runs(script):
        match = re.search(r"--checkpoint-root[= ]\"?(/[^\s\"]*)", command.text)
        if match is None:
            continue
        root_path = match.group(1)
        if any(root_path == part or root_path.startswith(part + "/") for part in NODE_LOCAL):
            yield LintFinding(
                "J012",
                "error",
                command.line,
                f"{root_path} is local to the node: other nodes cannot read it, and a replaced node has lost it",
                "Use a shared file system, such as /fsx",
            )


def lost_exit_code(script: Script) -> Iterator[LintFinding]:
    """Find what replaces the exit code of `job run`."""
    pipefail = re.search(r"set\s+-\S*o\s+pipefail|set\s+-o\s+pipefail", script.text)
    for command in _runs(script):
        last = command is script.commands[-1]
        if re.search(r"(?<!\|)\|(?!\|)", command.text_without_quoted_parts) and not pipefail:
            yield LintFinding(
                "J013",
                "error",
                command.line,
                "the exit code of `job run` is lost in the pipe: a job that gave up would not be held",
                "set -o pipefail, or #SBATCH --output=FILE",
            )
        elif re.search(r"\|\||;\s*\S|&\s*$", command.text_without_quoted_parts):
            yield LintFinding(
                "J013",
                "error",
                command.line,
                "a command after `job run` replaces its exit code: a job that gave up would not be held",
                "Let `exec hyperpod-kit job run …` be the last command",
            )
        elif not last and not re.search(r"set\s+-\S*e", script.text):
            yield LintFinding(
                "J013",
                "warning",
                command.line,
                "the script's exit code is not that of `job run`",
                "Let `exec hyperpod-kit job run …` be the last command",
            )


def find_job_run_without_exec(script: Script) -> Iterator[LintFinding]:
    """Find `job run` without exec: a shell between it and Slurm gets its signals."""
    for command in _runs(script):
        if not re.match(r"(?:\w+=\S*\s+)*exec\b", command.text):
            yield LintFinding(
                "J014",
                "warning",
                command.line,
                "a shell runs between Slurm and `job run`: USR1 ends the shell instead of causing a save",
                "exec hyperpod-kit job run …",
            )


def find_auto_resume_on_srun(script: Script) -> Iterator[LintFinding]:
    """Find --auto-resume on srun instead of sbatch."""
    for command in script.commands:
        if re.search(r"\bsrun\b.*--auto-resume", command.text):
            yield LintFinding(
                "J015",
                "warning",
                command.line,
                "--auto-resume on srun is HyperPod's own option: Slurm without the plugin refuses it",
                "Give it to sbatch; `hyperpod-kit job run` adds it where it exists",
            )


def ranks_outlive_a_crash(script: Script) -> Iterator[LintFinding]:
    """Find an srun whose other ranks go on when one fails."""
    if _has_auto_resume(script) and not _runs(script):
        for command in _bare_sruns(script):
            if "--kill-on-bad-exit" not in command.text and " -K" not in command.text:
                yield LintFinding(
                    "J016",
                    "warning",
                    command.line,
                    "when one rank fails, the others wait for it in a collective",
                    "srun --kill-on-bad-exit=1, or use hyperpod-kit job run",
                )


Rule = Callable[[Script], Iterator[LintFinding]]

RULES: Tuple[Rule, ...] = (
    find_missing_interpreter,
    misplaced_options,
    find_job_run_without_auto_resume,
    find_auto_resume_without_rank_start,
    bare_srun_without_root,
    log_is_truncated,
    find_no_requeue_option,
    find_no_kill_option,
    find_too_short_time_limit,
    find_missing_or_wrong_signal_option,
    rendezvous_outside,
    local_root,
    lost_exit_code,
    find_job_run_without_exec,
    find_auto_resume_on_srun,
    ranks_outlive_a_crash,
    lint_parts.find_submission_problems,
    find_container_problems,
)
