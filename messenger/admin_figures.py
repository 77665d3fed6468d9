"""The figures of the admin's start page: what waits, what is stuck, what needs a person. Each app adds its own."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

from django.http import HttpRequest

from messenger.ages import in_words


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with the list behind it. `tone` is how the page shows it when there is anything: `calm` for what
    moves by itself, `watch` for what should not last, `act` for what waits for a person."""

    label: str
    count: int
    url: str
    tone: str
    oldest: timedelta | None = None

    @property
    def shown_tone(self) -> str:
        """`good` where there is nothing."""
        return self.tone if self.count else "good"

    @property
    def shown_count(self) -> str:
        """With its thousands apart."""
        return f"{self.count:,}"

    @property
    def shown_age(self) -> str:
        """Of the oldest, in words."""
        return in_words(self.oldest) if self.count and self.oldest is not None else ""


TONES = ("act", "watch", "calm")
Read = Callable[[], Iterable[Figure]]
_figures: list[tuple[str, Read]] = []


def figures(*, permission: str) -> Callable[[Read], Read]:
    """Adds what a function reads to the start page of those with `permission`."""

    def add(read: Read) -> Read:
        _figures.append((permission, read))
        return read

    return add


def figures_for(request: HttpRequest) -> list[Figure]:
    """What the user at the other end may see; first what waits for a person."""
    found = [figure for permission, read in _figures if request.user.has_perm(permission) for figure in read()]
    return sorted(found, key=lambda figure: TONES.index(figure.tone))
