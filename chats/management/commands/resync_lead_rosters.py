"""`manage.py resync_lead_rosters`: replays the topic, shows or applies the difference."""

from argparse import ArgumentParser
from collections import Counter
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, InterfaceError

from chats.resync import Difference, Verdict, read_newest, resync
from chats.roster import Seat
from messenger.envelope import parse_guid
from messenger.faults import MessengerError, describe
from messenger.kafka import read_to_end
from messenger.topics import LEAD_PARTICIPANTS_CHANGED


class Command(BaseCommand):
    """Safe at any time and as often as wanted: it brings chats forward to the topic's newest snapshots, never back."""

    help = "Bring lead chats to the newest snapshots of pin.crm.lead-participants-changed.v1."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--lead", help="only this lead")
        parser.add_argument("--dry-run", action="store_true", help="show the difference, change nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        lead = self._lead(options["lead"])
        try:
            reading = read_newest(read_to_end(LEAD_PARTICIPANTS_CHANGED.name), lead=lead)
            counts: Counter[Verdict] = Counter()
            for difference in resync(reading.newest.values(), dry_run=options["dry_run"]):
                counts[difference.verdict] += 1
                self._show(difference)
        except MessengerError as error:
            raise CommandError(str(error)) from error
        except (DatabaseError, InterfaceError) as error:
            raise CommandError(f"PostgreSQL cannot be used now ({describe(error)}); run it again.") from error
        self._sum_up(reading.records, reading.unreadable, counts, dry_run=options["dry_run"])
        if lead is not None and not reading.newest:
            raise CommandError(f"The topic holds no roster of lead {lead}; retention may have removed it.")

    @staticmethod
    def _lead(text: str | None) -> UUID | None:
        try:
            return parse_guid(text) if text else None
        except ValueError as error:
            raise CommandError(f"--lead {text}: {error}.") from error

    def _show(self, difference: Difference) -> None:
        snapshot, changes = difference.snapshot, difference.changes
        if difference.verdict is Verdict.EQUAL:
            return
        here = "" if difference.version is None else f" (the chat is at v{difference.version})"
        self.stdout.write(f"lead {snapshot.subject_id} v{snapshot.version}: {difference.verdict.value}{here}")
        if changes is None:
            return
        for user, seat in sorted(changes.joined.items()):
            self.stdout.write(f"  + {user} {_named(seat)}")
        for user, seat in sorted(changes.left.items()):
            self.stdout.write(f"  - {user} {_named(seat)}")
        for user, (before, after) in sorted(changes.reroled.items()):
            self.stdout.write(f"  ~ {user} {_named(before)} -> {_named(after)}")
        for user, seat in sorted(changes.relabelled.items()):
            self.stdout.write(f"  ~ {user} {_named(seat)}")

    def _sum_up(self, records: int, unreadable: int, counts: Counter[Verdict], *, dry_run: bool) -> None:
        changed = "would be changed" if dry_run else "changed"
        self.stdout.write(
            f"{records} records read, {unreadable} unreadable, {counts.total()} leads: "
            f"{counts[Verdict.DIFFERENT]} {changed}, {counts[Verdict.EQUAL]} equal, "
            f"{counts[Verdict.OLDER]} newer here, {counts[Verdict.NO_CHAT]} without a chat"
        )


def _named(seat: Seat) -> str:
    # A role this service does not know came from outside: its letters must not steer a terminal.
    return seat.role.value if seat.raw is None else f"{seat.role.value} ({seat.raw!r} in crm)"
