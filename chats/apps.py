from django.apps import AppConfig


class ChatsConfig(AppConfig):
    """Chats, rosters, feed, lead and deal membership, realtime."""

    name = "chats"
    verbose_name = "Chats"
