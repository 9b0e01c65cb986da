# SPDX-License-Identifier: Apache-2.0
"""A small picture that replaces a widget where widgets cannot run, such as on GitHub.

A notebook stores the picture beside the widget. A front end that supports widgets shows the widget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from rcg.views.html.elements import images
from rcg.views.svg.pictures import (
    pipeline_picture,
    predicted_schedule,
    schedule_picture,
    timeline_picture,
    topology_picture,
)
from rcg_widgets.subject import Subject

__all__ = ["schedules", "small", "timelines", "topologies"]

_MAX_HTML_CHARS: Final = 100_000
_WINDOW: Final = 10  # executions in flight, without a record

Pictures = Callable[[], Iterable[str]]
"""Makes pictures as SVG, the preferred one first."""


def small(pictures: Pictures, alt: str) -> str:
    """Return the first picture that is small enough, as HTML; "" if there is none."""
    found = (images([(alt, svg)]) for svg in pictures())
    return next((html for html in found if len(html) <= _MAX_HTML_CHARS), "")


def timelines(subject: Subject) -> Pictures:
    """Return timelines of fewer and fewer executions."""

    def made() -> Iterator[str]:
        for most in (8, 4, 2, 1):
            yield from _known(subject, timeline_picture, most=most)

    return made


def schedules(subject: Subject) -> Pictures:
    """Return the schedule, or without a record the predicted one."""

    def made() -> Iterator[str]:
        if subject.record is None:
            yield predicted_schedule(subject.plan, _WINDOW)
        yield from _known(subject, schedule_picture)

    return made


def pipelines(subject: Subject) -> Pictures:
    """Return the pipeline."""
    return lambda: _known(subject, pipeline_picture)


def topologies(subject: Subject, title: str) -> Pictures:
    """Return the topology, with measured figures first."""

    def made() -> Iterator[str]:
        if subject.measured is not None:
            yield topology_picture(subject.plan, title=title, measured=subject.measured)
        yield topology_picture(
            subject.plan, title=title, addresses=subject.addresses, marks=subject.marks
        )

    return made


def _known(subject: Subject, picture: Callable[..., str | None], **given: Any) -> Iterator[str]:
    """Yield a picture of a record, if there is one: it needs a complete execution."""
    if subject.record is not None:
        svg = picture(subject.trace, subject.record, **given)
        yield from () if svg is None else (svg,)
