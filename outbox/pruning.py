"""Retention: processed keys, published rows and resolved dead letters older than RETENTION_DAYS.

Nothing unsent, parked or unresolved is ever removed. Deleted in bounded steps, so that no lock is held long.
"""

from collections.abc import Iterator

from django.conf import settings

from messenger.database import unit_of_work

STEP = 5_000
"""Rows a transaction deletes at the most."""

# ARRAY(…) is worked out once; under IN the planner may run the bounded search again for each row it meets.
_PRUNE = {
    "processed_messages": """
DELETE FROM messenger.processed_messages WHERE key = ANY(ARRAY(
    SELECT key FROM messenger.processed_messages
     WHERE processed_at < now() - make_interval(days => %s) AND key NOT LIKE 'messenger-lead-ended:%%'
     LIMIT %s FOR UPDATE SKIP LOCKED))""",
    "outbox_messages": """
DELETE FROM messenger.outbox_messages WHERE id = ANY(ARRAY(
    SELECT id FROM messenger.outbox_messages
     WHERE published_at < now() - make_interval(days => %s) LIMIT %s FOR UPDATE SKIP LOCKED))""",
    "dead_letters": """
DELETE FROM messenger.dead_letters WHERE id = ANY(ARRAY(
    SELECT id FROM messenger.dead_letters
     WHERE resolved_at < now() - make_interval(days => %s) LIMIT %s FOR UPDATE SKIP LOCKED))""",
}


def prune(*, days: int) -> Iterator[tuple[str, int]]:
    """Delete what is older than `days`; yields (table, rows) after each committed step."""
    for table, statement in _PRUNE.items():
        deleted = STEP
        while deleted == STEP:
            with unit_of_work(
                lock_timeout=settings.CONSUMER_LOCK_TIMEOUT, statement_timeout=settings.CONSUMER_STATEMENT_TIMEOUT
            ) as cursor:
                cursor.execute(statement, [days, STEP])
                deleted = cursor.rowcount
            yield table, deleted
