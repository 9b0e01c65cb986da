// SPDX-License-Identifier: Apache-2.0
/* Arenas: blocks of one owner, mapped by all members; their claims, their memory, and leases over them.
 *
 * The reader's form of a lease (an object, a pointer) is not known here. memory.h gives and takes memory under the cap
 * of the graph. */
#ifndef RCG_ARENA_H
#define RCG_ARENA_H

#include "ledger.h"

#define NCLASSES 160 /* 4 per doubling from 16 KiB reaches 16 KiB * 2^40 */

typedef struct {
    uint32_t *ids;
    uint32_t count, room, recent, cursor;
    uint64_t frees_seen;
} SizeClass;

/* What the owner knows of a block. Its memory is written by these numbers alone, never by what others could change. */
typedef struct {
    uint64_t offset, capacity;
    uint64_t used_at; /* tick of its last use */
    uint32_t kind;    /* its size class, or: */
    bool is_lent;     /* a loan of the owner's lies in it; see loan.h */
} Book;

enum { KIND_MERGED = NCLASSES, KIND_EARLIER }; /* became part of a neighbour; is of an earlier owner */

typedef struct {
    ArenaHeader *header;
    uint8_t *readable, *writable; /* mapped when first used */
    uint8_t *movable;             /* the same, see arena_map_movable() */
    bool reaches_us;              /* whether its blocks may arrive here */
    uint64_t reserve;
    uint32_t owner, holder, claim_bits, generation;
    uint32_t users; /* the member and its leases, which may outlive it; counted under the host's lock */
    uint32_t *held; /* by block: live leases of this process */
    uint32_t held_room;
    int fd;
    uint64_t file_bytes; /* the file is at least this long: what lies there can be read */
    LedgerMap *ledger;
    atomic_u64 *committed; /* bytes, in the owner's recorder; valid while the member is */
    /* the owner's books */
    uint64_t end, tick;
    Book *books;
    uint32_t nblocks, book_room;
    SizeClass classes[NCLASSES];
    uint64_t copies, forwards, grown;
} Arena;

/* The field of a member in the word of a block. */
static uint64_t claim_unit(const Arena *a, uint32_t member) { return 1ull << (a->claim_bits * member); }

static uint64_t claim_mask(const Arena *a, uint32_t member) {
    uint64_t field = a->claim_bits == 64 ? ~0ull : (1ull << a->claim_bits) - 1;
    return field << (a->claim_bits * member);
}

/* ---- claims */

static bool block_is_free(const Arena *a, uint32_t id) {
    return atomic_load_explicit(&a->header->block[id].claims, memory_order_acquire) == 0;
}

/* Takes a free block; safe against other takers. */
static bool block_claim(Arena *a, uint32_t id, uint64_t claims) {
    uint64_t none = 0;
    return atomic_compare_exchange_strong_explicit(&a->header->block[id].claims, &none, claims, memory_order_acq_rel,
                                                   memory_order_relaxed);
}

/* Lets go of a block that was claimed but never counted in the ledger. */
static void block_unclaim(Arena *a, uint32_t id, uint64_t claims) {
    atomic_fetch_sub_explicit(&a->header->block[id].claims, claims, memory_order_acq_rel);
    atomic_fetch_add_explicit(&a->header->frees, 1, memory_order_release);
}

static void arena_unclaim(Arena *a, uint32_t block, uint64_t claims) {
    Block *b = &a->header->block[block];
    /* looked at while the block is still ours */
    uint64_t bytes = block_committed(b), execution = atomic_load_explicit(&b->execution, memory_order_relaxed);
    uint64_t before = atomic_fetch_sub_explicit(&b->claims, claims, memory_order_acq_rel);
    if (before != claims) return;
    ledger_freed(a->ledger->ledger, bytes, execution);
    atomic_fetch_add_explicit(&a->header->frees, 1, memory_order_release);
}

