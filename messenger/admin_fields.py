"""Columns of an admin that several tables have: moments, ages, ids, texts."""

from collections.abc import Callable
from typing import Any

from django.contrib import admin

from messenger.admin import now_of
from messenger.admin_display import NOTHING, age, clipped, moment, mono, printable

Column = Callable[[Any, Any], str]
"""A method of an admin: (admin, row) gives what is shown."""


def moment_field(field: str, description: str) -> Column:
    """A moment, and how long ago that is."""
    return _column(lambda row: moment(getattr(row, field), now_of(row)), field, description)


def age_field(field: str, description: str = "age") -> Column:
    """How long ago a moment is."""
    return _column(lambda row: age(getattr(row, field), now_of(row)), field, description)


def id_field(field: str, description: str) -> Column:
    """An id, monospaced."""
    return _column(lambda row: mono(getattr(row, field)), field, description)


def text_field(field: str, description: str) -> Column:
    """A text on one line, the whole of it under the pointer."""
    return _column(lambda row: clipped(getattr(row, field)), field, description)


def whole_text_field(field: str, description: str) -> Column:
    """A text of any length, with what cannot be seen made visible."""
    return _column(lambda row: printable(getattr(row, field) or NOTHING), field, description)


def _column(show: Callable[[Any], str], field: str, description: str) -> Column:
    @admin.display(description=description, ordering=field)
    def column(modeladmin: Any, row: Any) -> str:
        return show(row)

    return column
