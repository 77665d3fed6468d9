"""The ASGI application: Django, and beside it the paths of ASGI_ROUTES."""

import os
import sys

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from messenger.routes import Application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "messenger.settings")


def _application() -> Application:
    django = get_asgi_application()
    if not settings.JWT_KEY:
        raise ImproperlyConfigured(
            "messenger cannot start. JWT_KEY is not set: the web process needs the key that people's tokens are "
            "signed with."
        )
    return Application(django, {path: import_string(name) for path, name in settings.ASGI_ROUTES.items()})


try:
    application = _application()
except ImproperlyConfigured as error:
    sys.stderr.write(f"{error}\n")
    sys.exit(2)