static void arena_release(Arena *a, uint32_t block) { arena_unclaim(a, block, claim_unit(a, a->holder)); }

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
    atomic_fetch_add_explicit(&a->header->punches, 1, memory_order_relaxed);
    return claim_file(a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, ARENA_DATA + offset, bytes);
}

/* Memory was given back to the system. */
static void arena_discount(Arena *a, BoardHeader *board, uint64_t bytes) {
    atomic_fetch_sub_explicit(&board->used_bytes, bytes, memory_order_relaxed);
    atomic_fetch_sub_explicit(a->committed, bytes, memory_order_relaxed);
}

/* Gives the memory of a block that is claimed for this back to the system; returns how much. */
static uint64_t block_empty(Arena *a, BoardHeader *board, uint32_t id) {
    Block *b = &a->header->block[id];
    uint64_t bytes = block_committed(b), capacity = block_capacity(b), offset = block_offset(b);
    if (bytes > capacity) bytes = capacity; /* damaged: not beyond the block at least */
    if (!bytes || offset > a->reserve || bytes > a->reserve - offset) return 0;
    atomic_store_explicit(&b->committed, 0, memory_order_relaxed);
    if (arena_punch(a, offset, bytes)) {
        atomic_store_explicit(&b->committed, (uint32_t)(bytes / GRANULE), memory_order_relaxed);
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

/* Gives the memory of the owner's free blocks back, least recently used first, until at most `keep` bytes of free
 * memory stay committed. */
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
    uint64_t frees = atomic_load_explicit(&a->header->frees, memory_order_acquire);
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

static bool reserve_books(Arena *a, uint32_t count) {
    if (count <= a->book_room) return true;
    uint32_t room = a->book_room ? a->book_room : 64;
    while (room < count) room *= 2;
    Book *p = realloc(a->books, room * sizeof *p);
    if (!p) return false;
    memset(p + a->book_room, 0, (room - a->book_room) * sizeof *p);
    a->books = p;
    a->book_room = room;
    return true;
}

static bool reserve_class(Arena *a, uint32_t k) {
    SizeClass *c = &a->classes[k];
    if (c->count == c->room) {
        uint32_t room = c->room ? c->room * 2 : 4;
        uint32_t *p = realloc(c->ids, room * sizeof *p);
        if (!p) return false;
        c->ids = p;
        c->room = room;
    }
    return true;
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
    atomic_store_explicit(&b->offset, offset, memory_order_relaxed);
    a->books[id].capacity = capacity;
    atomic_store_explicit(&b->capacity, (uint32_t)(capacity / GRANULE), memory_order_relaxed);
}

/* A block at the end of the addresses in use, or -1 with errno. */
static int64_t arena_extend(Arena *a, uint32_t k, uint64_t capacity, uint64_t claims) {
    uint32_t n = a->nblocks;
    errno = ENOMEM;
    if (n == MAX_BLOCKS || a->end + capacity > a->reserve || !reserve_books(a, n + 1) || !reserve_class(a, k))
        return -1;
    if (n % (PAGE / sizeof(Block)) == 0 && arena_commit(a, sizeof(ArenaHeader) + n * sizeof(Block), 2 * PAGE))
        return -1;
    atomic_store_explicit(&a->header->block[n].claims, claims, memory_order_relaxed);
    atomic_store_explicit(&a->header->block[n].committed, 0, memory_order_relaxed);
    block_place(a, n, a->end, capacity);
    class_add(a, k, n);
    a->end += capacity;
    atomic_store_explicit(&a->header->nblocks, a->nblocks = n + 1, memory_order_release);
    return n;
}

static bool block_can_merge(const Arena *a, uint32_t id) {
    return a->books[id].kind != KIND_EARLIER && block_is_free(a, id);
}

/* Addresses ran out: makes one block of neighbours that are free, or -1 with errno. What is left over becomes a block
 * with the number of the second of them; numbers that are not needed any more stay, with no addresses, so that blocks
 * lie in the order of their numbers. */
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
    atomic_store_explicit(&a->header->block[first].claims, claims, memory_order_relaxed);
    return first;
}

/* The block that holds address `p` of one mapping of the data and is leased by this process, or -1. Blocks lie in the
 * order of their ids. */
static int64_t arena_find(const Arena *a, const uint8_t *map, const uint8_t *p, uint64_t bytes) {
    if (!a->held || !map || p < map || p + bytes > map + a->reserve) return -1;
    uint64_t offset = (uint64_t)(p - map);
    uint32_t low = 0, high = atomic_load_explicit(&a->header->nblocks, memory_order_acquire);
    if (high > a->held_room) high = a->held_room;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (block_offset(&a->header->block[middle]) <= offset) low = middle + 1;
        else high = middle;
    }
    if (!low) return -1;
    uint32_t id = low - 1;
    const Block *b = &a->header->block[id];
    if (offset + bytes > block_offset(b) + block_capacity(b) || !a->held[id]) return -1;
    return id;
}

