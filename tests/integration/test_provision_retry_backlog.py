"""A whole city of deals failed at once: the backlog drains by itself once the cause is gone (runbook, first row)."""

import pytest
from django.db import connection

from chats.models import Chat, ChatEvent, Participant
from outbox.models import OutboxMessage
from provisioning.models import DealChatProvision
from tests.support import provisions

pytestmark = pytest.mark.usefixtures("tables")

ROWS = 10_000
_MANY = """
INSERT INTO messenger.deal_chat_provisions (id, deal_id, title, status, attempts, next_attempt_at)
SELECT gen_random_uuid(), gen_random_uuid(), 'Object ' || n, 'Failed', n %% 9, now() - make_interval(secs => n)
  FROM generate_series(1, %s) AS n
"""
_TWO_MEMBERS_EACH = """
INSERT INTO messenger.deal_chat_provision_members (provision_id, user_id, role)
SELECT id, gen_random_uuid(), role
  FROM messenger.deal_chat_provisions, unnest(ARRAY['Executor', 'InvestorPrimary']) AS role
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_failed_rows_are_drained() -> None:
    with connection.cursor() as cursor:
        cursor.execute(_MANY, [ROWS])
        cursor.execute(_TWO_MEMBERS_EACH)
    tallies = []
    while DealChatProvision.objects.exclude(status="Ready").exists():
        tallies.append(provisions.run())
        assert len(tallies) <= 10, tallies  # each of MaxRunDuration at the most
    assert sum(tally.provisioned for tally in tallies if tally) == ROWS
    assert Chat.objects.count() == OutboxMessage.objects.count() == ROWS
    assert OutboxMessage.objects.values("aggregate_id").distinct().count() == ROWS
    assert Participant.objects.count() == 2 * ROWS
    assert ChatEvent.objects.count() == 3 * ROWS
