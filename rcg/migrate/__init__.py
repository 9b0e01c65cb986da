# SPDX-License-Identifier: Apache-2.0
"""``rcg migrate``: rewrites the import lines of programs that were written for Ray.

The rule is the README's: in import lines ``ray``, ``ray.dag`` and ``ray.experimental`` become
``rcg``, and nothing else changes. ``moves`` decides for one imported name, ``imports`` reads and
makes the nodes of import statements, ``rewrite`` applies the decisions to the syntax tree of a
source text, ``remarks`` finds lines that the user has to check, ``stars`` reads neighbouring files,
``notebook`` rewrites the cells of a notebook, and ``command`` is the command with its files.

``rewrite`` needs libcst, which is optional, so nothing is imported here. No module of this package
imports Ray or the program that it rewrites.
"""
