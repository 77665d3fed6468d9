"""`manage.py explain`: each thing that may not move is explained by what moves it."""

import io
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from chats.roster_consumer import LEADS, RosterWork
from messenger.topics import LEAD_PARTICIPANTS_CHANGED
from outbox.models import DeadLetter, OutboxMessage
from provisioning.models import DealChatProvision
from tests.support import crm

pytestmark = pytest.mark.usefixtures("tables")


def said(identifier: object) -> str:
    out = io.StringIO()
    call_command("explain", str(identifier), stdout=out)
    return out.getvalue()


def provision(**fields: object) -> DealChatProvision:
    row = DealChatProvision(**{"deal_id": uuid4(), "title": "Deal", "next_attempt_at": timezone.now(), **fields})
    row.save()
    return row


def test_a_poison_provision_names_the_command_that_moves_it() -> None:
    row = provision(status="Failed", attempts=10, last_error="CheckViolation 23514")
    for identifier in (row.id, row.deal_id):
        text = said(identifier)
        assert "CheckViolation 23514" in text
        assert f"reenqueue_provisions --deal {row.deal_id}" in text


def test_a_waiting_provision_tells_when_it_has_its_turn() -> None:
    row = provision(status="Failed", attempts=2, next_attempt_at=timezone.now() + timedelta(minutes=5))
    assert "2 of 10 attempts" in said(row.deal_id)
    assert "takes it up in 4 min" in said(row.deal_id)


def test_a_parked_roster_and_its_dead_letter_are_found_by_the_lead() -> None:
    lead = crm.new_id()
    list(RosterWork(LEADS).settle([crm.record(crm.lead_participants(lead, 7, {crm.new_id(): "Executor"}))]))
    assert "Roster version 7" in said(lead)
    assert "messenger-lead-created" in said(lead)
    bad = crm.record(crm.lead_participants(lead, 0, {crm.new_id(): "Executor"}))
    list(RosterWork(LEADS).settle([bad]))
    letter = DeadLetter.objects.get()
    assert "MSG_LEAD_PARTICIPANTS_INVALID" in said(lead)
    assert LEAD_PARTICIPANTS_CHANGED.contract in said(letter.id)


def test_an_outbox_row_names_the_parked_row_ahead_of_it() -> None:
    common = {"topic": "t", "key": b"k", "value": b"v", "aggregate_type": "Deal", "aggregate_id": "a"}
    first = OutboxMessage.objects.create(**common, parked_at=timezone.now(), attempts=5, last_error="too large")
    second = OutboxMessage.objects.create(**common)
    assert f"waits for row {first.id}" in said(second.id)
    assert "Publish again" in said(first.message_id)


@pytest.mark.parametrize("identifier", [UUID(int=5), 12345, "9" * 30, "x", "１２"])
def test_an_unknown_or_malformed_id_is_one_sentence(identifier: object) -> None:
    with pytest.raises(CommandError):
        said(identifier)
