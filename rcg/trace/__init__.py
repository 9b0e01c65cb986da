# SPDX-License-Identifier: Apache-2.0
"""Traces: the record of what the processes of a graph did, and its analyses.

```
Recorder ──> Recording ── parts_of, executions_of ──> shares_of, critical_path ──> summarize
                 |`────── costs_of ──> what_if, predict
                 `──────> files, chrome, frame ──> Trace
```

``model`` is the record as plain data, ``analysis`` computes from it, ``export`` writes it, and
``trace`` has the class that offers all of it to users. Import from the modules: the process of each
actor loads ``clocks`` and ``spans``, and must not load the analyses.
"""
