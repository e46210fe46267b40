"""What a failure says about the checkpoint stays what it was, however it is worded and whoever hears of it."""

from __future__ import annotations

from typing import List, Optional, Union

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.dcp.reshard import error_as_reason
from hyperpod_kit.checkpoint.ranks import wire_values
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.ranks.reason import Reason, Verdict, first_reason_with_rank
from hyperpod_kit.checkpoint.restore.agreement import Agreement
from hyperpod_kit.checkpoint.restore.candidate_rejected import CandidateRejected
from hyperpod_kit.errors import CheckpointError, DigestMismatch, DigestUnavailable


def heard(reason: Optional[Reason]) -> Optional[Reason]:
    """What the other ranks hear of it."""
    found = wire_values.unpack(wire_values.pack(reason), "rank 1")
    assert found is None or isinstance(found, Reason)
    return found


def failing(err: BaseException) -> Optional[Reason]:
    def work() -> None:
        raise err

    return error_as_reason(work)


@pytest.mark.parametrize(
    ("err", "verdict"),
    [
        (DigestMismatch("rank-00000.safetensors", "a", "b"), Verdict.DAMAGED),
        (OSError(5, "Input/output error", "/x"), Verdict.UNREAD),
        (FileNotFoundError(2, "No such file", "/x/manifest.json"), Verdict.UNUSABLE),
        (CheckpointError("short"), Verdict.UNUSABLE),
        (MemoryError(), Verdict.UNFILLED),
        (ValueError("a defect"), Verdict.UNUSABLE),
    ],
)
def test_a_verdict_survives_being_formatted_and_sent_between_ranks(err: BaseException, verdict: Verdict) -> None:
    reason = failing(err)
    assert reason is not None and reason.verdict is verdict
    told = first_reason_with_rank([None, heard(reason), heard(Reason("later", Verdict.DAMAGED))])
    assert told is not None and told.verdict is verdict
    assert f"{told}" == str(told) == told.text == f"rank 1: {reason}"
    again = heard(told)
    assert again == told and again is not None and again.verdict is verdict


def test_words_alone_carry_no_verdict() -> None:
    assert not isinstance(f"{Reason('bytes', Verdict.DAMAGED)}", Reason)
    with pytest.raises(CheckpointError, match="sent an invalid message"):
        wire_values.unpack(wire_values.pack(Reason("x")).replace(b'"unusable"', b'"innocent"'), "rank 1")


@pytest.mark.parametrize("verdict", list(Verdict))
def test_all_ranks_settle_on_the_verdict_of_the_first_one(verdict: Verdict) -> None:
    everybody: List[Union[Reason, DigestUnavailable, None]] = [
        None,
        heard(Reason("it", verdict)),
        heard(Reason("more")),
    ]
    all_ranks = Agreement(Ranks(alone=True), "seq-000001")
    if verdict is Verdict.UNFILLED:
        with pytest.raises(CheckpointError, match="does not fit this state: rank 1: it"):
            all_ranks.raise_first_problem(everybody)
        return
    with pytest.raises(CandidateRejected, match=r"^rank 1: it$") as caught:
        all_ranks.raise_first_problem(everybody)
    assert caught.value.reason.verdict is verdict and caught.value.rank == 1


def test_what_a_rank_keeps_goes_to_nobody_and_what_it_tells_goes_to_all() -> None:
    all_ranks = Agreement(Ranks(alone=True), "seq-000001")
    kept = object()  # no value that could be told to another rank
    assert all_ranks.run_or_reject(lambda: kept) is kept and all_ranks.run_or_raise_misfit(lambda: kept) is kept
    assert all_ranks.run_and_gather_or_reject(lambda: (kept, 3)) == (kept, [3])
    assert all_ranks.run_and_gather_or_raise_misfit(lambda: (kept, 3)) == (kept, [3])
    with pytest.raises(DigestUnavailable):
        all_ranks.run_or_reject(lambda: failing(DigestUnavailable("xxh3", "no library")))
