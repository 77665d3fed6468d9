"""The API of people's chats (OpenAPI at `/api/v1/openapi.json`).

Access by membership alone: to whoever is not an active participant, a chat looks like one that does not exist.
"""

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, ValidationError
from ninja.openapi.schema import OpenAPISchema
from ninja.security import HttpBearer

from chats import reading
from chats.api_schemas import (
    PAGE,
    ChatDetail,
    ChatPage,
    ChatSummary,
    Error,
    ErrorCode,
    FeedEvent,
    FeedPage,
    Guid,
    Limit,
    Problem,
    RosterEntry,
    Seq,
)
from chats.roster import Role
from chats.stream_document import SECURITY_SCHEMES, STREAM_OPERATION
from chats.tokens import Identity, TokenRefused, identify
from messenger.faults import InfrastructureFault

_RANK = {role: rank for rank, role in enumerate(Role)}


class Bearer(HttpBearer):
    """The token of an `Authorization: Bearer` header."""

    openapi_bearerFormat = "JWT"

    async def authenticate(self, request: HttpRequest, token: str) -> Identity | None:
        try:
            return identify(token)
        except TokenRefused:
            return None


class NotFound(Exception):
    """No such chat, or the reader is not in it: nobody can tell which."""


class ChatApi(NinjaAPI):
    """Ninja's, with the stream in its document: that is answered outside of Django (`chats.stream_view`)."""

    def get_openapi_schema(self, *args: Any, **kwargs: Any) -> OpenAPISchema:
        document = super().get_openapi_schema(*args, **kwargs)
        document["paths"]["/api/v1/stream"] = STREAM_OPERATION
        document["components"]["securitySchemes"] |= SECURITY_SCHEMES
        return document


api = ChatApi(
    title="messenger",
    version="1",
    description="Chats of leads and deals, to the people in them. A token's `sub` is the UserId of crm.",
    docs_url=None,
    auth=Bearer(),
)
ERRORS: dict[Any, Any] = {401: Error, 422: Error, 503: Error}


def _answer(request: HttpRequest, status: int, error: Error) -> HttpResponse:
    response = api.create_response(request, error.model_dump(mode="json", by_alias=True), status=status)
    response["Cache-Control"] = "no-store"
    return response


@api.exception_handler(AuthenticationError)
def _unauthorized(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    message = "Send a valid token that has not expired: «Authorization: Bearer …»."
    response = _answer(request, 401, Error(code=ErrorCode.UNAUTHORIZED, message=message))
    response["WWW-Authenticate"] = "Bearer"
    return response


@api.exception_handler(NotFound)
def _not_found(request: HttpRequest, error: NotFound) -> HttpResponse:
    return _answer(request, 404, Error(code=ErrorCode.NOT_FOUND, message="You have no such chat."))


@api.exception_handler(ValidationError)
def _invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
    problems = [Problem(place=[str(part) for part in each["loc"]], message=each["msg"]) for each in error.errors]
    message = "Some values are not of the documented form."
    return _answer(request, 422, Error(code=ErrorCode.INVALID, message=message, problems=problems))


@api.exception_handler(InfrastructureFault)
def _unavailable(request: HttpRequest, error: InfrastructureFault) -> HttpResponse:
    message = "The database does not answer now; try again in a moment."
    response = _answer(request, 503, Error(code=ErrorCode.UNAVAILABLE, message=message))
    response["Retry-After"] = "2"
    return response


def _user(request: HttpRequest) -> UUID:
    identity: Identity = request.auth  # type: ignore[attr-defined]
    return identity.user_id


@api.get(
    "/chats",
    response={200: ChatPage, **ERRORS},
    summary="My chats, newest first",
    operation_id="list_chats",
    by_alias=True,
)
async def list_chats(request: HttpRequest, after: Guid = None, limit: Limit = PAGE) -> ChatPage:  # type: ignore[assignment]
    """Chats you are an active participant of. `after` is the `Next` of the page before."""
    rows = await reading.chats_of(_user(request), after=after, limit=limit + 1)
    items = [ChatSummary(**row) for row in rows[:limit]]
    return ChatPage(items=items, next=items[-1].chat_id if len(rows) > limit else None)


@api.get(
    "/chats/{chat_id}",
    response={200: ChatDetail, 404: Error, **ERRORS},
    summary="One chat",
    operation_id="get_chat",
    by_alias=True,
)
async def get_chat(request: HttpRequest, chat_id: Guid) -> ChatDetail:
    """The chat and its active participants."""
    rows = await reading.chat_of(_user(request), chat_id)
    if not rows:
        raise NotFound
    participants = [RosterEntry(**{name: row[name] for name in RosterEntry.model_fields}) for row in rows]
    participants.sort(key=lambda each: (_RANK[each.role], each.display_name or "\uffff", each.user_id))
    of_chat = {name: rows[0][name] for name in ChatDetail.model_fields if name != "participants"}
    return ChatDetail(**of_chat, participants=participants)


@api.get(
    "/chats/{chat_id}/events",
    response={200: FeedPage, 404: Error, **ERRORS},
    summary="Its feed",
    operation_id="list_events",
    by_alias=True,
)
async def list_events(request: HttpRequest, chat_id: Guid, after: Seq = 0, limit: Limit = PAGE) -> FeedPage:
    """Events with a number above `after`, oldest first."""
    rows = await reading.feed_of(_user(request), chat_id, after=after, limit=limit)
    if not rows:
        raise NotFound
    last_seq = rows[0]["last_seq"]
    items = [FeedEvent(**{name: row[name] for name in FeedEvent.model_fields}) for row in rows if row["seq"]]
    more = bool(items) and items[-1].seq < last_seq
    return FeedPage(items=items, last_seq=last_seq, next=items[-1].seq if more else None)
