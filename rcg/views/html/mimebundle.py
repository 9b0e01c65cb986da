# SPDX-License-Identifier: Apache-2.0
"""The mimebundle of an object: text, and HTML without a script, with pictures as images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rcg.display import Mimebundle
from rcg.ir.plan import Plan
from rcg.table import escaped
from rcg.text import plural, shown_text, visible
from rcg.trace.analysis.summary import Summary
from rcg.trace.analysis.transfers import reference_sums, references_about, references_table
from rcg.trace.measured import Measured, summarize
from rcg.trace.model import Mark, Recording
from rcg.views.html.elements import advised, images
from rcg.views.html.report import report_of, tensors_report_of
from rcg.views.svg.pictures import (
    actors_pictures,
    pipeline_picture,
    references_picture,
    schedule_picture,
    summary_picture,
    timeline_picture,
    topology_picture,
)

_MAX_GRAPHS: Final = 3  # with pictures; the page of a trace has more
_OVER_TIME: Final = (
    ("Pipeline", pipeline_picture),
    ("Schedule", schedule_picture),
    ("Timeline", timeline_picture),
)


def mimebundle(text: str, pictures: Iterable[tuple[str, ...]], note: str = "") -> Mimebundle:
    """Return a mimebundle of text, and of pictures (see ``images``) with a note below them."""
    html = images(pictures)
    if html and note:
        html += f"<p>{escaped(note)}</p>"
    return {"text/plain": shown_text(text), **({"text/html": html} if html else {})}


def of_plan(
    plan: Plan,
    text: str = "",
    title: str = "Plan",
    actor_ids: Mapping[str, str] | None = None,
    addresses: Mapping[str, str] | None = None,
    marks: Mapping[str, Mark] | None = None,
) -> Mimebundle:
    """Return the mimebundle of a plan: its text, and its topology."""
    picture = topology_picture(
        plan, title=title, actor_ids=actor_ids, addresses=addresses, marks=marks
    )
    return mimebundle(text or str(plan), [("Topology", picture)])


def of_trace(trace: Recording) -> Mimebundle:
    """Return the mimebundle of a trace: its summary as text and as pictures."""
    whole, trace = trace, trace.active
    summary = summarize(trace)
    pictures: list[tuple[str, ...]] = []
    for graph, figures in list(zip(trace.graphs, summary.graphs, strict=True))[:_MAX_GRAPHS]:
        name = visible(graph.title)
        measured = Measured.of(trace, graph)
        topology = topology_picture(graph.plan, title=name, measured=measured)
        pictures.append((f"Topology of {name}", topology))
        advice = advised(figures.verdict.advice if figures.verdict else ())
        below = f'<div style="margin:0 24px">{advice}</div>' if advice else ""
        pictures.append((f"Profile of {name}", summary_picture(figures), below))
        for what, picture in _OVER_TIME:
            svg = picture(trace, graph)
            if svg is not None:
                pictures.append((f"{what} of {name}", svg))
        pictures += [(f"{what} of {name}", svg) for what, svg in actors_pictures(trace, graph)]
    references = references_picture(whole)
    if references is not None:
        pictures.append(("Tensors by reference", references))
    more = len(trace.graphs) - _MAX_GRAPHS
    note = f"{plural(more, 'more graph')}: Profile.save_html(path) shows more" if more > 0 else ""
    notes = filter(None, [note, whole.inactive_text, *_states_of(trace, summary)])
    return mimebundle(_join(summary, whole), pictures, "; ".join(notes))


def text_of(trace: Recording) -> str:
    """Return the summary of the active graphs of a trace as text."""
    return _join(summarize(trace.active), trace)


def _states_of(trace: Recording, summary: Summary) -> list[str]:
    """Return a line for each graph with which something was wrong at the end.

    Of one that hangs the summary says more.
    """
    found = zip(trace.graphs, summary.graphs, strict=True)
    return [graph.title for graph, figures in found if graph.state and figures.stall is None]


def _join(summary: Summary, trace: Recording) -> str:
    sums = reference_sums(trace.transfers)
    references = f"Tensors by reference: {references_about(sums)}\n{references_table(sums).text()}"
    references = references if sums else ""
    text = str(summary) if trace.graphs or not references else ""
    states = "\n".join(_states_of(trace.active, summary))
    return "\n\n".join(filter(None, [states, text, references, trace.inactive_text]))


def of_reports(reports: Iterable[Any], text: str, tensors: Any = None) -> Mimebundle:
    """Return the mimebundle of reports of graphs and of tensors: their text, and tables."""
    html = "".join(report_of(each, title=visible(each.title)) for each in reports)
    if tensors is not None:
        html += tensors_report_of(tensors)
    return {"text/plain": shown_text(text), "text/html": html or f"<p>{escaped(text)}</p>"}
