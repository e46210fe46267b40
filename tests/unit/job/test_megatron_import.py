"""What plain Megatron-core saved on two ranks is imported, and MegatronCheckpoints goes on from it as plain
Megatron-core would have: examples/frameworks/megatron_gpt.py as it was before hyperpod-kit changed it, and as it is."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.exporting.checkpoint import export
from hyperpod_kit.checkpoint.importing.checkpoint import import_checkpoint
from tests.support.content import contents
from tests.unit.job import killed
from tests.unit.job.conftest import Job

WORDS = ("--save-every", "4", "--tensor-parallel", "2")


def plain(folder: Path) -> Path:
    """The program with the lines that stand as comments above ours, and a save that is over when it returns."""
    kept: list[str] = []
    source = killed.ROOT / "examples" / "frameworks" / "megatron_gpt.py"
    for line in source.read_text().splitlines():
        if not line.endswith("# +"):
            kept.append(line)
        elif kept[-1].lstrip().startswith("# "):
            kept[-1] = kept[-1].replace("# ", "", 1)
    text = "\n".join(kept).replace(", async_sharded_save=True", "")
    saves = 'dist_checkpointing.save(state(), f"{checkpoints}/iter_{step:07d}"'
    assert saves in text and "MegatronCheckpoints" not in text
    made = 'os.makedirs(f"{checkpoints}/iter_{step:07d}", exist_ok=True)'
    text = text.replace(saves, f"{made}\n            {saves}").replace("newest(checkpoints)", "False")
    path = folder / "plain_gpt.py"
    path.write_text(text)
    on_cpu = source.with_name("megatron_on_cpu.py").read_text()  # its own save waits for a GPU besides
    (folder / "megatron_on_cpu.py").write_text(f"{on_cpu}\n\ntorch.cuda.synchronize = lambda *_: None\n")
    return path


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_plain_megatron_saved_on_one_rank_is_loaded_by_ours(tmp_path: Path) -> None:
    if importlib.util.find_spec("megatron") is None:  # not imported here: Megatron changes torch
        pytest.skip("megatron is not installed")
    (tmp_path / "shm").mkdir()
    env = {**os.environ, "PYTHONPATH": str(killed.ROOT), "HPK_SHM_DIR": str(tmp_path / "shm")}
    program = [sys.executable, str(Path(__file__).with_name("megatron_in.py")), str(tmp_path)]
    done = subprocess.run(program, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("loaded "), done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_goes_on_from_what_plain_megatron_saved(job: Job, tmp_path: Path) -> None:
    if importlib.util.find_spec("megatron") is None:  # not imported here: Megatron changes torch
        pytest.skip("megatron is not installed")
    program = plain(tmp_path)
    assert killed.train(job, str(program), tmp_path / "plain", words=(*WORDS, "--steps", "8")) == 0
    saved = tmp_path / "plain" / "checkpoints"
    made = import_checkpoint(saved / "iter_0000004", "megatron", tmp_path / "ours" / "checkpoints")
    assert (made.step, made.unchecked) == (4, 0)
    assert killed.train(job, "megatron_gpt.py", tmp_path / "ours", words=(*WORDS, "--steps", "8")) == 0
    ours, theirs = (killed.losses(tmp_path / name) for name in ("ours", "plain"))
    assert len(ours) == 2 and all(list(losses) == [5, 6, 7, 8] for losses in ours.values())
    assert all(losses == {step: theirs[rank][step] for step in losses} for rank, losses in ours.items())
    export(tmp_path / "ours" / "checkpoints", "megatron", tmp_path / "exported-8")
    ends = {}
    for name, source in (("exported", tmp_path / "exported-8"), ("plain", saved / "iter_0000008")):
        import_checkpoint(source, "megatron", tmp_path / name / "root")
        held = contents(tmp_path / name / "root")
        ends[name] = sorted(held[key][2] for key in held if key.startswith("tensors.") or "@" in key)
    assert ends["exported"] == ends["plain"] and ends["plain"]
