"""`manage.py consume_lead_created`: opens lead chats."""

from chats.lead_created import LeadCreatedHandler
from messenger.consumer_loop import Work
from messenger.topics import LEAD_CREATED
from outbox.consuming import ConsumerCommand
from outbox.settlement import HandlerWork


class Command(ConsumerCommand):
    """Opens a chat for each new lead, and gives a roster that came before it its turn."""

    help = "Open lead chats for pin.crm.lead-created.v1."
    worker = "lead-created"
    topic = LEAD_CREATED

    def make_work(self) -> Work:
        return HandlerWork(LeadCreatedHandler())
