"""The last word: whether PostgreSQL and Kafka hold what the simulated crm says, to the record."""

from collections import Counter
from collections.abc import Iterator
from typing import TypeVar
from uuid import UUID

from django.db.models import Q

from chats.models import Chat, ChatEvent, ChatStatus, ParkedRoster, Participant
from chats.roster import Role, replay
from demo.crm.deliveries import Trouble
from demo.crm.model import Deal, Lead
from demo.crm.simulation import Simulation
from demo.ledger import Ledger
from demo.readiness import Readiness
from messenger.kafka import read_to_end
from messenger.topics import CONSUMED
from outbox.models import DeadLetter, OutboxMessage
from provisioning.models import DealChatProvision, ProvisionStatus

T = TypeVar("T", bound=tuple[object, ...])


def differences(simulation: Simulation, ledger: Ledger, readiness: Readiness) -> list[str]:
    """Everything that is not as it should be, one sentence each; empty when all is well."""
    return [
        *_records(ledger),
        *rosters(simulation),
        *_provisions(simulation, readiness),
        *_waiting(simulation),
        *_dead_letters(ledger),
    ]


def _records(ledger: Ledger) -> Iterator[str]:
    yield from ledger.unexpected
    for entry in ledger.open:
        expected = " then ".join(entry.fate.outcomes[len(entry.seen) :])
        yield f"{entry}: a worker should have logged {expected}, and has not"


def rosters(simulation: Simulation) -> Iterator[str]:
    for subject in simulation.subjects():
        lead, wanted, title = subject.id, subject.roster, subject.title
        chat = Chat.objects.filter(Q(lead_id=lead) | Q(deal_id=lead)).first()
        if chat is None:
            if not given_up(subject):
                yield f"{title}: there is no chat"
            continue
        if subject.ended != (chat.status == ChatStatus.CLOSED):
            yield f"{title}: the chat is {chat.status}; crm says {'it has ended' if subject.ended else 'it goes on'}"
        known = {user: _role(role) for user, role in wanted.items()}
        active = dict(Participant.objects.filter(chat=chat, removed_at=None).values_list("user_id", "role"))
        if active != known:
            yield f"{title}: the roster is {_people(simulation, active)}; crm says {_people(simulation, known)}"
        version = chat.deal_member_version if isinstance(subject, Deal) else chat.lead_member_version
        if version != simulation.oracle.version(lead):
            yield f"{title}: version {version}; crm says {simulation.oracle.version(lead)}"
        feed = list(ChatEvent.objects.filter(chat=chat).order_by("seq").values_list("seq", "type", "user_id", "role"))
        if [seq for seq, *_ in feed] != list(range(1, chat.last_seq + 1)):
            yield f"{title}: the feed's numbers have gaps"
        told = replay((kind, user, role) for _, kind, user, role in feed)
        if told != active:
            people = (_people(simulation, roster) for roster in (told, active))
            yield "{}: the feed replays to {}, the roster is {}".format(title, *people)


def given_up(subject: Lead) -> bool:
    """Whether this is the deal whose chat cannot be made until a person sees to it."""
    return isinstance(subject, Deal) and subject.trouble is Trouble.LASTING


def _provisions(simulation: Simulation, readiness: Readiness) -> Iterator[str]:
    """What crm was told of each deal, last, against the table."""
    table = dict(DealChatProvision.objects.values_list("deal_id", "status"))
    for deal in simulation.crm.deals.values():
        status, told = table.get(deal.id), readiness.of(deal.id)
        if status != told:
            yield f"{deal.title}: crm was told {told}; the table says {status}"
        if status != ProvisionStatus.READY and not given_up(deal):
            yield f"{deal.title}: the chat is {status}, and should be Ready"


def _role(role: str) -> str:
    """What becomes of a role as crm names it (design, section 2)."""
    return role if role in set(Role) else Role.GUEST


def _people(simulation: Simulation, roster: dict[UUID, str]) -> str:
    names = simulation.crm.people
    return ", ".join(sorted(f"{names.get(user, user)} ({role})" for user, role in roster.items())) or "empty"


def _waiting(simulation: Simulation) -> Iterator[str]:
    left = ParkedRoster.objects.filter(subject_id__in=[subject.id for subject in simulation.subjects()]).count()
    if left:
        yield f"{left} rosters are still parked"


_Place = tuple[str, int, int, bytes | None, str | None]
_Letter = tuple[str | None, bytes | None, str | None]


def _dead_letters(ledger: Ledger) -> Iterator[str]:
    """Each broken record, with its bytes: in the table, and through the outbox in its dead letter topic."""
    expected: Counter[_Place] = Counter(
        (
            entry.fate.delivery.topic.name,
            *(entry.place or (-1, -1)),
            entry.fate.delivery.value,
            entry.fate.delivery.refusal,
        )
        for entry in ledger.dead
    )
    names = [topic.name for topic in CONSUMED]
    found: Counter[_Place] = Counter(
        (row.topic, row.partition, row.offset, None if row.value is None else bytes(row.value), row.error_code)
        for row in DeadLetter.objects.filter(topic__in=names)
    )
    yield from _missing("dead_letters", expected, found)
    unpublished = OutboxMessage.objects.filter(topic__in=[topic.dlq for topic in CONSUMED], published_at=None).count()
    if unpublished:
        yield f"{unpublished} dead letters are not published"
    published: Counter[_Letter] = Counter(
        (record.header("dlq-topic"), record.value, record.header("dlq-error-code"))
        for topic in CONSUMED
        for record in read_to_end(topic.dlq)
    )
    brief: Counter[_Letter] = Counter((topic, value, code) for topic, _, _, value, code in expected.elements())
    yield from _missing("the dead letter topics", brief, published)


def _missing(where: str, expected: Counter[T], found: Counter[T]) -> Iterator[str]:
    for record in (expected - found).elements():
        yield f"{where}: missing {_brief(record)}"
    for record in (found - expected).elements():
        yield f"{where}: nobody expected {_brief(record)}"


def _brief(record: tuple[object, ...]) -> str:
    parts = (f"{len(part)} bytes" if isinstance(part, bytes) else str(part) for part in record)
    return " ".join(parts)
