# SPDX-License-Identifier: Apache-2.0
"""The part of the runtime in an actor: the loop that runs one program."""
