// SPDX-License-Identifier: Apache-2.0
/* Loans: blocks of a member's own arena, given to its host to be filled, and sent without a copy.
 *
 *   free --loan_begin: claims = 1 of the owner--> lent --sent: + 1 of each reader--> lent and in flight --> ...
 *
 * The owner's claim lasts until loan_end(), so the block is not used again while the host can still reach it. */
#ifndef RCG_LOAN_H
#define RCG_LOAN_H

#include "memory.h"

/* Takes a block of the member's own arena: a writable lease, zeroed before, that ends with loan_end(). What lies in a
 * private one is copied when it is sent, as any other memory is. False if there is no shared memory for it now, the
 * graph has ended, or it is so small that sending copies it anyway. What a driver borrows belongs to no execution yet,
 * so it gets no more once half of the cap is claimed; what a loop borrows is part of the execution that it runs. */
static bool loan_begin(Lease *l, Member *m, uint64_t bytes, bool is_private) {
    Arena *mine = m->arenas[m->index];
    uint64_t claimed = atomic_load_explicit(&m->ledger->ledger->claimed_bytes, memory_order_relaxed);
    if (bytes <= INLINE_BUFFER || !member_is_ours(m) || poisoned(m) ||
        (!m->looping && claimed > m->board->cap_bytes / 2))
        return false;
    int64_t found = arena_take(m, bytes, claim_unit(mine, m->index));
    if (found < 0) return false;
    uint32_t id = (uint32_t)found;
    if (!arena_hold(mine, id)) {
        arena_release(mine, id);
        return false;
    }
    mine->users++;
    mine->books[id].is_lent = !is_private;
    *l = (Lease){mine, id, true, true, false, mine->writable + mine->books[id].offset, bytes};
    return true;
}

/* Any number of times, and of what never began; also after the member was closed. */
static void loan_end(Lease *l) {
    if (l->arena) l->arena->books[l->block].is_lent = false;
    lease_end(l);
}

/* The block of a loan in which these bytes lie, or -1. */
static int64_t loan_find(const Member *m, const Span *span) {
    const Arena *mine = m->arenas[m->index];
    int64_t id = arena_find(mine, mine->writable, span->data, span->bytes);
    return id >= 0 && id < mine->nblocks && mine->books[id].is_lent ? id : -1;
}

/* Whether a descriptor of ours names the block of a loan. */
static bool loan_named(const Member *m, const Desc *d) {
    const Arena *mine = m->arenas[m->index];
    return d->arena == m->index && d->block < mine->nblocks && mine->books[d->block].is_lent;
}

#endif
