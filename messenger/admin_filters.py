"""Filters of an admin's list whose choices are known beforehand, so that nothing is read to offer them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest


class ChoiceFilter(admin.SimpleListFilter):
    """Offers each name of `conditions`; any other value in the address filters nothing."""

    conditions: ClassVar[Callable[[], Mapping[str, Q]]]
    """Read when the page is: settings may name the choices."""

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, str]]:
        return [(name, name) for name in type(self).conditions()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        condition = type(self).conditions().get(str(self.value()))
        return queryset if condition is None else queryset.filter(condition)


def choice_filter(name: str, conditions: Callable[[], Mapping[str, Q]], *, title: str = "") -> type[ChoiceFilter]:
    """A filter named `name` in the address."""
    members = {"parameter_name": name, "title": title or name, "conditions": staticmethod(conditions)}
    return type(f"{name.title()}Filter", (ChoiceFilter,), members)
