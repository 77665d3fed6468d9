"""The base of every page of the admin: to look at, never to edit.

What a person may do all the same is a `ConfirmedAction` (messenger.admin_actions).
"""

import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from django.contrib import admin, messages
from django.contrib.admin.utils import flatten_fieldsets, quote, unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Model, Q, QuerySet
from django.db.models.functions import Now
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils.functional import cached_property

from messenger.admin_display import Link, Table

COUNTED_AT_MOST = 10_000

M = TypeVar("M", bound=Model)

if TYPE_CHECKING:

    class _ModelAdmin(admin.ModelAdmin[M]):
        pass

    _Paginator = Paginator[Any]
else:
    # Django's own classes take no type parameter when they run.
    class _ModelAdmin(admin.ModelAdmin, Generic[M]):
        pass

    _Paginator = Paginator


class BoundedPaginator(_Paginator):
    """Counts no further than anybody pages: count(*) over a huge table takes as long as the table is."""

    @cached_property
    def count(self) -> int:
        """How many there are, up to COUNTED_AT_MOST."""
        found = cast("QuerySet[Any]", self.object_list)
        return found.order_by().values("pk")[:COUNTED_AT_MOST].count()

    @property
    def capped(self) -> bool:
        """Whether there may be more."""
        return self.count >= COUNTED_AT_MOST


class LeanChangeList(ChangeList):
    """Leaves wide columns that a list does not show where they are."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        found = super().get_queryset(request, exclude_parameters)
        return found.defer(*cast("ReadOnlyAdmin[Any]", self.model_admin).list_defer)


class ReadOnlyAdmin(_ModelAdmin[M]):
    """Lists and pages of one table for those with its view permission; nothing can be added, changed or deleted."""

    change_list_template = "messenger/admin/change_list.html"
    change_form_template = "messenger/admin/change_form.html"
    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 200

    search_fields: ClassVar[list[str] | tuple[str, ...]] = ()
    """Columns of ids: a search is for whole ids, several of them find any."""
    list_defer: Sequence[str] = ()
    """Columns that the list does not read."""
    binary_fields: Sequence[str] = ()
    """Columns whose exact bytes may be downloaded."""
    sections: Sequence[tuple[str, Callable[[Any], Table]]] = ()
    """Tables on an object's page, each with the permission it takes."""
    related: Sequence[tuple[str, Callable[[Any], Iterable[Link]]]] = ()
    """Links on an object's page, likewise. An app above adds its own to an admin below (`BelowAdmin.related += …`)."""

    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {"all": ("messenger/admin.css",)}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        # Django takes the permission to change for one to view; there is nothing to change here.
        return may(request, f"{self.opts.app_label}.view_{self.opts.model_name}")

    def get_queryset(self, request: HttpRequest) -> QuerySet[M]:
        # Ages are told by the clock that wrote the moments.
        return cast("QuerySet[M]", super().get_queryset(request).annotate(database_now=Now()))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LeanChangeList

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        title = str(self.opts.verbose_name_plural).capitalize()
        return super().changelist_view(request, {"title": title, **(extra_context or {})})

    def get_readonly_fields(self, request: HttpRequest, obj: M | None = None) -> Any:
        return flatten_fieldsets(self.get_fieldsets(request, obj))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[M], search_term: str
    ) -> tuple[QuerySet[M], bool]:
        wanted = Q()
        for word in search_term.split():
            condition = self.search_condition(word)
            if condition is None:
                messages.warning(request, f"“{word[:80]}” finds nothing here. {self.search_help_text or ''}")
                return queryset.none(), False
            wanted |= condition
        return queryset.filter(wanted), False

    def search_condition(self, word: str) -> Q | None:
        """What `word` finds; None if it is nothing to search for."""
        found = whole_id(word)
        return None if found is None else Q.create([(name, found) for name in self.search_fields], connector=Q.OR)

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: M | None = None,
    ) -> HttpResponse:
        context["tables"] = [read(obj) for permission, read in self.sections if may(request, permission)]
        context["links"] = [link for permission, read in self.related if may(request, permission) for link in read(obj)]
        return super().render_change_form(request, context, add, change, form_url, obj)

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_bytes"
        download = path(
            "<path:object_id>/bytes/<slug:field>/", self.admin_site.admin_view(self.download_view), name=name
        )
        return [download, *super().get_urls()]

    def download_url(self, obj: M, field: str) -> str:
        """Where the exact bytes of a column are had."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_bytes"
        return reverse(name, args=[quote(str(obj.pk)), field])

    def download_view(self, request: HttpRequest, object_id: str, field: str) -> HttpResponse:
        """The exact bytes of a column, as a file."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        found = self.get_object(request, unquote(object_id))
        content = getattr(found, field) if found is not None and field in self.binary_fields else None
        if content is None:
            raise Http404
        answer = HttpResponse(bytes(content), content_type="application/octet-stream")
        answer["Content-Disposition"] = f'attachment; filename="{self.opts.model_name}-{object_id}-{field}.bin"'
        return answer


def may(request: HttpRequest, permission: str) -> bool:
    """Whether the user at the other end has `permission` (`app.codename`)."""
    return bool(request.user.has_perm(permission))


def now_of(obj: Model) -> datetime:
    """The database's clock when `obj` was read."""
    now: datetime = vars(obj)["database_now"]
    return now


def whole_id(word: str) -> uuid.UUID | None:
    """The id that `word` is, in any of the spellings people paste."""
    try:
        return uuid.UUID(word)
    except ValueError:
        return None
