"""What people see: the API and the page."""

from django.urls import path

from chats.api import api
from chats.page import page

urlpatterns = [
    path("api/v1/", api.urls),
    path("chats/", page),
]
