# SPDX-License-Identifier: Apache-2.0
"""The layers of a topology: how many steps each node is from the input."""

from __future__ import annotations

from rcg.views.data.topology import Topology


def layers_of(topology: Topology) -> list[int]:
    """Return the layer of each node: the length of the longest path to it.

    An owned node has the layer of its owner.
    """
    unit = [node.id if node.owner is None else node.owner for node in topology.nodes]
    waits_for = [0] * len(unit)
    takers: list[list[int]] = [[] for _ in unit]
    for edge in topology.edges:
        source, target = unit[edge.source], unit[edge.target]
        if source != target:
            takers[source].append(target)
            waits_for[target] += 1
    layers = [0] * len(unit)
    ready = [node for node in dict.fromkeys(unit) if not waits_for[node]]
    for node in ready:
        for taker in takers[node]:
            layers[taker] = max(layers[taker], layers[node] + 1)
            waits_for[taker] -= 1
            if not waits_for[taker]:
                ready.append(taker)
    return [layers[node] for node in unit]
