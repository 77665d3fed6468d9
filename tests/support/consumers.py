"""The lead consumer as processes: start it, feed it, and wait for what it does."""

from collections.abc import Callable, Mapping

from confluent_kafka import KafkaException

from messenger.topics import LEAD_PARTICIPANTS_CHANGED
from tests.support import crm
from tests.support.broker import Broker
from tests.support.groups import wait_for_members
from tests.support.leads import version_of
from tests.support.waiting import wait_until
from tests.support.workers import Worker

TOPIC = LEAD_PARTICIPANTS_CHANGED
COMMAND = "consume_lead_participants"
LOCK_CHAT = "SELECT FROM messenger.chats WHERE lead_id = %s FOR UPDATE"

Start = Callable[..., Worker]


def send(broker: Broker, lead: str, version: int, roster: Mapping[str, str], *, partition: int = -1) -> tuple[int, int]:
    """Produce a roster; where it went (partition, offset)."""
    return resend(broker, crm.encode(crm.lead_participants(lead, version, roster)), lead, partition=partition)


def resend(broker: Broker, value: bytes, lead: str, *, partition: int = -1) -> tuple[int, int]:
    """Produce exactly these bytes; where they went (partition, offset)."""
    return broker.produce(TOPIC, value, key=lead, partition=partition)


def wait_applied(lead: str, version: int) -> None:
    """Wait until `version` is the one applied to the lead's chat."""
    wait_until(lambda: version_of(lead) == version, what=f"version {version} of {lead} is applied")


def wait_no_lag(broker: Broker) -> None:
    """Wait until the group has committed all there is, and the broker, which may just have started, says so."""

    def committed() -> bool:
        try:
            return broker.lag(TOPIC) == 0
        except KafkaException:
            return False

    wait_until(committed, what="all offsets are committed")


def two_partitions(broker: Broker) -> tuple[int, int]:
    """A partition of each of the two members."""
    one, other = wait_for_members(broker, TOPIC, 2)
    return min(one), min(other)
