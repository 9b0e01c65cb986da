# SPDX-License-Identifier: Apache-2.0
"""Widgets for Jupyter: a graph's topology, schedule and timeline, and a monitor of a running one.

```python
from rcg_widgets import TimelineWidget, TopologyWidget, link

topology, timeline = TopologyWidget(trace), TimelineWidget(trace)
link(topology, timeline)            # what is selected in one is highlighted in the other
```

They run in JupyterLab, Notebook 7, VS Code and Colab, as anywidgets: nothing is loaded from
elsewhere. rcg never needs them; each has a static relative there (``rcg.views``). ``figure`` and
``source`` hand data to Plotly and Graphviz.
"""

try:
    import anywidget as _anywidget  # noqa: F401 - says by itself whether ipywidgets is there
except ImportError as _error:
    raise ImportError(
        'the widgets need anywidget and ipywidgets: pip install ".[notebook]" in the folder of rcg',
        name=_error.name,
    ) from _error

from rcg_widgets.base import View
from rcg_widgets.figures import figure, source
from rcg_widgets.monitor import LiveMonitor
from rcg_widgets.schedule import ScheduleWidget
from rcg_widgets.selection import Selection, link
from rcg_widgets.timeline import TimelineWidget
from rcg_widgets.topology import TopologyWidget

__all__ = [
    "LiveMonitor",
    "ScheduleWidget",
    "Selection",
    "TimelineWidget",
    "TopologyWidget",
    "View",
    "figure",
    "link",
    "source",
]
