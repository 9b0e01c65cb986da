# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a group meet: each publishes a value and waits for those of all others."""

from __future__ import annotations

from rcg.comm.base import Membership
from rcg.options import Deadline


def exchange(membership: Membership, step: str, value: bytes, deadline: Deadline) -> list[bytes]:
    """Publish a value, and return the values of all ranks; blocks until all have published theirs.

    Args:
        membership: The rank that calls.
        step: A name that every rank uses once.
        value: What this rank publishes.
        deadline: How long to wait.

    Raises:
        TimeoutError: Some ranks did not come in time; the text names them and the group.
        GroupAborted: The store was closed meanwhile.
    """
    store = membership.store
    store.set(f"{step}/{membership.rank}", value)
    keys = [f"{step}/{rank}" for rank in range(membership.size)]
    try:
        return store.get(keys, deadline.remaining_s())
    except TimeoutError:
        labels = zip(keys, membership.labels, strict=True)
        missing = [label for key, label in labels if not store.has([key])]
        raise TimeoutError(
            f"group {membership.group}: {', '.join(missing) or 'some rank'} did not come within "
            f"{deadline.timeout_s} s"
        ) from None
