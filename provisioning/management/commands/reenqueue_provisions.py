"""`manage.py reenqueue_provisions`: the admin's re-enqueue from a shell (runbook, poison rows)."""

from argparse import ArgumentParser
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, InterfaceError

from messenger.faults import describe
from provisioning.models import DealChatProvision
from provisioning.options import RetryOptions
from provisioning.reenqueue import Outcome, Verdict, reenqueue_all, reenqueue_these


class Command(BaseCommand):
    """Gives poison rows their attempts back, due now; every other row is left alone, and said so.

    Exit code 1, after one sentence, for an id that is none or unknown (nothing is changed then), and if a row was busy.
    """

    help = "Re-enqueue deal chat provisions that have used up their attempts."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("--deal", nargs="+", action="extend", metavar="ID", help="these deals; may be repeated")
        which.add_argument("--all-poison", action="store_true", help="every row that has used up its attempts")
        parser.add_argument("--dry-run", action="store_true", help="only say what would be done")

    def handle(self, *args: Any, **options: Any) -> None:
        retry, dry_run = RetryOptions.from_settings(), options["dry_run"]
        try:
            if options["all_poison"]:
                self._tell(reenqueue_all(options=retry, dry_run=dry_run), dry_run=dry_run)
            else:
                wanted = dict.fromkeys(_provisions(options["deal"]))
                self._tell(reenqueue_these(wanted=wanted, options=retry, dry_run=dry_run), dry_run=dry_run)
        except (DatabaseError, InterfaceError) as error:
            raise CommandError(f"PostgreSQL cannot be used now ({describe(error)}); run it again later.") from error

    def _tell(self, verdicts: Iterable[Verdict], *, dry_run: bool) -> None:
        done = busy = 0
        for each in verdicts:
            outcome = f"would be {each.outcome}" if dry_run and each.outcome is Outcome.REENQUEUED else each.outcome
            self.stdout.write(f"deal {each.deal_id}: {outcome} ({each.says})")
            done += each.outcome is Outcome.REENQUEUED
            busy += each.outcome is Outcome.BUSY
        self.stdout.write(f"{done} {'would be ' if dry_run else ''}re-enqueued")
        if busy:
            raise CommandError(f"{busy} could not be looked at since somebody is at work on them; run it again.")


def _provisions(deals: Iterable[str]) -> list[UUID]:
    """The provisions of `deals`; raises CommandError if one of them is not an id, or has none."""
    wanted = {_deal_id(deal) for deal in deals}
    found = dict(DealChatProvision.objects.filter(deal_id__in=wanted).values_list("deal_id", "pk"))
    if unknown := wanted - found.keys():
        named = ", ".join(sorted(str(each) for each in unknown))
        raise CommandError(f"There is no provision of deal {named}; nothing was changed.")
    return list(found.values())


def _deal_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise CommandError(f"{text!r} is not the id of a deal (a UUID); nothing was changed.") from error