/* Adds the claims of the readers to a block that we hold. False when a field is full: copy instead. */
static bool arena_share(Arena *a, uint32_t block, const uint32_t *members, uint32_t n) {
    atomic_u64 *claims = &a->header->block[block].claims;
    uint64_t seen = atomic_load_explicit(claims, memory_order_relaxed), wanted;
    do {
        wanted = seen;
        for (uint32_t i = 0; i < n; i++) {
            uint64_t mask = claim_mask(a, members[i]);
            if ((wanted & mask) == mask) return false;
            wanted += claim_unit(a, members[i]);
        }
    } while (!atomic_compare_exchange_weak_explicit(claims, &seen, wanted, memory_order_relaxed, memory_order_relaxed));
    return true;
}

/* ---- opening and closing */

static void arena_close(Arena *a) {
    if (!a || --a->users) return;
    if (a->header) munmap(a->header, ARENA_DATA);
    if (a->readable) munmap(a->readable, a->reserve);
    if (a->writable) munmap(a->writable, a->reserve);
    if (a->movable) munmap(a->movable, a->reserve);
    ledger_close(a->ledger);
    if (a->fd >= 0) close(a->fd);
    free(a->held);
    free(a->books);
    for (int k = 0; k < NCLASSES; k++) free(a->classes[k].ids);
    free(a);
}

/* Whether the file reaches to `end`; behind its end a mapping gives SIGBUS. It never shrinks. */
static bool arena_reaches(Arena *a, uint64_t end) {
    struct stat st;
    if (end > a->file_bytes && !fstat(a->fd, &st)) a->file_bytes = (uint64_t)st.st_size;
    return end <= a->file_bytes;
}

/* An owner that joins once more leaves the blocks of its earlier self alone and goes on behind them. */
static bool arena_adopt(Arena *a) {
    uint32_t n = atomic_load_explicit(&a->header->nblocks, memory_order_acquire);
    if (!n) return true;
    if (n > MAX_BLOCKS || !arena_reaches(a, ARENA_DATA) || !reserve_books(a, n)) return false;
    for (uint32_t id = 0; id < n; id++) a->books[id].kind = KIND_EARLIER;
    a->nblocks = n;
    a->end = align_up(a->file_bytes - ARENA_DATA, GRANULE);
    return true;
}

/* The data of an arena, mapped when it is first looked at or written to: most arenas are only ever mapped one way, and
 * those whose blocks never arrive here not at all. NULL with errno where there is no address space. */
static uint8_t *arena_map(Arena *a, bool writable) {
    uint8_t **map = writable ? &a->writable : &a->readable;
    if (!*map) *map = map_file(a->fd, ARENA_DATA, a->reserve, writable);
    return *map;
}

/* The data once more, for bytes that their reader copies to a device at once. The device may hold pages of this mapping
 * that the file does not have any more, so nothing else is read or written through it: in the other mappings a device
 * always finds the pages of the file. Writable, because not all devices lock read-only memory. */
static uint8_t *arena_map_movable(Arena *a) {
    if (!a->movable) a->movable = map_file(a->fd, ARENA_DATA, a->reserve, true);
    return a->movable;
}

