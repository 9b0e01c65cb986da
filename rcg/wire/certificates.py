# SPDX-License-Identifier: Apache-2.0
"""Ray's certificates, as both sides of a connection over TLS use them (``tls``).

Both sides show a certificate and check that of the other. Names are not compared: the certificates
say that a machine belongs to the cluster, and the graph's secret says the rest (``proof``). Apart
from ``tls``, because the doctor makes contexts, too, and must not load Ray.
"""

from __future__ import annotations

import ssl

from rcg.options import TLS_FILES, TlsFiles


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return what a listener needs to know.

    Raises:
        ValueError: A file cannot be read, or contains something else.
    """
    return _load_files(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files)


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Return what the connecting side needs to know; raises as ``server_context``."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    return _load_files(made, files)


def _load_files(context: ssl.SSLContext, files: TlsFiles) -> ssl.SSLContext:
    paths = files.certificate, files.key, files.authority
    for name, path in zip(TLS_FILES, paths, strict=True):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise ValueError(f"`{name}` names {path!r}: {error.strerror}") from error
    certificate, key, authority = map("`{}` ({!r})".format, TLS_FILES, paths)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.certificate, files.key)
    except OSError as error:
        raise ValueError(
            f"{certificate} and {key} are no certificate in PEM and its key: {error}"
        ) from error
    try:
        context.load_verify_locations(files.authority)
    except OSError as error:
        raise ValueError(f"{authority} is no certificate in PEM: {error}") from error
    context.verify_mode = ssl.CERT_REQUIRED
    return context
