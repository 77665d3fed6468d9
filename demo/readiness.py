"""crm's view of its deals' chats: the readiness events, read back from Kafka; the last one of a deal wins."""

import json
from collections import Counter
from uuid import UUID

from confluent_kafka import Consumer, TopicPartition

from demo.background import Background
from messenger.kafka import connection_settings
from messenger.topics import DEAL_CHAT_STATUS_CHANGED

UNTOLD = "Provisioning"
"""What crm shows of a deal it has heard nothing of."""
_POLL_SECONDS = 0.25


class Readiness(Background):
    """Listens as long as the context lasts."""

    def __init__(self) -> None:
        super().__init__()
        self._status: dict[UUID, str] = {}

    def of(self, deal: UUID) -> str:
        """The status of a deal's chat, as crm knows it."""
        return self._status.get(deal, UNTOLD)

    @property
    def counts(self) -> Counter[str]:
        """How many deals were told what."""
        return Counter(dict(self._status).values())

    def run(self) -> None:
        consumer = Consumer(connection_settings() | {"group.id": "messenger-demo-crm", "auto.offset.reset": "earliest"})
        topic = DEAL_CHAT_STATUS_CHANGED
        consumer.assign([TopicPartition(topic.name, number, 0) for number in range(topic.partitions)])
        while not self.ending.is_set():
            message = consumer.poll(_POLL_SECONDS)
            value = message.value() if message is not None and message.error() is None else None
            if value is not None:
                payload = json.loads(value)["Payload"]
                self._status[UUID(payload["DealId"])] = payload["Status"]
        consumer.close()
