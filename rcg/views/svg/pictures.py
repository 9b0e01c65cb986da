# SPDX-License-Identifier: Apache-2.0
"""The pictures of a graph and of its record.

This file decides what is drawn: which executions, which prediction, which figures. The other files
decide how it is drawn. Pages and notebooks show the same pictures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rcg.ir.plan import Plan
from rcg.text import stated, time_text
from rcg.trace.analysis.summary import GraphSummary
from rcg.trace.measured import Measured
from rcg.trace.model import GraphTrace, Mark, Recording
from rcg.views.data import ViewPayload
from rcg.views.data.excerpts import MAX_EXECUTIONS, excerpt_of
from rcg.views.data.figures import card_of, topology_figures_of
from rcg.views.data.folding import LEVELS, fold
from rcg.views.data.lettering import DOT
from rcg.views.data.node_lanes import addresses_of
from rcg.views.data.over_time import WORK
from rcg.views.data.topology import topology_of
from rcg.views.diagram import Diagram
from rcg.views.scene import CriticalPaths, Scene
from rcg.views.scenes.heat import MANY, heat_scene, memory_scene, shares_scene
from rcg.views.scenes.pipeline import pipeline_scene
from rcg.views.scenes.references import references_scene
from rcg.views.scenes.schedule import predicted_scene, schedule_scene
from rcg.views.scenes.timeline import timeline_scene
from rcg.views.scenes.topology import NARROW_ROOM, ROOM, diagram_of, diagram_of_folded
from rcg.views.svg.canvas import WIDTH
from rcg.views.svg.diagram import shapes_of, svg_of
from rcg.views.svg.scene import picture_of
from rcg.views.svg.summary import summary_of

_MAX_BOXES: Final = 1200  # of a picture that is not the most folded one
_MAX_BOXES_OF_PHONE: Final = 300


def topology_picture(
    plan: Plan,
    *,
    title: str,
    actor_ids: Mapping[str, str] | None = None,
    addresses: Mapping[str, str] | None = None,
    marks: Mapping[str, Mark] | None = None,
    channel_details: bool = False,
    measured: Measured | None = None,
    room: float = ROOM,
) -> str:
    """Return actors, methods and the values between them as the text of an SVG file.

    Args:
        plan: The plan.
        title: The title.
        actor_ids: Ray's ids of the actors, for hover texts.
        addresses: The addresses of the nodes of the cluster; None takes those of the record.
        marks: What is wrong with actors; None takes what was at the end of the record.
        channel_details: Show each call, and which channel carries each value.
        measured: What it did, for times and sizes in the picture.
        room: The width that the picture should not exceed, without its margins.
    """
    figures = None
    if measured is not None:
        figures = topology_figures_of(measured)
        addresses = addresses_of(measured.graph) if addresses is None else addresses
        marks = measured.graph.marks if marks is None else marks
    topology = topology_of(plan, actor_ids, addresses, marks)
    diagram = diagram_of(topology, channel_details=channel_details, figures=figures, room=room)
    return svg_of(diagram, title, room=room) if room < ROOM else svg_of(diagram, title)


def topology_payload(
    plan: Plan,
    measured: Measured | None = None,
    addresses: Mapping[str, str] | None = None,
    marks: Mapping[str, Mark] | None = None,
) -> ViewPayload:
    """Return the topology for a widget: a picture for each level that shows more than the last.

    Beside its shapes, a picture has the ops that each box and each line stands for. Where it is too
    wide for a phone, ``narrow`` has the same boxes and lines in another layout. It has no
    columns. The addresses of the nodes of the cluster, and what is wrong with actors, are by
    default those of the record.
    """
    figures = None
    if measured is not None:
        figures = topology_figures_of(measured)
        addresses = addresses_of(measured.graph) if addresses is None else addresses
        marks = measured.graph.marks if marks is None else marks
    topology = topology_of(plan, addresses=addresses, marks=marks)
    pictures: dict[tuple[int, int], dict[str, Any]] = {}
    for level in LEVELS:
        folded = fold(topology, level, odd=figures.odd if figures else ())
        size = len(folded.cards), len(folded.rows)
        if size in pictures or (pictures and len(folded.rows) > _MAX_BOXES):
            continue
        diagram = diagram_of_folded(folded, figures)
        narrow = None
        if diagram.width > NARROW_ROOM and len(folded.rows) <= _MAX_BOXES_OF_PHONE:
            narrow = _drawn(diagram_of_folded(folded, figures, room=NARROW_ROOM))
        pictures[size] = {
            "level": level,
            "about": diagram.about,
            **_drawn(diagram),
            "narrow": narrow,
            "notes": diagram.groups,
            "nodes": [box.ops for box in diagram.boxes],
            "edges": [(line.source, line.target, line.count, line.ops) for line in diagram.lines],
        }
    return ViewPayload({"pictures": list(pictures.values())}, {})


def _drawn(diagram: Diagram) -> dict[str, Any]:
    """Return how a diagram looks."""
    shapes, legend, dark = shapes_of(diagram)
    size = {"width": diagram.width, "height": diagram.height}
    return {**size, "shapes": shapes, "legend": legend, "dark": dark}


def summary_picture(summary: GraphSummary, width: float = WIDTH, *, has_answer: bool = True) -> str:
    """Return where the time of each actor went, and the key figures.

    What limits the graph is left out where that stands elsewhere; what would help always stands
    beside it, as text that can be copied.
    """
    figures = replace(card_of(summary), advice=())
    return summary_of(figures if has_answer else replace(figures, answer=""), width=width)


def schedule_picture(trace: Recording, graph: GraphTrace) -> str | None:
    """Return what each actor did when, and the prediction; None without a complete execution."""
    if excerpt_of(Measured.of(trace, graph)) is None:
        return None
    scene = schedule_scene(Measured.of(trace, graph), is_part=True)
    return _stated(scene, graph, _about(trace, scene))


def pipeline_picture(trace: Recording, graph: GraphTrace) -> str | None:
    """Return one execution of a pipeline: its micro-batches, its bubble, and the ideal.

    None if the graph has no micro-batches, or no complete execution.
    """
    scene = pipeline_scene(Measured.of(trace, graph))
    return None if scene is None else _stated(scene, graph)


def predicted_schedule(plan: Plan, limit: int, state: str = "") -> str:
    """Return the predicted schedule of a plan with at most so many executions in flight.

    All calls take equally long if the plan has no costs. The title says the state of the graph.
    """
    return picture_of(predicted_scene(plan, window=limit), title=stated("Schedule", state))


def timeline_picture(
    trace: Recording, graph: GraphTrace, *, most: int = MAX_EXECUTIONS
) -> str | None:
    """Return the timeline of the executions of the schedule; None without a complete execution."""
    part = excerpt_of(Measured.of(trace, graph), most=most)
    if part is None:
        return None
    scene = timeline_scene(Measured.of(trace, graph), part=part)
    return _stated(scene, graph, _about(trace, scene))


def whole_timeline_picture(trace: Recording, scene: Scene) -> str:
    """Return the timeline of a whole trace, whose scene is given."""
    return picture_of(replace(scene, paths=CriticalPaths()), title="Whole trace")


def actors_pictures(
    trace: Recording, graph: GraphTrace, width: float = WIDTH
) -> list[tuple[str, str]]:
    """Return pictures with a row for each of many actors, and their names; none of few actors."""
    if len(graph.plan.actors) < MANY:
        return []
    return [
        ("Time by actor", shares_by_actor(trace, graph, width)),
        ("Heat", heat_picture(trace, graph, width)),
    ]


def shares_by_actor(trace: Recording, graph: GraphTrace, width: float = WIDTH) -> str:
    """Return where the time of each actor went."""
    return _stated(shares_scene(Measured.of(trace, graph)), graph, width=width)


def heat_picture(trace: Recording, graph: GraphTrace, width: float = WIDTH) -> str:
    """Return which actors compute when."""
    return _stated(heat_scene(Measured.of(trace, graph)), graph, width=width)


def busy_picture(trace: Recording, graph: GraphTrace) -> str:
    """Return which actors are busy when: idle time is hatched."""
    return _stated(heat_scene(Measured.of(trace, graph), WORK, "Busy, actor by actor"), graph)


def memory_picture(trace: Recording, graph: GraphTrace) -> str:
    """Return how many bytes were written and not read yet."""
    return _stated(memory_scene(Measured.of(trace, graph)), graph)


def _stated(scene: Scene, graph: GraphTrace, about: str = "", width: float = WIDTH) -> str:
    title = stated(scene.title or scene.view.capitalize(), graph.state)
    return picture_of(scene, title=title, about=about, width=width)


def references_picture(trace: Recording) -> str | None:
    """Return when each process got tensors by reference; None if none did."""
    scene = references_scene(trace)
    return None if scene is None else picture_of(scene, title="Tensors by reference")


def _about(trace: Recording, scene: Scene) -> str:
    """Return which executions a picture shows, and which part of the trace."""
    what, *more = scene.about.split(f" {DOT} ")
    first, last = time_text(scene.begin), time_text(scene.end)
    when = f"{first} to {last} of {time_text(trace.duration_ns)}"
    return f" {DOT} ".join([what, when, *more])
