# SPDX-License-Identifier: Apache-2.0
"""The intermediate representation: the checked graph, and the plan made of it. Plain data.

Vocabulary of a plan: ``ids``, ``line`` (parses one line of its text), ``fields`` (the types of
fields); ``record`` derives the line of text, its parser and the JSON from the fields of a class.
``ops``; ``channels`` (actors, nodes, lanes, gates, channels, groups); ``costs`` (of calls and
transfers, and what is predicted). The plan: ``programs`` (its data), ``check``, ``formats`` (text
and JSON), ``plan`` (what others import). The graph: ``nodes`` (its data, and between which
processes values travel), ``containers`` (arguments with holes for nodes), ``graph`` (with its
checks; what others import). ``signature``: the arguments of an execution.
"""
