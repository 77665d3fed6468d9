"""`manage.py consume_user_changed`: the replica of user names."""

from chats.user_changed import UserChangedHandler
from messenger.consumer_loop import Work
from messenger.topics import USER_CHANGED
from outbox.consuming import ConsumerCommand
from outbox.settlement import HandlerWork


class Command(ConsumerCommand):
    """The replica of user names."""

    help = "Keep the names of users true to pin.crm.user-changed.v1."
    worker = "user-changed"
    topic = USER_CHANGED

    def make_work(self) -> Work:
        return HandlerWork(UserChangedHandler())
