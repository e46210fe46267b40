"""`job submit`: accepts the line `sbatch --auto-resume=1 …` on a cluster whose Slurm does not know the option.

The option is taken out of the command line and of the script's #SBATCH lines, and kept in the job's comment and
environment, where `job run` finds it. The options that a resumed job needs are added.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from dataclasses import dataclass, replace
from typing import List, Optional, Sequence, Tuple

from hyperpod_kit.errors import Absent, UsageError
from hyperpod_kit.job.lint import lint_parts, script
from hyperpod_kit.slurm.environment import COMMENT_MARK
from hyperpod_kit.system.mountinfo import mount_containing_path, read_mountinfo

DEFAULTS = ("--requeue", "--open-mode=append", "--signal=B:USR1@120")
"""Put first, so that the user's own options win over them."""

SEPARATOR = ":"
"""Between the components of a heterogeneous job."""

_LOCAL = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "squashfs"))
"""File systems that one machine has for itself, unless it exports them."""

_OPTION = re.compile(r"^--auto-resume(?:=(.*))?$")
# sbatch options that take their value in the next word, as far as a script may follow them.
_WITH_VALUE = frozenset(
    re.findall(
        r"\S+",
        (
            "-A -a -b -C -c -D -d -e -F -G -J -L -M -m -N -n -o -p -q -S -t -w -x --account --array --begin --chdir"
            " --clusters --comment --constraint --cpus-per-gpu --cpus-per-task --deadline --dependency --error"
            " --exclude --export --export-file --gpus --gpus-per-node --gpus-per-task --gres --job-name --licenses"
            " --mail-type --mail-user --mem --mem-per-cpu --mem-per-gpu --nodefile --nodelist --nodes --ntasks"
            " --ntasks-per-node --open-mode --output --partition --profile --qos --reservation --signal --switches"
            " --time --wckey --wrap"
        ),
    )
)


@dataclass(frozen=True)
class SbatchLine:
    """A parsed sbatch line. `auto_resume` is None when the line does not have the option."""

    options: Tuple[str, ...]
    script: Optional[str]
    args: Tuple[str, ...]
    auto_resume: Optional[int]


def parse(argv: Sequence[str]) -> SbatchLine:
    """Split a line into options, the script and its arguments.

    Raises UsageError for a value of --auto-resume that means nothing.
    """
    options: List[str] = []
    auto_resume: Optional[int] = None
    index = 0
    while index < len(argv) and (argv[index].startswith("-") or argv[index] == SEPARATOR) and argv[index] != "-":
        word = argv[index]
        match = _OPTION.match(word)
        if match:
            auto_resume = parse_auto_resume_value(match.group(1))
        else:
            options.append(word)
            if word in _WITH_VALUE and index + 1 < len(argv):
                index += 1
                options.append(argv[index])
        index += 1
    rest = argv[index:]
    if not rest:
        return SbatchLine(tuple(options), None, (), auto_resume)
    return SbatchLine(tuple(options), rest[0], tuple(rest[1:]), auto_resume)


def parse_auto_resume_value(text: Optional[str]) -> int:
    """Return the number that is given to --auto-resume; the option alone means 1. Raises UsageError."""
    if not text:
        return 1
    if not text.isdigit() or int(text) > 1000:
        raise UsageError(f"--auto-resume: {text!r} is not 0, 1 or a number of restarts up to 1000")
    return int(text)


def strip_script(text: str) -> Tuple[str, Optional[int]]:
    """Return the script without --auto-resume in its #SBATCH lines, and the value there, None without the option.

    Raises UsageError.
    """
    auto_resume: Optional[int] = None
    lines = []
    for line in text.splitlines(keepends=True):
        if line.startswith("#SBATCH"):
            tokens = shlex.split(line[len("#SBATCH") :], comments=True)
            hits = [match for match in map(_OPTION.match, tokens) if match]
            if hits:
                auto_resume = parse_auto_resume_value(hits[-1].group(1))
                line = re.sub(r"\s--auto-resume(=\S*)?(?=\s|$)", "", line.rstrip("\n")) + "\n"
        lines.append(line)
    return "".join(lines), auto_resume


