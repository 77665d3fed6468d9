"""Facts of the feed that are not about membership."""

from datetime import datetime

from chats.models import ChatKind
from chats.roster import Fact, FactType

_PROVISIONED = {
    ChatKind.LEAD: FactType.LEAD_CHAT_PROVISIONED,
    ChatKind.DEAL: FactType.DEAL_CHAT_PROVISIONED,
}


def provisioned(kind: ChatKind, at: datetime) -> Fact:
    """The first line of every chat's feed (INV-CE-2)."""
    return Fact(_PROVISIONED[kind], at)
