"""Sizes by day: growth and forecast against known truth, the file, ages, shares and cost."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.errors import Untrusted
from hyperpod_kit.storage.usage import filling, growth, history
from hyperpod_kit.storage.usage.growth import Forecast
from hyperpod_kit.storage.usage.history import HistoryError, UsageDay, UsageHistory
from hyperpod_kit.storage.usage.report import Total, UsageReport
from tests.unit.storage.usage.trees import count

DAY = 86400.0
BEGIN = 1.7e9
GIB = 2**30
ROOM = 100_000 * GIB


def day(number: float, used: float) -> UsageDay:
    at = BEGIN + number * DAY
    word = time.strftime("%Y-%m-%d", time.gmtime(at))
    return UsageDay(word, at, 1, int(used), int(used), ROOM, ROOM - int(used), {})


def report(root: str, used: int, users: dict[str, Total] | None = None) -> UsageReport:
    total = Total(1, used, used)
    return UsageReport(root, total, users or {}, {}, {}, {}, {"": total}, (ROOM, ROOM - used))


def test_the_rate_of_a_straight_line_is_exact_and_so_is_the_day_when_it_is_full() -> None:
    days = [day(number, (40_000 + 500 * number) * GIB) for number in range(30)]
    found = growth.fit_growth(days)
    assert found is not None and found.low == pytest.approx(found.high) == pytest.approx(500 * GIB)
    when = growth.forecast_days_until_full(found, (100_000 - 54_500) * GIB)
    assert when.likely == pytest.approx(91.0) and when.soonest == pytest.approx(91.0)
    assert filling.describe_forecast(when) == "it is full in 91 days (91 to 91)"


def test_the_true_rate_is_in_the_interval_four_times_out_of_five() -> None:
    draw = random.Random(37)
    inside = 0
    for _ in range(400):
        rate, noise = draw.uniform(-200, 800), draw.uniform(10, 3000)
        numbers = sorted(draw.sample(range(40), draw.randint(5, 30)))
        days = [day(number, max(0.0, 40_000 + rate * number + draw.gauss(0, noise)) * GIB) for number in numbers]
        found = growth.fit_growth(days)
        assert found is not None and found.low <= found.likely <= found.high
        inside += found.low <= rate * GIB <= found.high
    assert 0.75 <= inside / 400 <= 0.92


def test_one_odd_day_does_not_move_the_rate() -> None:
    days = [day(number, (40_000 + 100 * number) * GIB) for number in range(20)]
    days[11] = day(11, 95_000 * GIB)
    found = growth.fit_growth(days)
    assert found is not None and found.likely == pytest.approx(100 * GIB, rel=0.02)


def test_what_is_not_known_is_not_said() -> None:
    assert growth.fit_growth([]) is None and growth.fit_growth([day(0, 1), day(1, 2)]) is None
    # Three counts of one afternoon are no trend.
    assert growth.fit_growth([day(0, 1), day(0.2, 2), day(0.4, 3)]) is None
    shrinking = growth.fit_growth([day(number, (50 - number) * GIB) for number in range(5)])
    assert shrinking is not None
    never = growth.forecast_days_until_full(shrinking, GIB)
    assert never == Forecast(None, None, None) and filling.describe_forecast(never) == "it does not fill"


def test_an_alert_comes_days_before_it_is_full_and_goes_only_well_above() -> None:
    made = report("/fsx", 50_000 * GIB)
    for likely, stood, expected in ((30.0, False, False), (10.0, False, True), (18.0, True, True), (25.0, True, False)):
        assert (
            filling.alert_if_full_or_full_soon(made, Forecast(likely / 2, likely, None), stood) is not None
        ) is expected
    alert = filling.alert_if_full_or_full_soon(made, Forecast(7.0, 9.0, 14.0), False)
    assert alert is not None and "it is full in 9 days (7 to 14)" in alert.sentence
    assert filling.alert_if_full_or_full_soon(made, None, False) is None
    assert filling.alert_if_full_or_full_soon(report("/fsx", 85_000 * GIB), None, False) is not None


def test_a_day_has_one_row_and_the_oldest_go(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "history"
    for hour in range(0, 72, 6):
        kept = history.record_day(place, report("/fsx", hour), BEGIN + hour * 3600)
    assert [one.used for one in kept.days] == [0, 24, 48, 66] and history.read_history_or_empty(place) == kept
    assert os.stat(place).st_mode & 0o777 == 0o600
    many = UsageHistory("/fsx", tuple(day(number, number) for number in range(history.MAX_DAYS)))
    assert len(many.with_day(day(history.MAX_DAYS, 1)).days) == history.MAX_DAYS
    with pytest.raises(HistoryError, match="has sizes of /fsx, not of /other"):
        history.record_day(place, report("/other", 1), BEGIN)
    assert history.read_history_or_empty(place) == kept


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "{" * 5000, '{"format": "hpk-usage-history/2", "days": []}'),
        '{"format": "hpk-usage-history/1", "root": "/", "days": [{"day": "2023-11-14"}]}',
        '{"format": "hpk-usage-history/1", "root": "/", "days": [{"day": "x", "at": 1e400, "entries": 1, "size": 1,'
        ' "allocated": 1, "room": null, "free": null, "users": {}}]}',
        '{"format": "hpk-usage-history/1", "root": "/", "days": [{"day": "2023-11-14", "at": 1.7e9, "entries": -1,'
        ' "size": 1, "allocated": 1, "room": null, "free": null, "users": {}}]}',
    ],
)
def test_a_file_that_is_no_history_is_named_and_left(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "history"
    place.write_text(text)
    with pytest.raises(HistoryError, match="not a history of sizes"):
        history.read_history_or_empty(place)
    (tmp_path / "tree").mkdir()
    words = [str(tmp_path / "tree"), "--state", str(tmp_path / "state"), "--history", str(place)]
    assert run_command_line(["storage", "usage", *words]) == 0
    assert "was not recorded" in capsys.readouterr().err and place.read_text() == text


def test_a_history_is_read_under_a_limit_and_through_no_link(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(history.MAX_FILE_BYTES + 1)
    (tmp_path / "link").symlink_to(tmp_path / "large")
    for name in ("large", "link"):
        with pytest.raises(Untrusted):
            history.read_history_or_empty(tmp_path / name)


def test_growth_shares_and_cost_are_on_the_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree, place = tmp_path / "tree", tmp_path / "history"
    tree.mkdir()
    (tree / "data").write_bytes(os.urandom(3 << 20))
    now = time.time()
    for before in range(5, 0, -1):
        history.record_day(place, report(str(tree), (10 - before) * GIB), now - before * DAY)
    words = [str(tree), "--state", str(tmp_path / "state"), "--history", str(place), "--price", "100"]
    assert run_command_line(["storage", "usage", *words]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "four times out of five), over 5 days" in shown and "USD/MONTH" in shown and "100.0%" in shown
    assert run_command_line(["storage", "usage", *words, "--json"]) == 0
    (body,) = json.loads(capsys.readouterr().out)["roots"]
    assert body["history_days"] == 6 and body["growth"]["rows"] == 6 and "likely" in body["full_in_days"]
    assert body["total"]["usd_a_month"] == pytest.approx(body["total"]["allocated"] / 1e9 * 100)
    assert sum(one["share"] for one in body["users"].values()) == pytest.approx(1.0)


def test_files_have_the_age_of_their_last_write_and_read(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    now = time.time()
    for number, (written, read) in enumerate(((0, 0), (3, 0), (20, 10), (60, 60), (200, 2), (500, 400))):
        (tree / str(number)).write_bytes(b"x" * 5000)
        os.utime(tree / str(number), (now - read * DAY, now - written * DAY))
    found = count(tree, tmp_path / "state")
    ages = {(one.what, one.name): one.entries for one in found.ages}
    for name in ("over a year", "90 days to a year", "30 to 90 days", "7 to 30 days", "1 to 7 days", "less than a day"):
        assert ages["written", name] == 1
    assert ages["read", "over a year"] == 1 and ages["read", "less than a day"] == 2
    assert sum(one.allocated for one in found.ages if one.what == "written") == 6 * 8192
