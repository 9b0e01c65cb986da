# SPDX-License-Identifier: Apache-2.0
"""Traces: the record of what the processes of a graph did, and its analyses.

```
Recorder ──> Recording ──> EventTable ──> analysis ──> Measured ──> summaries, predictions, views
                 `───────> files, chrome, frame ──> Trace
```

``model`` is the record as plain data, ``analysis`` computes from it, ``measured`` keeps what it
found, ``export`` writes the record, and ``trace`` has the class that offers all of it to users.
Import from the modules: the process of each actor loads ``clocks`` and ``spans``, and must not load
the analyses.
"""
