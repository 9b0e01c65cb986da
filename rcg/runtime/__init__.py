# SPDX-License-Identifier: Apache-2.0
"""Running a plan: starting it on the actors, executing it, watching over it, ending it."""
