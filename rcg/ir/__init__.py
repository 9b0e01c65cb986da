# SPDX-License-Identifier: Apache-2.0
"""The intermediate representation: the checked graph, and the plan made of it. Plain data."""
