# SPDX-License-Identifier: Apache-2.0
"""Every reason for which a test may be skipped, and where that test does run.

A skip, or an expected failure, for another reason fails the run (``tests/conftest.py``). What the
extra ``dev`` installs is no reason: ``importorskip`` skips only where a release is tried with fewer
packages, which says ``--any-skip``.

Not collected at all, and so not skipped: ``tests/vllm`` and its notebook, where there is no vLLM
(``make vllm``); ``tests/gpu``, which is no pytest (``make gpu``); the doctests of
``rcg/integrations``, which need other libraries.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["SKIPS", "where_it_runs"]

SKIPS: Final = {
    # Programs. `.ci/run` installs them, where it may.
    "Graphviz's dot is not installed": "CI installs graphviz",
    "no chromium on the path": "CI installs chromium",
    "node is not installed": "CI installs nodejs",
    "there is no program `patch`": "CI installs patch",
    "Perfetto's trace_processor_shell is not here": "where a person has put it on the PATH",
    # Stages of their own.
    "the site is not built": ".ci/run, which makes the site first",
    "run by `make test-netns`": "make test-netns; CI, as root",
    "Ray has one node here": "the stages with --nodes 2",
    "there is one node": "the stages with --nodes 2",
    "the pages show what one node prints": "the stages with one node",
    # Kernels and interpreters.
    "this kernel has no huge pages": "kernels that have them",
    "this kernel has no vmsplice": "kernels that have it, which sandboxes may not",
    "could not import '_testcapi'": "interpreters that were built with their tests",
    "there is a GPU": "machines without one",
}
"""Where a test runs, by how the reason for skipping it begins."""


def where_it_runs(reason: str) -> str | None:
    """Return where a test runs that was skipped for a reason; None if the table does not say."""
    plain = re.sub(r"^Skipped: ", "", reason)
    return next((where for begin, where in SKIPS.items() if plain.startswith(begin)), None)
