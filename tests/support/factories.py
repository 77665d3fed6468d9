"""Rows as a test wants them, where it does not matter how they came to be."""

# mypy: disable-error-code="no-untyped-call"

import uuid

from django.utils import timezone
from factory.declarations import LazyFunction, Sequence, SubFactory
from factory.django import DjangoModelFactory

from chats.models import Chat, ChatEvent, ChatKind, Participant
from chats.roster import FactType, Role


class LeadChatFactory(DjangoModelFactory[Chat]):
    """An empty chat of a lead, with nothing in its feed."""

    class Meta:
        model = Chat

    kind = ChatKind.LEAD
    title = Sequence(lambda number: f"Lead {number}")
    lead_id = LazyFunction(uuid.uuid4)


class DealChatFactory(DjangoModelFactory[Chat]):
    """An empty chat of a deal, with nothing in its feed."""

    class Meta:
        model = Chat

    kind = ChatKind.DEAL
    title = Sequence(lambda number: f"Deal {number}")
    deal_id = LazyFunction(uuid.uuid4)


class ParticipantFactory(DjangoModelFactory[Participant]):
    """Somebody active in a chat of a lead; the chat's feed does not tell of it."""

    class Meta:
        model = Participant

    chat = SubFactory(LeadChatFactory)
    user_id = LazyFunction(uuid.uuid4)
    role = Role.EXECUTOR.value
    joined_at = LazyFunction(timezone.now)


class ChatEventFactory(DjangoModelFactory[ChatEvent]):
    """A line of a feed; the chat's `last_seq` does not know of it."""

    class Meta:
        model = ChatEvent

    chat = SubFactory(LeadChatFactory)
    seq = Sequence(lambda number: number + 1)
    type = FactType.PARTICIPANT_JOINED.value
    user_id = LazyFunction(uuid.uuid4)
    role = Role.EXECUTOR.value
    occurred_at = LazyFunction(timezone.now)
