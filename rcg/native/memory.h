// SPDX-License-Identifier: Apache-2.0
/* Memory of blocks under the cap of the graph: taking it, giving it back, clearing claims of the dead; and loans. */
#ifndef RCG_MEMORY_H
#define RCG_MEMORY_H

#include "member.h"

/* ---- memory of blocks */

/* Size classes: 4 per doubling, so at most a fifth of a block's addresses is unused. */
static uint32_t class_of(uint64_t bytes, uint64_t *capacity) {
    uint64_t base = MIN_BLOCK;
    uint32_t k = 0;
    while (base * 2 <= bytes) base *= 2, k += 4;
    uint64_t step = base / 4, q = bytes > base ? (bytes - base + step - 1) / step : 0;
    *capacity = base + q * step;
    return k + (uint32_t)q;
}

/* The largest class whose blocks fit into so many bytes, of which there are at least MIN_BLOCK. */
static uint32_t class_within(uint64_t bytes) {
    uint64_t capacity;
    uint32_t k = class_of(bytes, &capacity);
    return capacity > bytes ? k - 1 : k;
}

static int arena_commit(Arena *a, uint64_t offset, uint64_t bytes) { return claim_file(a->fd, 0, offset, bytes); }

static int arena_punch(Arena *a, uint64_t offset, uint64_t bytes) {
    add_relaxed(&a->header->punches, 1);
    return claim_file(a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, ARENA_DATA + offset, bytes);
}

/* Memory was given back to the system. */
static void arena_discount(Arena *a, BoardHeader *board, uint64_t bytes) {
    sub_relaxed(&board->used_bytes, bytes);
    sub_relaxed(a->committed, bytes);
}

/* Gives the memory of a block that is claimed for this back to the system; returns how much. */
static uint64_t block_empty(Arena *a, BoardHeader *board, uint32_t id) {
    Block *b = &a->header->block[id];
    uint64_t bytes = block_committed(b), capacity = block_capacity(b), offset = block_offset(b);
    if (bytes > capacity) bytes = capacity; /* damaged: not beyond the block at least */
    if (!bytes || offset > a->reserve || bytes > a->reserve - offset) return 0;
    store_relaxed(&b->committed, 0);
    if (arena_punch(a, offset, bytes)) {
        store_relaxed(&b->committed, (uint32_t)(bytes / GRANULE));
        return 0;
    }
    arena_discount(a, board, bytes);
    return bytes;
}

/* The same for a block of any member, if it is free. */
static uint64_t block_reclaim(Arena *a, BoardHeader *board, uint32_t id) {
    uint64_t unit = claim_unit(a, a->holder);
    if (!block_committed(&a->header->block[id]) || !block_is_free(a, id) || !block_claim(a, id, unit)) return 0;
    uint64_t bytes = block_empty(a, board, id);
    block_unclaim(a, id, unit);
    return bytes;
}

/* Gives memory of the owner's free blocks back, least recently used first, until they have at most `keep` bytes. */
static uint64_t arena_trim(Arena *a, BoardHeader *board, uint64_t keep) {
    uint64_t spare = 0, given = 0;
    for (uint32_t id = 0; id < a->nblocks; id++)
        if (block_is_free(a, id)) spare += block_committed(&a->header->block[id]);
    for (int pass = 0; pass < 2 && spare > keep; pass++) {
        uint64_t old = pass || a->tick < 64 ? UINT64_MAX : a->tick - 64; /* first what rested for 64 allocations */
        for (uint32_t id = 0; id < a->nblocks && spare > keep; id++) {
            if (a->books[id].used_at > old) continue;
            uint64_t bytes = block_reclaim(a, board, id);
            spare -= bytes < spare ? bytes : spare;
            given += bytes;
        }
    }
    return given;
}

/* A free committed block of class k, the most recently used first because its pages are warm; or -1. */
static int64_t class_take(Arena *a, uint32_t k, uint64_t claims) {
    SizeClass *c = &a->classes[k];
    if (!c->count) return -1;
    uint32_t id = c->ids[c->recent];
    if (block_committed(&a->header->block[id]) && block_is_free(a, id) && block_claim(a, id, claims)) return id;
    uint64_t frees = load_acquire(&a->header->frees);
    if (frees == c->frees_seen) return -1;
    uint32_t look = c->count < 256 ? c->count : 256; /* bounded work a call when thousands are held */
    for (uint32_t i = 0; i < look; i++) {
        uint32_t j = c->cursor;
        c->cursor = (j + 1) % c->count;
        id = c->ids[j];
        if (block_committed(&a->header->block[id]) && block_is_free(a, id) && block_claim(a, id, claims)) {
            c->recent = j;
            return id;
        }
    }
    if (look == c->count) c->frees_seen = frees;
    return -1;
}

