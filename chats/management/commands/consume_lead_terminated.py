"""`manage.py consume_lead_terminated`: closes the chats of leads that have ended."""

from chats.lead_terminated import LeadTerminatedHandler
from messenger.consumer_loop import Work
from messenger.topics import LEAD_TERMINATED
from outbox.consuming import ConsumerCommand
from outbox.settlement import HandlerWork


class Command(ConsumerCommand):
    """Closes the chats of leads that have ended."""

    help = "Close lead chats for pin.crm.lead-terminated.v1."
    worker = "lead-terminated"
    topic = LEAD_TERMINATED

    def make_work(self) -> Work:
        return HandlerWork(LeadTerminatedHandler())
