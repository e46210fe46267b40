"""torch.distributed.checkpoint's words over the engine: from memory, on other ranks, after damage, by torch."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.distributed import sharded_job  # noqa: E402
from tests.support.damage import flip  # noqa: E402

pytestmark = pytest.mark.distributed


class App:
    """Model and optimizer as torch's tutorial has them."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        weights, state = get_state_dict(self.model, self.optimizer)
        return {"model": weights, "optim": state}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        from torch.distributed.checkpoint.state_dict import set_state_dict

        set_state_dict(self.model, self.optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optim"])


class Place:
    """Where a rank's data goes on; a step after the save it is another."""

    def __init__(self, at: int = 0) -> None:
        self.at = at

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "seen": torch.tensor([int(os.environ["RANK"]), self.at])}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.at = saved["at"]
        assert saved["seen"].tolist()[1] == self.at


def save_and_die(root: str, saves: int) -> dict[str, str]:
    """Save after each step; the last stays in memory: rank 0's agent dies about to commit it."""
    from hyperpod_kit.checkpoint.adapters.dcp import Checkpoints
    from hyperpod_kit.errors import CheckpointError

    rank = int(os.environ["RANK"])
    if rank == 0:
        os.environ["HPK_FAILPOINT"] = f"agent.before_commit@{saves}"
    model, optimizer = sharded_job.build("fsdp2")
    dcp = Checkpoints(root, own=["data"])
    dcp.manager._agent.tries = 0  # an agent that dies stays away, as with its node
    place, note = Place(), {"step": -1, "why": [1, "x"]}
    state = {"app": App(model, optimizer), "data": place, "note": note}
    assert type(dcp.load(state)).__name__ == "Fresh"
    for number in range(1, saves):
        sharded_job.step(model, optimizer, number)
        place.at, note["step"] = 100 * rank + number, number
        assert dcp.async_save(state, checkpoint_id=f"{root}/step-{number}").result(60).checkpoint_id
    sharded_job.step(model, optimizer, saves)
    place.at, note["step"] = 100 * rank + saves, saves
    failed: BaseException | None = None
    try:
        later = dcp.async_save(state, step=saves)
        failed = later.exception(20) if rank == 0 else None
    except CheckpointError as err:  # the agent was dead before the save came back
        failed = err
    if rank == 0:
        dcp.manager._agent.wait_exit(20)
        assert not dcp.manager._agent.ended_cleanly
        assert "save of step 3 is failed" in str(failed) or "the checkpoint agent has ended" in str(failed)
    held = sharded_job.holds(model, optimizer)  # a collective: no other agent ends before
    if rank:
        os.kill(dcp.manager._agent.pid, signal.SIGKILL)
        dcp.manager._agent.wait_exit(10)
    return held


def come_back(root: str, kind: str, more: bool = False) -> dict[str, Any]:
    from hyperpod_kit.checkpoint.adapters.dcp import Checkpoints

    torch.manual_seed(99)
    model, optimizer = sharded_job.build(kind)
    place, note = Place(), {"step": -1, "why": []}
    state = {"app": App(model, optimizer), "data": place, "note": note}
    with Checkpoints(root, own=["data"]) as dcp:
        got = dcp.load(state)
        answer = {
            "step": note["step"],
            "why": note["why"],
            "same": state["note"] is note,
            "tier": getattr(got, "tier", ""),
            "at": place.at,
            "holds": sharded_job.holds(model, optimizer),
        }
        if more:
            sharded_job.step(model, optimizer, 9)
            dcp.save(state, step=9)
    return answer


def by_torch(root: str) -> dict[str, Any]:
    """What torch's own `load` makes of the same files, of a dict with less in it."""
    import torch.distributed.checkpoint as torch_dcp

    from hyperpod_kit.checkpoint.dcp.reader import Reader

    model, optimizer = sharded_job.build("plain")
    state: dict[str, Any] = {"app": App(model, optimizer).state_dict(), "note": {"step": 0}}
    torch_dcp.load(state, storage_reader=Reader(root))
    App(model, optimizer).load_state_dict(state["app"])
    return {"step": state["note"]["step"], "holds": sharded_job.holds(model, optimizer)}


def less(root: str) -> list[Any]:
    """The weights alone, and what cannot be."""
    from hyperpod_kit.checkpoint import load_state
    from hyperpod_kit.checkpoint.adapters.dcp import Checkpoints
    from hyperpod_kit.checkpoint.state_dict import StateDict
    from hyperpod_kit.errors import CheckpointError

    weights = {"app": {"model": {"last.weight": torch.zeros(3, sharded_job.WIDTH)}}}
    with Checkpoints(root) as dcp:
        dcp.load(weights)
    assert weights["app"]["model"]["last.weight"].abs().sum() > 0
    whole: dict[str, Any] = {"note": {}}
    load_state(root, StateDict(whole))
    said = [whole["note"]]
    for wrong in ({"note": {"step": 0, "new": {"x": 1}}}, {"note": {"step": torch.zeros(1)}}, {"app": {"none": 1}}):
        with pytest.raises(CheckpointError) as caught:
            load_state(root, StateDict(wrong))
        said.append(caught.value.message)
    with pytest.raises(ValueError, match="reserved"):
        StateDict({"save": 1})
    return said


@pytest.mark.full
def test_from_memory_on_other_ranks_after_damage_and_by_torch(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    held = sharded_job.run(tmp_path, 2, save_and_die, root, 3)
    back = sharded_job.run(tmp_path, 2, come_back, root, "fsdp2", True)
    for rank, answer in enumerate(back):
        assert answer["tier"] == "memory" and answer["step"] == 3 and answer["same"], answer
        assert answer["at"] == 100 * rank + 3 and answer["why"] == [1, "x"]
        assert answer["holds"] == held[0]
    # The step after it is the newest; damaged, the one from memory, by now on storage, is taken by three ranks.
    newest = max(Path(root).glob("seq-*"))
    flip(newest / "shard-00001.safetensors", 3000)
    other = sharded_job.run(tmp_path, 3, come_back, root, "fsdp2")
    assert [answer["step"] for answer in other] == [3, 3, 3]
    assert all(answer["holds"] == held[0] for answer in other)
    assert [answer["at"] for answer in other] == [3, 103, 3]  # a rank that did not save has rank 0's
    for path in Path(root).glob("seq-*"):
        if path == newest:
            (path / "MANIFEST.json").unlink()
    (found,) = sharded_job.run(tmp_path, 1, by_torch, root)
    assert found == {"step": 3, "holds": held[0]}
    (said,) = sharded_job.run(tmp_path, 1, less, root)
    assert said[0] == {"step": 3, "why": [1, "x"]}
    assert "has no note.new.x" in said[1] and "has no note.step" in said[2] and "has no app.none" in said[3]
