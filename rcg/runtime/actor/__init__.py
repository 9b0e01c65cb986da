# SPDX-License-Identifier: Apache-2.0
"""In an actor: the loop that runs one program, and what it needs."""
