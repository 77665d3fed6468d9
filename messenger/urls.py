"""What the web process serves."""

from django.contrib import admin
from django.urls import include, path

from messenger.probes import healthz, readyz

admin.site.site_header = admin.site.site_title = "messenger"
admin.site.index_title = "Chats, provisions and messages"

urlpatterns = [
    path("admin/", admin.site.urls),
    path("healthz", healthz),
    path("readyz", readyz),
    path("", include("django_prometheus.urls")),
]
