"""Tables of messages: to publish, already consumed, dead (design, section 3)."""

import uuid

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class OutboxMessage(models.Model):
    """A record to publish, written in the transaction it speaks of. Published in the order of `id` per key."""

    id = models.BigAutoField(primary_key=True)
    message_id = models.UUIDField(default=uuid.uuid4)
    topic = models.CharField(max_length=249)
    key = models.BinaryField(null=True)
    value = models.BinaryField(null=True)
    headers = models.JSONField(default=list)
    aggregate_type = models.CharField(max_length=64)
    aggregate_id = models.CharField(max_length=64)
    created_at = models.DateTimeField(db_default=Now())
    published_at = models.DateTimeField(null=True)
    attempts = models.IntegerField(db_default=0)
    last_error = models.CharField(max_length=512, null=True)  # noqa: DJ001 (null: never failed)
    parked_at = models.DateTimeField(null=True)

    class Meta:
        db_table = '"messenger"."outbox_messages"'
        constraints = [
            models.UniqueConstraint(fields=["message_id"], name="ux_outbox_message_id"),
            models.CheckConstraint(condition=Q(attempts__gte=0), name="ck_outbox_attempts"),
        ]
        indexes = [
            models.Index(fields=["id"], name="ix_outbox_unpublished", condition=Q(published_at=None)),
            models.Index(
                fields=["topic", "key"],
                name="ix_outbox_parked",
                condition=Q(published_at=None, parked_at__isnull=False),
            ),
            models.Index(fields=["published_at"], name="ix_outbox_published_at"),
            models.Index(fields=["aggregate_id"], name="ix_outbox_aggregate"),
        ]
        permissions = [("publish_again_outboxmessage", "Can publish parked outbox messages again")]

    def __str__(self) -> str:
        return f"{self.topic} #{self.id}"


class ProcessedMessage(models.Model):
    """A message whose effect is committed; written in the transaction of the effect."""

    key = models.CharField(primary_key=True, max_length=200)
    # SHA-256 of the record's value: a known MessageId with another body is a producer's mistake worth a flag.
    digest = models.BinaryField(null=True)
    processed_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = '"messenger"."processed_messages"'
        indexes = [models.Index(fields=["processed_at"], name="ix_processed_at")]

    def __str__(self) -> str:
        return self.key


class DeadLetter(models.Model):
    """A consumed record that can never be applied, kept byte for byte."""

    id = models.BigAutoField(primary_key=True)
    consumer_group = models.CharField(max_length=255)
    topic = models.CharField(max_length=249)
    partition = models.IntegerField()
    offset = models.BigIntegerField()
    key = models.BinaryField(null=True)
    value = models.BinaryField(null=True)
    headers = models.JSONField(default=list)
    error_code = models.CharField(max_length=64)
    error_detail = models.CharField(max_length=512)
    first_seen_at = models.DateTimeField(db_default=Now())
    resolved_at = models.DateTimeField(null=True)
    resolution = models.CharField(max_length=64, null=True)  # noqa: DJ001 (null: not resolved)
    resolved_by = models.CharField(max_length=150, null=True)  # noqa: DJ001 (null: not resolved)

    class Meta:
        db_table = '"messenger"."dead_letters"'
        constraints = [
            models.UniqueConstraint(
                fields=["consumer_group", "topic", "partition", "offset"], name="ux_dead_letters_source"
            ),
        ]
        indexes = [
            models.Index(
                fields=["consumer_group", "first_seen_at"],
                name="ix_dead_letters_open",
                condition=Q(resolved_at=None),
            ),
        ]
        permissions = [("resolve_deadletter", "Can resolve dead letters")]

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"
