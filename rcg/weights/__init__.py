# SPDX-License-Identifier: Apache-2.0
"""Weights by name: published by trainers, read by whoever wants them.

::

    # in a trainer: an actor, or any other process of the cluster
    publisher = rcg.weights.publish("policy", model)
    version = publisher.push(step)
    publisher.wait(version)  # every reader has it: write again

    # in a generator, on any node
    subscriber = rcg.weights.subscribe("policy", into=model)
    update = subscriber.update()  # the newest version, all or nothing

No group, rank or port: a reader may come late, and go, at any time. Publishers may each have a part
of the tensors, and readers want other parts: only what a reader wants travels, straight from the
memory of those that have it. ``plan`` shows who gets how much from whom.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rcg import cluster
from rcg.callers import at_users_line
from rcg.weights.client import ask_if_there, describe_soon
from rcg.weights.planning import WeightsPlan, plan_of
from rcg.weights.publisher import Publisher, WeightsVersion
from rcg.weights.report import WeightsReport, report_of
from rcg.weights.shards import Slice
from rcg.weights.subscriber import Subscriber, Update

__all__ = [
    "Publisher",
    "Slice",
    "Subscriber",
    "Update",
    "WeightsPlan",
    "WeightsReport",
    "WeightsVersion",
    "plan",
    "publish",
    "report",
    "subscribe",
]


@at_users_line
def publish(
    name: str,
    model_or_state_dict: Any,
    shard: Mapping[str, Slice] | None = None,
    *,
    dtype: Any = None,
    names: Iterable[str] | None = None,
    copy: bool = False,
) -> Publisher:
    """Publish the weights of a model under a name; nothing can be read before the first ``push``.

    Args:
        name: The name, for the whole cluster.
        model_or_state_dict: A module of torch's, or a dict of tensors by their names. DTensors say
            themselves which part of a tensor is here. It is looked at again at each ``push``.
        shard: Which part of the whole each tensor is, by names; those that are not in it are whole.
            Several publishers of one name must all give it, or DTensors: together they have the
            whole, and a version can be read when all of them have pushed it. None: this process
            has everything, and is the only one.
        dtype: The type in which floating-point tensors travel, such as ``torch.bfloat16``; a
            version is a copy then. None for their own.
        names: Which tensors; None for all.
        copy: Whether a version is a copy: then the tensors may be written to at once, and who comes
            late finds the newest version.

    Raises:
        ValueError: Another process publishes under this name, or the tensors do not fit what
            others publish, or ``shard`` does not fit the tensors, or some are more than their
            bytes (quantized, nested, consisting of others) or have lost them; all of them are
            listed.
        TypeError: These are no tensors.
    """
    _check(name)
    return Publisher(name, model_or_state_dict, shard, dtype, names, copy)


@at_users_line
def subscribe(
    name: str,
    into: Any,
    shard: Mapping[str, Slice] | None = None,
    *,
    names: Iterable[str] | None = None,
    atomic: bool = True,
    lookahead: int | None = None,
    timeout: float | None = None,
) -> Subscriber:
    """Subscribe to the weights of a name; waits until somebody publishes them.

    An update needs memory beside the tensors of this process, which ``report`` shows as "spare":

    - with ``atomic=True`` as much as the tensors, from the first update on;
    - with ``atomic=False`` as much as those tensors that cannot be written to in place, because
      they are not contiguous or not in the memory of the CPU;
    - with ``atomic=False`` and ``lookahead`` at most that many bytes.

    Without ``lookahead`` there may be up to 2 GiB more for each publisher whose memory this
    process cannot read: one on another node, or one that the kernel does not let it read.

    Args:
        name: The name.
        into: A module of torch's, or a dict of tensors by their names, which get the weights. It is
            looked at again at each update.
        shard: Which part of the whole each tensor is, as for ``publish``; publishers may have
            others.
        names: Which tensors; None for all.
        atomic: Whether the tensors keep the old version until all of the new one is here. If False,
            they are written to as the new one comes.
        lookahead: With ``atomic=False``, the most bytes that an update needs beside the tensors: of
            what is on its way, and of what waits to be copied into a tensor. At least 2 MiB, and
            twice the largest tensor that cannot be written to in place. Less of it is slower.
            A publisher may need as much to send it. None for no limit.
        timeout: How long to wait for a publisher, in seconds; None sets no limit.

    Raises:
        TimeoutError: Nobody publishes them in time.
        ValueError: Names, shapes or types differ from what is published; all of them are listed.
            Or ``lookahead`` is too small, or given with ``atomic=True``.
        TypeError: These are no tensors.
    """
    _check(name)
    return Subscriber(name, into, shard, names, atomic, lookahead, timeout)


@at_users_line
def plan(name: str) -> WeightsPlan:
    """Return who gets which part of the weights of a name from whom, for those there are now.

    Raises:
        ValueError: Nobody publishes them, or nobody reads them.
    """
    _check(name)
    publishers, readers = ask_if_there("members", name) or ((), ())
    if not publishers or not readers:
        raise ValueError(f"nobody {'reads' if publishers else 'publishes'} the weights {name!r}")
    return plan_of(publishers, readers)[0]


@at_users_line
def report() -> WeightsReport:
    """Return who publishes and who reads weights in this cluster, and who waits for whom.

    ``rcg.report()`` has it, too, in a process that has used this module.
    """
    _check("weights")
    return report_of(ask_if_there("describe") or ())


def report_if_used() -> WeightsReport | None:
    """Return the report; None if this process knows of no weights, or nobody says in time."""
    found = describe_soon()
    return report_of(found) if found else None


def _check(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise TypeError(f"weights have a name, a text, got {name!r}")
    if not cluster.is_connected():
        raise RuntimeError("weights are published in a cluster: call rcg.init() first")
