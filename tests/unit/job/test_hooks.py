"""Slurm's hooks with a program of our choice behind them, under a root that bind-free tests can use."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Dict, Tuple

import pytest

from tests.support.wait import Deadline

HOOKS = Path(__file__).resolve().parents[3] / "slurm"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The hooks with their absolute paths moved under `tmp_path`; the program is `<place>/program`."""
    (tmp_path / "run").mkdir()
    for hook in ("prolog.sh", "epilog.sh", "task_prolog.sh"):
        text = (HOOKS / hook).read_text().replace("/opt/hyperpod-kit/current/bin/hyperpod-kit", f"{tmp_path}/program")
        text = re.sub(r"timeout -k \d+ \d+", "timeout -k 1 2", text).replace("/run/hyperpod-kit", f"{tmp_path}/run")
        (tmp_path / hook).write_text(text)
    return tmp_path


def hook(place: Path, name: str, program: str, **env: str) -> Tuple[int, str]:
    path = place / "program"
    path.write_text("#!/bin/bash\n" + program)
    path.chmod(0o755)
    deadline = Deadline(15)
    shell = (place / name).read_text().split("\n", 1)[0][2:]
    done = subprocess.run(
        [shell, str(place / name)],
        env={"PATH": os.environ["PATH"], **env},
        text=True,
        timeout=20,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert not deadline.has_passed()
    return done.returncode, done.stdout


def test_prolog_lets_a_healthy_node_pass(place: Path) -> None:
    assert hook(place, "prolog.sh", f'echo "$@" >{place}/args', SLURM_JOB_ID="7") == (0, "")
    assert (place / "args").read_text() == "node gate\n"
    assert list((place / "run").iterdir()) == []


def test_prolog_says_why_it_refuses(place: Path) -> None:
    code, out = hook(place, "prolog.sh", "echo first; echo '/fsx: hung' >&2; exit 1", SLURM_JOB_ID="7")
    assert code == 1 and "/fsx: hung" in out


def test_prolog_is_bounded_and_leaves_no_descriptor_behind(place: Path) -> None:
    """A probe that neither ends nor dies keeps its own output only: we get ours back at the deadline."""
    program = f"trap '' TERM; readlink /proc/$$/fd/* >{place}/fds; (trap '' TERM; exec sleep 8) & sleep 60"
    code, out = hook(place, "prolog.sh", program, SLURM_JOB_ID="7")
    assert code == 1 and "exited 137" in out
    assert "pipe:" not in (place / "fds").read_text()


EPILOG = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": str(os.getuid()), "SLURM_JOB_GID": str(os.getgid())}


@pytest.mark.parametrize("program", ["exit 0", "exit 3", "trap '' TERM; sleep 60"])
def test_epilog_always_succeeds(place: Path, program: str) -> None:
    assert hook(place, "epilog.sh", program, **EPILOG) == (0, "")


@pytest.mark.needs("root")
def test_epilog_hands_over_what_the_jobs_user_left(place: Path) -> None:
    seen = place / "seen"
    seen.touch()
    for path in (place, *list(place.parents)[:3]):
        path.chmod(path.stat().st_mode | 0o055)
    seen.chmod(0o666)
    user = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "65534", "SLURM_JOB_GID": "65534"}
    assert hook(place, "epilog.sh", f'echo "$(id -u) $*" >{seen}', **user) == (0, "")
    # Which becomes that user: tests/hostile.
    assert seen.read_text() == "0 checkpoint flush --hand-over 7.0.65534.65534\n"
    more = {"SLURM_HET_JOB_ID": "6", "SLURM_RESTART_COUNT": "2"}
    assert hook(place, "epilog.sh", f'echo "$(id -u) $*" >{seen}', **user, **more) == (0, "")
    assert seen.read_text() == "0 checkpoint flush --hand-over 6.2.65534.65534\n"


def test_what_an_epilog_says_in_the_journal_is_its_jobs(place: Path) -> None:
    """The path of a run may have line feeds in it, and be made to look like a line about another job."""
    script = (place / "epilog.sh").read_text().replace("logger -t", f"tee {place}/journal -t")
    (place / "epilog.sh").write_text(script.replace("-t hyperpod-kit >/dev/null", ">/dev/null"))
    program = (
        r"printf 'saved /fsx/a\nhyperpod-kit: epilog of job 8: flush exited 1\033[2J\r\n'; "
        + f"stat -c %a {place}/run/epilog-7.log >{place}/mode"
    )
    assert hook(place, "epilog.sh", program, **EPILOG) == (0, "")
    assert (place / "journal").read_text() == (
        "job 7: saved /fsx/a\njob 7: hyperpod-kit: epilog of job 8: flush exited 1 [2J \n"
    )
    assert (place / "mode").read_text() == "600\n"


