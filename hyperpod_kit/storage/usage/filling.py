"""When a whole file system is alerted of: it is nearly full, or will be full soon."""

from __future__ import annotations

from hyperpod_kit.storage.alerts.alert import Alert
from hyperpod_kit.storage.usage.growth import Forecast
from hyperpod_kit.storage.usage.report import UsageReport
from hyperpod_kit.system.fullness import is_nearly_full
from hyperpod_kit.untrusted.text import counted

SOON, LATER = 14.0, 21.0
"""Days to the day when it is likely full, at which it is alerted of, and above which that is over."""


def alert_if_full_or_full_soon(report: UsageReport, forecast: Forecast | None, was_standing: bool) -> Alert | None:
    """Make the alert for the admins; `was_standing`: whether it stood at the last look.

    None while there is room, and for a bucket, which has no end.
    """
    if report.room is None or not report.room[0]:
        return None
    total, free = report.room
    share = 1 - free / total
    soon = is_full_soon(forecast, was_standing)
    if not is_nearly_full(share, was_standing) and not soon:
        return None
    when = ""
    if forecast is not None and soon:
        when = f" At the rate of the last weeks {describe_forecast(forecast)}."
    return Alert(
        report.root,
        f"the file system of {report.root} is {share:.0%} full",
        f"The file system of {report.root} is {share:.1%} full: {free:,} of {total:,} bytes are free.{when} To "
        f"see what fills it and what may be deleted: hyperpod-kit storage usage {report.root}",
    )


def is_full_soon(forecast: Forecast | None, was_standing: bool) -> bool:
    """Whether it is likely full within days."""
    if forecast is None or forecast.likely is None:
        return False
    limit = LATER if was_standing else SOON
    return forecast.likely < limit


def describe_forecast(forecast: Forecast) -> str:
    """Describe a forecast as a sentence's end: `it is full in 9 days (7 to 14)`."""
    if forecast.likely is None:
        if forecast.soonest is None:
            return "it does not fill"
        return f"it does not fill, or is full in {counted(forecast.soonest, 'day', spec=',.0f')} at the earliest"
    latest = "never"
    if forecast.latest is not None:
        latest = f"{forecast.latest:,.0f}"
    return f"it is full in {counted(forecast.likely, 'day', spec=',.0f')} ({forecast.soonest or 0:,.0f} to {latest})"
