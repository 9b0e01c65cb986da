"""Traces for tests of views: made by simulating a plan, with real times for its ops."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np

from rcg.compiler.simulate import simulate
from rcg.ir.ops import Call, Op, Read, Write
from rcg.ir.plan import Plan
from rcg.trace.model import EVENT, NO_PEER, SPAN_BASE, Clock, GraphTrace, LaneTrace
from rcg.trace.trace import Trace
from rcg.views.data.lettering import width_of
from tests.unit.views_plans import Builder

US = 1_000


def pipeline(
    stages: int, label: str = "Stage", *, is_training: bool = False, methods: int = 1
) -> Plan:
    """A chain of actors; forward, and back again if it trains."""
    build = Builder()
    value = 0
    for stage in range(stages):
        for method in range(methods):
            name = "fwd" if method == 0 else f"fwd_{method}"
            value = build.call(f"a{stage}", name, value, label=label)
    if is_training:
        for stage in reversed(range(stages)):
            value = build.call(f"a{stage}", "bwd", value)
    return build.plan(value)


def microbatches(stages: int = 4, batches: int = 8) -> Plan:
    """One execution trains on several microbatches, one forward and one backward each: 1F1B."""
    build = Builder(keys=tuple(range(batches)))
    orders = []
    for stage in range(stages):
        warm = min(batches, stages - stage - 1)
        order = [("fwd", batch) for batch in range(warm)]
        for batch in range(batches - warm):
            order += [("fwd", batch + warm), ("bwd", batch)]
        orders.append(order + [("bwd", batch) for batch in range(batches - warm, batches)])
    forward: dict[tuple[int, int], int] = {(-1, batch): batch for batch in range(batches)}
    backward: dict[tuple[int, int], int] = {}
    at = [0] * stages
    while any(position < len(order) for position, order in zip(at, orders, strict=True)):
        for stage in range(stages):
            while at[stage] < len(orders[stage]):
                method, batch = orders[stage][at[stage]]
                source = (
                    forward.get((stage - 1, batch))
                    if method == "fwd"
                    else forward.get((stage, batch))
                    if stage == stages - 1
                    else backward.get((stage + 1, batch))
                )
                if source is None:
                    break
                made = build.call(f"a{stage}", method, source)
                (forward if method == "fwd" else backward)[stage, batch] = made
                at[stage] += 1
    return build.plan(*[backward[0, batch] for batch in range(batches)])


def times(call_us: float = 400, move_us: float = 25) -> Callable[[Op], float]:
    """Costs in ns: calls by method and actor, handing over, the rest a microsecond."""

    def cost(op: Op) -> float:
        match op:
            case Call():
                factor = 1.8 if op.method == "bwd" else 1.0
                return call_us * factor * (1 + 0.15 * (int(op.actor[1:]) % 3)) * US
            case Read() | Write():
                return move_us * US
            case _:
                return 0.3 * US

    return cost


def simulated(
    plan: Plan,
    executions: int,
    *,
    op_cost: Callable[[Op], float] | None = None,
    window: int = 10,
    jitter: float = 0.0,
    spans: bool = False,
    start_ns: int = 5_000_000_000,
) -> Trace:
    """The trace of a run whose ops take as long as they are said to; waits are between them."""
    costs = op_cost or times()
    run = simulate(plan, costs, executions, window=window)
    random = np.random.default_rng(0)
    numbers = {program.process: position for position, program in enumerate(plan.programs)}
    channels = plan.channels_by_id()
    lanes = []
    for program in plan.programs:
        rows = []
        done = [span for span in run.timeline if span.process == program.process]
        done.sort(key=lambda span: span.start)
        last = 0.0
        for span in done:
            op = program.ops[span.op]
            is_actor = program.process != "driver"
            begun = last if is_actor and isinstance(op, Read | Write) else span.start
            waited = max(0.0, span.start - begun)
            end = span.end
            if jitter and isinstance(op, Call):
                end -= (span.end - span.start) * jitter * random.random()
            peer, amount, coded = NO_PEER, 0, 0.0
            if isinstance(op, Read | Write):
                coded = (span.end - span.start) * 0.4
                amount = 3_250_000 if op.channel != "c0" else 4096
                if waited:
                    channel = channels[op.channel]
                    other = channel.writer if isinstance(op, Read) else channel.readers[0]
                    peer = numbers[other]
            rows.append((begun, end, waited, coded, span.execution, amount, span.op, peer))
            if spans and isinstance(op, Call):
                cuts = np.linspace(span.start, end, 4)
                rows += [
                    (cut, until, 0, 0, span.execution, 0, SPAN_BASE + number, NO_PEER)
                    for number, (cut, until) in enumerate(pairwise(cuts[:3]))
                ]
            last = end
        values = np.zeros(len(rows), EVENT)
        for position, row in enumerate(rows):
            values[position] = tuple(round(each) for each in row)
        values["start_ns"] += start_ns
        values["end_ns"] += start_ns
        lanes.append(
            LaneTrace(
                program.process,
                f"{plan.actors[numbers[program.process] - 1].label}#{numbers[program.process]}"
                if program.process != "driver"
                else "driver",
                values,
                ("attention", "mlp") if spans else (),
                node="10.0.0.1",
                pid=4000 + numbers[program.process],
                clock=Clock(0, 2_000),
            )
        )
    end_ns = start_ns + round(run.duration) + 1
    graph = GraphTrace("5f1c" * 8, plan, tuple(lanes), window)
    return Trace((graph,), start_ns, end_ns, {"host": "box", "cores": 2})


def labelled(trace: Trace) -> Trace:
    """A trace of one graph with the labels of its plan, as a recorded one has."""
    (graph,) = trace.graphs
    lanes = [replace(lane, label=graph.plan.label(lane.process)) for lane in graph.lanes]
    return replace(trace, graphs=(replace(graph, lanes=tuple(lanes)),))


WICKED = "<script>alert(1)</script>&\"'\x00\ud800\N{RIGHT-TO-LEFT OVERRIDE}" + "\u5f20\u91cf" * 40
"""A name that breaks whatever does not escape it, and is too long for any box."""

_NUMBER = r"-?\d+(?:\.\d+)?"


def check_pictures(html: str) -> list[str]:
    """The pictures that a cell shows are well-formed; returns them."""
    found = re.findall(r"data:image/svg\+xml;base64,([^\"']*)", html)
    pictures = [b64decode(each).decode() for each in found]
    for each in pictures:
        check_picture(each)
    return pictures


def check_picture(svg: str) -> None:
    """A picture is well-formed, and loads and runs nothing.

    No text or box is outside of it, no text is small, and no two texts overlap.
    """
    root = ElementTree.fromstring(svg)
    assert "<script" not in svg and "href" not in svg and "onload" not in svg
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]
    used = set(re.findall(r"url\(#([^)]*)\)", svg))
    assert used <= {each.get("id") for each in root.iter()}
    width, height = float(root.get("width", "nan")), float(root.get("height", "nan"))
    texts: list[tuple[str, float, float, float, float]] = []
    for element, x, y, style in _placed(root, 0.0, 0.0, {"font-size": "12"}):
        if element.tag.endswith("}text") and element.text:
            size = float(style["font-size"])
            is_bold = style.get("font-weight") == "600"
            # Labels of bars may be small, so that all bars that are alike have one.
            assert size >= (8.5 if is_bold else 11.5)
            long = width_of(
                element.text,
                size,
                bold=is_bold,
                monospace="monospace" in style.get("font-family", ""),
            )
            before = {"middle": long / 2, "end": long}.get(style.get("text-anchor", ""), 0.0)
            if element.get("transform", "").startswith("rotate(-90 "):  # it reads upwards
                texts.append((element.text, x - 0.5 * size, y - long + before, x, y + before))
            else:
                texts.append((element.text, x - before, y - 0.5 * size, x - before + long, y))
        elif element.tag.endswith("}rect") and "%" not in element.get("width", "0"):
            long, high = (float(element.get(name, "0")) for name in ("width", "height"))
            assert -0.5 <= x <= x + long <= width + 0.5, (element.attrib, x, width)
            assert -0.5 <= y <= y + high <= height + 0.5, (element.attrib, y, height)
        elif element.tag.endswith("}circle"):  # of a chart whose time begins at 0
            assert float(element.get("cx", "0")) >= -0.5, element.attrib
    for text, start, _, end, foot in texts:
        assert start >= -0.5 and end <= width + 0.5, (text, start, end)
        assert 0 < foot < height, (text, foot)
    boxes = np.array([box for _, *box in texts]).reshape(-1, 4).T
    left, top, right, bottom = boxes[..., None]
    overlap = (left + 1 < right.T) & (right > left.T + 1) & (top < bottom.T) & (bottom > top.T)
    pairs = np.argwhere(np.triu(overlap, 1)).tolist()
    assert not pairs, [texts[at] for at in pairs[0]]


def _placed(
    element: ElementTree.Element, x: float, y: float, style: dict[str, str]
) -> Iterator[tuple[ElementTree.Element, float, float, dict[str, str]]]:
    """The elements of a picture, where they are, and the style that they inherit."""
    if element.tag.endswith("}defs"):
        return
    moved = re.match(rf"translate\(({_NUMBER}) ({_NUMBER})\)", element.get("transform", ""))
    if moved is not None:
        x, y = x + float(moved[1]), y + float(moved[2])
    names = ("font-size", "font-weight", "text-anchor", "font-family")
    style = style | {name: value for name in names if (value := element.get(name)) is not None}
    yield element, x + float(element.get("x", "0")), y + float(element.get("y", "0")), style
    for child in element:
        yield from _placed(child, x, y, style)


_VOID = {"meta", "img", "br", "link", "input", "hr"}


class Structure(HTMLParser):
    """Every element is closed where it has to be."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in _VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack and self.stack[-1] == tag, (tag, self.stack)
        self.stack.pop()


