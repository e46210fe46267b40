"""When a job counts as hung: from the steps of its ranks, with a clock that is passed in."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.errors import UsageError
from hyperpod_kit.job.step.hang import (
    NEVER,
    PATIENCE,
    HangWatch,
    KnownSilences,
    StallRule,
    Watched,
    describe_positions_of_ranks,
    furthest,
    rank_positions_for_report,
)
from hyperpod_kit.job.step.step_report import WINDOW, RankMeter, StepReport
from hyperpod_kit.job.step.step_supervision import StallWatch
from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.slurm.progress import RankState
from tests.support.clock import FakeClock

RULE = StallRule(10.0, 60.0)


def reports(*ranks: Tuple[Optional[int], Phase], slowest: float = 1.0, moved: int = 0) -> Dict[int, StepReport]:
    return {
        rank: StepReport(rank, f"n{rank + 1}", step, phase, moved, slowest) for rank, (step, phase) in enumerate(ranks)
    }


def silence(watch: HangWatch, now: Dict[int, StepReport], most: int = 10000) -> Optional[int]:
    """Seconds after which the silence counts as a hang, with a look a second; None when it never does."""
    watch.observe(1.0, now)
    for second in range(1, most):
        if watch.observe(1.0, now).watched is Watched.HANGS:
            return second
    return None


@pytest.mark.parametrize(
    ("phase", "slowest", "limit"),
    [
        (Phase.STEP, 1.0, 60),
        (Phase.STEP, 5.9, 60),
        (Phase.STEP, 6.1, 61),
        (Phase.STEP, 30.0, 300),
        (Phase.FIRST_STEPS, 1.0, 1440),
        (Phase.FIRST_STEPS, 200.0, 2000),
        (Phase.RESTORE, 0.0, 360),
        (Phase.SAVE, 1.0, 360),
        (Phase.SAVE, 100.0, 1000),
        (Phase.EVALUATION, 1.0, 2880),
        (Phase.CLOSE, 1.0, 360),
        (Phase.OVER, 1.0, None),
        (Phase.START, 0.0, None),
    ],
)
def test_each_phase_has_its_limit(phase: Phase, slowest: float, limit: Optional[int]) -> None:
    assert silence(HangWatch(RULE), reports((7, phase), (7, phase), slowest=slowest)) == limit


def test_the_rank_that_may_take_longest_decides_for_all() -> None:
    """The others wait for it in their next step."""
    assert silence(HangWatch(RULE), reports((7, Phase.STEP), (7, Phase.SAVE))) == 360
    assert silence(HangWatch(RULE), reports((7, Phase.OVER), (7, Phase.STEP))) == 60


@pytest.mark.parametrize(
    "after",
    [
        reports((8, Phase.STEP), (7, Phase.STEP)),
        reports((7, Phase.STEP), (8, Phase.STEP)),
        reports((7, Phase.SAVE), (7, Phase.STEP)),
        reports((7, Phase.STEP), (7, Phase.STEP), moved=1),
        reports((7, Phase.STEP), (7, Phase.OVER)),
        reports((3, Phase.STEP), (7, Phase.STEP)),
        reports((7, Phase.STEP), (7, Phase.STEP), (1, Phase.STEP)),
    ],
)
def test_any_rank_that_gets_on_is_progress(after: Dict[int, StepReport]) -> None:
    watch, before = HangWatch(RULE), reports((7, Phase.STEP), (7, Phase.STEP))
    assert silence(watch, before, 50) is None
    assert watch.observe(1.0, after).watched is Watched.MOVES
    assert silence(watch, after, 59) is None


def test_a_slower_slowest_step_alone_is_none() -> None:
    watch, before = HangWatch(RULE), reports((7, Phase.STEP))
    assert silence(watch, before, 50) is None
    assert watch.observe(1.0, reports((7, Phase.STEP), slowest=2.0)).watched is Watched.SILENT


def test_a_rank_that_stays_behind_is_no_hang_while_others_go_on() -> None:
    watch = HangWatch(RULE)
    for step in range(500):
        assert watch.observe(1.0, reports((step, Phase.STEP), (3, Phase.STEP))).watched is not Watched.HANGS
    assert silence(watch, reports((499, Phase.OVER), (3, Phase.STEP))) == 60


def test_a_restart_of_the_ranks_begins_anew() -> None:
    watch, now = HangWatch(RULE), reports((7, Phase.STEP))
    assert silence(watch, now, 59) is None
    watch.restart()
    assert silence(watch, now) == 60
    watch.reset_silence()
    assert watch.observe(1.0, now).watched is Watched.SILENT


def test_a_job_that_was_suspended_was_not_silent() -> None:
    """`job run` is stopped with its ranks: of an hour it has seen one look."""
    watch, now = HangWatch(RULE), reports((7, Phase.STEP))
    assert silence(watch, now, 40) is None
    assert watch.observe(3600.0, now).watched is Watched.SILENT
    assert silence(watch, now, 10) is None


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("auto", StallRule(10.0, 300.0, 0.0)),
        ("auto:20", StallRule(20.0, 300.0, 0.0)),
        ("auto:3:5", StallRule(3.0, 5.0, 0.0)),
        ("900", StallRule(0.0, 900.0, 900.0)),
        ("0.5", StallRule(0.0, 0.5, 0.5)),
        ("0", NEVER),
        ("0.0", NEVER),
        ("never", NEVER),
    ],
)
def test_how_a_limit_is_given(text: str, rule: StallRule) -> None:
    assert StallRule.parse(text) == rule


@pytest.mark.parametrize("text", ["", "on", "-1", "nan", "inf", "auto:", "auto:0.5", "auto:10:0", "auto:1:2:3", "9:9"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--stall is"):
        StallRule.parse(text)


def test_seconds_are_taken_as_they_are_and_never_is_never() -> None:
    assert silence(HangWatch(StallRule.parse("8")), reports((7, Phase.STEP), slowest=60.0)) == 8
    assert silence(HangWatch(NEVER), reports((7, Phase.STEP))) is None


def test_the_sentence_says_where_each_rank_is() -> None:
    same = reports(*[(1234, Phase.STEP)] * 16)
    assert describe_positions_of_ranks(same) == "all of 16 ranks at step 1234 in a step"
    odd = {**same, 3: StepReport(3, "n2", 1233, Phase.SAVE, 0, 1.0)}
    assert describe_positions_of_ranks(odd) == "15 of 16 ranks at step 1234 in a step, rank 3 on n2 at step 1233 saving"
    assert describe_positions_of_ranks(reports((None, Phase.RESTORE))) == "the rank at no step restoring"
    many = reports(*[(9, Phase.STEP)] * 20, *[(8, Phase.STEP)] * 12)
    assert (
        describe_positions_of_ranks(many).endswith("and 4 more")
        and describe_positions_of_ranks(many).count("rank 2") == 8
    )
    assert furthest(odd) == 1234 and furthest(reports((None, Phase.RESTORE))) is None
    assert rank_positions_for_report(odd)[0] == [3, "n2", 1233, "save"] and len(rank_positions_for_report(many, 5)) == 5


# --- learnt from the run --------------------------------------------------------------------------------------------


@dataclass
class Run:
    """A rank's steps on a clock, and its wrapper that looks now and then."""

    meter: RankMeter = field(default_factory=lambda: RankMeter(0, "n1"))
    step: int = 0
    report: Optional[StepReport] = None

    def of(self, durations: List[float], looks: List[float]) -> None:
        """Steps that take so long, with so many seconds from one look to the next (again and again)."""
        self.report = self.meter.next_report(0.0, RankState(self.step, 0, Phase.STEP, 0))
        ends, now = [], 0.0
        for duration in durations:
            now += duration
            ends.append(now)
        looked, turn = 0.0, 0
        while looked < now:
            gap = looks[turn % len(looks)]
            turn, looked = turn + 1, looked + gap
            self.step = sum(end <= looked for end in ends)
            self.report = self.meter.next_report(gap, RankState(self.step, 0, Phase.STEP, 0))


