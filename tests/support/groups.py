"""Consumer groups as the broker sees them: who is in, and who has which partitions."""

from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from messenger.topics import Topic
from tests.support.broker import COORDINATOR_NOT_YET, Broker
from tests.support.waiting import PATIENCE, wait_until


def members(broker: Broker, topic: Topic) -> list[set[int]]:
    """The partitions of `topic` each member of its group has; no members where there is no such group."""
    (found,) = wait_until(lambda: _described(broker, topic), what=f"the broker tells of {topic.group}")
    if found is None or found.state in (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD):
        return []
    name = broker.name(topic)
    return [
        {place.partition for place in member.assignment.topic_partitions if place.topic == name}
        for member in found.members
    ]


def _described(broker: Broker, topic: Topic) -> list[Any]:
    assert topic.group is not None
    (future,) = broker.admin.describe_consumer_groups([topic.group], request_timeout=10).values()
    try:
        return [future.result()]
    except KafkaException as error:
        if error.args[0].code() in COORDINATOR_NOT_YET:
            return []
        assert error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND, error
        return [None]


def be_quick(broker: Broker, topic: Topic, *, session: int = 3) -> None:
    """Have the broker rebalance the topic's group in moments and miss a killed member within `session` seconds."""
    wanted = {"consumer.session.timeout.ms": str(session * 1000), "consumer.heartbeat.interval.ms": "200"}
    changes = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in wanted.items()]
    group = ConfigResource(ResourceType.GROUP, str(topic.group), incremental_configs=changes)
    for future in broker.admin.incremental_alter_configs([group]).values():
        future.result()


def wait_for_members(broker: Broker, topic: Topic, count: int, *, seconds: float = PATIENCE) -> list[set[int]]:
    """Wait until `count` members share all partitions, none of them left out, and return who has which."""

    def shared() -> list[set[int]]:
        found = members(broker, topic)
        return found if len(found) == count and all(found) and sum(map(len, found)) == topic.partitions else []

    return wait_until(shared, seconds=seconds, what=f"{count} members of {topic.group} share its partitions")


def wait_until_left(broker: Broker, topic: Topic, *, seconds: float = PATIENCE) -> None:
    """Wait until the group has no member; one that left in good order is gone before its session would end."""
    wait_until(lambda: not members(broker, topic), seconds=seconds, what=f"{topic.group} has no members")


def has_offsets(broker: Broker, topic: Topic) -> bool:
    """Whether the group has a committed offset, be it 0, for every partition."""
    return all(offset >= 0 for offset, _ in broker.offsets(topic).values())