_ELEMENT = re.compile(r"<(script|style)\b([^>]*)>.*?</\1>", re.DOTALL)


def static_part(page: str) -> str:
    """A page without its scripts, data and styles: what is read where no script runs."""
    return _ELEMENT.sub("", page)


def check_page(page: str) -> list[str]:
    """A page is well-formed and alone; returns its pictures."""
    for tag, attributes in _ELEMENT.findall(page):
        assert "src" not in attributes
        assert tag == "style" or re.match(r' type="(module|text/plain)"', attributes)
    assert "@import" not in page and "fetch(" not in page
    assert set(re.findall(r"https?://[^\"<]*", page)) <= {"http://www.w3.org/2000/svg"}
    page.encode()
    page = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    structure = Structure()
    structure.feed(page)
    structure.close()
    assert structure.stack == []
    assert not {"script", "link", "iframe", "object", "img"} & set(structure.seen)
    assert "href" not in page and "javascript:" not in page
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    for picture in pictures:
        check_picture(picture)
    # An id may come again where the same picture does.
    defined = set(re.findall(r"<pattern.*?</pattern>", page))
    ids = [re.findall(r' id="([^"]*)"', each)[0] for each in defined]
    assert len(ids) == len(set(ids)) and set(re.findall(r' id="([^"]*)"', page)) == set(ids)
    return pictures
