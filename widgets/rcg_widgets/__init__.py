# SPDX-License-Identifier: Apache-2.0
"""Widgets for Jupyter: the views of a graph, what if, and a live monitor.

::

    from rcg_widgets import TimelineWidget, TopologyWidget, link

    topology, timeline = TopologyWidget(trace), TimelineWidget(trace)
    link(topology, timeline)            # what is selected in one is highlighted in the other

They are anywidgets, one for each view, and run in JupyterLab, Notebook 7, VS Code, Colab and
marimo. They load nothing from the network. rcg does not need them: ``rcg.views`` has a static
picture for each. ``figure`` and ``source`` pass data to Plotly and Graphviz.
"""

try:
    import anywidget as _anywidget  # noqa: F401 - its import fails without ipywidgets
except ImportError as _error:
    raise ImportError(
        "the widgets need anywidget and ipywidgets: pip install 'rcg[notebook]'",
        name=_error.name,
    ) from _error

from rcg_widgets.base import View
from rcg_widgets.monitor import LiveMonitor
from rcg_widgets.pipeline import PipelineWidget
from rcg_widgets.schedule import ScheduleWidget
from rcg_widgets.selection import Selection, link
from rcg_widgets.timeline import TimelineWidget
from rcg_widgets.topology import TopologyWidget
from rcg_widgets.what_if import WhatIfWidget

__all__ = [
    "LiveMonitor",
    "PipelineWidget",
    "ScheduleWidget",
    "Selection",
    "TimelineWidget",
    "TopologyWidget",
    "View",
    "WhatIfWidget",
    "link",
]
