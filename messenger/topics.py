"""Every topic of the service: names, partitions, and the groups that read them (design, section 4)."""

from dataclasses import dataclass

from django.conf import settings

DLQ_SUFFIX = ".messenger.dlq"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic by its contract name; `name` carries the prefix of this installation."""

    contract: str
    partitions: int = 3
    group: str | None = None
    """The consumer group of this service that reads it; None for an outgoing topic."""

    @property
    def name(self) -> str:
        """The topic's name on this installation's broker."""
        return f"{settings.KAFKA_TOPIC_PREFIX}{self.contract}"

    @property
    def dlq(self) -> str:
        """Where records of this topic go that can never be applied."""
        return dead_letter_topic(self.name)


def dead_letter_topic(source: str) -> str:
    """The dead letter topic of the topic named `source` on the broker."""
    return f"{source}{DLQ_SUFFIX}"


LEAD_CREATED = Topic("pin.crm.lead-created.v1", group="messenger-lead-created")
LEAD_PARTICIPANTS_CHANGED = Topic("pin.crm.lead-participants-changed.v1", group="messenger-lead-participants-changed")
LEAD_TERMINATED = Topic("pin.crm.lead-terminated.v1", group="messenger-lead-terminated")
DEAL_CREATED = Topic("pin.crm.deal-created.v1", group="messenger-deal-created")
DEAL_MEMBERS_CHANGED = Topic("pin.crm.deal-members-changed.v1", group="messenger-deal-members-changed")
USER_CHANGED = Topic("pin.crm.user-changed.v1", group="messenger-user-changed")
DEAL_CHAT_STATUS_CHANGED = Topic("pin.messenger.deal-chat-status-changed.v1")

CONSUMED = (
    LEAD_CREATED,
    LEAD_PARTICIPANTS_CHANGED,
    LEAD_TERMINATED,
    DEAL_CREATED,
    DEAL_MEMBERS_CHANGED,
    USER_CHANGED,
)
PUBLISHED = (DEAL_CHAT_STATUS_CHANGED,)
