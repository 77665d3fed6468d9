"""Lengths of time in words, for people who look at a page in a hurry."""

from datetime import timedelta

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_WHOLE_DAYS_FROM = 14


def in_words(length: timedelta) -> str:
    """`length` to a useful precision: `45 s`, `3 min`, `2 h 5 min`, `3 d 4 h`, `20 d`. Below zero counts as `0 s`."""
    seconds = max(0, int(length.total_seconds()))
    if seconds < _MINUTE:
        return f"{seconds} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE} min"
    if seconds < _DAY:
        return _two(seconds // _HOUR, "h", seconds % _HOUR // _MINUTE, "min")
    days = seconds // _DAY
    return _two(days, "d", seconds % _DAY // _HOUR if days < _WHOLE_DAYS_FROM else 0, "h")


def _two(larger: int, larger_unit: str, smaller: int, smaller_unit: str) -> str:
    return f"{larger} {larger_unit}" + (f" {smaller} {smaller_unit}" if smaller else "")