@given(
    st.lists(st.floats(0.01, 40.0), min_size=1, max_size=60),
    st.lists(st.floats(0.05, 3.0), min_size=1, max_size=7),
    st.floats(1.0, 30.0),
    st.floats(0.1, 300.0),
)
def test_the_limit_is_never_below_what_is_promised(
    durations: List[float], looks: List[float], factor: float, floor: float
) -> None:
    run = Run()
    run.of(durations, looks)
    assert run.report is not None and run.step == len(durations)
    verdict = HangWatch(StallRule(factor, floor)).observe(1.0, {0: run.report})
    assert verdict.limit >= floor
    assert verdict.limit >= factor * max(durations[-WINDOW:]) * (1 - 1e-6)


def test_only_the_last_steps_count() -> None:
    run = Run()
    run.of([1.0, 50.0, *[1.0] * (WINDOW - 1)], [0.5])
    assert run.report is not None and run.report.slowest >= 50
    run = Run()
    run.of([1.0, 50.0, *[1.0] * WINDOW], [0.5])
    assert run.report is not None and 1 <= run.report.slowest <= 2


def test_what_another_phase_takes_is_no_part_of_a_step() -> None:
    meter = RankMeter(0, "n1")
    report = meter.next_report(0.5, RankState(10, 0, Phase.STEP, 0))
    for _ in range(1000):
        report = meter.next_report(0.5, RankState(10, 0, Phase.EVALUATION, 0))
    report = meter.next_report(0.5, RankState(11, 0, Phase.STEP, 0))
    assert report.slowest <= 2


