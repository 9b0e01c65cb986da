# SPDX-License-Identifier: Apache-2.0
"""One node: its shared memory and the numbers of the processes in it.

``layout`` (the numbers of its processes and channels), ``memory`` (the memory cap, and the
segments), ``arrays`` (``rcg.empty``), ``node`` (a process's place on the node: the only object
through which the runtime accesses shared memory), ``host`` (the process that makes the segments,
and records events), ``snapshot`` (what the processes of another node do).
"""
