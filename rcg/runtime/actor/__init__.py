# SPDX-License-Identifier: Apache-2.0
"""The part of the runtime in an actor: the loop that runs one program.

``start`` (what the driver calls) and ``spec`` (what it sends), ``loop`` and its ``steps``,
``methods`` (the user's), ``turns`` (the lock between graphs on an actor), ``groups`` (its
communicators), ``collectives`` (their steps), ``exchanges`` (what each kind does) and ``ownership``
(what may be overwritten), ``torch_ops`` (what torch's profiler saw in its ops), ``failpoints``
(points at which tests intervene).
"""
