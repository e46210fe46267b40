"""The bytes of other frameworks' checkpoints: read once in their life, by the step's nodes, and while ranks train."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest
import torch

from hyperpod_kit.errors import CheckpointError, NoSuchCheckpoint
from hyperpod_kit.job import cli
from hyperpod_kit.job.base.report import JobReport
from hyperpod_kit.job.foreign import dcp, newest, proven, proving
from hyperpod_kit.job.foreign.proven import ProvenFiles
from hyperpod_kit.job.foreign.proving import proof_level_of_file
from hyperpod_kit.job.resume import checkpoint_choice, proving_step, proving_watch
from hyperpod_kit.job.resume.proving_step import ProvingStep
from hyperpod_kit.job.step import srun_step
from hyperpod_kit.job.step.options import RunOptions
from tests.support.damage import flip
from tests.support.rows import full
from tests.support.wait import until
from tests.unit.job.conftest import Job
from tests.unit.job.private_slurm import PrivateSlurm
from tests.unit.job.test_foreign import make_deepspeed, make_huggingface, make_lightning, make_megatron

HERE = Path(__file__).parent
RECORDS = "*.json"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files whose bytes were read."""
    names: list[str] = []
    real = proof_level_of_file

    def counted(path: str) -> str:
        names.append(os.path.basename(path))
        return real(path)

    monkeypatch.setattr(proving, "proof_level_of_file", counted)
    return names


def choose(root: Path) -> checkpoint_choice.Choice:
    state = root / ".hpk"
    return checkpoint_choice.choose(str(root), checkpoint_choice.chooser_reusing_foreign_proofs(str(root), str(state)))


@pytest.mark.parametrize("make", [make_megatron, make_deepspeed, make_huggingface, make_lightning])
def test_a_checkpoint_is_read_once_in_its_life(
    make: Callable[[Path, int], Path], tmp_path: Path, reads: list[str]
) -> None:
    make(tmp_path, 10)
    first = choose(tmp_path)
    assert reads
    reads.clear()
    assert choose(tmp_path) == first and reads == []


def test_what_has_changed_since_is_read_again_and_found_damaged(tmp_path: Path, reads: list[str]) -> None:
    make_megatron(tmp_path, 10)
    place = make_megatron(tmp_path, 20)
    assert choose(tmp_path).step == 20
    reads.clear()
    file = place / "mp_rank_01" / "model_optim_rng.pt"
    before = file.stat()
    flip(file, file.stat().st_size // 2)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    choice = choose(tmp_path)
    assert choice.step == 10 and "damaged" in choice.rejected[0][1]
    assert reads.count("model_optim_rng.pt") == 3  # this one, and both of the checkpoint before it


def test_what_was_read_before_the_end_is_not_read_again(tmp_path: Path, reads: list[str]) -> None:
    place = make_deepspeed(tmp_path, 5)
    state = ProvenFiles(str(tmp_path), str(tmp_path / ".hpk"))
    broken = place / "mp_rank_00_model_states.pt"
    good = broken.read_bytes()
    broken.write_bytes(good[:-100])
    [candidate] = newest.candidates(str(tmp_path))
    with pytest.raises(CheckpointError, match="not a complete archive"):
        proving.read_unproven_files_and_weakest_proof(str(tmp_path), candidate, state, threads=1)
    files = [os.path.relpath(path, tmp_path) for path in candidate.structure().files]
    known = state.proofs_of_unchanged_files(candidate.name, files)
    broken.write_bytes(good)
    reads.clear()
    assert proving.read_unproven_files_and_weakest_proof(str(tmp_path), candidate, state) == "crc"
    assert len(reads) == 3 - len(known) and broken.name in reads


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b"{",
        b"[]",
        b'{"checkpoint": "iter_0000010", "files": []}',
        b'{"checkpoint": "another", "files": {"iter_0000010/mp_rank_00/model_optim_rng.pt": [1, 1, "crc"]}}',
        b'{"checkpoint": "iter_0000010", "files": {"iter_0000010/mp_rank_00/model_optim_rng.pt": [1, 1, "good"]}}',
        b'{"checkpoint": "iter_0000010", "files": {"iter_0000010/mp_rank_00/model_optim_rng.pt": [1, true, "crc"]}}',
        b'{"checkpoint": "iter_0000010", "files": {"../../etc/passwd": [1, 1, "crc"]}}',
        b'{"checkpoint": "iter_0000010", "files": {"' + b"a" * 300 + b'": [1, 1, "crc"], "\\u0000": [1, 1, "crc"]}}',
    ],
)
def test_a_record_that_nobody_of_us_wrote_proves_nothing(forged: bytes, tmp_path: Path, reads: list[str]) -> None:
    make_megatron(tmp_path, 10)
    choose(tmp_path)
    [record] = (tmp_path / ".hpk" / proven.FOLDER).glob(RECORDS)
    record.write_bytes(forged)
    reads.clear()
    assert choose(tmp_path).step == 10 and len(reads) == 2


