// SPDX-License-Identifier: Apache-2.0
/* Memory of blocks under the cap of the graph: taking it, returning it, clearing the claims of dead members. */
#ifndef RCG_MEMORY_H
#define RCG_MEMORY_H

#include "member.h"

/* Gives free blocks back to the system until that is `wanted` bytes: first the owner's, then the others'. */
static uint64_t reclaim(Member *m, uint64_t wanted) {
    uint64_t given = 0;
    for (uint32_t i = 0; i < m->nmembers && given < wanted; i++) {
        Arena *a = m->arenas[(m->index + i) % m->nmembers];
        uint32_t n = a ? atomic_load_explicit(&a->header->nblocks, memory_order_acquire) : 0;
        if (!n || n > MAX_BLOCKS || !arena_reaches(a, ARENA_DATA)) continue;
        for (uint32_t id = 0; id < n && given < wanted; id++) given += block_reclaim(a, m->board, id);
    }
    return given;
}

/* Admits so much more memory of blocks under the cap. */
static bool make_room(Member *m, uint64_t bytes) {
    BoardHeader *board = m->board;
    uint64_t used;
    do {
        used = atomic_fetch_add_explicit(&board->used_bytes, bytes, memory_order_relaxed) + bytes;
        if (used <= board->cap_bytes) return true;
        atomic_fetch_sub_explicit(&board->used_bytes, bytes, memory_order_relaxed);
    } while (reclaim(m, used - board->cap_bytes));
    return false;
}

/* Has `bytes` of a block of ours that is claimed be committed; false with errno. */
static bool block_commit(Member *m, uint32_t id, uint64_t bytes, bool is_short) {
    Arena *a = m->arenas[m->index];
    Block *b = &a->header->block[id];
    const Book *book = &a->books[id];
    uint64_t have = block_committed(b);
    if (have > book->capacity) have = 0; /* damaged */
    if (have < bytes) {
        uint64_t more = bytes - have;
        errno = ENOSPC;
        if (!make_room(m, more)) return false;
        int failed = arena_commit(a, ARENA_DATA + book->offset + have, more);
        /* The cap is not in the way, but the system: what is free may help here, too. */
        if (failed && errno == ENOSPC && reclaim(m, more))
            failed = arena_commit(a, ARENA_DATA + book->offset + have, more);
        if (failed) {
            int e = errno;
            atomic_fetch_sub_explicit(&m->board->used_bytes, more, memory_order_relaxed);
            errno = e;
            return false;
        }
        atomic_fetch_add_explicit(a->committed, more, memory_order_relaxed);
        atomic_store_explicit(&b->committed, (uint32_t)(bytes / GRANULE), memory_order_relaxed);
        a->grown++;
    } else if (is_short && have - bytes >= EXACT_FROM / 4 && !arena_punch(a, book->offset + bytes, have - bytes)) {
        atomic_store_explicit(&b->committed, (uint32_t)(bytes / GRANULE), memory_order_relaxed);
        arena_discount(a, m->board, have - bytes);
    }
    return true;
}

/* Takes a block of at least `bytes` for the claims of `readers`; returns its id or -1 with errno. Warm blocks are taken
 * first, up to twice the size; while memory is short, of the right size only. */
static int64_t arena_take(Member *m, uint64_t bytes, uint64_t claims) {
    Arena *a = m->arenas[m->index];
    BoardHeader *board = m->board;
    uint64_t capacity, cap = board->cap_bytes, used = atomic_load_explicit(&board->used_bytes, memory_order_relaxed);
    uint32_t k = bytes <= a->reserve ? class_of(bytes, &capacity) : NCLASSES;
    int64_t id = -1;
    errno = ENOMEM;
    if (k >= NCLASSES || !arena_map(a, true)) return -1;
    bool is_short = used > cap / 2;
    uint64_t wanted = bytes < EXACT_FROM ? capacity : align_up(bytes, m->page);
    if (wanted > capacity) wanted = capacity;
    for (uint32_t j = k; j <= k + (is_short ? 0 : 4) && j < NCLASSES && id < 0; j++) id = class_take(a, j, claims);
    if (id < 0) {
        /* Growing: first give back what rests, so that changing sizes do not pile up. */
        uint64_t keep = used + wanted > cap / 2 ? 0 : cap / 8 > KEEP_FREE ? cap / 8 : KEEP_FREE;
        if (atomic_load_explicit(a->committed, memory_order_relaxed) > keep) arena_trim(a, board, keep);
        id = class_take_cold(a, k, claims);
        if (id < 0) id = arena_extend(a, k, capacity, claims);
        if (id < 0) id = arena_merge(a, board, k, capacity, claims);
        if (id < 0) return -1;
    }
    if (!block_commit(m, (uint32_t)id, wanted, is_short)) {
        int e = errno;
        block_unclaim(a, (uint32_t)id, claims);
        errno = e;
        return -1;
    }
    Block *b = &a->header->block[id];
    a->books[id].used_at = ++a->tick;
    atomic_store_explicit(&b->execution, NO_EXECUTION, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->ledger->ledger->claimed_bytes, block_committed(b), memory_order_relaxed);
    return id;
}

/* Clears the claims of a dead member on blocks of ours: how many blocks it had. */
static uint64_t forget_claims(Member *m, uint32_t dead) {
    Arena *a = m->arenas[m->index];
    uint64_t mask = claim_mask(a, dead), cleared = 0;
    for (uint32_t id = 0; id < a->nblocks; id++) {
        Block *b = &a->header->block[id];
        uint64_t bytes = block_committed(b), execution = atomic_load_explicit(&b->execution, memory_order_relaxed);
        uint64_t before = atomic_fetch_and(&b->claims, ~mask);
        if (!(before & mask)) continue;
        cleared++;
        if (before & ~mask) continue;
        ledger_freed(m->ledger->ledger, bytes, execution);
        atomic_fetch_add(&a->header->frees, 1);
    }
    return cleared;
}

/* The blocks of a member's own arena, those of an earlier self included: all, those that are claimed, and how much
 * memory these have. */
typedef struct {
    uint32_t blocks, claimed;
    uint64_t claimed_bytes;
} Census;

static Census arena_census(Arena *a) {
    Census c = {.blocks = atomic_load(&a->header->nblocks)};
    if (c.blocks > MAX_BLOCKS || !arena_reaches(a, ARENA_DATA)) c.blocks = 0;
    for (uint32_t id = 0; id < c.blocks; id++)
        if (!block_is_free(a, id)) c.claimed++, c.claimed_bytes += block_committed(&a->header->block[id]);
    return c;
}

/* While more than half the cap is claimed, or another execution would not fit beside what is, results are copied to the
 * heap instead of holding blocks. */
static bool memory_is_short(const Member *m, const Arena *a) {
    const Ledger *l = m->ledger->ledger;
    uint64_t claimed = atomic_load_explicit(&l->claimed_bytes, memory_order_relaxed), cap = m->board->cap_bytes;
    return claimed > cap / 2 || claimed + atomic_load_explicit(&l->need_bytes, memory_order_relaxed) > cap ||
           atomic_load_explicit(&a->header->nblocks, memory_order_relaxed) > MAX_BLOCKS / 2;
}

#endif
