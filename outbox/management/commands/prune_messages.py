"""`manage.py prune_messages`: retention of processed, published and resolved rows."""

from argparse import ArgumentParser
from collections import Counter
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, InterfaceError

from messenger.faults import describe
from outbox.pruning import prune


class Command(BaseCommand):
    """Deletes in small steps; may be run at any time, and again after a break."""

    help = "Delete processed keys, published outbox rows and resolved dead letters that are old enough."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--days", type=int, default=settings.RETENTION_DAYS, help="keep this many (default: %(default)s)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["days"] < 1:
            raise CommandError("--days must be 1 or more.")
        deleted: Counter[str] = Counter()
        try:
            for table, count in prune(days=options["days"]):
                deleted[table] += count
        except (DatabaseError, InterfaceError) as error:
            raise CommandError(f"PostgreSQL cannot be used now ({describe(error)}); run it again later.") from error
        for table, count in deleted.items():
            self.stdout.write(f"{table}: {count} deleted")
