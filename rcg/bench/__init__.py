# SPDX-License-Identifier: Apache-2.0
"""Measures rcg beside what it replaces and beside the limit: `python -m rcg.bench`.

What makes the comparison fair:

* **In turns.** All contestants of a row are ready at the same time, and each round gives each of
  them one turn, in an order shuffled from the seed. A machine that grows slower or faster during
  the run does so for all of them.
* **Alone.** While one has its turn, the actor processes of the others are stopped (SIGSTOP): what a
  compiled graph burns while it waits is a figure of its own, and must not be paid by the others.
* **Alike.** The same actor class, the same payload object, the same topology, written down once for
  all (`rows`). Every contestant gets actors of its own, with the same options; rcg and Ray's
  compiled graph use their defaults.
* **Warm.** Before the first round each contestant runs until its buffers have been used, and each
  turn starts with calls that do not count. A turn ends after a number of calls or a time, whichever
  is first, so a slow contestant has fewer samples, never a shorter row.
* **Whole.** A sample is one call from `execute` until the value is in the caller's hands. Nothing
  is dropped; median and p99 are over the samples of all rounds. The collector is off during a turn,
  as in `timeit`.
* **Checked.** Before a row starts, each contestant must return the right value.

The limit of a small row is what a wake-up of another process over a bare futex word takes, times
the hops that the row cannot do without; it takes no spinning, so a contestant that spins for a
moment can be faster. The limit of a bulk row is the copies that it cannot do without, by `memcpy`
between warm buffers.

Units are microseconds everywhere but where a name says otherwise.
"""
