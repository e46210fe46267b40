"""Checkpoints that other frameworks wrote: real files of torch.save, DCP and safetensors, whole and damaged."""

from __future__ import annotations

import json
import pickle
import random
import warnings
from pathlib import Path
from typing import Any, Callable, Dict

import pytest
import torch
import torch.distributed.checkpoint
from safetensors.torch import save_file

from hyperpod_kit.errors import NoValidCheckpoint
from hyperpod_kit.job.foreign import dcp, newest, proving
from hyperpod_kit.job.foreign.candidate import Incomplete
from hyperpod_kit.job.resume import checkpoint_choice

STATE: Dict[str, Any] = {"weights": torch.arange(5000.0), "more": torch.ones(300), "step": 7}


def make_dcp(root: Path, step: int) -> Path:
    place = root / f"step-{step}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.distributed.checkpoint.save({"weights": STATE["weights"]}, checkpoint_id=place, no_dist=True)
    return place


def make_megatron(root: Path, step: int) -> Path:
    place = root / f"iter_{step:07d}"
    for rank in (0, 1):
        (place / f"mp_rank_{rank:02d}").mkdir(parents=True)
        torch.save(STATE, place / f"mp_rank_{rank:02d}" / "model_optim_rng.pt")
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))
    return place


def make_deepspeed(root: Path, step: int) -> Path:
    place = root / f"global_step{step}"
    place.mkdir(parents=True)
    torch.save(STATE, place / "mp_rank_00_model_states.pt")
    for rank in (0, 1):
        torch.save(STATE, place / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (root / "latest").write_text(place.name)
    return place


def make_huggingface(root: Path, step: int) -> Path:
    place = root / f"checkpoint-{step}"
    place.mkdir(parents=True)
    save_file({"weights": STATE["weights"]}, place / "model.safetensors")
    torch.save(STATE, place / "optimizer.pt")
    (place / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return place


def make_lightning(root: Path, step: int) -> Path:
    (root / "checkpoints").mkdir(parents=True, exist_ok=True)
    path = root / "checkpoints" / f"epoch=1-step={step}.ckpt"
    torch.save(STATE, path)
    return path


MAKERS: dict[str, tuple[Callable[[Path, int], Path], str]] = {
    "dcp": (make_dcp, "complete"),
    "megatron": (make_megatron, "crc"),
    "deepspeed": (make_deepspeed, "crc"),
    "huggingface": (make_huggingface, "complete"),
    "lightning": (make_lightning, "crc"),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_the_newest_whole_one_is_taken_and_says_how_far_it_is_proven(kind: str, tmp_path: Path) -> None:
    make, proof = MAKERS[kind]
    assert checkpoint_choice.choose(str(tmp_path)).source == checkpoint_choice.NONE
    for step in (90, 1000):  # 90 is behind 1000 by number and not by name
        path = make(tmp_path, step)
    choice = checkpoint_choice.choose(str(tmp_path))
    assert (choice.source, choice.step, choice.order) == (str(path.relative_to(tmp_path)), 1000, (0, 1000))
    assert (choice.kind, choice.proof) == (kind, proof) and checkpoint_choice.PROVEN[proof] in choice.sentence()
    assert choice.environment()["HPK_RESUME_KIND"] == kind


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 2 // 3)


DAMAGES: list[tuple[str, str, Callable[[Path], Any], str]] = [
    ("dcp", ".metadata", Path.unlink, "the save did not end"),
    ("dcp", ".metadata", cut, "torn"),
    ("dcp", "__0_0.distcp", Path.unlink, "__0_0.distcp is missing"),
    ("dcp", "__0_0.distcp", lambda path: path.write_bytes(b""), "is empty"),
    ("megatron", "../latest_checkpointed_iteration.txt", lambda path: path.write_text("90"), "says 90"),
    ("megatron", "../latest_checkpointed_iteration.txt", lambda path: path.write_text("100x"), "names no iteration"),
    ("megatron", "mp_rank_01/model_optim_rng.pt", cut, "not a complete archive"),
    ("deepspeed", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", Path.unlink, "data-parallel rank 0 are missing"),
    ("deepspeed", "mp_rank_00_model_states.pt", Path.unlink, "no mp_rank"),
    ("deepspeed", "mp_rank_00_model_states.pt", cut, "not a complete archive"),
    ("huggingface", "trainer_state.json", Path.unlink, "the save did not end"),
    ("huggingface", "trainer_state.json", lambda path: path.write_text('{"global_step": 90}'), "says step 90"),
    ("huggingface", "model.safetensors", cut, "bytes, expected"),
    ("huggingface", "model.safetensors", Path.unlink, "no weights"),
    ("huggingface", "optimizer.pt", cut, "not a complete archive"),
    ("lightning", "", cut, "not a complete archive"),
]


@pytest.mark.parametrize(("kind", "file", "damage", "why"), DAMAGES)
def test_what_is_damaged_is_passed_over_with_its_reason(
    kind: str, file: str, damage: Callable[[Path], Any], why: str, tmp_path: Path
) -> None:
    make = MAKERS[kind][0]
    make(tmp_path, 90)
    path = make(tmp_path, 1000)
    damage(path / file if file else path)
    if why == "names no iteration":  # then no iteration of this format can be trusted
        with pytest.raises(NoValidCheckpoint, match=why):
            checkpoint_choice.choose(str(tmp_path))
        return
    choice = checkpoint_choice.choose(str(tmp_path))
    assert choice.step == 90
    [(name, reason)] = choice.rejected
    assert name == str(path.relative_to(tmp_path)) and why in reason


def test_every_flipped_byte_of_a_record_is_found(tmp_path: Path) -> None:
    path = make_lightning(tmp_path, 5)
    good = path.read_bytes()
    weights = torch.arange(5000.0).numpy().tobytes()
    begin = good.index(weights)
    for at in random.Random(5).sample(range(begin, begin + len(weights)), 60):
        path.write_bytes(good[:at] + bytes([good[at] ^ 16]) + good[at + 1 :])
        with pytest.raises(Incomplete, match="damaged"):
            proving.proof_level_of_torch_file(str(path))


def test_an_archive_written_without_sums_is_not_called_damaged(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        path = make_lightning(tmp_path, 5)
    finally:
        torch.serialization.set_crc32_options(True)
    assert proving.proof_level_of_torch_file(str(path)) in ("complete", "crc")


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    place = make_dcp(tmp_path, 3)
    canary = tmp_path / "canary"

    class Bomb:
        def __reduce__(self) -> Any:
            return open, (str(canary), "w")

    (place / ".metadata").write_bytes(pickle.dumps(["__0_0.distcp", Bomb()]))
    assert dcp.check_named_files_present(str(place)).proof == "complete" and not canary.exists()


def test_a_root_that_cannot_be_read_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_lightning(tmp_path, 90)
    make_lightning(tmp_path, 1000)

    def broken(path: str) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("hyperpod_kit.job.foreign.proving.proof_level_of_file", broken)
    with pytest.raises(OSError, match="Input/output"):
        newest.newest_provable_foreign_checkpoint(str(tmp_path), {})


def test_what_ended_every_run_is_taken_only_when_there_is_nothing_else(tmp_path: Path) -> None:
    for step in (90, 1000):
        make_lightning(tmp_path, step)
    name = "checkpoints/epoch=1-step=1000.ckpt"
    choice = checkpoint_choice.choose(str(tmp_path), passed_over={name: "it ends every run"})
    assert (choice.step, choice.stepped_back) == (90, True)
    (tmp_path / "checkpoints" / "epoch=1-step=90.ckpt").unlink()
    assert checkpoint_choice.choose(str(tmp_path), passed_over={name: "it ends every run"}).step == 1000
