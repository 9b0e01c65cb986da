# SPDX-License-Identifier: Apache-2.0
"""What processes say to each other: control messages, payloads, and whether a peer lives."""
