"""Actions of the admin that a person confirms first, seeing what will become of each row.

The confirmation carries each row's version, so that a row which has changed in the meantime is reported and not
overwritten. What was done leaves a LogEntry per row, in the transaction that did it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, cast

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import BadRequest, PermissionDenied, ValidationError
from django.db.backends.utils import CursorWrapper
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.http import url_has_allowed_host_and_scheme, urlencode

from messenger.admin import M, ReadOnlyAdmin, may
from messenger.admin_display import Link, list_url, object_url
from messenger.database import unit_of_work
from messenger.logs import get_logger

log = get_logger(__name__)

ROWS_AT_MOST = 500
"""How many rows one confirmation shows; also keeps its form below DATA_UPLOAD_MAX_NUMBER_FIELDS."""
NAMED_AT_MOST = 10

CHANGED = "changed since the confirmation was shown"
BUSY = "somebody is at work on it at this moment"
GONE = "not there any more"


@dataclass(frozen=True, slots=True)
class Step:
    """What will become of one row, as the confirmation says it. `version` changes whenever the row does."""

    state: str
    says: str
    goes: bool
    version: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one row: done, or why not."""

    pk: Any
    label: str
    why_not: str | None = None


class ConfirmedAction(ABC, Generic[M]):
    """One action on rows of one table. `perform` works in a transaction of the caller."""

    name: str
    """Of the action and of its address."""
    permission: str
    verb: str
    """`Re-enqueue`: on buttons."""
    explanation: str
    log_message: str
    form: type[forms.Form] = forms.Form

    @abstractmethod
    def done(self) -> str:
        """Said after the number of rows it was done to."""

    @abstractmethod
    def step(self, row: M) -> Step:
        """What would become of `row` now."""

    @abstractmethod
    def perform(
        self, cursor: CursorWrapper, versions: Mapping[Any, str], *, username: str, answers: Mapping[str, Any]
    ) -> Sequence[Done]:
        """Do it to the rows (version by key) that are still as they were confirmed; `answers` are of `form`."""


