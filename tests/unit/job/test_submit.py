from __future__ import annotations

import os
from pathlib import Path

import pytest

from hyperpod_kit.errors import UsageError
from hyperpod_kit.job import cli, submit

SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --auto-resume=3 --ntasks-per-node=1
#SBATCH --time=60   # --auto-resume is on
srun --auto-resume=1 train
"""


def test_the_same_line_as_sbatch() -> None:
    line = submit.parse(["--auto-resume=1", "-N", "2", "--comment", "mine", "train.sbatch", "--auto-resume=9", "x"])
    assert line == submit.SbatchLine(("-N", "2", "--comment", "mine"), "train.sbatch", ("--auto-resume=9", "x"), 1)
    call = submit.command(line, None, "train.sbatch")
    assert call == [
        "sbatch",
        "--job-name=train.sbatch",
        "--requeue",
        "--open-mode=append",
        "--signal=B:USR1@120",
        "-N",
        "2",
        "--comment=mine hpk:auto-resume=1",
        "train.sbatch",
        "--auto-resume=9",
        "x",
    ]


def test_the_script_loses_only_the_option() -> None:
    text, wanted = submit.strip_script(SCRIPT)
    assert wanted == 3
    assert text.splitlines()[1] == "#SBATCH --nodes=2 --ntasks-per-node=1"
    assert text.splitlines()[2:] == SCRIPT.splitlines()[2:]


def test_without_the_option_nothing_is_added() -> None:
    line = submit.parse(["-N2", "train.sbatch", "a"])
    assert submit.command(line, None, "train.sbatch") == ["sbatch", "-N2", "train.sbatch", "a"]


def test_the_command_line_wins_over_the_script() -> None:
    assert "--comment=hpk:auto-resume=0" in submit.command(submit.parse(["--auto-resume=0", "t"]), 3, "t")
    assert "--comment=hpk:auto-resume=1" in submit.command(submit.parse(["--auto-resume", "t"]), None, "t")


@pytest.mark.parametrize("text", ["x", "-1", "1001", "1.5"])
def test_values_that_mean_nothing(text: str) -> None:
    with pytest.raises(UsageError):
        submit.parse([f"--auto-resume={text}", "t"])


@pytest.mark.parametrize("knows", [False, True])
def test_submit_calls_sbatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], knows: bool
) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f"""#!/bin/sh
[ "$1" != --help ] || {{ echo "{"  --auto-resume=0|1|N" if knows else "--array"}"; exit 0; }}
for word; do echo "$word"; done
for word; do [ ! -f "$word" ] || grep -c auto-resume= "$word"; done
""")
    sbatch.chmod(0o755)
    script = tmp_path / "train.sbatch"
    script.write_text(SCRIPT)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert cli.main(["submit", "-N1", str(script), "--", "more"]) == 0
    out = capsys.readouterr().out.splitlines()
    if knows:
        assert out == ["-N1", str(script), "--", "more", "2"]
    else:
        assert "--comment=hpk:auto-resume=3" in out and out[-1] == "1"
        copy = next(word for word in out if word.startswith("/"))
        assert copy != str(script) and not Path(copy).exists(), "the copy is removed"


MOUNTS = """\
21 1 8:1 / / rw - ext4 /dev/vda rw
22 21 0:2 / /fsx rw - lustre 10.0.0.1@tcp:/fsx rw
23 22 0:3 / /fsx/scratch rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("argv", "directory", "codes"),
    [
        (["--array=0-3", "{}"], "/fsx/me", ["error J020"]),
        (["--array", "0-3", "-o", "x-%j.out", "{}"], "/fsx/me", ["error J020", "warning J022"]),
        (["{}"], "/fsx/me", []),
        (["{}"], "/fsx", []),
        (["{}"], "/gone/../fsxmore", ["warning J024"]),
        (["{}"], "/home/me", ["warning J024"]),
        (["--chdir=/fsx", "{}"], "/home/me", []),
        (["{}"], "/fsx/scratch/me", ["warning J024"]),
    ],
)
def test_what_will_go_wrong_is_said_at_submission(
    tmp_path: Path, argv: list[str], directory: str, codes: list[str]
) -> None:
    (tmp_path / "mounts").write_text(MOUNTS)
    (tmp_path / "t.sbatch").write_text("#!/bin/bash\nexec hyperpod-kit job run --checkpoint-root /fsx/run -- train\n")
    line = submit.parse([word.format(tmp_path / "t.sbatch") for word in argv])
    said = submit.warnings(line, directory, str(tmp_path / "mounts"))
    assert [text.partition(":")[0] for text in said] == codes


def test_a_heterogeneous_line_keeps_its_components() -> None:
    line = submit.parse(["--auto-resume=1", "-N", "2", ":", "-N", "1", "--auto-resume=1", "t.sbatch", "x"])
    assert (line.script, line.args, line.auto_resume) == ("t.sbatch", ("x",), 1)
    assert submit.command(line, None, "t.sbatch") == [
        "sbatch",
        "--job-name=t.sbatch",
        "--requeue",
        "--open-mode=append",
        "--signal=B:USR1@120",
        "-N",
        "2",
        "--comment=hpk:auto-resume=1",
        ":",
        "-N",
        "1",
        "t.sbatch",
        "x",
    ]