def test_the_first_steps_of_a_start_are_known_for_what_they_are() -> None:
    meter = RankMeter(0, "n1")
    phases = [
        meter.next_report(0.5, state).phase
        for state in (
            RankState(None, None, Phase.START, 0),
            RankState(None, None, Phase.RESTORE, 0),
            RankState(None, 100, Phase.STEP, 0),
            RankState(100, 100, Phase.STEP, 0),
            RankState(101, 100, Phase.STEP, 0),
            RankState(102, 100, Phase.STEP, 0),
            RankState(200, 100, Phase.STEP, 0),
            RankState(200, 100, Phase.RESTORE, 0),
            RankState(150, 150, Phase.STEP, 0),
        )
    ]
    first, step, restore = Phase.FIRST_STEPS, Phase.STEP, Phase.RESTORE
    assert phases == [Phase.START, restore, first, first, first, step, step, restore, first]


def test_every_phase_that_lasts_is_watched() -> None:
    assert set(Phase) - set(PATIENCE) == {Phase.START, Phase.OVER}


# --- what a job's silences teach ------------------------------------------------------------------------------------


class LongSilences:
    """A job that is silent for `seconds` after the steps `places`, and tells nobody why. A retry begins at step 0."""

    def __init__(self, places: Sequence[int], seconds: float) -> None:
        self.places, self.seconds = places, seconds
        self.ended: List[Optional[int]] = []
        self.limits: List[float] = []
        self._outlived: Dict[Phase, float] = {}

    def attempt(self, steps: int, look: float = 5.0) -> bool:
        """Whether it came to its end; else the watch has ended it."""
        watch = HangWatch(StallRule(), KnownSilences(Counter(self.ended), self._outlived))
        for step in range(0, steps, 100):
            now = reports((step, Phase.STEP), (step, Phase.STEP))
            silent = self.seconds if step in self.places else 1.0
            for _ in range(int(silent / look) + 1):
                verdict = watch.observe(look, now)
                if verdict.watched is Watched.HANGS:
                    self.ended.append(furthest(now))
                    self.limits.append(verdict.limit)
                    return False
        return True


