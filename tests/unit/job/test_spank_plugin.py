"""The plugin's part in a bare srun: what is asked for the step, as whom, what its tasks get, and when none starts.

slurmstepd is `spank_host.c` here. With slurmstepd itself: tests/rehearsal/test_containers.py and `make faults`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Dict, Iterator, Tuple

import pytest

HERE = Path(__file__).parent
PLUGIN = HERE.parents[2] / "slurm" / "plugin" / "auto_resume.c"
USER = 65534
STEP = {
    "SPANK_STEP": "3",
    "HPK_AUTO_RESUME": "1",
    "HPK_CHECKPOINT_ROOT": "/c",
    "SLURM_PROCID": "0",
    "PATH": os.environ["PATH"],
}

pytestmark = [
    pytest.mark.needs("cc", "spank-headers"),
    pytest.mark.needs("root"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("spank")
    flags = ["-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", "-shared", "-fPIC", *flags, "-o", place / "plugin.so", PLUGIN], check=True, timeout=60)
    subprocess.run(
        ["cc", "-rdynamic", *flags, "-o", place / "host", HERE / "spank_host.c", "-ldl"], check=True, timeout=60
    )
    return place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory in which the job's user may write."""
    for path in (tmp_path, *list(tmp_path.parents)[:3]):
        path.chmod(path.stat().st_mode | 0o055)
    tmp_path.chmod(0o777)
    yield tmp_path


def step(built: Path, place: Path, script: str, user: int = USER, **change: str) -> Tuple[int, Dict[str, str], str]:
    """(exit code of the task, its HPK_ variables or none when it did not start, what the user was told)."""
    prolog = place / "prolog.sh"
    prolog.write_text("#!/bin/sh\n" + script)
    prolog.chmod(0o755)
    done = subprocess.run(
        [built / "host", built / "plugin.so", str(user), f"prolog={prolog}"],
        env={**STEP, **change},
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    lines = done.stdout.splitlines()
    told = dict(line.split("=", 1) for line in lines if "=" in line)
    assert (lines[-1:] == ["started"]) is (done.returncode == 0)
    return done.returncode, told, done.stderr


ANSWER = "echo export HPK_RESUME_FROM=seq-1; echo export HPK_RESUME_STEP=40; echo print resumes from seq-1\n"


def test_every_task_is_told_what_was_chosen_outside(built: Path, place: Path) -> None:
    code, told, said = step(built, place, ANSWER + "echo noise; echo export LD_PRELOAD=/x")
    assert code == 0 and (told["HPK_RESUME_FROM"], told["HPK_RESUME_STEP"]) == ("seq-1", "40")
    assert told["HPK_DECISION"] == "7.3", "a TaskProlog that is still configured does not ask again"
    assert said == "resumes from seq-1\n"


def test_a_signal_while_the_answer_is_waited_for_takes_nothing_from_it(built: Path, place: Path) -> None:
    script = f"sleep 0.1; {ANSWER}sleep 0.1; echo print and more"
    code, told, said = step(built, place, script, SPANK_INTERRUPTED="1")
    assert (code, told["HPK_RESUME_STEP"], said) == (0, "40", "resumes from seq-1\nand more\n")


@pytest.mark.parametrize(
    "line",
    [
        r"export HPK_RESUME_FROM=seq-1\033[2J",
        r"export HPK_RESUME_FROM=a\tb",
        r"export HPK_RESUME_FROM=a\r",
        r"export HPK_RESUME_FROM=\177",
        "export HPK_CHECKPOINT_ROOT=/fsx/mallory",
        "export HPK_ATTEMPT=7.0.0",
        "export HPK_RESUME_=1",
        "export HPK_RESUME_x=1",
        "export HPK_RESUME_FROM X=1",
        "export HPK_PROGRESS=/proc/1/mem",
    ],
)
def test_an_answer_that_is_none_of_ours_starts_no_task(built: Path, place: Path, line: str) -> None:
    code, told, said = step(built, place, f"printf '{line}\\n'; " + ANSWER)
    assert code == 1 and "no task starts" in said and "/fsx/mallory" not in told.values()


def test_what_is_printed_is_printable(built: Path, place: Path) -> None:
    code, _, said = step(built, place, ANSWER + r"printf 'print a\033]0;x\007b\rc\n'")
    assert code == 0 and said == "resumes from seq-1\na ]0;x b c\n"


def test_it_is_asked_as_the_user_altogether(built: Path, place: Path) -> None:
    """slurmstepd is root by its real id here: a shell that inherits that could become root again."""
    script = f"grep -E '^(Uid|Gid|Groups|CapPrm|CapEff|SigBlk)' /proc/self/status >{place}/status; ls /proc/self/fd "
    script += f"| wc -l >{place}/fds; echo $SLURM_STEP_ID $SLURM_PROCID $HPK_CHECKPOINT_ROOT >{place}/asked"
    assert step(built, place, script)[0] == 0
    status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
    ids = [str(USER)] * 4
    assert (status["Uid"].split(), status["Gid"].split(), status["Groups"].split()) == (ids, ids, [])
    assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "SigBlk")} == {0}
    assert int((place / "fds").read_text()) == 4, "0, 1, 2 and the listing's own"
    assert (place / "asked").read_text() == "3 4 /c\n", "of this step, not of the batch script around it"


