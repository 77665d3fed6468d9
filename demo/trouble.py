"""Trouble on purpose: PostgreSQL refuses the chat of certain deals, until it is mended."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

from django.db import connection

from demo.crm.deliveries import Trouble
from provisioning.models import DealChatProvision
from provisioning.options import RetryOptions
from provisioning.standing import Standing, condition

PASSING_SECONDS = 2.5
"""A passing trouble lasts at least this long."""

_SET_UP = """
CREATE SCHEMA IF NOT EXISTS demo;
CREATE TABLE IF NOT EXISTS demo.trouble (deal_id uuid PRIMARY KEY);
CREATE OR REPLACE FUNCTION demo.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM demo.trouble WHERE deal_id = NEW.deal_id) THEN
        RAISE check_violation USING MESSAGE = 'the demonstration refuses this chat', CONSTRAINT = 'demo_trouble';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER demo_trouble BEFORE INSERT ON messenger.chats FOR EACH ROW EXECUTE FUNCTION demo.refuse();
"""


@contextmanager
def trouble_possible() -> Iterator[None]:
    """The trigger that refuses, as long as the context lasts."""
    with connection.cursor() as cursor:
        cursor.execute(_SET_UP)
    try:
        yield
    finally:
        # Ctrl-C may have struck in the middle of a query, whose session is of no more use.
        connection.close()
        with connection.cursor() as cursor:
            # The table of the chats first, as those who make one take it before they ask of their trouble.
            cursor.execute("DROP TRIGGER demo_trouble ON messenger.chats; DROP SCHEMA demo CASCADE")


@dataclass
class Troubles:
    """The deals that are in trouble now, each with the kind and the time (monotonic seconds) it began."""

    options: RetryOptions
    _current: dict[UUID, tuple[Trouble, float]] = field(default_factory=dict)

    def strike(self, deal: UUID, trouble: Trouble) -> None:
        """From now on the chat of `deal` cannot be made."""
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO demo.trouble VALUES (%s) ON CONFLICT DO NOTHING", [deal])
        self._current[deal] = (trouble, time.monotonic())

    def mend(self, *, heeded: Callable[[UUID], bool]) -> None:
        """End what has lasted long enough: passing trouble by time, lasting trouble once the deal is poison.

        `heeded`: whether messenger took up all that there is of a deal; before that nothing of it is mended.
        """
        for deal, (trouble, began) in list(self._current.items()):
            over = time.monotonic() - began > PASSING_SECONDS if trouble is Trouble.PASSING else self._poison(deal)
            if over and heeded(deal):
                with connection.cursor() as cursor:
                    cursor.execute("DELETE FROM demo.trouble WHERE deal_id = %s", [deal])
                del self._current[deal]

    def _poison(self, deal: UUID) -> bool:
        return DealChatProvision.objects.filter(condition(Standing.POISON, self.options), deal_id=deal).exists()

    @property
    def over(self) -> bool:
        """Whether nothing is in trouble now."""
        return not self._current
