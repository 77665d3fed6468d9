#!/usr/bin/env python
"""The one entry point of every process: workers, migrations, the demo."""

import os
import sys

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line


def main() -> None:
    """Run the named management command; a bad setting is one sentence and exit code 2."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "messenger.settings")
    if sys.argv[1:2] == ["demo"]:
        os.environ.setdefault("MESSENGER_ENVIRONMENT", "development")
    try:
        # Django itself swallows this error and then reports «Unknown command», which helps nobody.
        _ = settings.INSTALLED_APPS
    except ImproperlyConfigured as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
