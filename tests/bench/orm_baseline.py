"""The yardstick of the benchmark: a consumer that does one ORM transaction an event, as one would first write it."""

from datetime import datetime
from uuid import UUID

from django.db import transaction

from chats.contracts import read_lead_participants
from chats.models import Chat, ChatEvent, Participant
from messenger.records import Record
from outbox.models import ProcessedMessage


def apply_one(record: Record) -> None:
    """Bring one chat to one snapshot."""
    snapshot = read_lead_participants(record)
    with transaction.atomic():
        if ProcessedMessage.objects.filter(key=snapshot.origin.key).exists():
            return
        chat = Chat.objects.select_for_update().get(lead_id=snapshot.subject_id)
        if chat.lead_member_version is not None and snapshot.version <= chat.lead_member_version:
            return
        known = {each.user_id: each for each in Participant.objects.filter(chat=chat)}
        for user, each in known.items():
            if each.removed_at is None and user not in snapshot.target:
                each.removed_at = snapshot.changed_at
                each.save()
                _note(chat, "ParticipantLeft", user, None, each.role, snapshot.changed_at)
        for user, seat in snapshot.target.items():
            if user not in known:
                Participant.objects.create(chat=chat, user_id=user, role=seat.role.value, joined_at=snapshot.changed_at)
                _note(chat, "ParticipantJoined", user, seat.role.value, None, snapshot.changed_at)
                continue
            each = known[user]
            if each.removed_at is not None:
                each.removed_at, each.role, each.joined_at = None, seat.role.value, snapshot.changed_at
                each.save()
                _note(chat, "ParticipantJoined", user, seat.role.value, None, snapshot.changed_at)
            elif each.role != seat.role.value:
                previous, each.role = each.role, seat.role.value
                each.save()
                _note(chat, "ParticipantRoleChanged", user, seat.role.value, previous, snapshot.changed_at)
        chat.lead_member_version = snapshot.version
        chat.save()
        ProcessedMessage.objects.create(key=snapshot.origin.key, digest=snapshot.origin.digest)


def _note(chat: Chat, kind: str, user: UUID, role: str | None, previous: str | None, at: datetime) -> None:
    chat.last_seq += 1
    ChatEvent.objects.create(
        chat=chat, seq=chat.last_seq, type=kind, user_id=user, role=role, previous_role=previous, occurred_at=at
    )
