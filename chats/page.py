"""The page that shows a user's chats live: static, as the browser itself reads the API and the stream."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """The same for everybody: who is looking is known from the token in the address's fragment, in the browser."""
    response = render(request, "chats/page.html")
    response["Content-Security-Policy"] = _POLICY
    response["Referrer-Policy"] = "no-referrer"
    return response
