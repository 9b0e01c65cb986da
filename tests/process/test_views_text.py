# SPDX-License-Identifier: Apache-2.0
"""Graphviz reads what rcg writes for it."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from rcg.views.data.topology import topology_of
from rcg.views.text import dot_of
from tests.unit.views_plans import ring_of_stages, two_parts, wicked


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz's dot is not installed")
def test_graphviz_reads_it() -> None:
    for topology in (wicked(), two_parts(), topology_of(ring_of_stages(4, 3))):
        for details in (False, True):
            source = dot_of(topology, channel_details=details)
            plain = subprocess.run(
                ["dot", "-Tplain"], input=source.encode(), capture_output=True, check=True
            ).stdout.decode()
            assert len(re.findall(r"^node ", plain, re.M)) == len(topology.nodes)
            assert len(re.findall(r"^edge ", plain, re.M)) == len(topology.edges)