static int64_t class_take_cold(Arena *a, uint32_t k, uint64_t claims) {
    SizeClass *c = &a->classes[k];
    for (uint32_t i = 0; i < c->count; i++)
        if (block_is_free(a, c->ids[i]) && block_claim(a, c->ids[i], claims)) {
            c->recent = i;
            return c->ids[i];
        }
    return -1;
}

static bool reserve_class(Arena *a, uint32_t k) {
    SizeClass *c = &a->classes[k];
    uint32_t *ids = grown(c->ids, &c->room, c->count, sizeof *ids);
    if (ids) c->ids = ids;
    return ids;
}

/* Enters a block under a class, where room was reserved. */
static void class_add(Arena *a, uint32_t k, uint32_t id) {
    SizeClass *c = &a->classes[k];
    c->recent = c->count;
    c->ids[c->count++] = id;
    a->books[id].kind = k;
}

static void class_remove(Arena *a, uint32_t id) {
    if (a->books[id].kind >= NCLASSES) return;
    SizeClass *c = &a->classes[a->books[id].kind];
    for (uint32_t i = 0; i < c->count; i++)
        if (c->ids[i] == id) {
            c->ids[i] = c->ids[--c->count];
            break;
        }
    c->recent = c->cursor = 0;
    a->books[id].kind = KIND_MERGED;
}

/* Says where a block lies; of one that is new, or claimed by the owner. */
static void block_place(Arena *a, uint32_t id, uint64_t offset, uint64_t capacity) {
    Block *b = &a->header->block[id];
    a->books[id].offset = offset;
    store_relaxed(&b->offset, offset);
    a->books[id].capacity = capacity;
    store_relaxed(&b->capacity, (uint32_t)(capacity / GRANULE));
}

/* A block at the end of the addresses in use, or -1 with errno. */
static int64_t arena_extend(Arena *a, uint32_t k, uint64_t capacity, uint64_t claims) {
    uint32_t n = a->nblocks;
    errno = ENOMEM;
    if (n == MAX_BLOCKS || a->end + capacity > a->reserve || !reserve_book(a, n) || !reserve_class(a, k)) return -1;
    if (n % (PAGE / sizeof(Block)) == 0 && arena_commit(a, sizeof(ArenaHeader) + n * sizeof(Block), 2 * PAGE))
        return -1;
    store_relaxed(&a->header->block[n].claims, claims);
    store_relaxed(&a->header->block[n].committed, 0);
    block_place(a, n, a->end, capacity);
    class_add(a, k, n);
    a->end += capacity;
    store_release(&a->header->nblocks, a->nblocks = n + 1);
    return n;
}

static bool block_can_merge(const Arena *a, uint32_t id) {
    return a->books[id].kind != KIND_EARLIER && block_is_free(a, id);
}

/* Addresses ran out: makes one block of neighbours that are free, or -1 with errno. The rest becomes a block with the
 * number of the second; further numbers stay, without addresses, so that blocks lie in the order of their numbers. */
static int64_t arena_merge(Arena *a, BoardHeader *board, uint32_t k, uint64_t capacity, uint64_t claims) {
    uint64_t unit = claim_unit(a, a->holder), sum = 0;
    uint32_t first = 0, next = 0;
    errno = ENOMEM;
    if (!reserve_class(a, k)) return -1;
    for (;;) {
        while (next < a->nblocks && sum < capacity) {
            if (block_can_merge(a, next)) sum += a->books[next++].capacity;
            else first = ++next, sum = 0;
        }
        while (next < a->nblocks && next - first == 1 && !a->books[next].capacity) next++; /* a number for the rest */
        uint64_t more = sum < capacity ? capacity - sum : 0;                               /* at the end of all */
        if (more && (first == next || a->end + more > a->reserve)) return -1;
        uint32_t got = first;
        while (got < next && block_claim(a, got, unit)) got++;
        if (got == next) break;
        for (uint32_t id = first; id < got; id++) block_unclaim(a, id, unit); /* another member is reclaiming one */
        first = next = got + 1;
        sum = 0;
    }
    for (uint32_t id = first; id < next; id++) {
        block_empty(a, board, id);
        class_remove(a, id);
    }
    uint64_t at = a->books[first].offset, rest = sum > capacity ? sum - capacity : 0;
    uint64_t end = sum < capacity ? at + capacity : at + sum;
    if (end > a->end) a->end = end;
    bool splits = rest >= MIN_BLOCK && next - first > 1;
    for (uint32_t id = next; --id > first;) block_place(a, id, end, 0);
    block_place(a, first, at, splits ? capacity : end - at);
    class_add(a, k, first);
    if (splits) {
        block_place(a, first + 1, at + capacity, rest);
        uint32_t kind = class_within(rest);
        if (reserve_class(a, kind)) class_add(a, kind, first + 1);
    }
    for (uint32_t id = first + 1; id < next; id++) block_unclaim(a, id, unit);
    store_relaxed(&a->header->block[first].claims, claims);
    return first;
}

