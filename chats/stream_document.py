"""The event stream as OpenAPI tells of it."""

from typing import Any

DESCRIPTION = """\
Server-Sent Events, without end, until the token expires or the server asks for a reconnect.

* `StreamOpened` `{"Resumed": bool}` comes first, and again whenever the server cannot tell what was missed. With \
`Resumed` false, read your chats anew; whatever changes after that moment is told.
* `ChatUpdated` `{"ChatId": uuid, "Seq": integer}`: the feed of one of your chats now ends at `Seq`. Read on from \
the number you have. Several changes may be told as one, and one may be told again: only the newest `Seq` counts.
* `ChatRemoved` `{"ChatId": uuid}`: you are no longer in this chat. Nothing of it follows, unless you come back.

Every event has an `id`. A client that comes back with the last one in `Last-Event-ID` (browsers do so by themselves) \
is told `Resumed` true, and then every chat that changed and every chat it lost in between.

Comments come in quiet times, so that a lost connection is noticed. A client that does not read is cut off after a \
while and finds its way back by `Last-Event-ID`; it delays nobody.

A browser's `EventSource` cannot set headers: it may send its token as `access_token` instead.
"""


def _refusal(description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


STREAM_OPERATION: dict[str, Any] = {
    "get": {
        "operationId": "stream",
        "summary": "What changes in my chats, as it happens",
        "description": DESCRIPTION,
        "parameters": [
            {
                "in": "query",
                "name": "access_token",
                "required": False,
                "schema": {"type": "string"},
                "description": "The token, where no Authorization header can be sent. It is kept out of logs.",
            },
            {
                "in": "header",
                "name": "Last-Event-ID",
                "required": False,
                "schema": {"type": "string"},
                "description": "The id of the last event received. One that means nothing here counts as none.",
            },
        ],
        "responses": {
            "200": {
                "description": "The events.",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            "401": _refusal("No valid token."),
        },
        "security": [{"Bearer": []}, {"AccessToken": []}],
    }
}
SECURITY_SCHEMES = {"AccessToken": {"type": "apiKey", "in": "query", "name": "access_token"}}
