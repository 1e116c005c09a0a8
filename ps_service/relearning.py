"""The time in which a restarted ps learns again who owns the indices of a run: its view was in memory."""

from __future__ import annotations

from dataclasses import dataclass

from ps_service.worker_record import LEASE_SECS, NEVER
from psfleet.errors import LostPeerError

RELEARN_SECS = LEASE_SECS
"""How long after its start a restarted ps waits: until every lease from before has been renewed or has expired."""


@dataclass
class Relearning:
    """Whether a ps, if it was restarted, may not know an owner.

    Attributes:
        until: Until then it may not.
        settled_at: When it knows all owners if it was restarted. Not every platform says so, but an owner who has not
            registered here does: each registers with every ps before it calls one.
    """

    until: float = NEVER
    settled_at: float = NEVER

    def begin(self) -> None:
        """This ps was restarted: it has not known an owner."""
        self.until = max(self.until, self.settled_at)

    def check(self, what: str, now: float) -> None:
        """Refuses what needs to know every owner.

        Args:
            what: That this ps does not do meanwhile, for the message.
            now: The time.

        Raises:
            LostPeerError: This ps may not know one; says when it does.
        """
        secs = self.until - now
        if secs > 0:
            text = (
                f"this ps was restarted and {what} for another {secs:.1f} s, in which the present owners report theirs"
            )
            raise LostPeerError(text, retry_secs=secs)
