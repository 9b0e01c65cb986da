# SPDX-License-Identifier: Apache-2.0
"""Results of graphs whose tensors stay with the actors that made them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from rcg import cluster
from rcg.errors import Transfer
from rcg.rdt.awaiting import submit
from rcg.rdt.envelope import Envelope, Holder, load_closed
from rcg.rdt.process import existing, here
from rcg.rdt.refs import TensorRef
from rcg.rdt.transports import WithTransport
from rcg.rdt.values import seal
from rcg.runtime.by_reference import HeldResult


def keep_result(value: Any, transport: str | WithTransport, where: str) -> HeldTensors:
    """Keep the tensors of a graph's result here; returns what travels in its place."""
    ours, plain = here(), str(transport)  # of the user's own it has the class
    if ours.store.is_holding:
        ours.store.look_for_writes(None)
    key = ours.new_key()
    return HeldTensors(seal(value, plain, key, where), plain, ours.holder_now(), key)


class HeldTensors(HeldResult):
    """A result of a graph whose tensors an actor holds; its references share it.

    Ray knows nothing of it until a reference goes elsewhere (``anchor``). So a graph whose results
    are inputs of the next execution makes no objects of Ray's. Decoding a frame twice, which Ctrl-C
    and threads may cause, makes two of it: only one that was told to ``keep`` frees anything.

    Args:
        sealed: Its envelope; the value itself if it has no tensors.
        transport: How its tensors travel.
        holder: The process that holds them.
        key: The object's id there.

    Attributes:
        sealed: See above.
    """

    __slots__ = (
        "__weakref__",
        "_anchors",
        "_has_left",
        "_holder",
        "_is_anchor_kept",
        "_is_kept",
        "_key",
        "_ref",
        "_transport",
        "sealed",
    )

    def __init__(self, sealed: Any, transport: str, holder: Holder, key: str) -> None:
        self._is_kept = self._is_anchor_kept = self._has_left = False
        self._anchors: dict[None, Any] = {}
        self.sealed = sealed
        self._transport = transport
        self._holder = holder
        self._key = key
        self._ref: Callable[[], TensorRef | None] = lambda: None

    def keep(self) -> None:
        """See ``HeldResult``. Ctrl-C between any two lines leaves it to the next call."""
        if not self._is_kept:
            if type(self.sealed) is Envelope:
                here().keeper.keep(None, self._key, self._holder)
            self._is_kept = True

    def reference(self) -> TensorRef:
        """See ``HeldResult``."""
        self.keep()
        found = self._ref()
        if found is None:
            holder = self._holder
            found = TensorRef(None, self._transport, holder.actor, holder.label, self._key)
            found.hold(self)
            self._ref = weakref.ref(found)
        return found

    def discard(self) -> None:
        """See ``HeldResult``."""
        if not self._is_kept and type(self.sealed) is Envelope:
            here().keeper.free(self._key, self._holder)

    @property
    def is_anchored(self) -> bool:
        """Whether Ray has a reference to it."""
        return bool(self._anchors)

    def anchor(self) -> Any:
        """Return Ray's reference to what travels; the first call makes it. Any thread.

        Raises:
            Transfer: This process has left Ray's cluster.
        """
        if not self._anchors:
            if not cluster.is_connected():
                raise Transfer(
                    f"object {self._key} of {self._holder.label} cannot go elsewhere: this process "
                    "has left the Ray cluster in which it was made"
                )
            # On another thread: a `put` in the middle of Ray's pickling has Ray take what is
            # pickled after it for a copy that it cannot count, and keep it for ever.
            put = submit((), partial(cluster.put, self.sealed))
            self._anchors.setdefault(None, put.result())
        if not self._is_anchor_kept:
            if type(self.sealed) is Envelope:
                here().keeper.keep(self._anchors[None], self._key, self._holder)
            self._is_anchor_kept = True
        return self._anchors[None]

    def __reduce__(self) -> tuple[Any, ...]:
        self._has_left = True  # what arrives is looked after there
        fields = self._transport, tuple(self._holder), self._key
        if type(self.sealed) is not Envelope:
            return _load_held, (self.sealed, None, *fields)
        return _load_held, (None, self.sealed.__reduce__()[1], *fields)

    def __del__(self) -> None:
        if not self._is_kept or self._is_anchor_kept or type(self.sealed) is not Envelope:
            return
        ours = existing()
        if ours is not None:  # what has left is looked after elsewhere
            ours.keeper.free(self._key, self._holder, is_told=not self._has_left)


def _load_held(
    plain: Any, sealed: tuple[Any, ...] | None, transport: str, holder: tuple[str, ...], key: str
) -> HeldTensors:
    found = plain if sealed is None else load_closed(*sealed)
    return HeldTensors(found, transport, Holder(*holder), key)


def watch_results(graph: Callable[[], Any]) -> None:
    """Have the keeper keep the tensors of results of a graph that were not fetched yet.

    Args:
        graph: Returns it, as ``Engine`` is; None once nobody uses it.
    """
    here().keeper.watch(graph)
