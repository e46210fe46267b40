"""What two ranks saved under ZeRO through ZeroCheckpoints goes on in plain DeepSpeed, and on another number of ranks
out of DeepSpeed's universal checkpoint of it, with the same losses, bit for bit."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Dict, List, Tuple

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.convert.export_checkpoint import export
from hyperpod_kit.checkpoint.convert.import_checkpoint import import_checkpoint
from tests.support import warm
from tests.support.capabilities import require
from tests.support.content import contents
from tests.support.wait import until
from tests.unit.job import killed

HERE = Path(__file__).parent
SAVED, LAST = 4, 8


class Trainings:
    """Of zero_worlds.py, each in a folder of its own."""

    def __init__(self, base: Path, stage: int) -> None:
        self._base, self._stage = base, stage
        self._env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(killed.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "GLOO_SOCKET_IFNAME": "lo",
            "HPK_SHM_DIR": str(base / "shm"),
        }
        (base / "shm").mkdir()

    def run(self, name: str, ranks: int, last: int, **words: object) -> Tuple[int, str, Dict[int, str]]:
        """(exit status of the first rank that failed, what all printed, the loss of each step on every rank)."""
        folder = self._base / name
        folder.mkdir()
        given = [f"--{key}={value}" for key, value in {"ranks": ranks, "stage": self._stage, "last": last}.items()]
        given += [f"--{key}={value}" for key, value in words.items()]
        command = [str(HERE / "zero_worlds.py"), str(folder), *given]
        started = [self._program([*command, f"--rank={rank}"]) for rank in range(ranks)]
        with ThreadPoolExecutor(ranks) as pool:
            said = [pool.submit(one.stdout.read) for one in started]
            try:
                until(
                    lambda: any(one.poll() for one in started) or all(one.poll() == 0 for one in started),
                    400,
                    what="end of the training",
                )
            finally:
                for one in started:
                    one.kill()  # where its peer has failed it would wait for it
                    one.wait()
            text = "".join(one.result() for one in said)
        for one in started:
            one.stdout.close()
        failed = next((one.returncode for one in started if one.returncode), 0)
        losses = killed.losses(folder)
        first = losses.get("losses-0.txt", {})
        assert failed or all(one == first for one in losses.values())
        return failed, text, first

    def convert(self, source: Path, target: Path) -> None:
        """By DeepSpeed's own program."""
        words = ["-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state", "--num_extract_workers=1"]
        words += ["--num_merge_workers=1", f"--input_folder={source}", f"--output_folder={target}"]
        made = self._program(words)
        with made.stdout:
            said = made.stdout.read()
        assert made.wait() == 0, said

    def _program(self, words: List[str]) -> warm.Program:
        return warm.Program(words, self._env, imported=(*warm.TORCH, "deepspeed"), both=True)

    def done(self, name: str, ranks: int, last: int, **words: object) -> Dict[int, str]:
        failed, text, losses = self.run(name, ranks, last, **words)
        assert not failed, f"{name}: {failed}\n{text[-6000:]}"
        return losses


@pytest.mark.full
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_plain_deepspeed_goes_on_and_a_universal_checkpoint_on_other_numbers_of_ranks(
    tmp_path: Path, stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("deepspeed")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")  # for the one that imports it for all
    trainings, root, out = Trainings(tmp_path, stage), tmp_path / "root", tmp_path / "exported"
    calm = trainings.done("calm", 2, LAST)
    rest = {step: loss for step, loss in calm.items() if step > SAVED}
    assert trainings.done("saved", 2, SAVED, ours=root).items() <= calm.items()

    assert export(str(root), "deepspeed", out).step == SAVED
    assert trainings.done("plain", 2, LAST, plain=out) == rest

    trainings.convert(out / f"global_step{SAVED}", out / "universal")
    for ranks in (1, 4):
        failed, text, losses = trainings.run(f"refused-{ranks}", ranks, LAST, ours=root)
        assert failed and not losses
        assert f"the number of ranks was 2 at the save and is {ranks} now" in text, text
        assert f"export {root} --to deepspeed" in text, text
        assert trainings.done(f"universal-{ranks}", ranks, LAST, universal=out) == rest

    new = {"universal": out, "ours": tmp_path / "new-root"}
    begun = trainings.done("begun", 1, LAST - 2, **new)
    failed, text, ended = trainings.run("ended", 1, LAST, **new)
    assert not failed and f"restored {LAST - 2}" in text, text
    assert {**begun, **ended} == rest


@pytest.mark.full
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_plain_deepspeed_saved_goes_on_here_and_what_was_exported_comes_back(
    tmp_path: Path, stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("deepspeed")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    trainings, plain, root = Trainings(tmp_path, stage), tmp_path / "theirs", tmp_path / "root"
    calm = trainings.done("calm", 2, LAST)
    rest = {step: loss for step, loss in calm.items() if step > SAVED}
    trainings.done("plain", 2, SAVED, saved=plain)

    made = import_checkpoint(plain, "deepspeed", str(root))
    assert (made.step, made.ranks, made.unchecked) == (SAVED, 2, 0)
    failed, text, losses = trainings.run("ours", 2, LAST - 2, ours=root)
    assert not failed and f"restored {SAVED}" in text, text[-6000:]
    failed, text, ended = trainings.run("again", 2, LAST, ours=root)
    assert not failed and f"restored {LAST - 2}" in text, text[-6000:]
    assert {**losses, **ended} == rest

    # What ZeroCheckpoints has saved itself is, exported and imported, the same again: byte for byte, at the same place.
    out, back = tmp_path / "exported", tmp_path / "back"
    export(str(root), "deepspeed", out)
    assert import_checkpoint(out, "deepspeed", str(back)).step == LAST
    before, after = (
        {name: held for name, held in contents(one).items() if not {"words", "generators"} & {*name.split(".")}}
        for one in (root, back)
    )
    assert before == after and len(after) >= 12