def test_a_root_where_nothing_can_be_remembered_is_read_each_time(tmp_path: Path, reads: list[str]) -> None:
    make_lightning(tmp_path, 10)
    state = tmp_path / ".hpk"
    state.mkdir()
    (state / proven.FOLDER).write_text("a file")
    for _ in range(2):
        assert choose(tmp_path).step == 10
    assert len(reads) == 2


# --- .metadata of DCP, by frames ------------------------------------------------------------------------------------


def metadata(names: list[str], tmp_path: Path) -> Path:
    body = {(f"layer.{number}.X\x8cweight", number): [name, number * 4096] for number, name in enumerate(names)}
    path = tmp_path / ".metadata"
    path.write_bytes(pickle.dumps({"state": body, "words": ["X" * 70, "a\x8c\x05b.distcp?"]}, protocol=4))
    return path


@pytest.mark.parametrize("count", [1, 3, 20_000])
def test_names_are_found_by_frames_as_by_opcodes(count: int, tmp_path: Path) -> None:
    names = [f"__{number}_{number % 7}.distcp" for number in range(count)]
    names[-1] = "shard-00001-model-00001-of-00002.safetensors"
    data = metadata(names, tmp_path).read_bytes()
    assert dcp._has_unbroken_pickle_frames(data) and dcp._find_file_names_by_regex(
        data
    ) == dcp._find_file_names_by_opcodes(data, "") == set(names)


def test_a_pickle_that_is_torn_or_has_a_blank_page_is_read_opcode_by_opcode(tmp_path: Path) -> None:
    path = metadata([f"__{number}_0.distcp" for number in range(3000)], tmp_path)
    whole = path.read_bytes()
    dice = random.Random(3)
    for end in [1, 2, 10, 11, len(whole) - 1, *(dice.randrange(len(whole)) for _ in range(20))]:
        path.write_bytes(whole[:end])
        assert not dcp._has_unbroken_pickle_frames(whole[:end])
        with pytest.raises(CheckpointError, match="torn"):
            dcp.named_files(str(path))
    for at in (512, 4096, 16384):
        path.write_bytes(whole[:at] + bytes(512) + whole[at + 512 :])
        with pytest.raises(CheckpointError, match="torn"):
            dcp.named_files(str(path))
    assert not dcp._has_unbroken_pickle_frames(pickle.dumps("__0_0.distcp", protocol=2))


# --- by the nodes of a step -----------------------------------------------------------------------------------------


def foreign_job(job: Job, monkeypatch: pytest.MonkeyPatch, steps: tuple[int, ...]) -> list[Path]:
    monkeypatch.setattr(proving_step, "WORTH_A_STEP", 1)
    job.root.mkdir()
    return [make_megatron(job.root, number) for number in steps]


