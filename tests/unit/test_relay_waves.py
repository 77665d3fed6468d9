"""Waves of the relay: each key's rows one after another, different keys together."""

from collections import Counter, defaultdict
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from messenger.records import Outgoing
from outbox.relay import Lane, Row, waves

lanes = st.tuples(st.sampled_from(["one", "two"]), st.sampled_from([None, b"", b"a", b"b", b"c"]))


def rows(found: list[Lane]) -> list[Row]:
    """Rows with these topics and keys, numbered in their order."""
    at = datetime(2026, 3, 1, tzinfo=UTC)
    return [Row(number, Outgoing(number, topic, key, b""), at, 0) for number, (topic, key) in enumerate(found)]


@given(found=st.lists(lanes, max_size=40))
def test_every_row_goes_out_once_and_a_key_keeps_its_order(found: list[Lane]) -> None:
    made = waves(batch := rows(found))
    assert Counter(row.id for wave in made for row in wave) == Counter(row.id for row in batch)
    places: dict[Lane, list[tuple[int, int]]] = defaultdict(list)
    for number, wave in enumerate(made):
        for row in wave:
            if row.outgoing.key is not None:
                places[row.lane].append((number, row.id))
    for lane in places.values():
        assert [number for number, _ in lane] == list(range(len(lane)))
        assert [row_id for _, row_id in lane] == sorted(row_id for _, row_id in lane)


@given(found=st.lists(lanes, max_size=40))
def test_a_wave_holds_its_rows_in_order_and_none_is_empty(found: list[Lane]) -> None:
    for wave in waves(rows(found)):
        assert wave
        assert [row.id for row in wave] == sorted(row.id for row in wave)


def test_rows_without_a_key_wait_for_nobody() -> None:
    """Kafka gives records without a key no order among each other."""
    assert [len(wave) for wave in waves(rows([("one", None)] * 5))] == [5]


def test_an_empty_key_is_a_key() -> None:
    assert [len(wave) for wave in waves(rows([("one", b"")] * 3))] == [1, 1, 1]


def test_the_same_key_of_two_topics_is_two_orders() -> None:
    assert [len(wave) for wave in waves(rows([("one", b"a"), ("two", b"a")]))] == [2]
