"""Somebody else may write to a checkpoint root: what he leaves there must not become environment of the job's ranks."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from hyperpod_kit.errors import JobError, NoValidCheckpoint
from hyperpod_kit.job.base import exits
from hyperpod_kit.job.cli import __file__ as job_cli
from hyperpod_kit.job.foreign import newest, quarantine
from hyperpod_kit.job.records import ledger
from hyperpod_kit.job.resume import checkpoint_choice, shared_decision
from hyperpod_kit.job.run import ownership
from hyperpod_kit.slurm import control
from hyperpod_kit.slurm.job_id import JobId
from tests.hostile.users import ATTACKER, ROOT, VICTIM, as_user, be, place
from tests.support.runner import RecordingRunner

RANK = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_LAUNCHER_PORT": "41234"}
KEY = shared_decision.srun_launch_key_zeros_if_unset(RANK)
PROGRAM = Path(job_cli).with_name("__main__.py")


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory that a team may write to."""
    with place() as found:
        yield found


def dcp(root: Path, name: str) -> None:
    """A whole checkpoint of torch.distributed, as far as its files say."""
    (root / name).mkdir()
    file = "shard-x.safetensors"
    (root / name / file).write_text("x")
    (root / name / ".metadata").write_bytes(b"\x80\x04\x8c" + bytes([len(file)]) + file.encode() + b".")


