"""A Kafka record as plain values: what every path (first delivery, parking, dead letter) passes on."""

from dataclasses import dataclass

Headers = tuple[tuple[str, bytes | None], ...]
"""Header names and values in their order; a name may repeat, a value may be None or any bytes."""

Partition = tuple[str, int]
"""Topic and partition number."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record as it came from a topic. `timestamp` is seconds since the epoch, None if the record has none."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: float | None = None

    @property
    def source(self) -> Partition:
        """Where the record came from."""
        return (self.topic, self.partition)

    def header(self, name: str) -> str | None:
        """The first value of header `name` as text; None if absent, empty of value, or not UTF-8."""
        for key, value in self.headers:
            if key == name and value is not None:
                try:
                    return value.decode("utf-8")
                except UnicodeDecodeError:
                    return None
        return None


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record to publish: `reference` is the caller's own name for it (an outbox id)."""

    reference: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
