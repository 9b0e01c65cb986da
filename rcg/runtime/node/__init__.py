# SPDX-License-Identifier: Apache-2.0
"""One node: its shared memory and the numbers of the processes in it."""
