"""The roster rule over plain values: differences, facts, and one user named twice."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chats.roster import (
    ROLE_RAW_WIDTH,
    FactType,
    Role,
    Roster,
    Seat,
    difference,
    facts_of,
    replay,
    seat_of,
    target_roster,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
USERS = [UUID(int=number) for number in range(1, 7)]
CRM_ROLES = ["Executor", "Responsible", "CoAgent", "Assistant", "Lawyer", "InvestorPrimary", "InvestorSecondary"]

role_names = st.sampled_from([*CRM_ROLES, "Guest", "Overseer", "executor", "0", ""])
entries = st.lists(st.tuples(st.sampled_from(USERS), role_names), max_size=12)
rosters = st.dictionaries(st.sampled_from(USERS), role_names.map(seat_of))


def told(roster: Roster) -> dict[UUID, str]:
    """A roster as a feed tells of it: by user, the role alone."""
    return {user: seat.role.value for user, seat in roster.items()}


@pytest.mark.parametrize("name", CRM_ROLES)
def test_every_role_of_crm_is_itself(name: str) -> None:
    """«Маппинг crm.ParticipantRole → messenger.ParticipantRole — identity»."""
    assert seat_of(name) == Seat(Role(name))


@pytest.mark.parametrize("name", ["Overseer", "executor", "EXECUTOR", "0", "", " Executor"])
def test_an_unknown_role_is_kept_as_it_came_and_counts_as_guest(name: str) -> None:
    """«Неизвестный Role — сохранить строку как есть (роль — bucket Guest)»; trial 7."""
    assert seat_of(name) == Seat(Role.GUEST, name)


def test_an_unknown_role_fits_its_column() -> None:
    """`role_raw varchar(64)`, cut on a code point (trial 10); U+0000 cannot reach the column (trial 3)."""
    raw = seat_of("🏠" * 100).raw
    assert raw == "🏠" * ROLE_RAW_WIDTH
    assert "\x00" not in (seat_of("Over\x00seer").raw or "")


@given(current=rosters, target=rosters)
def test_changes_bring_any_roster_to_any_target(current: Roster, target: Roster) -> None:
    """«Set-реконсиляция»: toAdd, toRemove and toRole are disjoint and together make the target."""
    changes = difference(current, target)
    assert changes.left.keys() == current.keys() - target.keys()
    assert changes.joined.keys() == target.keys() - current.keys()
    kept = current.keys() & target.keys()
    assert changes.reroled.keys() == {user for user in kept if current[user].role != target[user].role}
    assert changes.relabelled.keys() == {
        user for user in kept - changes.reroled.keys() if current[user].raw != target[user].raw
    }
    reached = {user: seat for user, seat in current.items() if user not in changes.left}
    reached |= changes.joined | changes.relabelled | {user: after for user, (_, after) in changes.reroled.items()}
    assert reached == target


@given(roster=rosters)
def test_a_roster_at_its_target_changes_nothing(roster: Roster) -> None:
    changes = difference(roster, dict(roster))
    assert not changes
    assert not changes.relabelled
    assert facts_of(changes, NOW) == []


@given(current=rosters, target=rosters)
def test_the_facts_of_a_change_replay_to_its_target(current: Roster, target: Roster) -> None:
    """INV-CE-4: one fact per membership change, and they tell of all of them."""
    changes = difference(current, target)
    facts = facts_of(changes, NOW)
    assert len(facts) == len(changes.left) + len(changes.joined) + len(changes.reroled)
    before = [(FactType.PARTICIPANT_JOINED.value, user, seat.role.value) for user, seat in current.items()]
    after = [(fact.type.value, fact.user_id, fact.role.value if fact.role else None) for fact in facts]
    assert replay(before + after) == told(target)


def test_facts_name_who_what_and_what_was_before() -> None:
    """`ParticipantLeft`, `ParticipantJoined`, `ParticipantRoleChanged`, in this order, at ChangedAt."""
    gone, kept, new = USERS[:3]
    current = {gone: Seat(Role.EXECUTOR), kept: Seat(Role.ASSISTANT)}
    target = {kept: Seat(Role.EXECUTOR), new: Seat(Role.LAWYER)}
    told_of = [
        (fact.type, fact.user_id, fact.role, fact.previous_role, fact.occurred_at)
        for fact in facts_of(difference(current, target), NOW)
    ]
    assert told_of == [
        (FactType.PARTICIPANT_LEFT, gone, None, Role.EXECUTOR, NOW),
        (FactType.PARTICIPANT_JOINED, new, Role.LAWYER, None, NOW),
        (FactType.PARTICIPANT_ROLE_CHANGED, kept, Role.EXECUTOR, Role.ASSISTANT, NOW),
    ]


def test_a_role_that_is_only_spelled_otherwise_is_no_fact() -> None:
    """Two unknown roles are both Guest: the string is kept true, membership did not change."""
    user = USERS[0]
    changes = difference({user: seat_of("Overseer")}, {user: seat_of("Watcher")})
    assert not changes
    assert changes.relabelled == {user: Seat(Role.GUEST, "Watcher")}


@given(named=entries, data=st.data())
def test_one_user_named_twice_is_one_rule_whatever_the_order(
    named: list[tuple[UUID, str]], data: st.DataObject
) -> None:
    """«The first in the order above, whatever the order in the message»; the warning does not depend on it either."""
    roster, ambiguous = target_roster(named)
    shuffled = data.draw(st.permutations(named))
    assert target_roster(shuffled) == (roster, ambiguous)
    strongest = list(Role)
    for user, seat in roster.items():
        seats = {seat_of(role) for who, role in named if who == user}
        assert seat in seats
        assert strongest.index(seat.role) == min(strongest.index(other.role) for other in seats)
        assert (user in ambiguous) == (len(seats) > 1)
    assert roster.keys() == {user for user, _ in named}


def test_the_order_of_roles_is_the_order_of_strength() -> None:
    """Design, section 2: the order of the roles is a contract."""
    assert [role.value for role in Role] == [*CRM_ROLES, "Guest"]


def test_equal_entries_collapse_without_a_warning() -> None:
    user = USERS[0]
    assert target_roster([(user, "Lawyer")] * 3) == ({user: Seat(Role.LAWYER)}, set())


def test_replay_passes_over_lines_that_are_not_about_people() -> None:
    lines = [
        (FactType.LEAD_CHAT_PROVISIONED.value, None, None),
        (FactType.PARTICIPANT_JOINED.value, USERS[0], "Lawyer"),
        (FactType.CHAT_CLOSED.value, None, None),
    ]
    assert replay(lines) == {USERS[0]: "Lawyer"}
