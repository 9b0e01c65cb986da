# SPDX-License-Identifier: Apache-2.0
"""Direct transport of tensors in ordinary calls: tensors that stay where they were made.

``envelope`` (what travels in place of a value), ``contents`` and ``objects`` (the value without its
tensors), ``parts`` (the way to each of its parts), ``store`` (the tensors of a process) and
``keeper`` (frees what nobody holds), ``service`` (answers those who want tensors), ``groups`` (of
which a process is a member), ``memberships`` (which an actor says that it is in) and ``fresh``
(memory for what arrives), ``connection`` and ``pulling`` (the way to other processes), ``process``
(all of that for this one), ``opening`` (sealing and opening values), ``pullers`` and ``awaiting``
(the threads that do so for others), ``targets`` (memory of the user's that they are received into),
``methods`` and ``running`` (the class that Ray makes actors of), ``refs`` (what users hold),
``calls`` (what is checked and replaced in a call), ``collective_groups``, ``freed``, ``writes``
(warns of writes to what is held), ``transports`` (their names), ``manager`` (the interface of the
user's own), ``custom`` and ``watching`` (moving by these, while the other end lives),
``tracebacks`` (errors that wait to be raised), ``observing`` (reports and profiles).
"""
