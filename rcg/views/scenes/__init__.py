# SPDX-License-Identifier: Apache-2.0
"""Makers of scenes: what a graph did, as bars in rows. They know graphs, and not how one paints."""
