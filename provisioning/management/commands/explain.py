"""`manage.py explain <id>`: why a provision, an outbox row, a dead letter or a lead is not moving."""

from argparse import ArgumentParser
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, InterfaceError

from messenger.faults import describe
from provisioning.explain import explain


class Command(BaseCommand):
    """Reads only; says in sentences what is known and what moves it."""

    help = "Say why a provision, an outbox row, a dead letter, a lead, a deal or a chat is not moving."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "id", help="a UUID (deal, lead, chat, provision, message) or a number (outbox, dead letter)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            said = list(explain(self._identifier(options["id"])))
        except (DatabaseError, InterfaceError) as error:
            raise CommandError(f"PostgreSQL cannot be used now ({describe(error)}); run it again.") from error
        if not said:
            raise CommandError(f"Nothing here has the id {options['id']}: it never came, or retention removed it.")
        for sentence in said:
            self.stdout.write(sentence)

    @staticmethod
    def _identifier(text: str) -> UUID | int:
        # A number past bigint names nothing; isdecimal alone would take it, and digits of other scripts.
        if text.isascii() and text.isdecimal() and len(text) < 19:
            return int(text)
        try:
            return UUID(text)
        except ValueError as error:
            raise CommandError(f"«{text}» is neither a UUID nor the number of a row.") from error
