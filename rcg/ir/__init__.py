# SPDX-License-Identifier: Apache-2.0
"""The intermediate representation: the checked graph, and the plan made of it. Plain data.

Vocabulary of a plan: ``ids``, ``line`` (parses one line of its text), ``operands``. Fields:
``field_type``, ``fields``; ``record`` derives the line of text, its parser and the JSON from the
fields of a class. ``ops``; ``channels`` (actors, nodes, lanes, gates, channels, groups); ``costs``
(of calls and transfers, and what is predicted). The plan: ``programs`` (its data), ``check`` and
``node_check``, ``text``, ``codec`` (JSON), ``plan`` (what others import). The graph: ``nodes`` (its
data), ``edges`` (between which processes values travel), ``graph_check`` and ``collective_check``,
``containers`` (arguments with holes for nodes), ``graph`` (what others import). ``signature``: the
arguments of an execution.
"""