/* Opens the arena of `owner` for `holder`: DONE, NO_HEAP, SYSTEM with errno, or DAMAGED if the file is not that. */
static Outcome arena_open(Arena **opened, int fd, uint32_t owner, uint32_t holder, uint32_t claim_bits,
                          LedgerMap *ledger) {
    Arena *a = *opened = calloc(1, sizeof *a);
    if (!a) return NO_HEAP;
    a->users = 1;
    a->ledger = ledger;
    ledger->users++;
    a->owner = owner;
    a->holder = holder;
    a->claim_bits = claim_bits;
    a->generation = atomic_load(&fork_generation);
    if ((a->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3)) < 0 || !(a->header = map_file(fd, 0, ARENA_DATA, true))) return SYSTEM;
    if (!arena_reaches(a, PAGE) || a->header->magic != ARENA_MAGIC || a->header->owner != owner ||
        a->header->claim_bits != claim_bits || (owner == holder && !arena_adopt(a)))
        return DAMAGED;
    a->reserve = a->header->reserve_bytes;
    return DONE;
}

/* ---- leases and claims of frames */

/* Counts one more use of a block in this process. */
static bool arena_hold(Arena *a, uint32_t block) {
    if (block >= a->held_room) {
        uint32_t room = a->held_room ? a->held_room : 64;
        while (room <= block) room *= 2;
        uint32_t *p = realloc(a->held, room * sizeof *p);
        if (!p) return false;
        memset(p + a->held_room, 0, (room - a->held_room) * sizeof *p);
        a->held = p;
        a->held_room = room;
    }
    a->held[block]++;
    return true;
}

struct Lease;

/* A claim that a frame brings, from its first sight until the frame is taken, or is not after all. Meanwhile it counts
 * as a use of its block in this process, so one claim is never taken for two. */
typedef struct {
    Arena *arena;
    uint32_t block;
    struct Lease *lease; /* NULL: the bytes were copied */
} Claim;

/* A use of bytes in a block, which its holder reads or writes: one claim as long as it lives. */
typedef struct Lease {
    Arena *arena;
    uint32_t block;
    bool writable;
    bool owns;  /* the claim passed to it: from then on its end is a release */
    bool moves; /* it lies in the movable mapping */
    uint8_t *data;
    uint64_t bytes;
} Lease;

/* Makes a lease over `bytes` at `offset` of the data, all within the block that is claimed; that use passes to it.
 * `map` is one of the arena's mappings. */
static void lease_begin(Lease *l, Claim *claim, uint8_t *map, uint64_t offset, uint64_t bytes) {
    Arena *a = claim->arena;
    a->users++;
    *l = (Lease){a, claim->block, map != a->readable, false, map == a->movable, map + offset, bytes};
    claim->lease = l;
}

/* Any number of times, and of what never began. */
static void lease_end(Lease *l) {
    Arena *a = l->arena;
    if (!a) return;
    l->arena = NULL;
    a->held[l->block]--;
    if (l->owns && a->generation == atomic_load(&fork_generation)) arena_release(a, l->block);
    arena_close(a);
}

/* Copies bytes of the data, which need not be mapped: 0, or -1 with errno. */
static int arena_copy_out(Arena *a, const Host *host, uint8_t *to, uint64_t at, uint64_t bytes) {
    const uint8_t *map = a->readable ? a->readable : a->writable;
    if (map) {
        copy_bytes(host, to, map + at, bytes);
        return 0;
    }
    int failed = 0;
    void *state = host->leave();
    while (bytes && !failed) {
        ssize_t n = pread(a->fd, to, bytes, (off_t)(ARENA_DATA + at));
        if (n > 0) to += n, at += (uint64_t)n, bytes -= (uint64_t)n;
        else failed = n == 0 || errno != EINTR;
    }
    int e = errno;
    host->enter(state);
    errno = e;
    return failed ? -1 : 0;
}

#endif
