"""`manage.py issue_token`: a token to try the API and the page with."""

from argparse import ArgumentParser, ArgumentTypeError
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError

from chats.tokens import issue, page_link
from messenger.envelope import parse_guid
from messenger.faults import MessengerError

DAY = 24 * 60 * 60


def _guid(text: str) -> UUID:
    try:
        return parse_guid(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError as error:
        raise ArgumentTypeError("Expected a number of seconds") from error
    if not 0 < seconds < 10 * 365 * DAY:
        raise ArgumentTypeError("Expected a number of seconds above 0 and below ten years")
    return seconds


class Command(BaseCommand):
    """Prints one line: the token, or with `--link` the address of the page that shows the user's chats live."""

    help = "Issue a token for a user, where tokens are signed with HS256 (development, demonstrations)."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--user", type=_guid, required=True, help="UserId of crm")
        parser.add_argument("--ttl", type=_seconds, default=DAY, help="seconds it is good for (default: %(default)s)")
        parser.add_argument("--link", metavar="URL", help="print the page's address on the web process at URL instead")

    def handle(self, *args: Any, **options: Any) -> None:
        user, ttl = options["user"], options["ttl"]
        try:
            line = page_link(options["link"], user, ttl=ttl) if options["link"] else issue(user, ttl=ttl)
        except MessengerError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(line)
