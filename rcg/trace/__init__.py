# SPDX-License-Identifier: Apache-2.0
"""What the processes of a graph did and when: the record, and what follows from it.

```
Recorder ──> Trace ── parts_of, executions_of ──> shares_of, critical_path ──> summarize, compare
                 `────── costs_of ──> what_if, predict
```

Import from the modules: every actor's process loads ``clocks`` and ``spans``, and must not pay for
the analysis.
"""
