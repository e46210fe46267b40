"""What plain Megatron-core saved on two ranks is imported, and MegatronCheckpoints goes on from it as plain
Megatron-core would have: examples/frameworks/megatron_gpt.py as it was before hyperpod-kit changed it, and as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.convert.export_checkpoint import export
from hyperpod_kit.checkpoint.convert.import_checkpoint import import_checkpoint
from tests.support.capabilities import require
from tests.support.content import contents
from tests.unit.job import killed
from tests.unit.job.conftest import Job
from tests.unit.job.test_frameworks import optimizer_format

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
    text = text.replace(saves, f"{made}\n            {saves}")
    text = text.replace("newest(checkpoints)", 'os.path.isdir(f"{checkpoints}/newest")')
    path = folder / "plain_gpt.py"
    path.write_text(text)
    on_cpu = source.with_name("megatron_on_cpu.py").read_text()  # its own save waits for a GPU besides
    (folder / "megatron_on_cpu.py").write_text(f"{on_cpu}\n\ntorch.cuda.synchronize = lambda *_: None\n")
    return path


@pytest.mark.full
@pytest.mark.timeout(300)
def test_what_plain_megatron_saved_on_one_rank_is_loaded_by_ours(tmp_path: Path) -> None:
    require("megatron")
    (tmp_path / "shm").mkdir()
    env = {**os.environ, "PYTHONPATH": str(killed.ROOT), "HPK_SHM_DIR": str(tmp_path / "shm")}
    program = [sys.executable, str(Path(__file__).with_name("megatron_in.py")), str(tmp_path)]
    done = subprocess.run(program, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("loaded "), done.stderr


@pytest.mark.full
@pytest.mark.timeout(600)
def test_it_goes_on_from_what_plain_megatron_saved(job: Job, tmp_path: Path) -> None:
    require("megatron")
    program = plain(tmp_path)
    words = optimizer_format(WORDS)
    saved = tmp_path / "plain" / "checkpoints"
    # It saves no random generators, so what undisturbed steps 5 to 8 would have been is in no checkpoint of its own:
    # the second start is what plain Megatron-core makes of it.
    for last in (4, 8):
        assert killed.train(job, str(program), tmp_path / "plain", words=(*words, "--steps", str(last))) == 0
        if last == 4:
            (saved / "newest").symlink_to("iter_0000004")
    made = import_checkpoint(saved / "iter_0000004", "megatron", tmp_path / "ours" / "checkpoints")
    assert (made.step, made.unchecked) == (4, 0)
    assert killed.train(job, "megatron_gpt.py", tmp_path / "ours", words=(*words, "--steps", "8")) == 0
    ours, theirs = (killed.losses(tmp_path / name) for name in ("ours", "plain"))
    assert len(ours) == 2 and all(list(losses) == [5, 6, 7, 8] for losses in ours.values())
    assert all(losses == {step: theirs[rank][step] for step in losses} for rank, losses in ours.items())
    export(tmp_path / "ours" / "checkpoints", "megatron", tmp_path / "exported-8")
    import_checkpoint(tmp_path / "exported-8", "megatron", tmp_path / "exported")
    import_checkpoint(saved / "iter_0000008", "megatron", tmp_path / "theirs")
    whole = tensors(tmp_path / "exported")
    pieces = tensors(tmp_path / "theirs")  # each rank's own, "name@place.in.it"
    assert whole.keys() == {name.partition("@")[0] for name in pieces}
    assert sum(one.size for one in whole.values()) == sum(one.size for one in pieces.values())
    for name, piece in pieces.items():
        of, _, place = name.partition("@")
        begins = tuple(map(int, place.split("."))) if place else (0,) * piece.ndim
        box = tuple(slice(begin, begin + size) for begin, size in zip(begins, piece.shape, strict=True))
        assert whole[of][box].tobytes() == piece.tobytes(), name


def tensors(root: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Those of the root's newest checkpoint."""
    held = {name: one for name, one in contents(root).items() if ".objects." not in name}  # pickles, of other addresses
    assert {spec.dtype for _, spec, _ in held.values()} == {"F32"} and "output_layer.weight" in " ".join(held)
    return {name: np.frombuffer(data, "f4").reshape(spec.shape) for name, (_, spec, data) in held.items()}
