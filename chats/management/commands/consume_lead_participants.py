"""`manage.py consume_lead_participants`: MessengerLeadParticipantsChangedConsumer of the source document."""

from chats.roster_consumer import LEADS, RosterWork
from messenger import metrics
from messenger.consumer_loop import Work
from messenger.topics import LEAD_PARTICIPANTS_CHANGED
from outbox.consuming import ConsumerCommand


class Command(ConsumerCommand):
    """Brings each lead chat's roster to the snapshot in the event."""

    help = "Keep the rosters of lead chats true to pin.crm.lead-participants-changed.v1."
    worker = "lead-participants"
    topic = LEAD_PARTICIPANTS_CHANGED
    lag = metrics.LEAD_LAG

    def make_work(self) -> Work:
        return RosterWork(LEADS)