def test_two_nodes_read_half_of_the_files_each_and_the_batch_host_none(
    job: Job, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    foreign_job(job, monkeypatch, (10,))
    assert job.run(command=["/bin/true"]) == 0
    assert reads == [] and job.started_at() == [10]
    asked, ranks = job.sruns
    assert {"--nodes=2", "--ntasks=2", "--nodelist=n[1-2]"} <= set(asked) and "exec" in ranks
    [event] = job.said("proven")
    assert event["files"] == 2
    # Known from now on: no step is made for it.
    assert job.run(command=["/bin/true"], restart=1) == 0
    assert reads == [] and len(job.sruns) == 3 and job.started_at() == [10, 10]


def test_a_file_that_a_node_finds_damaged_leads_to_the_checkpoint_before(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, newer = foreign_job(job, monkeypatch, (10, 20))
    file = newer / "mp_rank_01" / "model_optim_rng.pt"
    flip(file, file.stat().st_size // 2)
    assert job.run(command=["/bin/true"]) == 0
    assert job.started_at() == [10] and not newer.exists()
    [aside] = job.said("set_aside")
    assert aside["attempt"] == newer.name


@pytest.mark.parametrize("trouble", ["dies", "lies about the length", *full("babbles", "is not there")])
def test_what_the_nodes_do_not_answer_is_read_here(
    trouble: str, job: Job, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    foreign_job(job, monkeypatch, (10,))
    srun = job.base / "srun"
    word = '{"task": 0, "file": "iter_0000010/mp_rank_00/model_optim_rng.pt", "proof": "crc", "why": ""'
    script = {
        "dies": "exit 1",
        "babbles": "echo hello; echo '{}'; echo '[1]'; echo '{\"task\": 9}'; echo '" + '{"task": 0, "file": 3}' + "'",
        "lies about the length": f'echo \'{word}, "size": 1, "changed": 1}}\'',
    }.get(trouble)
    if script:
        fake = f'exec {sys.executable} {HERE / "fake_srun.py"} "$@"'
        srun.write_text(f'#!/bin/sh\ncase "$*" in *" prove --part "*) {script};; *) {fake};; esac\n')
        srun.chmod(0o755)
        assert job.run(command=["/bin/true"], srun=str(srun)) == 0
    else:
        made = ProvingStep(
            RunOptions(str(job.root), (), srun=str(srun)), job.environment, JobReport(write=lambda fd, data: len(data))
        )
        made.nodes = ("n1", "n2")
        [candidate] = newest.candidates(str(job.root))
        assert made.prove(candidate) == "crc"
    assert reads == ["model_optim_rng.pt"] * 2


def test_a_task_that_says_nothing_is_not_waited_for(
    job: Job, monkeypatch: pytest.MonkeyPatch, reads: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    foreign_job(job, monkeypatch, (10,))
    monkeypatch.setattr(proving_step, "SILENCE", 0.2)
    srun = job.base / "srun"
    srun.write_text(f"#!/bin/sh\necho $$ >{job.base}/pid\nexec sleep 600\n")
    srun.chmod(0o755)
    made = ProvingStep(RunOptions(str(job.root), (), srun=str(srun)), job.environment, JobReport())
    made.nodes = ("n1", "n2")
    [candidate] = newest.candidates(str(job.root))
    assert made.prove(candidate) == "crc" and len(reads) == 2
    assert not Path("/proc", (job.base / "pid").read_text().strip()).exists()
    assert "this node reads the others" in capfd.readouterr().out


@pytest.mark.rehearsal
@pytest.mark.needs("slurm")
def test_two_slurmds_read_a_checkpoint(monkeypatch: pytest.MonkeyPatch, reads: list[str]) -> None:
    monkeypatch.setattr(proving_step, "WORTH_A_STEP", 1)
    base = Path(tempfile.mkdtemp(prefix="hpk-proving-"))
    slurm = PrivateSlurm(base, nodes=2)
    try:
        slurm.start()
        root = base / "root"
        root.mkdir()
        make_deepspeed(root, 7)
        slurm.call("salloc", "--no-shell", "-N2", "--ntasks-per-node=2")
        job = slurm.call("squeue", "-h", "-o", "%i").strip()
        env = {**slurm.environment, "SLURM_JOB_ID": job, "SLURM_NTASKS_PER_NODE": "2", "SLURM_CPUS_PER_TASK": "1"}
        made = ProvingStep(RunOptions(str(root), ()), env, JobReport(write=lambda fd, data: len(data)))
        made.nodes = ("n1", "n2")
        [candidate] = newest.candidates(str(root))
        assert made.prove(candidate) == "crc" and reads == []
        assert proving.left_to_prove(str(root), candidate, ProvenFiles(str(root), str(root / ".hpk"))) == []
    finally:
        slurm.stop()
        shutil.rmtree(base, ignore_errors=True)


# --- while ranks train ----------------------------------------------------------------------------------------------


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys; sys.path[:0] = [{str(Path(cli.__file__).parents[2])!r}]\n"
        "from hyperpod_kit.job import cli\nfrom hyperpod_kit.job.resume import proving_watch\n"
        "proving_watch.INTERVAL = 0.05\ncli.main(sys.argv[1:])\n"
    )
    monkeypatch.setattr(srun_step, "path_of_kit_main_on_nodes", lambda: str(program))
    root = tmp_path / "root"
    root.mkdir()
    with proving_watch.proving_process_unless_kit_checkpoint(
        checkpoint_choice.Choice(checkpoint_choice.NONE, 0), str(root)
    ):
        yield root


def _has_records(folder: Path, number: int) -> bool:
    return len(list(folder.glob(RECORDS))) == number


def test_what_becomes_whole_is_proven_before_anybody_asks(beside: Path, reads: list[str]) -> None:
    folder = beside / ".hpk" / proven.FOLDER
    for number in (1, 2):
        make_lightning(beside, 10 * number)
        until(partial(_has_records, folder, number), what=f"{number} records")
    assert choose(beside).step == 20 and reads == []


def test_the_watch_ends_with_its_block_and_leaves_our_own_roots_alone(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    ours = checkpoint_choice.Choice("seq-000001.step-0000000001.e1-abcd", 1)

    def children() -> str:
        return subprocess.run(
            ["ps", "-ww", "--no-headers", "--ppid", str(os.getpid()), "-o", "args"], text=True, stdout=subprocess.PIPE
        ).stdout

    with proving_watch.proving_process_unless_kit_checkpoint(ours, str(root)):
        assert "prove --watch" not in children()
    with proving_watch.proving_process_unless_kit_checkpoint(
        checkpoint_choice.Choice("iter_0000010", 10, kind="megatron"), str(root)
    ):
        assert f"prove --watch {root}" in children()
    assert "prove --watch" not in children()
    (root / "seq-000001.step-0000000001.e1-abcd").mkdir()

    def never(seconds: float) -> Any:
        raise AssertionError("waits")

    proving_watch.watch(str(root), ProvenFiles(str(root), str(root / ".hpk")), never)


def test_a_checkpoint_that_is_being_written_is_left_for_later(tmp_path: Path, reads: list[str]) -> None:
    path = make_lightning(tmp_path, 10)
    whole, looks = path.read_bytes(), 0
    path.write_bytes(whole[:100])
    state = ProvenFiles(str(tmp_path), str(tmp_path / ".hpk"))

    class Over(Exception):
        pass

    def pause(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            path.write_bytes(whole)
        if looks == 6:
            raise Over

    with pytest.raises(Over):
        proving_watch.watch(str(tmp_path), state, pause)
    name = "checkpoints/epoch=1-step=10.ckpt"
    assert state.proofs_of_unchanged_files(name, [name]) == {name: "crc"}


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_says_what_was_read_and_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_megatron(tmp_path, 10)
    assert cli.main(["prove", str(tmp_path)]) == 0
    assert "iter_0000010 (megatron, step 10): every CRC-32 fits; 2 files" in capsys.readouterr().out
    assert cli.main(["prove", str(tmp_path), "iter_0000010", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files_read"] == 0
    with pytest.raises(NoSuchCheckpoint, match="is called iter_0000011"):
        cli.main(["prove", str(tmp_path), "iter_0000011"])
    path = make_lightning(tmp_path, 30)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(CheckpointError, match=r"step=30\.ckpt: .*not a complete archive"):
        cli.main(["prove", str(tmp_path)])


def test_another_time_of_change_is_another_file(tmp_path: Path) -> None:
    torch.save([1], tmp_path / "a.pt")
    before = proven.file_size_and_mtime_or_none(str(tmp_path / "a.pt"))
    os.utime(tmp_path / "a.pt", ns=(1, 1))
    assert (
        before != proven.file_size_and_mtime_or_none(str(tmp_path / "a.pt"))
        and proven.file_size_and_mtime_or_none(str(tmp_path / "b.pt")) is None
    )
