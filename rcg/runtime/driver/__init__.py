# SPDX-License-Identifier: Apache-2.0
"""In the process that compiled a graph: submission, results, and the graph's end.

``compiled_dag`` (the object that users hold, and all of them), ``engine`` (executing, fetching,
ending), ``submission``, ``window`` (of executions in flight, and how many the memory allows),
``output``, ``asyncio_bridge``, ``session`` (the running graph and its end), ``lifecycle`` (its
start), with ``answers`` (of the actors) and ``group_checks``.
"""
