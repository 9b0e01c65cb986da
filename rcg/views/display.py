# SPDX-License-Identifier: Apache-2.0
"""How objects are displayed, by type: the implementation of the hook of ``rcg.display``.

To display a type that a room below defines, register a function for it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Any, Final, Unpack

from rcg.display import DrawingOptions, Mimebundle, Views
from rcg.ir.plan import Plan
from rcg.trace.analysis.comparison import Comparison, GraphComparison
from rcg.trace.analysis.critical import CriticalPath
from rcg.trace.analysis.executions import Executions
from rcg.trace.analysis.what_if import WhatIf
from rcg.trace.model import Mark, Recording
from rcg.views.chrome import to_chrome
from rcg.views.data.topology import topology_of
from rcg.views.html import findings
from rcg.views.html.mimebundle import mimebundle, of_plan, of_reports, of_trace
from rcg.views.html.runs import of_runs
from rcg.views.visualize import visualize


@singledispatch
def _mimebundle_of(thing: object) -> Mimebundle:
    return mimebundle(str(thing), [])


_mimebundle_of.register(Plan, of_plan)
_mimebundle_of.register(Recording, of_trace)
_mimebundle_of.register(Executions, findings.of_executions)
_mimebundle_of.register(CriticalPath, findings.of_path)
_mimebundle_of.register(WhatIf, findings.of_what_if)
_mimebundle_of.register(Comparison, findings.of_comparison)
_mimebundle_of.register(GraphComparison, findings.of_comparison)


class _Views:
    mimebundle = staticmethod(_mimebundle_of)
    plan = staticmethod(of_plan)
    reports = staticmethod(of_reports)
    chrome = staticmethod(to_chrome)
    runs = staticmethod(of_runs)

    def figure(self, thing: object, *, dark: bool | None) -> Any:
        from rcg.views.charts import figure_of  # for who asks for charts

        return figure_of(thing, dark=dark)

    def visualize(
        self,
        plan: Plan,
        actor_ids: Mapping[str, str],
        *,
        addresses: Mapping[str, str],
        marks: Mapping[str, Mark],
        **options: Unpack[DrawingOptions],
    ) -> str:
        return visualize(topology_of(plan, actor_ids, addresses, marks), **options)


VIEWS: Final[Views] = _Views()
"""The implementation of the hook."""
