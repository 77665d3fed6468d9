"""Chats, participants, the feed, and rosters that wait for their chat (design, section 3)."""

import uuid

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from chats.roster import FactType, Role


class ChatKind(models.TextChoices):
    """What a chat belongs to."""

    DEAL = "Deal"
    LEAD = "Lead"


class ChatStatus(models.TextChoices):
    """Whether a chat is in use."""

    ACTIVE = "Active"
    CLOSED = "Closed"


ROLES = [(role.value, role.value) for role in Role]
FACT_TYPES = [(kind.value, kind.value) for kind in FactType]


class Chat(models.Model):
    """The chat of one lead or one deal. Its row lock guards its roster, versions and feed numbers."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    kind = models.CharField(max_length=16, choices=ChatKind)
    status = models.CharField(max_length=16, choices=ChatStatus, default=ChatStatus.ACTIVE)
    title = models.CharField(max_length=256)
    deal_id = models.UUIDField(null=True)
    lead_id = models.UUIDField(null=True)
    project_id = models.UUIDField(null=True)
    tenant_id = models.UUIDField(null=True)
    lead_member_version = models.BigIntegerField(null=True)
    deal_member_version = models.BigIntegerField(null=True)
    last_seq = models.BigIntegerField(db_default=0)
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())
    closed_at = models.DateTimeField(null=True)

    class Meta:
        db_table = '"messenger"."chats"'
        constraints = [
            models.UniqueConstraint(fields=["deal_id"], name="ux_chats_deal_id", condition=~Q(deal_id=None)),
            models.UniqueConstraint(fields=["lead_id"], name="ux_chats_lead_id", condition=~Q(lead_id=None)),
            models.CheckConstraint(
                condition=Q(kind="Deal", deal_id__isnull=False, lead_id__isnull=True, lead_member_version__isnull=True)
                | Q(kind="Lead", lead_id__isnull=False, deal_id__isnull=True, deal_member_version__isnull=True),
                name="ck_chats_kind",
            ),
            models.CheckConstraint(condition=Q(status__in=ChatStatus.values), name="ck_chats_status"),
            models.CheckConstraint(
                condition=Q(status="Active", closed_at=None) | Q(status="Closed", closed_at__isnull=False),
                name="ck_chats_closed_at",
            ),
        ]
        indexes = [models.Index(fields=["-created_at"], name="ix_chats_created_at")]

    def __str__(self) -> str:
        return f"{self.kind} chat {self.id}"


class Participant(models.Model):
    """One user in one chat, for good: removal is `removed_at` (INV-PART-4), return revives the row (INV-PART-1)."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    chat = models.ForeignKey(Chat, on_delete=models.PROTECT, related_name="participants", db_index=False)
    user_id = models.UUIDField()
    role = models.CharField(max_length=32, choices=ROLES)
    role_raw = models.CharField(max_length=64, null=True)  # noqa: DJ001 (null: the role is a known one)
    joined_at = models.DateTimeField()
    removed_at = models.DateTimeField(null=True)

    class Meta:
        db_table = '"messenger"."participants"'
        constraints = [
            models.UniqueConstraint(fields=["chat", "user_id"], name="ux_participants_chat_user"),
            models.CheckConstraint(condition=Q(role__in=[role.value for role in Role]), name="ck_participants_role"),
        ]
        indexes = [
            # Former participations too: a stream that comes back has to hear of chats it lost.
            models.Index(fields=["user_id", "chat"], name="ix_participants_user"),
        ]

    def __str__(self) -> str:
        return f"{self.user_id} as {self.role}"


class ChatEvent(models.Model):
    """A fact in a chat's feed. `seq` counts from 1 without gaps, given out under the chat's row lock."""

    id = models.BigAutoField(primary_key=True)
    chat = models.ForeignKey(Chat, on_delete=models.PROTECT, related_name="events", db_index=False)
    seq = models.BigIntegerField()
    type = models.CharField(max_length=32, choices=FACT_TYPES)
    user_id = models.UUIDField(null=True)
    role = models.CharField(max_length=32, null=True, choices=ROLES)  # noqa: DJ001 (null: not a fact with a role)
    previous_role = models.CharField(max_length=32, null=True, choices=ROLES)  # noqa: DJ001 (likewise)
    occurred_at = models.DateTimeField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = '"messenger"."chat_events"'
        constraints = [
            models.UniqueConstraint(fields=["chat", "seq"], name="ux_chat_events_chat_seq"),
            models.CheckConstraint(condition=Q(type__in=[kind.value for kind in FactType]), name="ck_chat_events_type"),
        ]

    def __str__(self) -> str:
        return f"#{self.seq} {self.type}"


class ParkedRoster(models.Model):
    """The newest roster of a lead or deal whose chat does not exist yet, with the raw record it came in."""

    pk = models.CompositePrimaryKey("chat_kind", "subject_id")
    chat_kind = models.CharField(max_length=16, choices=ChatKind)
    subject_id = models.UUIDField()
    version = models.BigIntegerField()
    topic = models.CharField(max_length=249)
    partition = models.IntegerField()
    offset = models.BigIntegerField()
    key = models.BinaryField(null=True)
    value = models.BinaryField()
    headers = models.JSONField(default=list)
    attempts = models.IntegerField(db_default=0)
    next_attempt_at = models.DateTimeField()
    first_seen_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = '"messenger"."parked_rosters"'
        indexes = [models.Index(fields=["chat_kind", "next_attempt_at"], name="ix_parked_rosters_due")]

    def __str__(self) -> str:
        return f"{self.chat_kind} {self.subject_id} v{self.version}"


class WaitingRoster(models.Model):
    """`parked_rosters` as the admin reads it: Django's admin does not know composite keys yet."""

    subject_id = models.UUIDField(primary_key=True)
    chat_kind = models.CharField(max_length=16, choices=ChatKind)
    version = models.BigIntegerField()
    topic = models.CharField(max_length=249)
    partition = models.IntegerField()
    offset = models.BigIntegerField()
    attempts = models.IntegerField()
    next_attempt_at = models.DateTimeField()
    first_seen_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = '"messenger"."parked_rosters"'
        verbose_name = "parked roster"

    def __str__(self) -> str:
        return f"{self.chat_kind} {self.subject_id} v{self.version}"


class MessengerUser(models.Model):
    """Replica of a user of crm: the id and the name to show, no other personal data."""

    id = models.UUIDField(primary_key=True)
    display_name = models.CharField(max_length=256)
    updated_at = models.DateTimeField()

    class Meta:
        db_table = '"messenger"."messenger_users"'

    def __str__(self) -> str:
        return self.display_name
