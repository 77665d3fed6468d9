"""`pin.messenger.deal-chat-status-changed.v1` as crm gets it: through the outbox and a real relay, from Kafka."""

import json
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

import pytest

from messenger.records import Record
from messenger.topics import DEAL_CHAT_STATUS_CHANGED, DEAL_CREATED
from outbox.models import OutboxMessage
from provisioning.models import DealChatProvision
from provisioning.options import RetryOptions
from provisioning.reenqueue import reenqueue_these
from tests.support import crm, provisions
from tests.support.broker import Broker
from tests.support.observing import collect_spans
from tests.support.outgoing import wait_all_published
from tests.support.triggers import constraint
from tests.support.waiting import wait_until
from tests.support.workers import Worker


def _published(broker: Broker, count: int) -> list[Record]:
    def enough() -> list[Record]:
        found = broker.read(DEAL_CHAT_STATUS_CHANGED)
        return found if len(found) >= count else []

    return wait_until(enough, what=f"{count} events in the topic")


def _statuses(records: list[Record], deal: object) -> list[str]:
    return [
        json.loads(record.value or b"")["Payload"]["Status"] for record in records if record.key == str(deal).encode()
    ]


def _view_of_crm(records: list[Record]) -> dict[str, str]:
    """What crm makes of the records: the last write wins."""
    view = {}
    for record in records:
        payload = json.loads(record.value or b"")["Payload"]
        view[payload["DealId"]] = payload["Status"]
    return view


def test_the_contract(start: Callable[..., Worker], broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Key, headers and body of the event of the first attempt, and of one of the job inside its span."""
    collect_spans(monkeypatch)
    deal, traceparent = crm.new_id(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    message = crm.deal_created(deal, provisions.people("Executor"), title="Квартира Анны", CorrelationId="crm-7")
    relay, consumer = start("run_outbox_relay"), start("consume_deal_created")
    headers = [("traceparent", traceparent.encode())]
    broker.produce(DEAL_CREATED, crm.encode(message), key=deal, headers=headers)
    retried = provisions.add()
    provisions.run()

    found = {(record.key or b"").decode(): record for record in _published(broker, 2)}
    assert found.keys() == {deal, str(retried.deal_id)}
    for key, record in found.items():
        envelope = json.loads(record.value or b"")
        chat_id = str(DealChatProvision.objects.get(deal_id=key).chat_id)
        moment = envelope["OccurredAt"]
        assert datetime.fromisoformat(moment).utcoffset() is not None
        payload = {"DealId": key, "ChatId": chat_id, "Status": "Ready", "OccurredAt": moment}
        assert envelope["Payload"] == payload
        assert (envelope["ContractVersion"], envelope["AggregateType"]) == (1, "DealChatProvision")
        assert envelope["AggregateId"] == key
        assert record.header("message-id") == envelope["MessageId"] == str(UUID(envelope["MessageId"]))
        assert record.header("contract-version") == "1"
        assert record.header("correlation-id") == envelope["CorrelationId"]
        assert "Анны" not in (record.value or b"").decode()
    assert found[deal].header("correlation-id") == "crm-7"
    assert found[deal].header("traceparent") == traceparent
    of_the_job = found[str(retried.deal_id)].header("traceparent")
    assert of_the_job is not None and of_the_job.startswith("00-")
    assert [relay.terminate(), consumer.terminate()] == [0, 0]


def test_order_per_deal(start: Callable[..., Worker], broker: Broker) -> None:
    """Failed, then Ready after the re-enqueue; crm's view ends equal to the table, whatever comes twice."""
    fine = [provisions.add() for _ in range(5)]
    poison = provisions.add(attempts=9, title="Broken")
    relay = start("run_outbox_relay")
    with constraint("chats", "title <> 'Broken'"):
        provisions.run()
    _published(broker, 6)
    reenqueue_these(wanted={poison.id: None}, options=RetryOptions.from_settings())
    provisions.run()
    records = _published(broker, 7)
    assert _statuses(records, poison.deal_id) == ["Failed", "Ready"]
    assert {tuple(_statuses(records, row.deal_id)) for row in fine} == {("Ready",)}

    # Every deal once more, as after a lost acknowledgement: the same ids, and crm's view stays as it is.
    table = {str(row.deal_id): row.status for row in DealChatProvision.objects.all()}
    assert _view_of_crm(records) == table
    wait_all_published()  # marked, too
    OutboxMessage.objects.update(published_at=None)
    again = _published(broker, 14)
    assert len(again) == 14
    assert len({record.header("message-id") for record in again}) == 7
    assert _view_of_crm(again) == table
    assert _statuses(again, poison.deal_id) == ["Failed", "Ready"] * 2
    assert relay.terminate() == 0
