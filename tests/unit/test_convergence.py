"""Any history, delivered in any order, twice over and with losses, ends at its newest snapshot.

The rule of the source document («Идемпотентность и replay») over the very values the consumer works on:
`ChatState` and `settle`, in memory, with a database played by two variables.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from chats.contracts import Origin, Snapshot
from chats.reconciliation import Marks, Outcome, Settled, settle
from chats.roster import Fact, Role, Roster, replay, seat_of
from chats.state import ChatState
from messenger.envelope import parse_instant
from messenger.records import Record

LEAD, CHAT = UUID(int=1), UUID(int=2)
START = datetime(2026, 3, 1, tzinfo=UTC)
USERS = [UUID(int=number) for number in range(10, 15)]
ROLES = [*(role.value for role in Role), "Overseer", "Watcher"]

seats = st.sampled_from(ROLES).map(seat_of)
targets = st.dictionaries(st.sampled_from(USERS), seats, min_size=1)
versions = st.lists(st.integers(1, 2**63 - 1), min_size=1, max_size=8, unique=True).map(sorted)


def snapshot(version: int, target: Roster, *, message: int | None = None) -> Snapshot:
    """The lead's snapshot at `version`, as message number `message` (one of its own for each version)."""
    identifier = UUID(int=version if message is None else message)
    origin = Origin(
        record=Record("topic", 0, version, b"", b""),
        message_id=identifier,
        key=f"messenger-lead-participants:{identifier}",
        digest=b"",
        contract_version=1,
        correlation_id=None,
    )
    changed_at = parse_instant((START + timedelta(seconds=version % 1000)).isoformat())
    return Snapshot(origin, LEAD, version, target, changed_at)


@dataclass
class Tables:
    """What is kept between batches: one chat, its feed and the processed keys."""

    chat: ChatState | None = field(default_factory=lambda: ChatState(CHAT, LEAD, version=None, last_seq=0))
    processed: dict[str, bytes | None] = field(default_factory=dict)
    feed: list[tuple[int, Fact]] = field(default_factory=list)

    def settle(self, batch: list[Snapshot]) -> list[Settled]:
        """One transaction."""
        marks = Marks(dict(self.processed))
        settled = [settle(self.chat, each, marks) for each in batch]
        self.processed |= marks.new
        if self.chat is not None:
            self.feed += self.chat.facts
            self.chat.facts = []
        return settled

    def check(self) -> None:
        """The feed is free of gaps and replays to the roster."""
        assert self.chat is not None
        assert [seq for seq, _ in self.feed] == list(range(1, self.chat.last_seq + 1))
        lines = [(fact.type.value, fact.user_id, fact.role.value if fact.role else None) for _, fact in self.feed]
        assert replay(lines) == {user: seat.role.value for user, seat in self.chat.roster.items()}


@st.composite
def histories(draw: st.DrawFn) -> list[Snapshot]:
    """Snapshots of one lead, oldest first."""
    return [snapshot(version, draw(targets)) for version in draw(versions)]


@st.composite
def deliveries(draw: st.DrawFn, history: list[Snapshot]) -> list[list[Snapshot]]:
    """Batches that deliver `history` in any order, each any number of times, the newest at least once."""
    places = draw(st.lists(st.integers(0, len(history) - 1), max_size=16))
    places.insert(draw(st.integers(0, len(places))), len(history) - 1)
    batches: list[list[Snapshot]] = [[]]
    for place in places:
        if draw(st.booleans()):
            batches.append([])
        batches[-1].append(history[place])
    return batches


@given(data=st.data())
def test_any_delivery_of_any_history_converges_to_the_newest(data: st.DataObject) -> None:
    """Order, duplication and loss of all but the newest do not matter; the feed replays to the roster at each step."""
    history = data.draw(histories())
    tables = Tables()
    for batch in data.draw(deliveries(history)):
        tables.settle(batch)
        tables.check()
    assert tables.chat is not None
    assert tables.chat.roster == history[-1].target
    assert tables.chat.version == history[-1].version


@given(data=st.data())
def test_the_applied_version_never_goes_back(data: st.DataObject) -> None:
    """«chat.LeadMemberVersion = payload.Version (монотонно не убывает)»; what is not newer changes nothing."""
    history = data.draw(histories())
    tables = Tables()
    assert tables.chat is not None
    for each in [one for batch in data.draw(deliveries(history)) for one in batch]:
        before, roster, lines = tables.chat.version, tables.chat.roster, len(tables.feed)
        (settled,) = tables.settle([each])
        if before is not None and each.version <= before:
            assert settled.outcome in (Outcome.STALE, Outcome.DUPLICATE)
            assert (tables.chat.version, tables.chat.roster, len(tables.feed)) == (before, roster, lines)
        else:
            assert settled.outcome is Outcome.SYNCED
            assert tables.chat.version == each.version


@given(data=st.data())
def test_a_replay_of_the_whole_topic_changes_nothing(data: st.DataObject) -> None:
    """«Replay: да. Повторный re-read сходится к последнему составу»: also with the processed keys pruned."""
    history = data.draw(histories())
    tables = Tables()
    tables.settle(history)
    assert tables.chat is not None
    roster, feed = tables.chat.roster, list(tables.feed)
    if data.draw(st.booleans(), label="processed keys pruned"):
        tables.processed.clear()
    tables.settle(history)
    assert (tables.chat.roster, tables.feed) == (roster, feed)


@given(data=st.data())
def test_one_batch_is_the_same_as_many(data: st.DataObject) -> None:
    """How records fall into batches shows neither in the roster nor in the feed."""
    batches = data.draw(deliveries(data.draw(histories())))
    apart, together = Tables(), Tables()
    outcomes = [settled.outcome for batch in batches for settled in apart.settle(batch)]
    assert [settled.outcome for settled in together.settle([one for batch in batches for one in batch])] == outcomes
    assert (together.chat, together.feed) == (apart.chat, apart.feed)


@given(first=targets, second=targets)
def test_a_known_message_is_a_duplicate_before_anything_else(first: Roster, second: Roster) -> None:
    """«Событие уже обработано → пропустить как дубль», whatever its version says."""
    tables = Tables()
    tables.settle([snapshot(1, first)])
    (settled,) = tables.settle([snapshot(2, second, message=1)])
    assert settled.outcome is Outcome.DUPLICATE
    assert tables.chat is not None
    assert tables.chat.roster == first


@given(target=targets)
def test_without_a_chat_a_snapshot_is_parked_and_not_marked(target: Roster) -> None:
    """MSG_CHAT_NOT_PROVISIONED: nothing is remembered that would make the retry a duplicate."""
    tables = Tables(chat=None)
    (settled,) = tables.settle([snapshot(1, target)])
    assert settled.outcome is Outcome.PARKED
    assert tables.processed == {}
