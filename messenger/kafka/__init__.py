"""The one place that speaks to Kafka: consumer, producer, topics, over confluent-kafka."""

from messenger.kafka.client import KafkaRefused, connection_settings
from messenger.kafka.consumer import CLOSE_SECONDS, RecordConsumer
from messenger.kafka.producer import RecordProducer, RecordRefused, TopicRefused
from messenger.kafka.topics import create_topics, read_to_end

__all__ = [
    "CLOSE_SECONDS",
    "KafkaRefused",
    "RecordConsumer",
    "RecordProducer",
    "RecordRefused",
    "TopicRefused",
    "connection_settings",
    "create_topics",
    "read_to_end",
]
