# SPDX-License-Identifier: Apache-2.0
"""Ray's path of the collectives of a DAG."""

from rcg.collective import allgather, allreduce, reducescatter

__all__ = ["allgather", "allreduce", "reducescatter"]
