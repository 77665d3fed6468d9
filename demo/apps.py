"""The demonstration as a Django app: it brings one command and no tables."""

from django.apps import AppConfig


class DemoConfig(AppConfig):
    """`manage.py demo`."""

    name = "demo"
