"""The tables as design section 3 fixes them: names, widths, constraints, enumerations."""

import re
from typing import Any

import pytest
from django.db import IntegrityError, connection, models
from django.utils import timezone

from chats.models import Chat, ChatEvent, ChatKind, ChatStatus, MessengerUser, ParkedRoster, Participant
from chats.roster import FactType, Role
from outbox.models import DeadLetter, OutboxMessage, ProcessedMessage
from provisioning.models import DealChatProvision, DealChatProvisionMember, ProvisionStatus
from tests.integration.conftest import OWN_TABLES
from tests.support import crm
from tests.support.factories import ChatEventFactory, DealChatFactory, LeadChatFactory, ParticipantFactory

pytestmark = [pytest.mark.usefixtures("tables"), OWN_TABLES]

TEXT, WHEN, BYTES = "character varying({})", "timestamp with time zone", "bytea"
COLUMNS: dict[str, dict[str, str]] = {
    "chats": {
        "id": "uuid",
        "kind": TEXT.format(16),
        "status": TEXT.format(16),
        "title": TEXT.format(256),
        "deal_id": "uuid null",
        "lead_id": "uuid null",
        "project_id": "uuid null",
        "tenant_id": "uuid null",
        "lead_member_version": "bigint null",
        "deal_member_version": "bigint null",
        "last_seq": "bigint = 0",
        "created_at": WHEN,
        "updated_at": WHEN,
        "closed_at": f"{WHEN} null",
    },
    "participants": {
        "id": "uuid",
        "chat_id": "uuid",
        "user_id": "uuid",
        "role": TEXT.format(32),
        "role_raw": f"{TEXT.format(64)} null",
        "joined_at": WHEN,
        "removed_at": f"{WHEN} null",
    },
    "chat_events": {
        "id": "bigint identity",
        "chat_id": "uuid",
        "seq": "bigint",
        "type": TEXT.format(32),
        "user_id": "uuid null",
        "role": f"{TEXT.format(32)} null",
        "previous_role": f"{TEXT.format(32)} null",
        "occurred_at": WHEN,
        "created_at": WHEN,
    },
    "deal_chat_provisions": {
        "id": "uuid",
        "deal_id": "uuid",
        "chat_id": "uuid null",
        "title": TEXT.format(256),
        "project_id": "uuid null",
        "deal_tenant_id": "uuid null",
        "status": f"{TEXT.format(16)} = 'Provisioning'",
        "attempts": "integer = 0",
        "next_attempt_at": WHEN,
        "last_error": f"{TEXT.format(512)} null",
        "created_at": WHEN,
        "updated_at": WHEN,
        "row_version": "integer = 0",
    },
    "outbox_messages": {
        "id": "bigint identity",
        "message_id": "uuid",
        "key": f"{BYTES} null",
        "value": f"{BYTES} null",
        "headers": "jsonb",
        "published_at": f"{WHEN} null",
        "attempts": "integer = 0",
        "parked_at": f"{WHEN} null",
    },
    "processed_messages": {"key": TEXT.format(200), "processed_at": WHEN},
    "dead_letters": {
        "partition": "integer",
        "offset": "bigint",
        "key": f"{BYTES} null",
        "value": f"{BYTES} null",
        "headers": "jsonb",
        "first_seen_at": WHEN,
        "resolved_at": f"{WHEN} null",
    },
    "parked_rosters": {
        "chat_kind": TEXT.format(16),
        "subject_id": "uuid",
        "version": "bigint",
        "value": BYTES,
        "attempts": "integer = 0",
        "next_attempt_at": WHEN,
        "first_seen_at": WHEN,
    },
}
UNIQUE = {
    "ux_chats_deal_id": ("chats", "(deal_id) WHERE (NOT (deal_id IS NULL))"),
    "ux_chats_lead_id": ("chats", "(lead_id) WHERE (NOT (lead_id IS NULL))"),
    "ux_participants_chat_user": ("participants", "(chat_id, user_id)"),
    "ux_chat_events_chat_seq": ("chat_events", "(chat_id, seq)"),
    "ux_dcp_deal": ("deal_chat_provisions", "(deal_id)"),
    "ux_dcpm_provision_user": ("deal_chat_provision_members", "(provision_id, user_id)"),
    "ux_outbox_message_id": ("outbox_messages", "(message_id)"),
    "ux_dead_letters_source": ("dead_letters", '(consumer_group, topic, partition, "offset")'),
}
INDEXES = {
    "ix_dcp_due": ("deal_chat_provisions", "(status, next_attempt_at)"),
    "ix_dcp_tenant": ("deal_chat_provisions", "(deal_tenant_id)"),
    "ix_outbox_unpublished": ("outbox_messages", "(id) WHERE (published_at IS NULL)"),
}
PRIMARY_KEYS = {
    "processed_messages": ["key"],
    "parked_rosters": ["chat_kind", "subject_id"],
    "messenger_users": ["id"],
}
ENUMERATIONS = {
    "ck_chats_status": set(ChatStatus.values),
    "ck_chats_kind": set(ChatKind.values),
    "ck_participants_role": {role.value for role in Role},
    "ck_chat_events_type": {kind.value for kind in FactType},
    "ck_dcp_status": set(ProvisionStatus.values),
}
MODELS: tuple[type[models.Model], ...] = (
    *(Chat, Participant, ChatEvent, ParkedRoster, MessengerUser),
    *(OutboxMessage, ProcessedMessage, DeadLetter, DealChatProvision, DealChatProvisionMember),
)


