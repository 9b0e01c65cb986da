# SPDX-License-Identifier: Apache-2.0
"""Why a communicator refuses its operations: what communicators of rcg share."""

from __future__ import annotations

from rcg.comm.base import Membership
from rcg.errors import CommError, GroupAborted, RcgError


class Refusal:
    """Why the operations of one rank are refused: nothing, at first. Any thread.

    That the group was aborted or destroyed counts more than that an operation failed.
    """

    def __init__(self, membership: Membership) -> None:
        self.errors: dict[str, RcgError] = {}  # by what ended it; an entry is made in one step
        self._group, self._rank = membership.group, membership.rank

    def abort(self, why: str) -> bool:
        """Refuse operations from now on; returns whether this is the first abort."""
        own = GroupAborted(why, group=self._group, rank=self._rank)
        return self.errors.setdefault("aborted", own) is own

    def destroy(self) -> None:
        """Refuse operations from now on, if nothing else has ended the group."""
        if not self.errors:
            self.abort(f"group {self._group} was destroyed")

    def fail(self, why: str) -> None:
        """Refuse operations because one has failed, if nothing else has ended the group."""
        if not self.errors:
            failed = CommError(why, group=self._group, rank=self._rank)
            self.errors.setdefault("failed", failed)

    def error(self) -> RcgError:
        """Return an error of its own for each caller."""
        found = self.errors.get("aborted") or self.errors.get("failed")
        if found is None:
            return CommError("it was left behind", group=self._group, rank=self._rank)
        return type(found)(found.message, **found.facts)