@pytest.mark.parametrize(
    "change",
    [
        {"HPK_AUTO_RESUME": "0"},
        {"HPK_AUTO_RESUME": "", "SLURM_SPANK_HPK_AUTO_RESUME": "0"},
        {"HPK_CHECKPOINT_ROOT": ""},
        {"HPK_ATTEMPT": "7.0.0"},
        {"SPANK_STEP": "0xfffffffb"},
        {"SPANK_STEP": "0xfffffffc"},
    ],
)
def test_nobody_else_is_asked_anything(built: Path, place: Path, change: Dict[str, str]) -> None:
    """Steps of people who do not use the kit above all; the batch script (…fb) and the extern step (…fc) are none."""
    code, told, said = step(built, place, f"touch {place}/asked; exit 1", USER, **change)
    assert (code, said, (place / "asked").exists()) == (0, "", False)
    assert "HPK_DECISION" not in told


def test_the_choice_that_export_none_leaves_is_heard(built: Path, place: Path) -> None:
    code, told, _ = step(built, place, ANSWER, HPK_AUTO_RESUME="", SLURM_SPANK_HPK_AUTO_RESUME="2")
    assert code == 0 and told["HPK_RESUME_FROM"] == "seq-1"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo print hyperpod-kit: NoValidCheckpoint; exit 1", "hyperpod-kit: NoValidCheckpoint\n"),
        ("exit 3", "no checkpoint was chosen and no task of this step starts"),
        ("kill -9 $$", "HPK_AUTO_RESUME=0 starts it as it is"),
    ],
)
def test_no_task_starts_without_a_choice(built: Path, place: Path, script: str, words: str) -> None:
    code, _, said = step(built, place, script)
    assert code == 1 and words in said


def test_a_node_without_the_kit_says_so(built: Path, place: Path) -> None:
    done = subprocess.run(
        [built / "host", built / "plugin.so", str(USER), f"prolog={place}/none"],
        env=STEP,
        text=True,
        timeout=60,
        capture_output=True,
    )
    assert done.returncode == 1 and f"{place}/none failed" in done.stderr and "started" not in done.stdout


def test_what_the_script_leaves_running_is_not_waited_for(built: Path, place: Path) -> None:
    """A probe that hangs keeps nothing of ours."""
    code, told, _ = step(built, place, f"(exec sleep 120 >/dev/null) & echo $! >{place}/pid\n" + ANSWER)
    os.kill(int((place / "pid").read_text()), 9)
    assert code == 0 and told["HPK_RESUME_FROM"] == "seq-1"


def test_a_root_alone_asks_for_a_decision(built: Path, place: Path) -> None:
    """Where the option is not known, as with a plugin of another Slurm where jobs are submitted, nobody can give it."""
    code, told, _ = step(built, place, ANSWER, HPK_AUTO_RESUME="")
    assert (code, told["HPK_RESUME_FROM"]) == (0, "seq-1")
