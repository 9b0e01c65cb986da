// SPDX-License-Identifier: Apache-2.0
/* The ledger: bytes of claimed blocks, in all and of each of the last executions.
 *
 * It is mapped once more than the board, because leases outlive their member. */
#ifndef RCG_LEDGER_H
#define RCG_LEDGER_H

#include "platform.h"

/* A mapping of the ledger, counted under the host's lock. */
typedef struct {
    Ledger *ledger;
    uint32_t users;
} LedgerMap;

/* NULL with errno. */
static LedgerMap *ledger_open(int fd, uint64_t offset) {
    LedgerMap *l = malloc(sizeof *l);
    void *p = l ? map_file(fd, offset, sizeof(Ledger), true) : NULL;
    if (!p) {
        free(l);
        return NULL;
    }
    *l = (LedgerMap){p, 1};
    return l;
}

static void ledger_close(LedgerMap *l) {
    if (!l || --l->users) return;
    munmap(l->ledger, sizeof(Ledger));
    free(l);
}

static Account *account_of(Ledger *l, uint64_t execution) { return &l->account[execution & (ACCOUNTS - 1)]; }

/* A new execution begins: by the driver, before any other member can have blocks of it; on other nodes by the gate,
 * when the first of it arrives. */
static void ledger_begin(Ledger *l, uint64_t execution) {
    Account *c = account_of(l, execution);
    atomic_store_explicit(&c->live_bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&c->peak_bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&c->execution, execution + 1, memory_order_relaxed);
}

/* Whether an execution, or a later one in its place, has begun. */
static bool ledger_has(Ledger *l, uint64_t execution) {
    return atomic_load_explicit(&account_of(l, execution)->execution, memory_order_relaxed) > execution;
}

/* A block that was taken becomes that execution's; before the frame that names it is published. */
static void ledger_assign(Ledger *l, Block *b, uint64_t execution) {
    Account *c = account_of(l, execution);
    atomic_store_explicit(&b->execution, execution, memory_order_relaxed);
    if (atomic_load_explicit(&c->execution, memory_order_relaxed) != execution + 1) return;
    uint64_t bytes = block_committed(b);
    uint64_t live = atomic_fetch_add_explicit(&c->live_bytes, bytes, memory_order_relaxed) + bytes;
    uint64_t peak = atomic_load_explicit(&c->peak_bytes, memory_order_relaxed);
    while (live > peak && !atomic_compare_exchange_weak_explicit(&c->peak_bytes, &peak, live, memory_order_relaxed,
                                                                 memory_order_relaxed)) {}
}

static void ledger_freed(Ledger *l, uint64_t bytes, uint64_t execution) {
    atomic_fetch_sub_explicit(&l->claimed_bytes, bytes, memory_order_relaxed);
    if (execution == NO_EXECUTION) return;
    Account *c = account_of(l, execution);
    if (atomic_load_explicit(&c->execution, memory_order_relaxed) != execution + 1) return;
    /* Never below zero: the account may become another execution's just now. */
    uint64_t live = atomic_load_explicit(&c->live_bytes, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&c->live_bytes, &live, live > bytes ? live - bytes : 0,
                                                  memory_order_relaxed, memory_order_relaxed)) {}
}

/* What the ledger says of executions: see ledger_survey(). */
typedef struct {
    uint64_t claimed, peak, live, most;
} Survey;

/* The bytes that are claimed now; at its peak, of the executions from `seen` that are complete, the one that needed
 * most; of those under way, what they all have now and what one of them had at its peak so far. As far as the ledger
 * goes back. */
static Survey ledger_survey(Ledger *l, uint64_t seen, uint64_t complete, uint64_t submitted) {
    Survey s = {.claimed = atomic_load(&l->claimed_bytes)};
    uint64_t back = submitted > ACCOUNTS ? submitted - ACCOUNTS : 0;
    for (uint64_t i = seen > back ? seen : back; i < submitted; i++) {
        const Account *c = account_of(l, i);
        if (atomic_load_explicit(&c->execution, memory_order_relaxed) != i + 1) continue;
        uint64_t now = atomic_load_explicit(&c->live_bytes, memory_order_relaxed);
        uint64_t top = atomic_load_explicit(&c->peak_bytes, memory_order_relaxed);
        if (i < complete) s.peak = top > s.peak ? top : s.peak;
        else s.live += now, s.most = top > s.most ? top : s.most;
    }
    return s;
}

#endif
