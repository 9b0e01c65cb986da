# SPDX-License-Identifier: Apache-2.0
"""How objects are displayed, by type: the implementation of the hook of ``rcg.display``.

To display a type that a room below defines, register a function for it here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import singledispatch
from typing import Any, Final

from rcg.display import Mimebundle, Views
from rcg.ir.plan import Plan
from rcg.trace.analysis.compare import Comparison, GraphComparison
from rcg.trace.analysis.critical import CriticalPath
from rcg.trace.analysis.executions import Executions
from rcg.trace.analysis.what_if import WhatIf
from rcg.trace.model import Recording
from rcg.views.data.topology import topology_of
from rcg.views.html import findings, mimebundle
from rcg.views.visualize import visualize


@singledispatch
def _shown(thing: object) -> Mimebundle:
    return mimebundle.mimebundle(str(thing), [])


_shown.register(Plan, mimebundle.of_plan)
_shown.register(Recording, mimebundle.of_trace)
_shown.register(Executions, findings.of_executions)
_shown.register(CriticalPath, findings.of_path)
_shown.register(WhatIf, findings.of_what_if)
_shown.register(Comparison, findings.of_comparison)
_shown.register(GraphComparison, findings.of_graph_comparison)


class _Views(Views):
    def mimebundle(self, thing: object) -> Mimebundle:
        return _shown(thing)

    def plan(
        self,
        plan: Plan,
        *,
        text: str,
        title: str,
        actor_ids: Mapping[str, str],
        addresses: Mapping[str, str],
    ) -> Mimebundle:
        return mimebundle.of_plan(plan, text, title, actor_ids, addresses)

    def reports(self, reports: Iterable[Any], text: str, tensors: Any = None) -> Mimebundle:
        return mimebundle.of_reports(reports, text, tensors)

    def visualize(
        self,
        plan: Plan,
        actor_ids: Mapping[str, str],
        *,
        addresses: Mapping[str, str],
        filename: str | os.PathLike[str],
        format: str | None,
        view: bool,
        channel_details: bool,
        legend: bool,
        title: str,
        dark: bool | None,
    ) -> str:
        return visualize(
            topology_of(plan, actor_ids, addresses),
            filename=filename,
            format=format,
            view=view,
            channel_details=channel_details,
            legend=legend,
            title=title,
            dark=dark,
        )


VIEWS: Final = _Views()
"""The implementation of the hook."""