def command(line: SbatchLine, script_wants: Optional[int], script: Optional[str]) -> List[str]:
    """Return the sbatch call, with `script` (a rewritten copy) in place of the user's file.

    The command line wins over `script_wants`, the value in the script.
    """
    auto_resume = line.auto_resume
    if auto_resume is None:
        auto_resume = script_wants
    script_and_arguments = list(line.args)
    if script:
        script_and_arguments.insert(0, script)
    if auto_resume is None:
        return ["sbatch", *line.options, *script_and_arguments]
    # Of a heterogeneous job the first component is the one that runs the script.
    cut = len(line.options)
    if SEPARATOR in line.options:
        cut = line.options.index(SEPARATOR)
    options = [*DEFAULTS, *_with_comment(line.options[:cut], f"{COMMENT_MARK}{auto_resume}"), *line.options[cut:]]
    if line.script and not any(option.startswith(("-J", "--job-name")) for option in options):
        options.insert(0, f"--job-name={os.path.basename(line.script)}")
    return ["sbatch", *options, *script_and_arguments]


def copy_script_without_auto_resume(line: SbatchLine) -> Tuple[Optional[str], Optional[int]]:
    """Copy the script without --auto-resume if it has the option.

    Returns (path to give to sbatch, value of the option, None without it). Raises Absent, UsageError.
    """
    if line.script is None:
        return None, None
    try:
        with open(line.script, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as err:
        raise Absent(f"cannot read {line.script}: {err}") from err
    stripped, auto_resume = strip_script(text)
    if auto_resume is None:
        return line.script, None
    fd, path = tempfile.mkstemp(prefix="hpk-submit-", suffix=".sbatch")
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(stripped)
    return path, auto_resume


def _with_comment(options: Sequence[str], resume_mark: str) -> List[str]:
    """Return the options with the mark behind the user's own comment, if there is one."""
    other_options: List[str] = []
    user_comment = ""
    skip = False
    for index, option in enumerate(options):
        if skip:
            skip = False
        elif option == "--comment" and index + 1 < len(options):
            user_comment, skip = options[index + 1], True
        elif option.startswith("--comment="):
            user_comment = option.split("=", 1)[1]
        else:
            other_options.append(option)
    if user_comment:
        user_comment += " "
    return [*other_options, f"--comment={user_comment}{resume_mark}"]


def warnings(line: SbatchLine, directory: str, mounts: str = "/proc/self/mountinfo") -> List[str]:
    """Return what will go wrong with this submission, judged by its options together with those of the script.

    `directory`: where sbatch is called, which is where the script starts.
    """
    try:
        with open(line.script or os.devnull, encoding="utf-8") as file:
            parsed_script = script.parse(file.read())
    except (OSError, UnicodeDecodeError):
        parsed_script = script.parse("")
    submission = replace(parsed_script, options=(*parsed_script.options, *script.options(line.options, 1)))
    messages = [
        f"{finding.severity} {finding.code}: {finding.message}. {finding.hint}"
        for finding in lint_parts.find_submission_problems(submission)
    ]
    kind = _file_system(directory, mounts)
    if submission.option("--chdir") is None and kind in _LOCAL:
        messages.append(
            f"warning J024: {directory} is on {kind}, and the job starts there: on a node without that directory the "
            "job FAILS with exit code 0:53 and writes no log. Submit from a directory that all nodes share, or use "
            "--chdir=DIR"
        )
    return messages


def _file_system(path: str, mounts: str) -> str:
    """Return the kind of the file system that holds a path, "" when it is not known."""
    try:
        entry = mount_containing_path(read_mountinfo(mounts), path)
    except OSError:
        return ""
    if entry is None:
        return ""
    return entry.fs_type
