// SPDX-License-Identifier: Apache-2.0
/* The whole core, for the one translation unit that includes it. What lies where, and why it works, is in layout.h.
 *
 * Everything is static, so that the compiler sees through all of it. Lowest first: layout.h, platform.h, ledger.h,
 * arena.h, member.h, then memory.h and loan.h beside recorder.h, wait.h, stash.h, ring.h, then send.h, receive.h beside
 * drain.h, segments.h; and packet.h, link.h, gate.h, for other nodes. None of them knows Python: the stress test in
 * tests/native compiles them alone. */
#ifndef RCG_CORE_H
#define RCG_CORE_H

#include "gate.h"
#include "segments.h"

#endif