def fetch(sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Rows of the test's database."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


def test_every_table_is_in_the_schema_messenger() -> None:
    found = {name for (name,) in fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'messenger'")}
    assert found >= {model._meta.db_table.split('"')[3] for model in MODELS}


@pytest.mark.parametrize("table", COLUMNS)
def test_columns_are_those_of_the_design(table: str) -> None:
    """Type, width, null or not, identity, and the default where it is a constant."""
    rows = fetch(
        """SELECT attname, format_type(atttypid, atttypmod), attnotnull, attidentity <> '', pg_get_expr(adbin, adrelid)
             FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
            WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped""",
        f"messenger.{table}",
    )
    found = {}
    for name, kind, not_null, identity, default in rows:
        constant = re.match(r"(\d+|'\w+')(::[\w ]+)?$", default or "")
        told = f" = {constant[1]}" if constant else ""
        found[name] = f"{kind}{'' if not_null else ' null'}{' identity' if identity else ''}{told}"
    assert {name: found.get(name) for name in COLUMNS[table]} == COLUMNS[table]


@pytest.mark.parametrize("name", [*UNIQUE, *INDEXES])
def test_indexes_are_those_of_the_design(name: str) -> None:
    """Names and columns are contracts: runbooks and other services rely on them."""
    table, what = (UNIQUE | INDEXES)[name]
    ((definition, unique),) = fetch(
        "SELECT pg_get_indexdef(indexrelid), indisunique FROM pg_index WHERE indexrelid = %s::regclass",
        f"messenger.{name}",
    )
    assert definition.endswith(f" ON messenger.{table} USING btree {what}")
    assert unique is (name in UNIQUE)


@pytest.mark.parametrize("table", PRIMARY_KEYS)
def test_primary_keys(table: str) -> None:
    rows = fetch(
        """SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey)
            WHERE indrelid = %s::regclass AND indisprimary ORDER BY array_position(indkey::int2[], attnum)""",
        f"messenger.{table}",
    )
    assert [name for (name,) in rows] == PRIMARY_KEYS[table]


def test_foreign_keys() -> None:
    """Participants and events belong to a chat, members to a provision; a provision's chat is a plain reference."""
    rows = fetch(
        """SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint
            WHERE contype = 'f' AND connamespace = 'messenger'::regnamespace"""
    )
    assert {tuple(re.sub(r"messenger\.| DEFERRABLE.*", "", text) for text in row) for row in rows} == {
        ("participants", "FOREIGN KEY (chat_id) REFERENCES chats(id)"),
        ("chat_events", "FOREIGN KEY (chat_id) REFERENCES chats(id)"),
        ("deal_chat_provision_members", "FOREIGN KEY (provision_id) REFERENCES deal_chat_provisions(id)"),
    }


@pytest.mark.parametrize("name", ENUMERATIONS)
def test_enumerations_of_the_code_are_those_of_the_database(name: str) -> None:
    ((definition,),) = fetch("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = %s", name)
    assert set(re.findall(r"'(\w+)'", definition)) == ENUMERATIONS[name]


def test_every_constraint_that_the_code_names_exists() -> None:
    found = {
        name
        for (name,) in fetch(
            "SELECT conname FROM pg_constraint WHERE connamespace = 'messenger'::regnamespace"
            " UNION SELECT indexrelid::regclass::text FROM pg_index"
            " UNION SELECT relname FROM pg_class WHERE relnamespace = 'messenger'::regnamespace AND relkind = 'i'"
        )
    }
    wanted = {each.name for model in MODELS for each in (*model._meta.constraints, *model._meta.indexes)}
    assert wanted <= found


ID = crm.new_id()


@pytest.mark.parametrize(
    ("constraint", "make"),
    [
        ("ck_chats_kind", lambda: LeadChatFactory.create(deal_id=ID)),
        ("ck_chats_kind", lambda: LeadChatFactory.create(lead_id=None)),
        ("ck_chats_kind", lambda: LeadChatFactory.create(deal_member_version=1)),
        ("ck_chats_kind", lambda: DealChatFactory.create(lead_id=ID)),
        ("ck_chats_kind", lambda: DealChatFactory.create(deal_id=None)),
        ("ck_chats_kind", lambda: DealChatFactory.create(lead_member_version=1)),
        ("ck_chats_kind", lambda: LeadChatFactory.create(kind="Room")),
        ("ck_chats_closed_at", lambda: LeadChatFactory.create(status="Closed")),
        ("ck_chats_closed_at", lambda: LeadChatFactory.create(closed_at=timezone.now())),
        ("ux_chats_lead_id", lambda: LeadChatFactory.create_batch(2, lead_id=ID)),
        ("ux_chats_deal_id", lambda: DealChatFactory.create_batch(2, deal_id=ID)),
        ("ck_participants_role", lambda: ParticipantFactory.create(role="Overseer")),
        (
            "ux_participants_chat_user",
            lambda: ParticipantFactory.create_batch(2, chat=LeadChatFactory.create(), user_id=ID),
        ),
        ("ck_chat_events_type", lambda: ChatEventFactory.create(type="Whatever")),
        ("ux_chat_events_chat_seq", lambda: ChatEventFactory.create_batch(2, chat=LeadChatFactory.create(), seq=1)),
        ("ck_dcp_attempts", lambda: DealChatProvision.objects.create(deal_id=ID, title="", attempts=-1)),
        ("ck_dcp_status", lambda: DealChatProvision.objects.create(deal_id=ID, title="", status="Asleep")),
    ],
)
def test_what_the_database_itself_refuses(constraint: str, make: Any) -> None:
    """INV-CHAT-2, INV-PART-1 and their like hold whoever writes."""
    with pytest.raises(IntegrityError, match=constraint):
        make()
