# SPDX-License-Identifier: Apache-2.0
"""The face of the package: what it lists, what it leaves to Ray, and what it does not load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ray import cloudpickle

import rcg
import rcg.dag
import rcg.experimental

PACKAGE = Path(rcg.__file__).parent


@pytest.mark.parametrize("module", [rcg, rcg.dag])
def test_everything_listed_is_there(module):
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_other_names_are_rays():
    import ray

    assert rcg.init is ray.init
    assert rcg.is_initialized is ray.is_initialized
    assert rcg.util is ray.util
    assert rcg.exceptions is ray.exceptions
    assert rcg.ObjectRef is ray.ObjectRef


def test_names_of_nobody_are_attribute_errors():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = rcg.no_such_name
    with pytest.raises(AttributeError, match="__no_such__"):
        _ = rcg.__no_such__
    with pytest.raises(ImportError):
        exec("from rcg import no_such_name")


def test_dir_lists_both():
    names = dir(rcg)
    assert {"remote", "wrap_actor", "init", "nodes"} <= set(names)
    assert names == sorted(names)


def test_experimental_is_rays():
    import ray

    assert rcg.experimental.tqdm_ray is ray.experimental.tqdm_ray
    assert "dynamic_resources" in dir(rcg.experimental)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = rcg.experimental.no_such_name


def test_no_private_part_of_ray_is_imported():
    # What ruff enforces line by line, once more over the text: also inside strings and functions.
    banned = re.compile(r"\b(?:import|from)\s+ray\.(?:_\w+|dag|experimental|util\.collective)\b")
    importer = re.compile(r"^\s*(?:import|from)\s+ray\b", re.MULTILINE)
    importers = set()
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE)
        text = path.read_text()
        if room.parts[0] != "bench":
            assert not banned.search(text), room
            if importer.search(text):
                importers.add(str(room))
    assert importers == {"cluster.py", "errors.py"}


def test_only_interop_names_ray_dag():
    named = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"import_module\([\"']ray\.dag", path.read_text())
    }
    assert named == {"interop.py"}


def test_type_information_is_shipped():
    assert (PACKAGE / "py.typed").exists()


class Base:
    """What an actor class may come from."""


class Worker(Base):
    def work(self, x: object) -> object:
        return x


def test_an_actor_class_is_of_its_base_keeps_attributes_and_pickles_them() -> None:
    made = rcg.remote(Worker)
    assert isinstance(made, Base) and isinstance(made, rcg.ActorClass)
    assert isinstance(made, rcg.actor.ActorClass)
    made.mine = "kept"
    assert cloudpickle.loads(cloudpickle.dumps(made)).mine == "kept"
    with pytest.raises(TypeError, match="takes an actor class of Ray's, found 3"):
        rcg.ActorClass(3)


def test_handles_methods_and_nodes_keep_attributes_and_are_of_the_types_that_ray_names() -> None:
    handle = rcg.ActorHandle(object())
    method = rcg.ActorMethod(object(), "work", object())
    with rcg.InputNode() as node:
        pass
    for thing in (handle, method, node, rcg.MultiOutputNode([node])):
        thing.mine = "kept"
        assert thing.mine == "kept"
    assert isinstance(handle, rcg.actor.ActorHandle) and isinstance(method, rcg.actor.ActorMethod)
    assert not isinstance(node, rcg.actor.ActorHandle)
    assert issubclass(rcg.ActorHandle, rcg.actor.ActorHandle)
