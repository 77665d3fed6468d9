"""Where a reader of the stream stands: the id of every event, and what `Last-Event-ID` brings back.

A place is a PostgreSQL transaction id below which every transaction had ended *and* had been told of when the event
was sent. Neither a sequence nor a time would do: transactions commit in another order than they take numbers or look
at the clock. What may have been missed is what bears that id or a higher one in `xmin`, the system column with the id
of the transaction that wrote the row. A client may hear again of what it knows already, but misses nothing.

`lineage` names the cluster and its timeline: after a restore or a failover transaction ids start over from somewhere
else, and a place from before means nothing.
"""

import re
from dataclasses import dataclass

_ID = re.compile(r"([0-9]{1,20}-[0-9A-F]{8})\.([0-9]{1,19})", re.ASCII)
REACH = 2**31
"""Rows keep only the lower half of a transaction id: a place further back than this cannot be compared with them."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the stream of one database."""

    lineage: str
    transaction: int

    def __str__(self) -> str:
        return f"{self.lineage}.{self.transaction}"

    def reachable_from(self, newest: "Place") -> bool:
        """Whether what happened between this place and `newest` can still be told."""
        return self.lineage == newest.lineage and 0 <= newest.transaction - self.transaction < REACH // 2


def read_place(text: str) -> Place | None:
    """The place in a `Last-Event-ID`; None if this service did not write it."""
    match = _ID.fullmatch(text)
    return Place(match[1], int(match[2])) if match else None
