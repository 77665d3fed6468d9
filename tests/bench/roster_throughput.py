"""How many times faster the consumer settles rosters than one ORM transaction an event.

`make bench`: both on the same PostgreSQL in one run, so that only their ratio is told. Not a test: absolute
times are noise on a shared machine.
"""

import os
import random
import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial

import django

from demo.servers import EmbeddedPostgres
from messenger.records import Record

EVENTS = 3000
BASELINE_EVENTS = 400
LEADS = 300
PEOPLE = 40
ROUNDS = 3
ROLES = ("Executor", "Responsible", "CoAgent", "Assistant", "Lawyer", "InvestorPrimary")


def main() -> None:
    """Print both rates and their ratio."""
    with EmbeddedPostgres(durable=True) as server:
        os.environ.update(
            DATABASE_URL=server.url,
            DJANGO_SETTINGS_MODULE="messenger.settings",
            MESSENGER_ENVIRONMENT="development",
            LOG_LEVEL="ERROR",
        )
        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        _compare()


def _compare() -> None:
    rng = random.Random(7)
    ratios = []
    for number in range(1, ROUNDS + 1):
        leads = [str(uuid.uuid4()) for _ in range(LEADS)]
        people = [str(uuid.uuid4()) for _ in range(PEOPLE)]
        _open(leads)
        events = _events(rng, leads, people, BASELINE_EVENTS)
        baseline = _rate(partial(_one_by_one, events), BASELINE_EVENTS)
        leads = [str(uuid.uuid4()) for _ in range(LEADS)]
        _open(leads)
        events = _events(rng, leads, people, EVENTS)
        batched = _rate(partial(_settle, events), EVENTS)
        ratios.append(batched / baseline)
        print(
            f"round {number}: {baseline:.0f}/s one ORM transaction an event, {batched:.0f}/s batched, x{ratios[-1]:.0f}"
        )
    print(f"median ratio: x{statistics.median(ratios):.0f}")


def _open(leads: Sequence[str]) -> None:
    from chats.models import Chat

    Chat.objects.bulk_create([Chat(kind="Lead", lead_id=lead, title="Lead") for lead in leads])


def _events(rng: random.Random, leads: Sequence[str], people: Sequence[str], count: int) -> list[Record]:
    """Snapshots as crm makes them: one person comes, goes or changes the role, the others stay."""
    from tests.support import crm

    versions = dict.fromkeys(leads, 1)
    rosters: dict[str, dict[str, str]] = {lead: {rng.choice(people): "Executor"} for lead in leads}
    records = []
    for _ in range(count):
        lead = rng.choice(leads)
        roster = rosters[lead]
        user = rng.choice(people)
        if user in roster and len(roster) > 2 and rng.random() < 0.5:
            del roster[user]
        else:
            roster[user] = rng.choice(ROLES)
        records.append(crm.record(crm.lead_participants(lead, versions[lead], roster)))
        versions[lead] += 1
    return records


def _one_by_one(records: Sequence[Record]) -> None:
    from tests.bench.orm_baseline import apply_one

    for record in records:
        apply_one(record)


def _settle(records: Sequence[Record]) -> None:
    from chats.roster_consumer import LEADS as BINDING
    from chats.roster_consumer import RosterWork

    work = RosterWork(BINDING)
    for at in range(0, len(records), 500):
        for _ in work.settle(records[at : at + 500]):
            pass


def _rate(run: Callable[[], object], events: int) -> float:
    started = time.perf_counter()
    run()
    return events / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
