"""One line a rule: what it finds, and what it must leave alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hyperpod_kit.errors import Absent, UsageError
from hyperpod_kit.job import cli
from hyperpod_kit.job.lint import lint_captures, lint_environment, lint_parts, script, script_lint

JOBS = Path(__file__).parents[3] / "slurm" / "jobs"
RUN = "exec hyperpod-kit job run --checkpoint-root /fsx/run -- python train.py"
HEAD = ("#SBATCH --auto-resume=1", "#SBATCH --open-mode=append", "#SBATCH --signal=B:USR1@120")


def made(*lines: str, head: tuple[str, ...] = HEAD, first: str = "#!/bin/bash") -> str:
    return "\n".join([first, *head, *(lines or (RUN,))]) + "\n"


def without(word: str) -> tuple[str, ...]:
    return tuple(line for line in HEAD if word not in line)


def contained(options: str) -> str:
    run = f'exec hyperpod-kit job run --checkpoint-root /fsx/run --srun-args="--container-image=/fsx/a.sqsh {options}"'
    return f"{run} -- python train.py"


def by_script(command: str) -> str:
    return f"exec hyperpod-kit job run --checkpoint-root /fsx/run -- {command} python train.py"


CASES = [
    ("J001", made(first="# a script"), 1),
    ("J002", made("cd /fsx", "#SBATCH --time=1:00:00", RUN), 6),
    ("J003", made(head=without("auto-resume")), 4),
    ("J003", made(head=(*without("auto-resume"), "#SBATCH --auto-resume=0")), 5),
    ("J004", made("torchrun train.py"), 2),
    ("J005", made("srun -K python train.py"), 5),
    ("J006", made(head=without("open-mode")), 1),
    ("J006", made(head=(*without("open-mode"), "#SBATCH --open-mode=truncate")), 4),
    ("J007", made(head=(*HEAD, "#SBATCH --no-requeue")), 5),
    ("J008", made(head=(*HEAD, "#SBATCH -k")), 5),
    ("J009", made(head=(*HEAD, "#SBATCH -t 30")), 5),
    ("J009", made(head=(*HEAD, "#SBATCH --time 00:40:00 -N 2")), 5),
    ("J010", made(head=without("signal")), 1),
    ("J010", made(head=(*without("signal"), "#SBATCH --signal=USR1@120")), 4),
    ("J010", made(head=(*without("signal"), "#SBATCH --signal=B:TERM@120")), 4),
    ("J010", made(head=(*without("signal"), "#SBATCH --signal=B:USR1@20")), 4),
    ("J011", made('export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)', RUN), 5),
    ("J012", made("exec hyperpod-kit job run --checkpoint-root=/tmp/run -- python train.py"), 5),
    ("J012", made('exec hyperpod-kit job run --checkpoint-root "/opt/dlami/nvme/run" -- python train.py'), 5),
    ("J013", made(RUN + " | tee log"), 5),
    ("J013", made(RUN.replace("exec ", "") + " || true"), 5),
    ("J013", made(RUN.replace("exec ", ""), "echo done"), 5),
    ("J014", made(RUN.replace("exec ", "")), 5),
    ("J015", made("export HPK_CHECKPOINT_ROOT=/fsx/run", "srun -K --auto-resume=1 python train.py"), 6),
    ("J017", made(contained("--container-mounts=/fs:/fsx2,/data:/mnt/data:ro")), 5),
    ("J018", made(contained("--container-mounts=/fsx:/fsx")), 5),
    ("J019", made(contained("--container-mounts=/fsx --container-unshare=pid,ipc")), 5),
    ("J027", made(by_script("podman run --env-host --ipc=host --pid=host --net=host -v /data:/fsx2 image")), 5),
    ("J028", made(by_script("podman run --env-host --pid=host --net host -v /fsx:/fsx image")), 5),
    ("J028", made(by_script("apptainer exec --cleanenv --bind /fsx image.sif")), 5),
    ("J016", made("export HPK_CHECKPOINT_ROOT=/fsx/run", "srun \\", "  python train.py"), 6),
    ("J020", made(head=(*HEAD, "#SBATCH --array=0-3")), 6),
    ("J020", made("root=/fsx/$USER/run", RUN.replace("/fsx/run", '"$root"'), head=(*HEAD, "#SBATCH -a 0-3%2")), 7),
    (
        "J020",
        made("export HPK_CHECKPOINT_ROOT=/fsx/run", "srun -K python train.py", head=(*HEAD, "#SBATCH --array=1,5")),
        6,
    ),
    ("J021", made(head=(*HEAD, "#SBATCH --array=0-3", "#SBATCH -o train-%A.out")), 6),
    ("J022", made(head=(*HEAD, "#SBATCH --array=0-3", "#SBATCH --output=train-%j.out")), 6),
    (
        "J023",
        made(RUN.replace(" -- ", " --nodes 2 -- "), head=(*HEAD, "#SBATCH -N2", "#SBATCH hetjob", "#SBATCH -N1")),
        8,
    ),
    ("J024", made(head=(*HEAD, "#SBATCH -D /tmp/mine")), 5),
    ("J025", made(head=(*HEAD, "#SBATCH --output=/var/tmp/%j.out")), 5),
    ("J026", made(head=(*HEAD, "#SBATCH --requeue=expedite")), 5),
    ("J029", made(RUN.replace("/fsx/run", "/mount-s3/run")), 5),
]


@pytest.mark.parametrize(
    "text",
    [
        RUN.replace("/fsx/run", "/fsx/run-$SLURM_ARRAY_TASK_ID"),
        RUN.replace("/fsx/run", '"/fsx/run-${SLURM_ARRAY_TASK_ID}"'),
        RUN.replace("/fsx/run", "/fsx/run-$SLURM_JOB_ID"),
        RUN.replace("/fsx/run", "/fsx/$(name-of-task)"),
        "task=$SLURM_ARRAY_TASK_ID\nroot=/fsx/run/$task\n" + RUN.replace("/fsx/run", '"$root"'),
        "rates=(1e-3 1e-4)\nrate=${rates[$SLURM_ARRAY_TASK_ID]}\n" + RUN.replace("/fsx/run", "/fsx/run-$rate"),
    ],
)
def test_a_root_of_each_task_is_left_alone(text: str) -> None:
    head = (*HEAD, "#SBATCH --array=0-3", "#SBATCH --output=%x-%A_%a.out")
    assert script_lint.lint(script.parse(made(text, head=head))) == []


@pytest.mark.parametrize(("code", "text", "line"), CASES)
def test_a_rule_finds_what_it_is_for(code: str, text: str, line: int) -> None:
    found = [finding for finding in script_lint.lint(script.parse(text)) if finding.code == code]
    assert [finding.line for finding in found] == [line]
    assert found[0].hint and found[0].severity in ("error", "warning")


def test_every_rule_has_a_case() -> None:
    sources = (
        Path(module.__file__ or "").read_text() for module in (script_lint, lint_captures, lint_environment, lint_parts)
    )
    assert {code for code, *_ in (*CASES, *CAPTURES, *ENVIRONMENTS)} == {
        code for text in sources for code in re.findall(r'"(J\d{3})"', text)
    }


CAPTURES = [
    ("J030", "Manager(root, storage_every=250)", ()),
    ("J030", "checkpoint.Manager(root, every=10, storage_every=5)", ()),
    ("J031", "Manager(root, every=10, storage_every=25)", ()),
    ("J032", "Manager(root, every=10, storage_every=250, slots=2)", ()),
    ("J033", "with Manager(root, partners=True) as manager:\n    pass", ("#SBATCH --nodes=1",)),
]


@pytest.mark.parametrize(("code", "trainer", "head"), CAPTURES)
def test_a_managers_arguments_are_looked_at(code: str, trainer: str, head: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"raise SystemExit\n{trainer}\n")
    (tmp_path / "job").write_text(made(head=(*HEAD, *head)))
    line = re.escape(f"{tmp_path}/job:{5 + len(head)}: ")
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr("hyperpod_kit.untrusted.terminal.print_stdout", said.append)
        assert cli.main(["lint", str(tmp_path / "job")]) == 1
    assert len(said) == 1 and re.match(rf"{line}(error|warning) {code}: train.py:2: ", said[0]), said


@pytest.mark.parametrize(
    "trainer",
    [
        "Manager(root, every=10, storage_every=250, partners=True)",
        "Manager(root, every=timedelta(minutes=5), storage_every=timedelta(hours=1), slots=3)",
        "Manager(root, storage_every=250, **options)",
        "Manager(root, every=EVERY, storage_every=1, partners=args.partners)",
        "multiprocessing.Manager()",
        "def of another Python (",
        "Manager(root, every='10', storage_every=None, slots=True)\0",
        "(" * 5000,
    ],
)
def test_what_cannot_be_judged_is_left_alone(trainer: str) -> None:
    text = made(head=(*HEAD, "#SBATCH --nodes=2"))
    assert script_lint.lint(script.parse(text), lambda name: trainer if name == "train.py" else None) == []


ENVIRONMENT = "/fsx/environments/training"
ENVIRONMENTS = [
    ("J034", ("source /home/me/venv/bin/activate", RUN), 5),
    ("J034", ('. "/fsx/environments/training-old/bin/activate"', RUN), 5),
    ("J034", ("source /opt/conda/bin/activate && conda activate llama", RUN), 5),
    ("J034", ('eval "$(conda shell.bash hook)"', "conda activate llama", RUN), 6),
    ("J035", (RUN,), 5),
    ("J035", (RUN.replace("python train.py", "/usr/bin/python3 -u train.py"),), 5),
    ("J035", (f"source {ENVIRONMENT}/x86_64/bin/activate", RUN.replace("python", "/opt/py/bin/torchrun")), 6),
    ("J035", ("export HPK_CHECKPOINT_ROOT=/fsx/run", "srun -K torchrun train.py"), 6),
    ("J036", (RUN.replace("python", f"{ENVIRONMENT}/x86_64/bin/python"),), 5),
    ("J036", (f"export PATH={ENVIRONMENT}/$(uname -m)/bin:$PATH", RUN), 5),
]


@pytest.mark.parametrize(("code", "lines", "line"), ENVIRONMENTS)
def test_another_python_than_the_training_environments_is_found(code: str, lines: tuple[str, ...], line: int) -> None:
    parsed = script.parse(made(*lines))
    found = [finding for finding in script_lint.lint(parsed, environment=ENVIRONMENT) if finding.code > "J033"]
    assert {(finding.code, finding.line) for finding in found} == {(code, line)}
    assert all(f"source {ENVIRONMENT}/$(uname -m)/bin/activate" in finding.hint for finding in found)
    assert not [finding for finding in script_lint.lint(parsed) if finding.code > "J033"], "without a configuration"


@pytest.mark.parametrize(
    "lines",
    [
        (f"source {ENVIRONMENT}/$(uname -m)/bin/activate", RUN),
        (f'. "{ENVIRONMENT}/x86_64/bin/activate"', RUN.replace("python", "torchrun --nproc-per-node 8")),
        (f"source {ENVIRONMENT}/versions/x86_64-0123-4567/bin/activate", RUN),
        ('source "$MY_ENVIRONMENT/bin/activate"', RUN),
        (contained("--container-mounts=/fsx --container-workdir=/fsx/me"),),
        (by_script("podman run --env-host --ipc=host --pid=host --net=host -v /fsx:/fsx image"),),
        (RUN.replace("python train.py", "./train.sh"),),
        ("python3 prepare.py", f"source {ENVIRONMENT}/x86_64/bin/activate", RUN),
        (RUN.replace("python", f"{ENVIRONMENT}/versions/x86_64-0123-4567/bin/python"),),
    ],
)
def test_the_training_environment_and_what_cannot_be_judged_are_left_alone(lines: tuple[str, ...]) -> None:
    found = script_lint.lint(script.parse(made(*lines)), environment=ENVIRONMENT)
    assert [finding.code for finding in found if finding.code > "J033"] == []


def test_the_environment_is_that_of_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job").write_text(made())
    config = tmp_path / "config.json"
    environment = {"training_environment": {"path": "/fsx/environments"}}
    for values in ({"hyperpod_kit": {"steps": environment}}, {"steps": {**environment, "docker": {}}}):
        config.write_text(json.dumps(values))
        assert cli.main(["lint", "--config", str(config), str(tmp_path / "job")]) == 1
        assert "J035" in capsys.readouterr().out
    for text in ("{}", '{"steps": {}}', '{"steps": {"training_environment": null}}'):
        config.write_text(text)
        assert cli.main(["lint", "--config", str(config), str(tmp_path / "job")]) == 0
    for text in ("steps: {}", "[]", '{"steps": []}', '{"steps": {"training_environment": {"path": 1}}}'):
        config.write_text(text)
        with pytest.raises(UsageError, match="not a configuration in JSON"):
            cli.main(["lint", "--config", str(config), str(tmp_path / "job")])
    with pytest.raises(Absent, match="cannot read"):
        cli.main(["lint", "--config", str(tmp_path / "none.json"), str(tmp_path / "job")])


@pytest.mark.parametrize(
    "text",
    [
        made(),
        made(head=(*HEAD, "#SBATCH --time=2-00 --no-kill=off --requeue", "#SBATCH --nodes 4")),
        made("set -euo pipefail", RUN + " | tee log"),
        made("export HPK_CHECKPOINT_ROOT=/fsx/run", "srun -K bash -c 'MASTER_ADDR=$(hostname) exec python train.py'"),
        "#!/bin/bash\nsrun python evaluate.py\n",
        made(contained("--container-mounts=/fsx:/fsx,/a:/b --container-workdir=/fsx/me")),
        made(contained("--container-mounts=$MOUNTS --container-workdir=/fsx/me")),
        made(by_script("podman run --rm --env-host --ipc=host --pid=host --network=host -v /fsx:/fsx image")),
        made(by_script("apptainer exec --nv --bind /fsx,/mnt/data image.sif")),
        *[path.read_text() for path in sorted(JOBS.glob("*.sbatch"))],
    ],
)
def test_a_good_script_is_left_alone(text: str) -> None:
    assert script_lint.lint(script.parse(text)) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("90", 90),
        ("90:30", 90.5),
        ("1:30:00", 90),
        ("2-12", 3600),
        ("1-00:30:00", 1470),
        ("INFINITE", None),
        ("", None),
    ],
)
def test_time_limits(text: str, value: float | None) -> None:
    assert script.minutes(text) == value


def test_options_in_every_spelling() -> None:
    parsed = script.parse(
        "#!/bin/bash\n#SBATCH -N2 -t 10 --job-name='a b' --requeue -p=x # why\n#SBATCH --time=20\ntrue\n"
    )
    assert [(one.name, one.value) for one in parsed.options] == [
        ("--nodes", "2"),
        ("--time", "10"),
        ("--job-name", "a b"),
        ("--requeue", ""),
        ("--partition", "x"),
        ("--time", "20"),
    ]
    time = parsed.option("--time")
    assert time is not None and (time.value, time.line) == ("20", 3)


def test_the_command_says_where_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, good = tmp_path / "bad.sbatch", tmp_path / "good.sbatch"
    bad.write_text(made(head=without("open-mode")))
    good.write_text(made())
    assert cli.main(["lint", str(good)]) == 0
    assert capsys.readouterr().out == ""
    assert cli.main(["lint", str(good), str(bad)]) == 1
    assert capsys.readouterr().out == (
        f"{bad}:1: warning J006: a requeue truncates the log. Add #SBATCH --open-mode=append\n"
    )
    assert cli.main(["lint", str(bad), "--json"]) == 1
    [found] = json.loads(capsys.readouterr().out)["findings"]
    assert (found["file"], found["code"], found["line"]) == (str(bad), "J006", 1)
    with pytest.raises(Absent, match="cannot read"):
        cli.main(["lint", str(tmp_path / "missing")])
