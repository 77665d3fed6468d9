"""`manage.py consume_deal_members`: the reconciliation of lead chats, on deal chats."""

from chats.roster_consumer import DEALS, RosterWork
from messenger.consumer_loop import Work
from messenger.topics import DEAL_MEMBERS_CHANGED
from outbox.consuming import ConsumerCommand


class Command(ConsumerCommand):
    """Brings each deal chat's roster to the snapshot in the event."""

    help = "Keep the rosters of deal chats true to pin.crm.deal-members-changed.v1."
    worker = "deal-members"
    topic = DEAL_MEMBERS_CHANGED

    def make_work(self) -> Work:
        return RosterWork(DEALS)
