"""`/healthz` (this process answers) and `/readyz` (it can reach PostgreSQL) of the web process."""

from django.db import DatabaseError, InterfaceError, connection
from django.http import HttpRequest, HttpResponse


def healthz(request: HttpRequest) -> HttpResponse:
    """200 as long as the process answers at all."""
    return HttpResponse("ok\n", content_type="text/plain")


def readyz(request: HttpRequest) -> HttpResponse:
    """200 when PostgreSQL answers, 503 with a sentence when it does not."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except (DatabaseError, InterfaceError):
        return HttpResponse("PostgreSQL does not answer\n", status=503, content_type="text/plain")
    return HttpResponse("ok\n", content_type="text/plain")