@pytest.mark.parametrize(("minutes", "lost"), [(4, 0), (20, 1), (29, 1), (60, 2), (170, 2)])
def test_a_job_that_evaluates_and_does_not_tell_is_ended_at_its_first_evaluation_alone(minutes: int, lost: int) -> None:
    job = LongSilences(range(1000, 9000, 1000), minutes * 60.0)
    attempts = 1
    while not job.attempt(9000):
        attempts += 1
        assert attempts < 10, job.limits
    assert len(job.ended) == lost and set(job.ended) <= {1000}
    assert job.attempt(9000), "nor after another failure"


def test_a_job_that_hangs_wherever_it_is_started_is_ended_each_time() -> None:
    job = LongSilences([1000], 1e6)
    assert [job.attempt(9000) for _ in range(4)] == [False] * 4
    assert job.limits == [300.0, 1800.0, 10800.0, 10800.0]


def test_a_hang_elsewhere_is_found_as_soon_as_the_first_one() -> None:
    job = LongSilences([1000], 1e6)
    assert not job.attempt(9000)
    job.places = [2000]
    assert not job.attempt(9000) and job.limits == [300.0, 300.0]


# --- at its edge ----------------------------------------------------------------------------------------------------


class Watching(FakeClock):
    """A StallWatch with a clock, a log that grows, and storage that may be away."""

    def __init__(self, rule: StallRule, log: Path) -> None:
        super().__init__()
        self.serves, self.asked = True, 0
        self.log = log
        log.touch()
        self._fd = os.open(log, os.O_RDONLY)
        self.watch = StallWatch(rule, "/nowhere", self.answer, self._fd, clock=self)

    def __del__(self) -> None:
        os.close(self._fd)

    def answer(self) -> bool:
        self.asked += 1
        return self.serves

    def silence(self, now: Dict[int, StepReport], most: int = 2000, *, prints: bool = False) -> Optional[str]:
        """Why it is ended, and after how many seconds; None when it is not."""
        for second in range(1, most):
            self.now += 1
            if prints:
                self.log.write_text(self.log.read_text() + "still waiting\n")
            reason = self.watch.reason_to_end_step_or_empty(now)
            if reason:
                return f"{second}: {reason}"
        return None


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_output_is_no_progress_of_a_program_that_reports_steps(log: Path) -> None:
    watching = Watching(StallRule.parse("auto:10:60"), log)
    reason = watching.silence(reports((7, Phase.STEP)), prints=True)
    assert reason == "61: no step for 60 s (limit 60 s; the rank at step 7 in a step)"


def test_a_program_that_reports_no_steps_is_watched_by_its_output_where_that_was_asked_for(log: Path) -> None:
    assert Watching(StallRule(), log).silence({}) is None
    watching = Watching(StallRule.parse("20"), log)
    assert watching.silence({}, prints=True) is None
    assert watching.silence({}) == "20: no progress for 20 s"


def test_who_has_ceased_to_report_is_watched_by_output_again(log: Path) -> None:
    watching = Watching(StallRule.parse("20"), log)
    assert watching.silence(reports((7, Phase.STEP)), 15) is None
    assert watching.silence(reports((7, Phase.OVER))) == "61: no progress for 60 s"


def test_storage_that_is_away_is_no_hang(log: Path) -> None:
    watching = Watching(StallRule.parse("auto:10:60"), log)
    watching.serves = False
    assert watching.silence(reports((7, Phase.STEP)), 600) is None and 5 <= watching.asked <= 10
    watching.serves = True
    assert watching.silence(reports((7, Phase.STEP))) is not None


def test_never_means_that_nobody_looks(log: Path) -> None:
    assert (
        Watching(NEVER, log).watch.seconds_until_next_look is None
        and Watching(StallRule.parse("2"), log).watch.seconds_until_next_look == 0.5
    )
    assert Watching(StallRule(), log).watch.seconds_until_next_look == 1.0
