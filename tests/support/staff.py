"""People of the staff before the admin: logged in, with the permissions a test gives them."""

import re
import uuid
from html import unescape
from typing import Any

from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db.models import Model
from django.test import Client

from messenger.admin_display import list_url


def user_with(*permissions: str) -> Client:
    """Somebody with these permissions (`app.codename`) and no others."""
    user = User.objects.create_user(f"user-{uuid.uuid4().hex[:8]}", is_staff=True)
    for name in permissions:
        app, codename = name.split(".")
        user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
    return logged_in(user)


def superuser(name: str = "boss") -> Client:
    """Somebody who may do everything."""
    return logged_in(User.objects.create_superuser(name))


def logged_in(user: User) -> Client:
    """A browser of `user`."""
    client = Client()
    client.force_login(user)
    return client


def text_of(client: Client, url: str, status: int = 200) -> str:
    """The page at `url`, answered with `status`."""
    response = client.get(url)
    assert response.status_code == status, response.status_code
    return response.content.decode()


def confirmed_rows(page: str) -> list[str]:
    """The rows a confirmation page would act on, as its form sends them: `key=version`."""
    return [unescape(value) for value in re.findall(r'name="row" value="([^"]*)"', page)]


def select(client: Client, name: str, *rows: Any, query: str = "") -> str:
    """Select rows in a list and choose an action; the confirmation."""
    form = {"action": name, "_selected_action": [row.pk for row in rows], "index": 0}
    response = client.post(f"{list_url(type(rows[0]))}{query}", form)
    assert response.status_code == 200
    return response.content.decode()


def confirm(client: Client, url: str, rows: list[str], **fields: str) -> str:
    """Confirm; the page that follows, with what it says."""
    response = client.post(url, {"row": rows, "resolution": "not needed", **fields}, follow=True)
    assert response.status_code == 200
    return response.content.decode()


def state(model: type[Model]) -> list[dict[str, Any]]:
    """All rows of a table, to be compared."""
    return list(model._default_manager.order_by("pk").values())


def entries(row: Any) -> list[tuple[int, str, str]]:
    """What was written down of things done to `row`: (flag, message, by whom)."""
    found = LogEntry.objects.filter(object_id=str(row.pk), content_type__model=row._meta.model_name)
    return list(found.values_list("action_flag", "change_message", "user__username"))


def key_of(row: Any) -> object:
    """What the address of `row` in the admin is made of."""
    return getattr(row, "subject_id", row.pk)


def listed(client: Client, model: type[Model], **query: object) -> set[str]:
    """Keys of the objects that a list shows."""
    page = text_of(client, list_url(model, query))
    return set(re.findall(rf"/{model._meta.model_name}/([^/?\"]+)/change/", page))


def keys(*rows: Any) -> set[str]:
    """`key_of` each row, as `listed` gives it."""
    return {str(key_of(row)) for row in rows}
