"""Template tags of the admin's own pages."""

from typing import Any

from django import template

from messenger.admin_figures import figures_for

register = template.Library()


@register.inclusion_tag("messenger/admin/figures.html", takes_context=True)
def figures(context: dict[str, Any]) -> dict[str, Any]:
    """The figures of the start page."""
    found = figures_for(context["request"])
    return {"figures": found, "calm": not any(each.count for each in found if each.tone == "act")}
