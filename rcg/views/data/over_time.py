# SPDX-License-Identifier: Apache-2.0
"""What changes over the time of a trace: who is busy, and how many bytes are on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rcg.ir.channels import RING
from rcg.trace.analysis.parts import TimeKind, parts_of
from rcg.trace.analysis.transfers import read_of, write_of
from rcg.trace.model import GraphTrace, Recording

Floats = npt.NDArray[np.float64]
_BINS = 200
_WORK = (TimeKind.COMPUTE, TimeKind.COMMUNICATION, TimeKind.SERIALIZATION)


def busy_share(trace: Recording, graph: GraphTrace) -> tuple[list[str], Floats, Floats]:
    """Return the share of the time in which each process works, in parts of the trace.

    Returns:
        The names of the processes [n]; the middles of the parts, in ns from the beginning [bins];
        the shares, from 0 to 1 [n, bins].
    """
    edges = np.linspace(0, max(trace.end_ns - trace.start_ns, 1), _BINS + 1)
    shares = []
    for lane in graph.lanes:
        parts = parts_of(graph, lane)
        parts = parts.where(np.isin(parts.kind, _WORK))
        order = np.argsort(parts.start_ns, kind="stable")
        start, end = (each[order] - trace.start_ns for each in (parts.start_ns, parts.end_ns))
        # How much work was done until each moment is a line that rises during each part.
        done = np.cumsum(end - start)
        moments = np.column_stack([start, end]).ravel()
        until = np.column_stack([done - (end - start), done]).ravel()
        worked = np.interp(edges, moments, until, left=0) if len(moments) else np.zeros(len(edges))
        shares.append(np.clip(np.diff(worked) / np.diff(edges), 0, 1))
    return [lane.label for lane in graph.lanes], (edges[1:] + edges[:-1]) / 2, np.array(shares)


def bytes_on_the_way(trace: Recording, graph: GraphTrace) -> tuple[Floats, Floats]:
    """Return how many bytes were written to channels and not read by all readers yet.

    Returns:
        When that changes, in ns from the beginning of the trace, ascending; the bytes from then on.
    """
    times: list[npt.NDArray[Any]] = [np.zeros(1)]
    changes: list[npt.NDArray[Any]] = [np.zeros(1)]
    for channel in graph.plan.channels:
        if channel.kind != RING:
            continue
        sent = graph.lane(channel.writer).events
        sent = sent[(sent["op"] == write_of(graph.plan, channel.writer, channel.id))]
        sent = sent[sent["bytes"] > 0]
        taken = np.zeros(len(sent))
        for reader in channel.readers:
            came = graph.lane(reader).events
            came = came[came["op"] == read_of(graph.plan, reader, channel.id)]
            at = np.searchsorted(came["execution"], sent["execution"])
            known = at < len(came)
            known[known] = came["execution"][at[known]] == sent["execution"][known]
            end = np.where(known, came["end_ns"][np.minimum(at, len(came) - 1)], trace.end_ns)
            taken = np.maximum(taken, end) if len(came) else np.full(len(sent), trace.end_ns)
        times += [sent["end_ns"] - trace.start_ns, taken - trace.start_ns]
        changes += [sent["bytes"].astype(float), -sent["bytes"].astype(float)]
    when, change = np.concatenate(times).astype(float), np.concatenate(changes)
    order = np.argsort(when, kind="stable")
    return when[order], np.maximum(np.cumsum(change[order]), 0)