/* ---- under the cap */

/* Gives free blocks back to the system until that is `wanted` bytes: first the owner's, then the others'. */
static uint64_t reclaim(Member *m, uint64_t wanted) {
    uint64_t given = 0;
    for (uint32_t i = 0; i < m->nmembers && given < wanted; i++) {
        Arena *a = m->arenas[(m->index + i) % m->nmembers];
        uint32_t n = a ? load_acquire(&a->header->nblocks) : 0;
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
        used = add_relaxed(&board->used_bytes, bytes) + bytes;
        if (used <= board->cap_bytes) return true;
        sub_relaxed(&board->used_bytes, bytes);
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
            sub_relaxed(&m->board->used_bytes, more);
            errno = e;
            return false;
        }
        add_relaxed(a->committed, more);
        store_relaxed(&b->committed, (uint32_t)(bytes / GRANULE));
        a->grown++;
    } else if (is_short && have - bytes >= EXACT_FROM / 4 && !arena_punch(a, book->offset + bytes, have - bytes)) {
        store_relaxed(&b->committed, (uint32_t)(bytes / GRANULE));
        arena_discount(a, m->board, have - bytes);
    }
    return true;
}

/* Takes a block of at least `bytes` for the claims of `readers`; returns its id or -1 with errno. Warm blocks are taken
 * first, up to twice the size; while memory is short, of the right size only. */
static int64_t arena_take(Member *m, uint64_t bytes, uint64_t claims) {
    Arena *a = m->arenas[m->index];
    BoardHeader *board = m->board;
    uint64_t capacity, cap = board->cap_bytes, used = load_relaxed(&board->used_bytes);
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
        if (load_relaxed(a->committed) > keep) arena_trim(a, board, keep);
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
    store_relaxed(&b->execution, NO_EXECUTION);
    add_relaxed(&m->ledger->ledger->claimed_bytes, block_committed(b));
    return id;
}

/* Clears the claims of a dead member on blocks of ours: how many blocks it had. */
static uint64_t forget_claims(Member *m, uint32_t dead) {
    Arena *a = m->arenas[m->index];
    uint64_t mask = claim_mask(a, dead), cleared = 0;
    for (uint32_t id = 0; id < a->nblocks; id++) {
        Block *b = &a->header->block[id];
        uint64_t bytes = block_committed(b), execution = load_relaxed(&b->execution);
        uint64_t before = atomic_fetch_and(&b->claims, ~mask);
        if (!(before & mask)) continue;
        cleared++;
        if (before & ~mask) continue;
        ledger_freed(m->ledger->ledger, bytes, execution);
        atomic_fetch_add(&a->header->frees, 1);
    }
    return cleared;
}

/* The blocks of a member's own arena, an earlier self's included: all; those claimed; how much memory these have. */
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

/* Whether results are copied to the heap: while half the cap is claimed, or another execution would not fit beside
 * that. */
static bool memory_is_short(const Member *m, const Arena *a) {
    const Ledger *l = m->ledger->ledger;
    uint64_t claimed = load_relaxed(&l->claimed_bytes), cap = m->board->cap_bytes;
    return claimed > cap / 2 || claimed + load_relaxed(&l->need_bytes) > cap ||
           load_relaxed(&a->header->nblocks) > MAX_BLOCKS / 2;
}

/* ---- loans: blocks of a member's own arena, given to its host to be filled, and sent without a copy
 *
 *   free --loan_begin: claims = 1 of the owner--> lent --sent: + 1 of each reader--> lent and in flight --> ...
 *
 * The owner's claim lasts until loan_end(), so the block is not used again while the host can still reach it. */

/* Takes a block of the member's own arena: a writable lease, zeroed before, that ends with loan_end(). What lies in a
 * private one is copied when it is sent, as any other memory is. False if there is no shared memory for it now, the
 * graph has ended, or it is so small that sending copies it anyway. What a driver borrows belongs to no execution yet,
 * so it gets no more once half of the cap is claimed; what a loop borrows is part of the execution that it runs. */
static bool loan_begin(Lease *l, Member *m, uint64_t bytes, bool is_private) {
    Arena *mine = m->arenas[m->index];
    uint64_t claimed = load_relaxed(&m->ledger->ledger->claimed_bytes);
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
