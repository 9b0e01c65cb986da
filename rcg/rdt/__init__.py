# SPDX-License-Identifier: Apache-2.0
"""Direct transport of tensors in ordinary calls: tensors that stay where they were made.

A file imports only from those above it in this list:

* ``parts``: the way to each part of a value; ``places``: where bytes lie, for copies by address;
  ``envelope``: what travels in place of a value.
* ``transports``: their names, and the interface of those that users write.
* ``store``: the tensors that a process holds; ``runs``: how they are laid out to travel;
  ``groups``: the communicators between members.
* ``peer_memory``: reading the memory of another process; ``lent``: memory that others can map;
  ``gpu_memory``: tensors on a GPU that two processes use.
* ``reach``: connecting to a process that holds tensors, also on another node; ``connection``:
  questions to it; ``answers``: what it says; ``pull``: getting tensors by it; ``pull_slices``:
  parts of them; ``custom``: by a transport of the user; ``ahead``: before the calls that take them
  run; ``nixl``: by NIXL, of which ``nixl_agent`` makes an agent; ``keeper``: frees what no
  reference needs.
* ``service``: answers the questions.
* ``process``: all of that for this process.
* ``all_members``: the communicator of all members of a group.
* ``collective_groups``: making, finding and closing groups.
* ``values``: sealing a value into an envelope, and opening it.
* ``awaiting``: threads that get values for others; ``refs``: what users hold.
* ``held``: results of graphs whose tensors stay with their actors.
* ``methods``: what an actor's method does before and after the user's own; ``actors``: the class
  that Ray makes actors of.
* ``calls``: what a call checks and replaces; ``observe``: reports; ``nixl_memory``: what users say
  about memory that NIXL reads.
"""

from rcg.rdt import values as values  # it sets what opens an envelope that is unpickled
