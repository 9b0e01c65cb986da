# SPDX-License-Identifier: Apache-2.0
"""Ray and rcg as trees of empty modules, to run import statements and see what they bind.

As in Python, a module is an attribute of its parent only once it has been imported. rcg has the
names that the real one lists, and passes others on to Ray, as the real one does.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from rcg.migrate.moves import exports_of

MODULES = {
    "os": {"sep"},
    "os.path": {"join"},
    "ray": {"get", "init", "remote", "ObjectRef", "_private_name"},
    "ray.dag": {"InputNode", "MultiOutputNode", "GPUFuture"},
    "ray.dag.input_node": {"InputNode", "DAGInputData"},
    "ray.dag.compiled_dag_node": {"CompiledDAG"},
    "ray.dag.vis_utils": {"plot"},
    "ray.experimental": {"wait_tensor_freed"},
    "ray.experimental.channel": {"Channel", "Communicator"},
    "ray.experimental.collective": {"allreduce", "create_collective_group"},
    "ray.experimental.compiled_dag_ref": {"CompiledDAGRef", "CompiledDAGFuture"},
    "ray.util": {"get_node_ip_address"},
    "ray.util.placement_group": {"PlacementGroup"},
    "ray.data": {"Dataset"},
    "rcg": set(exports_of("rcg").names),
    "rcg.dag": set(exports_of("rcg.dag").names),
    "rcg.dag.input_node": {"InputNode", "DAGInputData"},
    "rcg.dag.compiled_dag_node": {"CompiledDAG"},
    "rcg.experimental": set(),
    "rcg.experimental.channel": {"Communicator"},
    "rcg.experimental.collective": {"allreduce"},
    "rcg.experimental.compiled_dag_ref": {"CompiledDAGRef", "CompiledDAGFuture"},
}
ROOMS = {"rcg": ("dag", "experimental"), "rcg.experimental": ("channel", "collective")}
BEHIND = {
    name: f"ray{name.removeprefix('rcg')}"
    for name in MODULES
    if name.startswith("rcg") and not name.startswith("rcg.dag")
}
# Ray imports these by itself.
EAGER = ("ray.util",)


@dataclass(frozen=True)
class Thing:
    """A function or class, by where it is."""

    place: str


class Module(ModuleType):
    """A module that looks further where the real one does."""

    def __init__(self, name: str, importer: Importer) -> None:
        super().__init__(name)
        self.__dict__["importer"] = importer

    def __getattr__(self, name: str) -> Any:
        importer: Importer = self.__dict__["importer"]
        if name in ROOMS.get(self.__name__, ()):
            return importer.load(f"{self.__name__}.{name}")
        behind = BEHIND.get(self.__name__)
        if behind is None or name.startswith("_"):
            raise AttributeError(name)
        module = importer.load(behind)
        if not hasattr(module, name) and f"{behind}.{name}" in MODULES:
            return importer.load(f"{behind}.{name}")
        return getattr(module, name)


@dataclass
class Importer:
    """Carries out import statements on the stubs.

    Attributes:
        loaded: The modules imported so far.
    """

    loaded: dict[str, Module] = field(default_factory=dict)

    def load(self, name: str) -> Module:
        if name in self.loaded:
            return self.loaded[name]
        if name not in MODULES:
            raise ModuleNotFoundError(name)
        parent, _, last = name.rpartition(".")
        if parent:
            self.load(parent)
        module = self.loaded[name] = Module(name, self)
        for each in MODULES[name] - set(ROOMS.get(name, ())):
            setattr(module, each, Thing(f"{name}.{each}"))
        if parent:
            setattr(self.loaded[parent], last, module)
        if name == "ray":
            for each in EAGER:
                self.load(each)
        return module

    def __call__(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Module:
        module = self.load(name)
        if not fromlist:
            return self.load(name.partition(".")[0])
        for each in fromlist:
            if not hasattr(module, each) and f"{name}.{each}" in MODULES:
                self.load(f"{name}.{each}")
        return module


def run(program: str) -> tuple[dict[str, Any], set[str]]:
    """Run a program on the stubs; returns its names and the modules that it loaded."""
    importer = Importer()
    namespace: dict[str, Any] = {"__builtins__": {**vars(builtins), "__import__": importer}}
    exec(compile(program, "<program>", "exec"), namespace)
    del namespace["__builtins__"]
    return namespace, set(importer.loaded)