class ActingAdmin(ReadOnlyAdmin[M]):
    """A read-only admin with confirmed actions, in the list and on the object's page."""

    confirmed: Sequence[ConfirmedAction[Any]] = ()

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        offered = (action for action in self.confirmed if may(request, action.permission))
        return {action.name: (partial(_selected, action=action), action.name, f"{action.verb}…") for action in offered}

    def get_urls(self) -> list[URLPattern]:
        own = [
            path(
                f"{action.name}/",
                self.admin_site.admin_view(partial(self.confirm_view, action=action)),
                name=self._url_name(action),
            )
            for action in self.confirmed
        ]
        return [*own, *super().get_urls()]

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: M | None = None,
    ) -> HttpResponse:
        context["buttons"] = [
            Link(self._object_url(action, obj, request.get_full_path()), f"{action.verb}…")
            for action in self.confirmed
            if obj is not None and may(request, action.permission) and action.step(obj).goes
        ]
        return super().render_change_form(request, context, add, change, form_url, obj)

    def confirm_view(self, request: HttpRequest, action: ConfirmedAction[M]) -> HttpResponse:
        """GET shows what would become of the rows named `row`; POST, with their versions, does it."""
        if not (self.has_view_permission(request) and may(request, action.permission)):
            raise PermissionDenied
        posted = request.method == "POST"
        asked = [each.partition("=") for each in (request.POST if posted else request.GET).getlist("row")]
        versions = {self._key(key): version for key, _, version in asked[:ROWS_AT_MOST]}
        form = action.form(request.POST) if posted else action.form()
        if posted and form.is_valid():
            self._perform(request, action, versions, form.cleaned_data)
            return HttpResponseRedirect(self._back(request))
        return self.confirmation(request, action, self.get_queryset(request).filter(pk__in=versions), form)

    def confirmation(
        self, request: HttpRequest, action: ConfirmedAction[M], rows: QuerySet[M], form: forms.Form | None = None
    ) -> HttpResponse:
        """The page that says what will become of each row."""
        steps = [(row, action.step(row), object_url(self.model, row.pk)) for row in rows.defer(*self.list_defer)]
        steps.sort(key=lambda each: not each[1].goes)
        context = {
            **self.admin_site.each_context(request),
            "title": f"{action.verb}: are you sure?",
            "opts": self.opts,
            "media": self.media,
            "action": action,
            "address": reverse(f"admin:{self._url_name(action)}"),
            "steps": steps,
            "going": sum(step.goes for _, step, _ in steps),
            "form": form if form is not None else action.form(),
            "next": self._back(request),
        }
        return TemplateResponse(request, "messenger/admin/confirm.html", context)

    def _perform(
        self, request: HttpRequest, action: ConfirmedAction[M], versions: Mapping[Any, str], answers: dict[str, Any]
    ) -> None:
        with unit_of_work(
            lock_timeout=settings.CONSUMER_LOCK_TIMEOUT, statement_timeout=settings.CONSUMER_STATEMENT_TIMEOUT
        ) as cursor:
            results = action.perform(cursor, versions, username=request.user.get_username(), answers=answers)
            changed = [result.pk for result in results if result.why_not is None]
            if changed:
                rows = self.model._default_manager.filter(pk__in=changed).defer(*self.list_defer)
                message = action.log_message.format(**answers)
                LogEntry.objects.log_actions(cast(int, request.user.pk), rows, CHANGE, message)
        for pk in changed:
            log.info("done_by_hand", action=action.name, table=self.opts.model_name, id=str(pk), by=request.user.pk)
        if changed:
            messages.success(request, f"{len(changed)} {action.done()}")
        _tell_why_not(request, results)

    def _key(self, text: str) -> Any:
        try:
            return self.opts.pk.to_python(text)
        except ValidationError as error:
            raise BadRequest("a row is named by its key") from error

    def _back(self, request: HttpRequest) -> str:
        """Where the person came from; the list, if that is not a page of this site."""
        default = request.get_full_path() if "_selected_action" in request.POST else list_url(self.model)
        wanted = request.POST.get("next") or request.GET.get("next") or default
        here = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure())
        return wanted if here else list_url(self.model)

    def _url_name(self, action: ConfirmedAction[M]) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{action.name}"

    def _object_url(self, action: ConfirmedAction[M], obj: M, back: str) -> str:
        return f"{reverse(f'admin:{self._url_name(action)}')}?{urlencode({'row': obj.pk, 'next': back})}"


def lock_confirmed(
    rows: QuerySet[M], versions: Mapping[Any, str], version_of: Callable[[M], str]
) -> tuple[list[M], list[Done]]:
    """Lock those of `rows` that are as they were confirmed; the rest with the reason why not. Waits for nobody.

    A row of no version (an empty text) is one that the action does not concern.
    """
    wanted = rows.filter(pk__in=versions).order_by("pk")
    locked = {row.pk: row for row in wanted.select_for_update(skip_locked=True)}
    same = [row for row in locked.values() if version_of(row) and version_of(row) == versions[row.pk]]
    others = [Done(row.pk, str(row), CHANGED) for row in locked.values() if row not in same]
    others += [Done(row.pk, str(row), BUSY) for row in wanted if row.pk not in locked]
    known = locked.keys() | {done.pk for done in others}
    others += [Done(key, str(key), GONE) for key in versions if key not in known]
    return same, others


def _selected(
    modeladmin: ActingAdmin[M], request: HttpRequest, queryset: QuerySet[M], *, action: ConfirmedAction[M]
) -> HttpResponse | None:
    if queryset[: ROWS_AT_MOST + 1].values("pk").count() > ROWS_AT_MOST:
        messages.error(request, f"Select {ROWS_AT_MOST} at the most, so that each can be shown before it is done.")
        return None
    return modeladmin.confirmation(request, action, queryset)


def _tell_why_not(request: HttpRequest, results: Sequence[Done]) -> None:
    reasons: dict[str, list[str]] = {}
    for each in results:
        if each.why_not is not None:
            reasons.setdefault(each.why_not, []).append(each.label)
    for reason, labels in reasons.items():
        more = f" and {len(labels) - NAMED_AT_MOST} more" if len(labels) > NAMED_AT_MOST else ""
        messages.warning(request, f"Left alone, {reason}: {', '.join(labels[:NAMED_AT_MOST])}{more}.")
