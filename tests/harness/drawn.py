# SPDX-License-Identifier: Apache-2.0
"""What the views show today of records that do not change, as a digest.

The notebooks and the pictures of the README carry the digest of the day on which they were stored
(`make pictures` writes it). Tests compare it with today's: readers see what the views show now.

The digest is of what is drawn, not of the source that draws it: a digest of the source would call
all notebooks old after a comment was changed. It is of what a reader sees (texts, figures, classes
and colours) and not of coordinates: a label that moves by a pixel makes no picture wrong.
"""

from __future__ import annotations

import functools
import hashlib
import re
from base64 import b64decode
from collections.abc import Iterator
from typing import Any, Final

from rcg.profiling import Profile
from rcg.trace.model import TensorTransfer
from rcg.trace.trace import Trace
from tests.unit.live_reports import chain_that_hangs
from tests.unit.tensors_by_hand import tensor_trace
from tests.unit.trace_by_hand import LANES_ROWS, NODES, NODES_ROWS, WITH_LANES
from tests.unit.traces import graph_trace
from tests.unit.views_traces import microbatches, pipeline, simulated, times

STALE: Final = "the views show something else than when this was stored: run `make pictures`"

_PICTURE: Final = re.compile(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)")
_TAG: Final = re.compile(r"<(/?[\w-]+)([^<>]*)>")
_SEEN: Final = re.compile(r"""\b(class|fill|stroke|alt)=("[^"]*"|'[^']*'|[^\s>]+)""")


@functools.cache
def digest() -> str:
    """Return the digest of what the views show."""
    shown = "\n".join(_seen(text) for each in _shown() for text in _texts(each))
    return hashlib.sha256(shown.encode()).hexdigest()[:12]


def _shown() -> Iterator[Any]:
    """Yield what notebooks show, each made of a record that is the same on every machine."""
    training = Profile(simulated(microbatches(), 6))
    yield training
    yield training.executions()
    yield training.critical_path(5)
    yield training.what_if({"Stage.fwd": 0.5})
    yield training.compare(Profile(simulated(microbatches(), 6, op_cost=times(200))))
    yield Profile(simulated(pipeline(3), 20))
    yield Profile(tensor_trace())
    yield Profile(Trace((), 0, 20_000, {}, (_transfer(500), _transfer(2_000))))
    yield Profile(Trace((graph_trace(LANES_ROWS, plan=WITH_LANES),), 0, 80))
    nodes = graph_trace(NODES_ROWS, plan=NODES, limit=4)
    yield nodes.plan
    yield Profile(Trace((nodes,), 0, 300))
    yield chain_that_hangs(4, 1, for_s=9.8)


def _transfer(moved_ns: int) -> TensorTransfer:
    source, target = (f"Actor({name}, {digit * 32})" for name, digit in (("From", 1), ("To", 2)))
    return TensorTransfer(
        object="k-1",
        source=source,
        target=target,
        transport="gloo",
        bytes=1 << 20,
        start_ns=1_000,
        waited_ns=500,
        end_ns=1_500 + moved_ns,
        error="",
    )


def _texts(shown: Any) -> Iterator[str]:
    """Yield the texts of a mimebundle, with those of its pictures."""
    for text in shown._repr_mimebundle_().values():
        yield _PICTURE.sub("", text)
        yield from (b64decode(picture).decode() for picture in _PICTURE.findall(text))


def _seen(text: str) -> str:
    """Return a text without what its tags have but a reader does not see."""
    return _TAG.sub(lambda tag: f"<{tag[1]} {_SEEN.findall(tag[2])}>", text)
