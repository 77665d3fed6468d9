"""`manage.py consume_deal_created`: the intent and the first attempt."""

from messenger.consumer_loop import Work
from messenger.topics import DEAL_CREATED
from outbox.consuming import ConsumerCommand
from outbox.settlement import HandlerWork
from provisioning.deal_created import DealCreatedHandler


class Command(ConsumerCommand):
    """Writes the intent to provision each new deal's chat, and makes the first attempt."""

    help = "Provision deal chats for pin.crm.deal-created.v1."
    worker = "deal-created"
    topic = DEAL_CREATED

    def make_work(self) -> Work:
        return HandlerWork(DealCreatedHandler())