def told(root: Path) -> subprocess.CompletedProcess[str]:
    """What a node of the victim's bare srun is told."""
    return subprocess.run(
        [*be(VICTIM), "/usr/bin/python3", "-I", "-S", str(PROGRAM), "task-prolog"],
        text=True,
        env={
            **RANK,
            "PATH": "/usr/bin:/bin",
            "HPK_CHECKPOINT_ROOT": str(root),
            "SLURM_PROCID": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=60,
    )


def exported(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith("export ")]


NAMES = [
    "step\nexport PYTHONPATH=.\nexport BASH_ENV=payload\nexport HPK_RESUME_KIND=dcp\n9000000",
    "step-100\n",
    "step\x1b]0;x\x07-100",
    "step $(id)-100",
    "step;id;-100",
    "step\u2028100",
    "-\r100",
    "step-\u0661\u0660",
    "9" * 200,
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_directorys_name_is_no_environment_and_says_so(root: Path, name: str) -> None:
    dcp(root, "step-5")
    dcp(root, name)
    record = shared_decision.decide(str(root), str(root), "0@n1")
    assert shared_decision.task_prolog_lines(record, "1") == [
        "export HPK_RESUME_FROM=step-5",
        "export HPK_RESUME_STEP=5",
        "export HPK_RESUME_KIND=dcp",
    ]
    for one in record["rejected"]:
        assert "the name cannot be passed to a job" in one["why"] and one["attempt"].isprintable()
    assert record["rejected"] or not name[-1].isascii()


def test_a_name_that_reads_like_anothers_does_not_get_that_one_set_aside(root: Path) -> None:
    """What is rejected is renamed when the job starts."""
    dcp(root, "step-100")
    dcp(root, "step-200\n")
    dcp(root, "step-200")
    os.rename(root / "step-200" / ".metadata", root / "step-200" / "x.distcp")  # a save that did not end
    found = newest.newest_provable_foreign_checkpoint(str(root), {})
    assert found is not None and found.attempt == "step-100"
    moved = quarantine.set_aside(str(root), [name for name, _ in found.rejected], now=0.0)
    assert [name for name, _ in moved] == ["step-200"]
    assert sorted(os.listdir(root)) == ["step-100", "step-200\n", "step-200.invalid-19700101T000000Z"]


def test_only_a_name_that_cannot_be_told_is_no_start_from_scratch(root: Path) -> None:
    dcp(root, "step\n100")
    with pytest.raises(NoValidCheckpoint, match="the name cannot be passed to a job"):
        newest.newest_provable_foreign_checkpoint(str(root), {})


def forge(root: Path, **record: Any) -> Callable[[], None]:
    """The attacker's own record where the victim's will be looked for."""

    def work() -> None:
        os.makedirs(root / ".hpk" / "decisions", mode=0o777)
        os.chmod(root / ".hpk", 0o777)
        os.chmod(root / ".hpk" / "decisions", 0o777)
        (root / ".hpk" / "decisions" / f"{KEY}.json").write_text(json.dumps(record))

    return work


@ROOT
def test_a_record_of_another_user_that_was_there_first_starts_no_task(root: Path) -> None:
    """Also one that says nothing odd: he would choose for the victim."""
    for record in ({"from": "none\nexport LD_PRELOAD=/fsx/mallory/evil.so", "step": 0}, {"from": "none", "step": 0}):
        own = root / str(len(os.listdir(root)))
        own.mkdir()
        own.chmod(0o777)
        assert as_user(ATTACKER, forge(own, **record)) == 0
        done = told(own)
        assert done.returncode == 1 and exported(done.stdout) == []
        assert f"of uid {ATTACKER}, expected a directory of uid {VICTIM}" in done.stderr


@ROOT
@pytest.mark.parametrize("what", ["link", "fifo", "device", "directory", "hard link"])
def test_what_lies_in_the_place_of_a_record_is_not_read(root: Path, what: str) -> None:
    """In directories of the victim's that he may write to by mistake."""
    for folder in (root / ".hpk", root / ".hpk" / "decisions"):
        folder.mkdir()
        os.chown(folder, VICTIM, VICTIM)
        folder.chmod(0o777)
    path, other = root / ".hpk" / "decisions" / f"{KEY}.json", root / "old.json"
    other.write_text(json.dumps({"launch": "6.0.0.1", "from": "none", "step": 0}))
    os.chown(other, VICTIM, VICTIM)

    def attack() -> None:
        if what == "link":
            path.symlink_to(other)
        elif what == "fifo":
            os.mkfifo(path)
        elif what == "device":
            path.symlink_to("/dev/zero")
        elif what == "directory":
            path.mkdir()

    if what == "hard link":
        os.link(other, path)  # an old record of the victim's own: the kernel lets others link where it is told to
    else:
        assert as_user(ATTACKER, attack) == 0
    done = told(root)
    assert done.returncode == 1 and exported(done.stdout) == [], done
    assert "is of another launch" in done.stderr if what == "hard link" else "expected a regular file" in done.stderr


@ROOT
def test_a_link_in_the_place_of_the_directory(root: Path) -> None:
    def attack() -> None:
        (root / "mine" / "decisions").mkdir(parents=True)
        os.chmod(root / "mine", 0o777)
        os.chmod(root / "mine" / "decisions", 0o777)
        (root / ".hpk").symlink_to(root / "mine")

    assert as_user(ATTACKER, attack) == 0
    done = told(root)
    assert done.returncode == 1 and f"a symbolic link of uid {ATTACKER}, expected a directory" in done.stderr


@ROOT
def test_the_victims_own_record_is_read_again_by_its_other_nodes(root: Path) -> None:
    os.chown(root, VICTIM, VICTIM)
    root.chmod(0o755)
    first, second = told(root), told(root)
    assert first.returncode == second.returncode == 0 and exported(first.stdout) == exported(second.stdout) != []


@pytest.mark.parametrize(
    "record",
    [
        {"from": "../../../fsx/mallory", "step": 0},
        {"from": "/fsx/mallory", "step": 0},
        {"from": "a/../b", "step": 0},
        {"from": "x\ny", "step": 0},
        {"from": ["none"], "step": 0},
        {"from": "none"},
        {"from": "none", "step": "1\nexport A=b"},
        {"from": "none", "step": True},
        {"from": "none", "step": -1},
        {"from": "none", "step": 1 << 70},
        {"from": "none", "step": 1.5},
        {"from": "none", "step": 0, "kind": "x\nexport A=b"},
        {"from": "none", "step": 0, "kind": ["dcp"]},
        {"from": None, "rejected": "x"},
        {"from": None, "rejected": [1]},
        {"from": None, "rejected": [{"attempt": 1, "why": "x"}]},
        {"from": "", "step": 0},
        {"from": "a" * 5000, "step": 0},
    ],
)
def test_a_record_that_we_do_not_write_is_no_answer(record: dict[str, Any]) -> None:
    with pytest.raises(JobError, match="cannot be trusted"):
        shared_decision.task_prolog_lines(record, "0")


def test_why_nothing_is_valid_is_one_line() -> None:
    [line, advice] = shared_decision.task_prolog_lines(
        {
            "from": None,
            "rejected": [{"attempt": "a\nexport LD_PRELOAD=x", "why": "b\x1b[2J\nexport X=y" + "z" * 100_000}],
        },
        "0",
    )
    assert line.startswith("print ") and line.isprintable() and len(line) < 5000
    assert advice.startswith("print hyperpod-kit: no task of this step starts")


def test_every_kind_that_is_found_is_one_that_is_told() -> None:
    found = {detect.__module__.rpartition(".")[2] for detect in newest.DETECTORS}
    assert {checkpoint_choice.KIT_KIND, *found} == set(checkpoint_choice.KINDS)


@pytest.mark.parametrize("harm", ["fifo", "zero", "deep", "text", "list", "words"])
def test_how_a_rank_ended_is_not_what_anybody_says(root: Path, harm: str) -> None:
    folder = root / "exits" / "7.0.0"
    folder.mkdir(parents=True)
    path = folder / "0.json"
    good = exits.Exit(1, "n2", "", 3, None, 1.0, 2.0)
    exits.write(str(root), "7.0.0", good)
    said = {"rank": 0, "node": "n1", "boot_id": "", "code": 0, "signal": None, "started": 1.0, "ended": 1.0}
    texts = {
        "deep": "[" * 100_000,
        "text": json.dumps({**said, "ended": "x"}),
        "list": "[]",
        "words": json.dumps({**said, "code": "0\n", "more": 1}),
    }
    if harm == "fifo":
        os.mkfifo(path)
    elif harm == "zero":
        path.symlink_to("/dev/zero")
    else:
        path.write_text(texts[harm])
    assert exits.read(str(root), "7.0.0") == [good]


@pytest.mark.parametrize("harm", ["fifo", "words", "option", "deep"])
def test_a_claim_that_is_none_holds_up_nobody(root: Path, harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "_WRITING", 0.0)
    path = root / "owner-000001.json"
    texts = {"words": '{"job": "7 JobState=RUNNING"}', "option": '{"job": "--states=all"}', "deep": "[" * 100_000}
    if harm == "fifo":
        os.mkfifo(path)
    else:
        path.write_text(texts[harm])
    runner = RecordingRunner({})
    ownership.claim(runner, str(root), JobId("8"), lambda seconds: None, limit=0.0)
    assert runner.calls == [] and (root / "owner-000002.json").exists()


ROWS = [
    {"t": "x"},
    {"t": 1e400},
    {"nodes": "n1"},
    {"nodes": [["n1"]]},
    {"attempt": ["7.0.0"]},
    {"code": "0"},
    {"restart": "0"},
    {"class": 5},
    {"first": "x"},
    {"lost": {}},
    {"step": "x"},
    {"rejected": ["x"]},
]


@pytest.mark.parametrize("oddity", ROWS, ids=str)
def test_a_row_that_no_run_writes_is_no_part_of_the_budget(root: Path, oddity: dict[str, Any]) -> None:
    own = ledger.Ledger(str(root), "7", 0)
    own.append("attempt", attempt="7.0.0", nodes=["n1"])
    row = {"t": 1.0, "job": "7", "restart": 0, "event": "attempt", "attempt": "7.0.9", **oddity}
    with open(own.path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    assert [row["attempt"] for row in own.valid_rows_of_this_job()] == ["7.0.0"]


@pytest.mark.parametrize("attempt", ["../../other/.hpk/exits/7.0.0", "/etc", "..", ".", "", "a/b"])
def test_a_row_names_no_directory_elsewhere(root: Path, attempt: str) -> None:
    for state in (root / ".hpk", root / "other/.hpk"):
        state.mkdir(parents=True)
    exits.write(str(root / "other/.hpk"), "7.0.0", exits.Exit(0, "n1", "", 3, None, 1.0, 2.0))
    assert exits.read(str(root / ".hpk"), attempt) == []


def test_a_nodes_name_out_of_a_row_orders_nothing_of_slurm() -> None:
    runner = RecordingRunner({"scontrol": "NodeName=n1 State=IDLE"})
    assert list(
        control.query_known_nodes(runner, ["-M", "--all", "n[0-99999999]", "n1 n2", "n1,n2", "ALL\n", "n1", ""])
    ) == ["n1"]
    assert runner.calls == ["scontrol -o show node n1"]
