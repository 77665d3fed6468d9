"""The ASGI application: Django admin, `/metrics`, probes."""

import os
import sys

from django.core.asgi import get_asgi_application
from django.core.exceptions import ImproperlyConfigured

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "messenger.settings")

try:
    application = get_asgi_application()
except ImproperlyConfigured as error:
    sys.stderr.write(f"{error}\n")
    sys.exit(2)
