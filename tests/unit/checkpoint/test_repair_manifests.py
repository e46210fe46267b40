"""`checkpoint repair` makes a lost manifest again where every byte proves itself, and nowhere else."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest
import torch

from hyperpod_kit.checkpoint import Manager, Restored, State
from hyperpod_kit.checkpoint.agent.reports import extra_state
from hyperpod_kit.checkpoint.commands import cli, repair
from hyperpod_kit.checkpoint.repository import commit, selection
from hyperpod_kit.checkpoint.repository.format import layout, manifest, sealed_text
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import catalog, fresh_start, identity
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.restore import loading
from hyperpod_kit.errors import CheckpointError, NoCheckpoint, NoValidCheckpoint
from tests.support.rows import share

STEPS = (9, 19, 29)


def model(seed: int) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.BatchNorm1d(200), torch.nn.Linear(200, 7).half())


def trained(seed: int) -> State:
    made = model(seed)
    optimizer = torch.optim.AdamW(made.parameters())
    for parameter in made.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return State(made, optimizer, extra={"tokens": seed, "rate": 0.1 * seed, "name": "ü"})


def saved(root: Path) -> Dict[str, bytes]:
    """A run's root; the manifests of its checkpoints."""
    with Manager(str(root), keep=None) as manager:
        manager.restore(trained(0))
        for step in STEPS:
            metrics = {"loss": float("nan"), "rate": 1.5}
            assert manager.save(step, trained(step), on_busy="wait", metrics=metrics).wait("durable", 60)
    return {
        entry.checkpoint_id: (root / entry.checkpoint_id / "MANIFEST.json").read_bytes()
        for entry in catalog.list_checkpoints(str(root))
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole") / "root"
    saved(root)
    return root


@pytest.fixture
def lost(whole: Path, tmp_path: Path) -> Path:
    """The same, its manifests gone."""
    root = tmp_path / "root"
    shutil.copytree(whole, root)
    for entry in catalog.list_checkpoints(str(root)):
        (root / entry.checkpoint_id / "MANIFEST.json").unlink()
    return root


def run_repair(root: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Dict[str, Any]]:
    code = cli.run_command_raising_errors(["repair", str(root), "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def names(root: Path) -> List[str]:
    return [entry.checkpoint_id for entry in catalog.list_checkpoints(str(root))]


def same_but_for_what_is_lost(rebuilt: bytes, original: bytes) -> None:
    one, other = manifest.decode(rebuilt), manifest.decode(original)
    assert one.rebuilt is not None and other.rebuilt is None and one.job == {} and one.versions == {}
    lost: dict[str, Any] = {"time": "", "job": {}, "versions": {}, "rebuilt": None, "metrics": {}}
    assert dataclasses.replace(one, **lost) == dataclasses.replace(other, **lost)
    assert repr(one.metrics) == repr(other.metrics)


def test_all_are_rebuilt_and_restored_bit_for_bit(lost: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in lost.rglob("*") if path.is_file()}
    code, told = run_repair(lost, capsys, "--dry-run")
    assert (code, [(one["attempt"], one["provable"], one["written"]) for one in told["manifests"]]) == (
        0,
        [(name, True, False) for name in names(lost)],
    )
    assert {path: path.read_bytes() for path in lost.rglob("*") if path.is_file()} == before, "a dry run"
    code, told = run_repair(lost, capsys)
    assert (code, [one["written"] for one in told["manifests"]], told["lost"]) == (0, [True] * 3, [])
    for name in names(lost):
        verify.verify_checkpoint(str(lost), name)
        same_but_for_what_is_lost(
            (lost / name / "MANIFEST.json").read_bytes(), (whole / name / "MANIFEST.json").read_bytes()
        )
    assert run_repair(lost, capsys) == (0, {**told, "manifests": []}), "twice is once"
    with Manager(str(lost)) as manager:
        state = trained(1)
        found = manager.restore(state)
    assert isinstance(found, Restored) and (found.step, found.tier) == (29, "storage")
    expected = trained(29)
    assert state.model is not None and expected.model is not None
    for here, there in zip(state.model.state_dict().values(), expected.model.state_dict().values(), strict=True):
        assert torch.equal(here, there)
    assert state.extra == expected.extra
    assert cli.run_command_raising_errors(["show", str(lost)]) == 0
    assert "rebuilt" in capsys.readouterr().out


def damage_byte(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def at(place: float) -> Callable[[Path], None]:
    return lambda path: damage_byte(path, min(int(path.stat().st_size * place), path.stat().st_size - 1))


def reseal_as(path: Path, **change: Any) -> None:
    body = json.loads(path.read_bytes())
    body.pop("self")
    path.write_bytes(sealed_text.seal(json.dumps({**body, **change})))


def number_in(path: Path) -> None:
    """A digit that no reader would take for damage."""
    data = path.read_bytes()
    assert b'"tokens":29' in data
    path.write_bytes(data.replace(b'"tokens":29', b'"tokens":28'))


SHARD = "shard-00000.safetensors"
DAMAGE: List[tuple[str, str, Callable[[Path], object], str]] = [
    ("first byte", SHARD, at(0.0), "not a shard|is not a shard"),
    ("header", SHARD, at(0.001), "expected|not a shard"),
    ("middle", SHARD, at(0.5), "bytes 0.."),
    ("leaf", SHARD, at(1.0), "bytes 0.."),
    ("cut", SHARD, lambda path: os.truncate(path, path.stat().st_size - 4096), "."),
    ("missing", SHARD, os.unlink, f"{SHARD} is missing"),
    ("one too many", SHARD, lambda path: shutil.copy(path, path.with_name("shard-00001.safetensors")), "of no rank"),
    ("digit", "extra.json", number_in, "extra.json is torn or damaged"),
    (
        "of a build before",
        "extra.json",
        lambda path: path.write_bytes(sealed_text.without_seal(path.read_bytes())),
        "does not prove itself",
    ),
    ("of another attempt", "extra.json", lambda path: reseal_as(path, attempt=[1, 2, 19]), "of another attempt"),
    ("missing", "extra.json", os.unlink, "extra.json is missing"),
    ("byte", "index.bin", at(0.5), "index.bin"),
    ("missing", "index.bin", os.unlink, "index.bin is missing"),
]


@pytest.mark.parametrize(
    ("kind", "file", "damage", "why"), share(DAMAGE, 6), ids=[f"{file}: {kind}" for kind, file, *_ in DAMAGE]
)
def test_what_does_not_prove_itself_is_named_and_left(
    lost: Path, capsys: pytest.CaptureFixture[str], kind: str, file: str, damage: Callable[[Path], object], why: str
) -> None:
    newest, *older = names(lost)
    damage(lost / newest / file)
    code, told = run_repair(lost, capsys)
    assert code == 1, "LATEST says that the newest was committed"
    first, *others = told["manifests"]
    assert (first["attempt"], first["written"]) == (newest, False)
    assert re.search(why, first["why"]), first
    assert [(one["attempt"], one["written"]) for one in others] == [(name, True) for name in older]
    assert [one["attempt"] for one in told["lost"]] == [newest]
    assert not (lost / newest / "MANIFEST.json").exists()
    assert selection.newest_valid(str(lost)).checkpoint_id == older[0]


def test_a_shard_of_another_attempt_is_not_taken(lost: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest, older, _ = names(lost)
    shutil.copy(lost / older / SHARD, lost / newest / SHARD)
    code, told = run_repair(lost, capsys)
    assert code == 1 and f"{SHARD} says seq" in told["manifests"][0]["why"]


def test_a_shard_of_another_run_is_not_taken(lost: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    saved(other)
    theirs = next(name for name in names(other) if name.startswith(names(lost)[0][:29]))
    shutil.copy(other / theirs / SHARD, lost / names(lost)[0] / SHARD)
    code, told = run_repair(lost, capsys)
    assert code == 1 and f"{SHARD} says run" in told["manifests"][0]["why"]


def test_a_save_that_may_be_under_way_is_left_alone(lost: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing says that the newest was committed, and no later start has begun; those before it have later saves."""
    (lost / "LATEST").unlink()
    newest, *older = names(lost)
    code, report = run_repair(lost, capsys)
    assert (code, [one["attempt"] for one in report["manifests"] if one["written"]]) == (0, older)
    assert run_repair(lost, capsys)[1]["manifests"] == []
    commit.claim_epoch(str(lost), identity.read_or_infer_identity(str(lost)), above=0, job={})  # type: ignore[arg-type]
    code, report = run_repair(lost, capsys)
    assert (code, [one["attempt"] for one in report["manifests"] if one["written"]]) == (0, [newest])


def test_a_root_that_lost_run_json_too(lost: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = json.loads((lost / "RUN.json").read_bytes())["id"]
    (lost / "RUN.json").unlink()
    code, told = run_repair(lost, capsys)
    assert (code, told["written"], told["id"]) == (0, True, run_id)
    assert selection.newest_valid(str(lost)).step == 29


def test_nothing_but_a_name_is_left(lost: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest = names(lost)[0]
    for name in names(lost):
        shutil.rmtree(lost / name)
    code, told = run_repair(lost, capsys)
    assert (code, told["manifests"], [one["attempt"] for one in told["lost"]]) == (1, [], [newest])
    assert cli.run_command_raising_errors(["ls", str(lost)]) == 0
    out = capsys.readouterr().out
    assert f"{newest}: it was committed, as LATEST says, and all of it is gone" in out and "--fresh" in out
    assert cli.run_command_raising_errors(["repair", str(lost)]) == 1
    assert f"{newest}  LOST" in capsys.readouterr().out


def test_ls_says_of_each_what_is_lost(lost: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command_raising_errors(["ls", str(lost), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["attempt"] for one in told["lost"]] == names(lost)
    problems = [row["problem"] for row in told["attempts"]]
    assert problems[0] == "it was committed, as LATEST says, and its MANIFEST.json is gone"
    newest = names(lost)[0]
    assert problems[1:] == [f"it was committed, as {newest}/ says, and its MANIFEST.json is gone"] * 2
    with pytest.raises(NoValidCheckpoint):
        cli.run_command_raising_errors(["show", str(lost)])


def test_what_was_left_to_begin_anew_can_be_rebuilt_and_stays_left(
    lost: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh_start.record_root_fresh_start(str(lost), by="alice")
    code, told = run_repair(lost, capsys)
    assert (code, len(told["manifests"])) == (0, 3)
    with pytest.raises(NoCheckpoint):
        selection.newest_valid(str(lost))
    assert loading.load_state(lost, trained(1), checkpoint_id=names(lost)[0]).step == 29


def test_a_seal_is_passed_over_by_who_does_not_know_it(whole: Path) -> None:
    extra = (whole / names(whole)[0] / layout.EXTRA_FILE).read_bytes()
    sealed_text.require_intact_seal(extra, "extra.json")
    assert extra_state.parse_rank_tree_outside_shard(
        sealed_text.without_seal(extra), 0
    ) == extra_state.parse_rank_tree_outside_shard(extra, 0)
    for end in range(len(extra)):
        with pytest.raises(CheckpointError):
            sealed_text.require_intact_seal(extra[:end], "extra.json")


def test_a_commit_goes_on_where_an_agent_of_another_release_died(tmp_path: Path, whole: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(whole, root)
    store = open_store(str(root))
    name = names(root)[0]
    body = verify.read_manifest(store, name)
    extra = (root / name / "extra.json").read_bytes()
    (root / name / "MANIFEST.json").unlink()
    (root / name / "extra.json").write_bytes(sealed_text.without_seal(extra))
    with pytest.raises(CheckpointError, match="does not prove itself"):
        repair.build_manifest_from_proved_files(store, name, identity.RunIdentity(body.run, body.run_id))
    commit.commit(store, name, body, extra, (root / name / "index.bin").read_bytes())
