# SPDX-License-Identifier: Apache-2.0
"""Traces: the record of what the processes of a graph did, and its analyses.

```
Recorder ──> Recording ── parts_of, executions_of ──> shares_of, critical_path ──> summarize
                 |`────── costs_of ──> what_if, predict
                 `──────> files, chrome, frame ──> Trace
```

``model`` is the record as plain data; ``analysis`` computes from it, ``export`` writes it, and
``trace`` is the class with all of that for users. Import from the modules: every actor's process
loads ``clocks`` and ``spans``, and must not pay for the analysis.
"""
