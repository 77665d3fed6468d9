"""Writing: an idempotent producer with a report for every record."""

from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from django.conf import settings

from messenger.faults import InfrastructureFault, MessengerError
from messenger.kafka.client import TOPIC_FAULTS, connection_settings, set_up
from messenger.logs import get_logger
from messenger.records import Outgoing

log = get_logger(__name__)

# Faults of this one record; everything else is the broker's or the network's, and passes.
_RECORD_FAULTS = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
        KafkaError._INVALID_ARG,
        KafkaError._BAD_MSG,
    }
)


class RecordProducer:
    """An idempotent producer whose caller gets every delivery report."""

    def __init__(self) -> None:
        self._config = connection_settings() | {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "message.timeout.ms": round(settings.OUTBOX_DELIVERY_TIMEOUT * 1000),
            # Whether a record is too large is the broker's word, not this client's.
            "message.max.bytes": 100_000_000,
        }
        self._producer = set_up(Producer, self._config)
        self._broken = False

    def publish(self, records: Sequence[Outgoing], *, stopping: Callable[[], bool]) -> dict[int, Exception | None]:
        """Publish in order and wait for every report: None for a delivered record, else its fault.

        Faults are `RecordRefused` (this record will never do), `TopicRefused` (nothing for its topic will, for
        now) and `InfrastructureFault` (the broker is away). Ends early, with InfrastructureFault for what is
        not reported, when `stopping()`, asked ten times a second, turns true.
        """
        reports = self._send(records, stopping)
        refused = [record for record in records if isinstance(reports[record.reference], RecordRefused)]
        if len(records) > 1:
            # Records travel in batches, and the broker refuses a batch whole: only alone each gets its own verdict.
            for record in refused:
                reports |= self._send([record], stopping)
        return reports

    def _send(self, records: Sequence[Outgoing], stopping: Callable[[], bool]) -> dict[int, Exception | None]:
        reports: dict[int, Exception | None] = {}
        for record in records:
            self._produce(record, reports)
        while len(reports) < len(records) and not stopping():
            self._producer.poll(0.1)
        if len(reports) < len(records):
            self._producer.purge()
            self._producer.poll(0)
            for record in records:
                reports.setdefault(record.reference, InfrastructureFault("Kafka gave no report in time."))
        if self._broken:
            # Only a new producer gets out of this state; what was not reported is published again.
            self._producer = set_up(Producer, self._config)
            self._broken = False
        return reports

    def _produce(self, record: Outgoing, reports: dict[int, Exception | None]) -> None:
        def report(error: KafkaError | None, message: Message) -> None:
            reports[record.reference] = None if error is None else self._fault(error, record.topic)

        while True:
            try:
                self._producer.produce(
                    record.topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    on_delivery=report,
                )
            except BufferError:
                self._producer.poll(0.1)  # the local queue is full: let reports make room
            except KafkaException as error:
                reports[record.reference] = self._fault(error.args[0], record.topic)
                return
            else:
                self._producer.poll(0)
                return

    def _fault(self, error: KafkaError, topic: str) -> Exception:
        self._broken = self._broken or error.fatal()
        if error.code() in _RECORD_FAULTS:
            return RecordRefused(f"Kafka refused the record: {error.name()}.")
        if error.code() in TOPIC_FAULTS:
            return TopicRefused(f"Topic {topic} cannot be written: {error.name()}.")
        return InfrastructureFault(f"Kafka is away: {error.name()}.")


class RecordRefused(MessengerError):
    """The broker will never take this record."""


class TopicRefused(MessengerError):
    """The topic does not exist or may not be written; a person has to mend that."""
