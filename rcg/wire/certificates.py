# SPDX-License-Identifier: Apache-2.0
"""Ray's certificates, as both sides of a connection over TLS use them (``tls``).

Both sides show a certificate and check that of the other. Names are not compared: the certificates
say that a machine belongs to the cluster, and the graph's secret says the rest (``proof``). Apart
from ``tls``, because the doctor makes contexts, too, and must not load Ray.
"""

from __future__ import annotations

import ssl

from rcg.options import TlsFiles


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return what a listener needs to know.

    Raises:
        OSError: A file cannot be read, or contains something else.
    """
    return _checking(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files)


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Return what the connecting side needs to know; raises as ``server_context``."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    return _checking(made, files)


def _checking(context: ssl.SSLContext, files: TlsFiles) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    return context
