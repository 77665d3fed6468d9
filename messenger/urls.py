"""What the web process serves."""

from django.contrib import admin
from django.urls import include, path

from messenger.probes import healthz, readyz

admin.site.site_header = admin.site.site_title = "messenger"
admin.site.index_title = "Chats, provisions and messages"
admin.site.site_url = None  # there is no site beside it for those who look after the service
admin.site.enable_nav_sidebar = False  # ids and errors need its room
admin.site.index_template = "messenger/admin/index.html"

urlpatterns = [
    path("admin/", admin.site.urls),
    path("healthz", healthz),
    path("readyz", readyz),
    path("", include("django_prometheus.urls")),
    path("", include("chats.urls")),
]
