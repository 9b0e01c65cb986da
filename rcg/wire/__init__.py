# SPDX-License-Identifier: Apache-2.0
"""What processes send each other: control messages and payloads; whether a peer is alive.

``messages`` (one frozen dataclass each), ``codec`` (their fields as JSON, with all checks),
``sockets`` (messages over connections, with descriptors), ``packets`` (the connections to other
nodes: whole packets over TCP), ``addresses`` (where a process listens for other nodes), ``proof``
(proving to know a secret), ``tls`` (with Ray's ``certificates``), ``payloads`` (encoded values in
messages), ``liveness`` (whether a peer is alive and can be reached).
"""
