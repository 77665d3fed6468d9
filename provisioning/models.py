"""`deal_chat_provisions`, the reliability table of the retry job's source document, to the letter."""

import uuid

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from chats.models import ROLES


class ProvisionStatus(models.TextChoices):
    """Equal to Status of `deal-chat-status-changed` (source document: DealChatProvisionStatus)."""

    PROVISIONING = "Provisioning"
    READY = "Ready"
    FAILED = "Failed"


class DealChatProvision(models.Model):
    """The intent to provision one deal's chat (source document: DealChatProvisionEntry)."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    deal_id = models.UUIDField()
    # A plain reference: the row outlives a rolled back chat, and is written before there is one.
    chat_id = models.UUIDField(null=True)
    title = models.CharField(max_length=256)
    project_id = models.UUIDField(null=True)
    deal_tenant_id = models.UUIDField(null=True)
    status = models.CharField(max_length=16, choices=ProvisionStatus, db_default=ProvisionStatus.PROVISIONING.value)
    attempts = models.IntegerField(db_default=0)
    next_attempt_at = models.DateTimeField(db_default=Now())
    last_error = models.CharField(max_length=512, null=True)  # noqa: DJ001 (null: never failed)
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())
    row_version = models.IntegerField(db_default=0)

    class Meta:
        db_table = '"messenger"."deal_chat_provisions"'
        constraints = [
            models.UniqueConstraint(fields=["deal_id"], name="ux_dcp_deal"),
            models.CheckConstraint(condition=Q(attempts__gte=0), name="ck_dcp_attempts"),
            models.CheckConstraint(condition=Q(status__in=ProvisionStatus.values), name="ck_dcp_status"),
        ]
        indexes = [
            models.Index(fields=["status", "next_attempt_at"], name="ix_dcp_due"),
            models.Index(fields=["deal_tenant_id"], name="ix_dcp_tenant"),
        ]
        permissions = [("reenqueue_dealchatprovision", "Can re-enqueue deal chat provisions")]

    def __str__(self) -> str:
        return f"deal {self.deal_id}"


class DealChatProvisionMember(models.Model):
    """Someone of the deal's first roster (source document: DealChatProvisionMemberEntity)."""

    id = models.BigAutoField(primary_key=True)
    provision = models.ForeignKey(DealChatProvision, on_delete=models.CASCADE, related_name="members", db_index=False)
    user_id = models.UUIDField()
    role = models.CharField(max_length=32, choices=ROLES)
    role_raw = models.CharField(max_length=64, null=True)  # noqa: DJ001 (null: the role is a known one)

    class Meta:
        db_table = '"messenger"."deal_chat_provision_members"'
        constraints = [
            models.UniqueConstraint(fields=["provision", "user_id"], name="ux_dcpm_provision_user"),
        ]

    def __str__(self) -> str:
        return f"{self.user_id} as {self.role}"
