# SPDX-License-Identifier: Apache-2.0
"""Channels: one writer, n readers, in order. Today over shared memory (``shm``)."""
