"""`manage.py create_topics`: every topic of the service and their dead letter topics, where missing."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from messenger import topics
from messenger.faults import MessengerError
from messenger.kafka import create_topics


class Command(BaseCommand):
    """Creates what is missing; an existing topic is left as it is."""

    help = "Create the topics that are missing on the broker."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--replication", type=int, default=1, help="replication factor of new topics")

    def handle(self, *args: Any, **options: Any) -> None:
        wanted = {topic.name: topic.partitions for topic in (*topics.CONSUMED, *topics.PUBLISHED)}
        wanted |= {topic.dlq: 1 for topic in topics.CONSUMED}
        try:
            created = create_topics(wanted, replication=options["replication"])
        except MessengerError as error:
            raise CommandError(str(error)) from error
        self.stdout.write("".join(f"created {name}\n" for name in created) or "all topics exist\n", ending="")
