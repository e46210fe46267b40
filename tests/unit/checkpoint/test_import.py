"""Import: what plain DeepSpeed wrote is the first checkpoint of a root, or nothing is.

The files here are those of zero_sources.py; tests/unit/job/test_zero_worlds.py has DeepSpeed's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit import ending  # noqa: E402
from hyperpod_kit.checkpoint import cli  # noqa: E402
from hyperpod_kit.checkpoint.convert.export_checkpoint import export  # noqa: E402
from hyperpod_kit.checkpoint.convert.formats import deepspeed  # noqa: E402
from hyperpod_kit.checkpoint.convert.import_checkpoint import import_checkpoint  # noqa: E402
from hyperpod_kit.checkpoint.repository.selection import newest_valid  # noqa: E402
from hyperpod_kit.errors import NoCheckpoint  # noqa: E402
from tests.support.content import contents  # noqa: E402
from tests.support.damage import flip  # noqa: E402
from tests.unit.checkpoint.zero_sources import (  # noqa: E402
    SHARED,
    model_states,
    optimizer_file,
    optimizer_states,
    written,
)


def typed(words: list[str]) -> int:
    """The exit code of `hyperpod-kit checkpoint WORDS`, whose errors are said."""
    return ending.run(lambda: cli.main(words))


def same(one: Any, other: Any) -> bool:
    ours: list[Any] = []
    theirs: list[Any] = []
    words = [repr(deepspeed.extract_tensors(said, held)) for said, held in ((one, ours), (other, theirs))]
    return words[0] == words[1] and all(
        torch.equal(*pair) and pair[0].dtype == pair[1].dtype for pair in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("stage", [2, 3])
def test_what_was_imported_is_exported_as_it_was(
    tmp_path: Path, stage: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path, root, out, back = written(tmp_path / "in", stage=stage), *(tmp_path / name for name in ("r", "out", "back"))
    assert typed(["import", str(path.parent), "--from", "deepspeed", "--out", str(root), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["step"], said["ranks"], said["unchecked"]) == (4, 2, 0)
    assert said["bytes"] == sum(file.stat().st_size for file in path.iterdir())
    assert typed(["verify", str(root)]) == 0
    assert export(str(root), "deepspeed", out).step == 4
    assert sorted(file.name for file in (out / path.name).iterdir()) == sorted(file.name for file in path.iterdir())
    for file in path.iterdir():
        pair = [torch.load(one, weights_only=True) for one in (file, out / path.name / file.name)]
        assert same(*pair), file.name
        module = pair[1].get("module", {})
        assert "tied" not in module or module["a"].data_ptr() == module["tied"].data_ptr()
    import_checkpoint(out, "deepspeed", str(back))
    assert all(contents(back)[name] == held for name, held in contents(root).items() if "words" not in name.split("."))
    owners = {rank for name, (rank, *_) in contents(root).items() if name.startswith("files.")}
    assert owners == (set() if stage == 3 else {0}), "what all ranks have is written once"


def test_the_step_is_that_of_the_tag_as_in_a_save(tmp_path: Path) -> None:
    written(tmp_path / "in", tag="micro-80")
    written(tmp_path / "in", step=6, tag="best")
    assert import_checkpoint(tmp_path / "in", "deepspeed", str(tmp_path / "a")).step == 6
    assert import_checkpoint(tmp_path / "in", "deepspeed", str(tmp_path / "b"), tag="micro-80").step == 80


def damaged(path: Path) -> None:
    flip(path / optimizer_file(1), 9000)


def cut(path: Path) -> None:
    os.truncate(path / SHARED, (path / SHARED).stat().st_size - 100)


def not_written(path: Path) -> None:
    (path / optimizer_file(1)).write_bytes(b"")


def lost(path: Path) -> None:
    (path / optimizer_file(0)).unlink()


def last_lost(path: Path) -> None:
    (path / optimizer_file(1)).unlink()


def model_lost(path: Path) -> None:
    (path / SHARED).unlink()


def other_model(path: Path) -> None:
    torch.save(model_states(6, 2, {}), path / SHARED)


def other_optimizer(path: Path) -> None:
    torch.save(optimizer_states(6, 1), path / optimizer_file(1))


def two_saves(path: Path) -> None:
    torch.save(optimizer_states(4, 0), path / optimizer_file(0).replace("bf16_", ""))


def pipeline(path: Path) -> None:
    torch.save({}, path / "layer_00-model_00-model_states.pt")


def own_classes(path: Path) -> None:
    torch.save({**model_states(4, 2, {}), "client_state": Path("x")}, path / SHARED)


def no_dict(path: Path) -> None:
    torch.save([1, 2], path / SHARED)


def fifo(path: Path) -> None:
    (path / SHARED).unlink()
    os.mkfifo(path / SHARED)


def wrong_latest(path: Path) -> None:
    (path.parent / "latest").write_text("global_step9\n")


def outside_latest(path: Path) -> None:
    (path.parent / "latest").write_text("../in/global_step4")


def no_latest(path: Path) -> None:
    (path.parent / "latest").unlink()
    written(path.parent, step=6)
    (path.parent / "latest").unlink()


@pytest.mark.parametrize(
    "spoil, said",
    [
        (damaged, f"{optimizer_file(1)} is damaged"),
        (cut, f"{SHARED} is damaged"),
        (not_written, f"{optimizer_file(1)} is damaged"),
        (lost, "lacks optim_states of rank 0"),
        (last_lost, "has optimizer files of 1 rank, and mp_rank_00_model_states.pt says that 2 data-parallel ranks"),
        (model_lost, "lacks model_states of rank 0, model_states of rank 1"),
        (
            other_model,
            "different steps: mp_rank_00_model_states.pt is of step 6, 1 of them skipped, and the optimizers",
        ),
        (other_optimizer, f"different steps: steps of the optimizer [3.0] in {optimizer_file(0)}, [5.0] in"),
        (two_saves, "files of two saves"),
        (pipeline, "layer_00-model_00-model_states.pt, which is of tensor, pipeline or expert parallelism"),
        (own_classes, "of classes that cannot be imported"),
        (no_dict, "holds no dict"),
        (fifo, "is not a file"),
        (wrong_latest, "no directory 'global_step9', which latest names"),
        (outside_latest, "no directory '../in/global_step4'"),
        (no_latest, "no file latest"),
    ],
)
def test_what_does_not_belong_together_is_refused_before_anything_is_written(
    tmp_path: Path, spoil: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, root = written(tmp_path / "in"), tmp_path / "root"
    spoil(path)
    assert typed(["import", str(path.parent), "--from", "deepspeed", "--out", str(root)]) in (1, 2)
    found = capsys.readouterr().err
    assert said in found and "hint: " in found, found
    assert not root.exists()
    if spoil in (wrong_latest, outside_latest, no_latest):
        assert "global_step4" in found.partition("hint: ")[2]


def test_each_byte_of_a_tensor_counts_unless_no_check_sums_were_written(tmp_path: Path) -> None:
    path = written(tmp_path / "in", ranks=1) / optimizer_file(0)
    whole = path.read_bytes()
    at = whole.index(
        optimizer_states(4, 0)["optimizer_state_dict"]["single_partition_of_fp32_groups"][0].numpy().tobytes()
    )
    for place in range(at, at + 12000, 1999):
        path.write_bytes(whole)
        flip(path, place)
        with pytest.raises(Exception, match="Bad CRC-32"):
            deepspeed.inspect_tag(tmp_path / "in")
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(optimizer_states(4, 0), path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert deepspeed.inspect_tag(tmp_path / "in").unchecked == 1


def test_a_root_with_a_checkpoint_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "in")
    words = ["import", str(tmp_path / "in"), "--from", "deepspeed", "--out", str(tmp_path / "root")]
    assert typed(words) == 0
    before = sorted((tmp_path / "root").rglob("*"))
    assert typed([*words, "--step", "5"]) == 2 and "has checkpoints" in capsys.readouterr().err
    assert sorted((tmp_path / "root").rglob("*")) == before


@pytest.mark.full
def test_an_import_that_was_killed_counts_for_nothing_and_can_be_done_again(tmp_path: Path) -> None:
    written(tmp_path / "in")
    root = tmp_path / "root"
    words = [sys.executable, "-m", "hyperpod_kit.checkpoint.cli", "import", str(tmp_path / "in"), "--from", "deepspeed"]
    env = {**os.environ, "HPK_FAILPOINT": "commit.before_manifest"}
    killed = subprocess.run([*words, "--out", str(root)], env=env, capture_output=True, timeout=120)
    assert killed.returncode == 1 and b"ended without an answer, by SIGKILL" in killed.stderr, killed
    assert len(list(root.glob("seq-*"))) == 1
    with pytest.raises(NoCheckpoint):
        newest_valid(str(root))
    assert import_checkpoint(tmp_path / "in", "deepspeed", str(root)).step == 4
    assert typed(["verify", str(root)]) == 0


def test_no_room_leaves_nothing_of_the_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    from hyperpod_kit.checkpoint.repository.store.posix import PosixStore

    real, seen = PosixStore.open_write, []

    def full(self: Any, name: str, size: int) -> Any:  # a full disk as the second shard is begun
        seen.append(name)
        if len(seen) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        return real(self, name, size)

    written(tmp_path / "in")
    monkeypatch.setattr(PosixStore, "open_write", full)
    words = ["import", str(tmp_path / "in"), "--from", "deepspeed", "--out", str(tmp_path / "root")]
    assert typed(words) == 1
    assert not list((tmp_path / "root").glob("seq-*"))
