# SPDX-License-Identifier: Apache-2.0
"""Tensor transports as users write them: arrays in files, and arrays like JAX's by sockets."""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rcg.experimental import CommunicatorMetadata, TensorTransportManager, TensorTransportMetadata

__all__ = ["Array", "FileTransport", "SocketTransport", "folder"]


def folder() -> Path:
    """Return where ``FileTransport`` puts its files."""
    found = Path(tempfile.gettempdir(), f"rcg-test-files-{os.environ.get('RCG_TEST_FILES', '')}")
    found.mkdir(exist_ok=True)
    return found


@dataclass
class FileMetadata(TensorTransportMetadata):
    """Where the arrays are."""

    paths: tuple[str, ...] = ()


class FileTransport(TensorTransportManager):
    """One-sided: an array is a file, which the receiver reads."""

    def tensor_transport_backend(self):
        return "FILES"

    @staticmethod
    def is_one_sided():
        return True

    @staticmethod
    def can_abort_transport():
        return False

    def actor_has_tensor_transport(self, actor):
        return True

    def extract_tensor_transport_metadata(self, obj_id, rdt_object):
        where = folder()
        paths = tuple(str(where / f"{obj_id}-{at}.npy") for at in range(len(rdt_object)))
        for path, array in zip(paths, rdt_object, strict=True):
            np.save(path, array)
        return FileMetadata([(each.shape, each.dtype) for each in rdt_object], "cpu", paths)

    def get_communicator_metadata(self, src_actor, dst_actor, backend=None):
        assert backend == "FILES"
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self, obj_id, tensor_transport_metadata, communicator_metadata, target_buffers=None
    ):
        return [np.load(path) for path in tensor_transport_metadata.paths]

    def send_multiple_tensors(self, tensors, tensor_transport_metadata, communicator_metadata):
        raise NotImplementedError("it is one-sided")

    def garbage_collect(self, obj_id, tensor_transport_meta, tensors):
        for path in tensor_transport_meta.paths:
            os.unlink(path)

    def abort_transport(self, obj_id, communicator_metadata):
        raise NotImplementedError("it cannot")


class _Device:
    platform = "cpu"


class Array:
    """As JAX's: its numbers cannot be written to, and its device has a platform."""

    def __init__(self, numbers):
        self._numbers = np.asarray(numbers).copy()
        self._numbers.flags.writeable = False

    shape = property(lambda self: self._numbers.shape)
    dtype = property(lambda self: self._numbers.dtype)
    nbytes = property(lambda self: self._numbers.nbytes)
    device = property(lambda self: _Device())

    def __array__(self, dtype=None, copy=None):
        return self._numbers if dtype is None else self._numbers.astype(dtype)

    def __reduce__(self):
        return Array, (np.array(self._numbers),)


@dataclass
class SocketMetadata(CommunicatorMetadata):
    """Where the two meet."""

    address: str = ""


class SocketTransport(TensorTransportManager):
    """Two-sided: the one that receives listens, the one that sends connects."""

    def __init__(self):
        self.open: dict[str, Any] = {}  # by the address
        self.aborted = 0

    def tensor_transport_backend(self):
        return "SOCKETS"

    @staticmethod
    def is_one_sided():
        return False

    @staticmethod
    def can_abort_transport():
        return True

    def actor_has_tensor_transport(self, actor):
        return True

    def extract_tensor_transport_metadata(self, obj_id, rdt_object):
        return TensorTransportMetadata([(each.shape, each.dtype) for each in rdt_object], "cpu")

    def get_communicator_metadata(self, src_actor, dst_actor, backend=None):
        assert src_actor is not None
        return SocketMetadata(f"\0rcg-test-{uuid.uuid4().hex}")

    def recv_multiple_tensors(
        self, obj_id, tensor_transport_metadata, communicator_metadata, target_buffers=None
    ):
        address = communicator_metadata.address
        with socket.socket(socket.AF_UNIX) as listener:
            self.open[address] = listener
            listener.bind(address)
            listener.listen(1)
            with listener.accept()[0] as connection, connection.makefile("rb") as file:
                found = pickle.load(file)
        del self.open[address]
        assert [each.shape for each in found] == [
            shape for shape, _ in tensor_transport_metadata.tensor_meta
        ]
        return found

    def send_multiple_tensors(self, tensors, tensor_transport_metadata, communicator_metadata):
        with socket.socket(socket.AF_UNIX) as connection:
            self.open[communicator_metadata.address] = connection
            while True:
                try:
                    connection.connect(communicator_metadata.address)
                    break
                except ConnectionRefusedError:
                    if communicator_metadata.address not in self.open:
                        raise
                    time.sleep(0.005)
            connection.sendall(pickle.dumps(tensors))
        self.open.pop(communicator_metadata.address, None)

    def garbage_collect(self, obj_id, tensor_transport_meta, tensors):
        pass

    def abort_transport(self, obj_id, communicator_metadata):
        self.aborted += 1
        found = self.open.pop(communicator_metadata.address, None)
        if found is not None:
            try:
                found.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
