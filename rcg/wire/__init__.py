# SPDX-License-Identifier: Apache-2.0
"""What processes send each other: control messages and payloads; whether a peer is alive."""
