from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """Every message row: to publish, already consumed, dead."""

    name = "outbox"
    verbose_name = "Messages"
