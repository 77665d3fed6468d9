"""Backoff as a value: grows, stays within its cap, never fails (trial 21)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messenger.backoff import Backoff

positive = st.floats(0.001, 100_000)
attempts = st.one_of(st.integers(0, 2_000), st.sampled_from([0, 38, 47, 1024, 1_000_000]))
dice = st.floats(0, 1, exclude_max=True)


@st.composite
def backoffs(draw: st.DrawFn) -> Backoff:
    base = draw(positive)
    return Backoff(base, base * draw(st.floats(1, 1_000_000)), draw(st.floats(1, 10)), draw(st.floats(0, 1)))


@given(backoff=backoffs(), attempt=attempts, roll=dice)
def test_a_delay_is_above_zero_and_at_most_the_cap_with_its_jitter(backoff: Backoff, attempt: int, roll: float) -> None:
    assert 0 < backoff.delay(attempt, roll=roll) <= backoff.cap * (1 + backoff.jitter)


@given(backoff=backoffs(), attempt=attempts)
def test_a_later_try_never_waits_less(backoff: Backoff, attempt: int) -> None:
    now, then = backoff.delay(attempt, roll=0), backoff.delay(attempt + 1, roll=0)
    assert then >= now or math.isclose(then, now)


@pytest.mark.parametrize("attempt", [0, 38, 47, 1024, 1_000_000])
def test_trial_21_no_attempt_number_overflows(attempt: int) -> None:
    delay = Backoff(60, 900).delay(attempt)
    assert 60 <= delay <= 900 * 1.1


def test_infrastructure_waits_from_a_second_to_a_minute() -> None:
    """«Бесконечный backoff 1s→60s»."""
    backoff = Backoff(1, 60)
    assert [backoff.delay(attempt, roll=0) for attempt in range(9)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_factor_of_one_stays_at_its_base() -> None:
    assert {Backoff(5, 60, factor=1).delay(attempt, roll=0) for attempt in (0, 1, 1000)} == {5}


def test_jitter_spreads_delays_upwards_alone() -> None:
    backoff = Backoff(10, 60, jitter=0.5)
    assert backoff.delay(0, roll=0) == 10
    assert backoff.delay(0, roll=0.5) == 12.5
    thrown = [backoff.delay(0) for _ in range(50)]
    assert len(set(thrown)) > 1
    assert all(10 <= delay < 15 for delay in thrown)


def test_a_negative_attempt_is_the_first() -> None:
    assert Backoff(1, 60).delay(-1, roll=0) == 1