def test_epilog_without_a_job_does_nothing(place: Path) -> None:
    assert hook(place, "epilog.sh", f"touch {place}/called") == (0, "")
    assert not (place / "called").exists()


STEP: Dict[str, str] = {"HPK_AUTO_RESUME": "1", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "HPK_CHECKPOINT_ROOT": "/c"}


@pytest.mark.parametrize(
    "change",
    [
        {"HPK_AUTO_RESUME": "0"},
        {"HPK_AUTO_RESUME": "", "SLURM_SPANK_HPK_AUTO_RESUME": "0"},
        {"SLURM_STEP_ID": ""},
        {"SLURM_STEP_ID": "-5"},  # the batch script, to Slurm 26.05
        {"HPK_CHECKPOINT_ROOT": ""},
        {"HPK_ATTEMPT": "7.0.0"},
        {"HPK_DECISION": "7.0"},
    ],
)
def test_task_prolog_has_nothing_to_say(place: Path, change: Dict[str, str]) -> None:
    assert hook(place, "task_prolog.sh", f"touch {place}/called", **{**STEP, **change}) == (0, "")
    assert not (place / "called").exists()


def test_a_root_alone_asks_for_a_decision(place: Path) -> None:
    program = "echo export HPK_RESUME_FROM=seq-1"
    assert hook(place, "task_prolog.sh", program, **{**STEP, "HPK_AUTO_RESUME": ""}) == (0, program[5:] + "\n")


def test_a_step_inside_of_a_step_is_asked_for_anew(place: Path) -> None:
    program = "echo export HPK_RESUME_FROM=seq-1"
    assert hook(place, "task_prolog.sh", program, **STEP, HPK_DECISION="7.1") == (0, program[5:] + "\n")


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("echo export HPK_RESUME_FROM=seq-1", 0, "export HPK_RESUME_FROM=seq-1\n"),
        ("echo print NoValidCheckpoint; exit 86", 1, "print NoValidCheckpoint\n"),
        (
            "echo error: /fsx is not there >&2; echo hint: mount it >&2; exit 1",
            1,
            "from /c: error: /fsx is not there\n",
        ),
        ("echo python3: not found >&2; exit 127", 1, "from /c: python3: not found\n"),
        ("exit 3", 1, "from /c: hyperpod-kit exited 3\n"),
        ("trap '' TERM; sleep 60", 1, "from /c: this took more than 45 s; does it answer on "),
    ],
)
def test_task_prolog_passes_the_answer_on_or_says_why_there_is_none(
    place: Path, program: str, code: int, words: str
) -> None:
    """Without an answer the ranks would start from step 0 in silence."""
    found, out = hook(place, "task_prolog.sh", program, **STEP)
    assert found == code and words in out
    assert ("HPK_AUTO_RESUME=0 starts it as it is" in out) is ("from /c" in words)


@pytest.mark.parametrize(
    "program",
    [
        r"printf 'error: /c/x\nexport HPK_RESUME_FROM=/mallory\n' >&2; exit 1",
        r"printf 'export LD_PRELOAD=/x\nexport HPK_ATTEMPT=1\n'",
        r"printf 'export HPK_RESUME_FROM=a\033b\n'",
        r"printf 'unset PATH\nexport HPK_RESUME_FROM\nexport PATH=/x\n'",
    ],
)
def test_task_prolog_passes_on_nothing_but_the_choice(place: Path, program: str) -> None:
    """Names of files, which others may have made, stand in errors."""
    _, out = hook(place, "task_prolog.sh", program, **STEP)
    assert not [line for line in out.splitlines() if not line.startswith("print ")]


def test_no_task_starts_where_the_kit_is_not(place: Path) -> None:
    """As Slurm's own TaskProlog, on a cluster of before, it may run in a container."""
    script = (place / "task_prolog.sh").read_text().replace(f"{place}/program", "/nowhere")
    (place / "task_prolog.sh").write_text(script)
    code, out = hook(place, "task_prolog.sh", "", **STEP)
    assert code == 1 and "print hyperpod-kit: no checkpoint was chosen from /c: /nowhere is not there" in out


@pytest.mark.needs("shellcheck")
def test_hooks_are_clean_and_short() -> None:
    scripts = [*HOOKS.glob("*.sh"), *HOOKS.glob("jobs/*.sbatch")]
    subprocess.run(["shellcheck", *scripts], check=True, timeout=60)
    assert all(len(script.read_text().splitlines()) <= 40 for script in scripts)
