"""Lengths of time in words."""

from datetime import timedelta

import pytest

from messenger.ages import in_words


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (timedelta(seconds=-5), "0 s"),
        (timedelta(seconds=59.9), "59 s"),
        (timedelta(seconds=60), "1 min"),
        (timedelta(minutes=3, seconds=59), "3 min"),
        (timedelta(hours=1), "1 h"),
        (timedelta(hours=2, minutes=5), "2 h 5 min"),
        (timedelta(hours=23, minutes=59), "23 h 59 min"),
        (timedelta(days=3, hours=4), "3 d 4 h"),
        (timedelta(days=1, minutes=59), "1 d"),
        (timedelta(days=20, hours=4), "20 d"),
    ],
)
def test_a_length_is_told_in_its_two_largest_units(length: timedelta, words: str) -> None:
    assert in_words(length) == words
