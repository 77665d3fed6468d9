"""Who is asking: JSON Web Tokens whose `sub` is crm's UserId (RFC 7519), signed as the settings say."""

import time
from dataclasses import dataclass
from uuid import UUID

import jwt
from django.conf import settings

from messenger.envelope import parse_guid
from messenger.faults import MessengerError


class TokenRefused(MessengerError):
    """This token says nothing that can be relied on. The text never quotes it."""


class CannotIssue(MessengerError):
    """This service holds no key that signs."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a token speaks for, and until when (seconds since the epoch)."""

    user_id: UUID
    expires_at: float


def identify(token: str) -> Identity:
    """Whom `token` speaks for; raises TokenRefused.

    `exp` and `sub` must be there; `aud` and `iss` must be what JWT_AUDIENCE and JWT_ISSUER say, where set.
    """
    try:
        claims = jwt.decode(
            token,
            settings.JWT_KEY,
            algorithms=[settings.JWT_ALGORITHM],
            audience=settings.JWT_AUDIENCE or None,
            issuer=settings.JWT_ISSUER or None,
            options={"require": ["exp", "sub"], "verify_aud": bool(settings.JWT_AUDIENCE)},
        )
        # PyJWT itself takes any `exp` that int() takes.
        return Identity(parse_guid(claims["sub"]), float(claims["exp"]))
    except jwt.ExpiredSignatureError as error:
        raise TokenRefused("The token has expired.") from error
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
        raise TokenRefused("The token is not valid.") from error


def issue(user_id: UUID, *, ttl: float) -> str:
    """A token for `user_id`, good for `ttl` seconds; raises CannotIssue where somebody else issues them."""
    if settings.JWT_ALGORITHM != "HS256":
        raise CannotIssue(
            f"Tokens are signed with {settings.JWT_ALGORITHM} by whoever holds the private key; this service "
            "issues them with HS256 only."
        )
    now = time.time()
    claims: dict[str, object] = {"sub": str(user_id), "iat": int(now), "exp": now + ttl}
    if settings.JWT_AUDIENCE:
        claims["aud"] = settings.JWT_AUDIENCE
    if settings.JWT_ISSUER:
        claims["iss"] = settings.JWT_ISSUER
    return jwt.encode(claims, settings.JWT_KEY, algorithm="HS256")


def page_link(base: str, user_id: UUID, *, ttl: float) -> str:
    """The address of the page with a user's chats. The token is in the fragment, which browsers never send."""
    return f"{base.rstrip('/')}/chats/#token={issue(user_id, ttl=ttl)}"
