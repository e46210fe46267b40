"""Somebody who listens to gloo, or speaks there, while a run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.agent_client import startup
from hyperpod_kit.checkpoint.ranks import wire_values
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.errors import CheckpointError

KEY = "00112233445566778899aabbccddeeff"


class Gloo(Ranks):
    """Rank 0 of two, of which the other says what `other` makes of what rank 0 said; `passed` is what went by."""

    def __init__(self, other: Any = lambda value: value) -> None:
        super().__init__(alone=True)
        self.world = 2
        self._other = other
        self.passed: list[bytes] = []

    def gather(self, value: Any) -> list[Any]:
        said = wire_values.pack(value)
        heard = self._other(said)
        self.passed += [said, heard]
        return [wire_values.unpack(said, "rank 0"), wire_values.unpack(heard, "rank 1")]

    def handshake(self, value: Any) -> list[Any]:
        return self.gather(value)

    def broadcast(self, value: Any, source: int = 0) -> Any:
        return self.gather(value)[source]


def test_who_has_heard_all_of_gloo_does_not_have_the_token_of_a_job_s_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPK_ATTEMPT_KEY", KEY)
    ranks = Gloo()
    token = startup.agree_on_start_identity(ranks, tmp_path / "root", None, None).token
    assert len(token) == 64 and not [said for said in ranks.passed if token.encode() in said or KEY.encode() in said]


def test_ranks_of_which_not_all_have_the_key_still_have_one_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them was started by hand: their agents must find each other all the same."""
    monkeypatch.setenv("HPK_ATTEMPT_KEY", KEY)

    def without(said: bytes) -> bytes:
        value = wire_values.unpack(said, "rank 0")
        return wire_values.pack((*value[:-1], "")) if type(value) is tuple and len(value) == 5 else said

    for key in (KEY, ""):
        monkeypatch.setenv("HPK_ATTEMPT_KEY", key)
        ranks = Gloo(without)
        token = startup.agree_on_start_identity(ranks, tmp_path / "root", None, None).token
        assert [said for said in ranks.passed if token.encode() in said]


def test_agents_of_several_releases_are_not_started_together(tmp_path: Path) -> None:
    def older(said: bytes) -> bytes:
        value = wire_values.unpack(said, "rank 0")
        return (
            wire_values.pack((*value[:3], "hpk-agents/1", value[4]))
            if type(value) is tuple and len(value) == 5
            else said
        )

    with pytest.raises(CheckpointError, match="different releases"):
        startup.agree_on_start_identity(Gloo(older), tmp_path / "root", None, None)


def test_a_rank_of_the_release_before_is_named_instead_of_waited_for(tmp_path: Path) -> None:
    import pickle

    with pytest.raises(CheckpointError, match="rank 1 runs another release"):
        startup.agree_on_start_identity(
            Gloo(lambda said: b"\x40" + bytes(7) + pickle.dumps(("n2", ["xxh3"], None))), tmp_path / "root", None, None
        )
