# SPDX-License-Identifier: Apache-2.0
"""Compares rcg with Ray and with the limits of the machine: `python -m rcg.bench`.

The rules of the comparison:

* Interleaved turns: all contestants of a row are ready at the same time. In each round each
  contestant has one turn, in an order shuffled from the seed. So a machine that becomes slower or
  faster during the run affects all of them.
* No interference: during a turn, the actor processes of the other contestants are stopped
  (SIGSTOP). The CPU time that a waiting graph uses is a separate figure.
* Equal conditions: all contestants have the same actor class, payload and topology, defined once
  (`rows`). Each has its own actors, with the same options. rcg and Ray's compiled graph use their
  default options.
* Warm-up: before the first round each contestant runs until all its buffers have been used, and
  each turn starts with calls that do not count. A turn ends after a number of calls or after a
  time, whichever comes first, so a slow contestant has fewer samples.
* Complete samples: a sample is one call, from `execute` until the caller has the value. No sample
  is dropped. Median and p99 are over the samples of all rounds. The garbage collector is off during
  a turn, as in `timeit`.
* Checked results: before a row starts, each contestant must return the right value.

The limit of a small row is the time to wake another process through a futex, times the number of
wake-ups that the row needs. It does not spin, so a contestant that spins briefly can be faster. The
limit of a bulk row is the time of the copies that it needs, by `memcpy` between warm buffers.

With `--nodes 2` the rows are graphs over two Ray nodes. Both are on this machine, so they share its
processors, and the limit is a message that goes to another process and back through a TCP socket of
the loopback, by blocking calls of Python's, as large as the argument.

rcg's repository has experiments beside these rows, in its folder `benchmarks`: `python -m
benchmarks` takes the same options and runs both.

Times are in microseconds unless a name has another unit.
"""
