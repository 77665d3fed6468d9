"""What a settled batch says of itself after its commit: log lines, metrics and spans, by the documents' names."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from prometheus_client import Counter, Histogram

from chats.contracts import Opening, Origin, Snapshot
from chats.models import ChatKind
from chats.reconciliation import Outcome, Settled
from messenger import metrics, tracing
from messenger.logs import get_logger
from messenger.records import Record

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Meters:
    """Metrics of one consumer that have names of their own beside those every consumer has."""

    duration: Histogram | None = None
    stale: Counter | None = None
    dlq: Counter | None = None
    contract_mismatch: Counter | None = None
    not_provisioned: Counter | None = None


LEAD_METERS = Meters(
    duration=metrics.LEAD_CONSUME_DURATION,
    stale=metrics.LEAD_STALE,
    dlq=metrics.LEAD_DLQ,
    contract_mismatch=metrics.LEAD_CONTRACT_MISMATCH,
    not_provisioned=metrics.LEAD_NOT_PROVISIONED,
)


@dataclass(frozen=True, slots=True)
class Reporter:
    """Reports for consumer `group`; `subject_field` is `lead_id` or `deal_id`."""

    group: str
    kind: ChatKind
    meters: Meters

    @property
    def subject_field(self) -> str:
        """The name of the subject in log lines."""
        return "lead_id" if self.kind is ChatKind.LEAD else "deal_id"

    def consumed(self, records: Sequence[Record], started: float) -> None:
        """A batch was committed."""
        milliseconds = (time.time() - started) * 1000
        if self.meters.duration:
            for _ in records:
                self.meters.duration.observe(milliseconds)
        if records:
            log.info("consumed", group=self.group, records=len(records), duration_ms=round(milliseconds, 1))

    def settled(self, each: Settled, started: float) -> None:
        """One snapshot was settled."""
        snapshot = each.snapshot
        fields = self.fields(snapshot.origin, snapshot.subject_id, each.chat_id) | {"version": snapshot.version}
        metrics.CONSUMED.labels(self.group, each.outcome.value).inc()
        self._warnings(each, fields)
        if each.outcome is Outcome.SYNCED and each.changes is not None:
            counts = {
                "added": len(each.changes.joined),
                "removed": len(each.changes.left),
                "role_changed": len(each.changes.reroled),
            }
            metrics.PARTICIPANTS_ADDED.inc(counts["added"])
            metrics.PARTICIPANTS_REMOVED.inc(counts["removed"])
            fields |= counts
        elif each.outcome is Outcome.STALE and self.meters.stale:
            self.meters.stale.inc()
        elif each.outcome is Outcome.PARKED and self.meters.not_provisioned:
            self.meters.not_provisioned.inc()
        log.info(each.outcome.value, **fields)
        self.span(snapshot.origin, each.outcome.value, snapshot.subject_id, started)

    def fields(self, origin: Origin, subject: UUID, chat: UUID | None) -> dict[str, object]:
        """The fields every log line of a message has."""
        named: dict[str, object] = {
            "message_id": str(origin.message_id),
            self.subject_field: str(subject),
            "chat_id": str(chat) if chat else None,
        }
        if origin.correlation_id:
            named["correlation_id"] = origin.correlation_id[:128]
        return named

    def mismatch(self, origin: Origin, fields: dict[str, object]) -> None:
        """Warn of another contract version; the record is applied (source document: warn-and-proceed)."""
        if origin.contract_mismatch:
            metrics.CONTRACT_MISMATCH.labels(self.group).inc()
            if self.meters.contract_mismatch:
                self.meters.contract_mismatch.inc()
            log.warning("contract_mismatch", **fields, contract_version=origin.contract_version)

    def id_reused(self, fields: dict[str, object]) -> None:
        """Warn of a known MessageId that came with another body; nothing of it is applied."""
        metrics.MESSAGE_ID_REUSED.labels(self.group).inc()
        log.warning("message_id_reused", **fields)

    def roster_warnings(self, roster: Opening | Snapshot, fields: dict[str, object]) -> None:
        """Warn of roles this service does not know, and of users named with different ones."""
        if roster.unknown_roles:
            log.warning("unknown_role", **fields, roles=roster.unknown_roles)
        if roster.ambiguous:
            log.warning("user_named_twice", **fields, users=roster.ambiguous)

    def span(self, origin: Origin, outcome: str, subject: UUID, started: float) -> None:
        """The span of one record of the batch that began at `started`."""
        tracing.record_span(
            origin.record,
            name=f"consume {origin.record.topic}",
            start=int(started * 1e9),
            end=time.time_ns(),
            attributes={
                "messaging.system": "kafka",
                "messaging.destination.name": origin.record.topic,
                "messaging.message.id": str(origin.message_id),
                "messaging.kafka.offset": origin.record.offset,
                f"messenger.{self.subject_field}": str(subject),
                "messenger.outcome": outcome,
            },
        )

    def _warnings(self, each: Settled, fields: dict[str, object]) -> None:
        snapshot: Snapshot = each.snapshot
        self.mismatch(snapshot.origin, fields)
        if each.reused_id:
            self.id_reused(fields)
        self.roster_warnings(snapshot, fields)
        if snapshot.unknown_changes:
            log.warning("unknown_change_type", **fields, entries=snapshot.unknown_changes)
