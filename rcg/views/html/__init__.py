# SPDX-License-Identifier: Apache-2.0
"""What a notebook shows and what a page holds: HTML without a script, with pictures as images."""
