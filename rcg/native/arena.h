// SPDX-License-Identifier: Apache-2.0
/* Arenas: blocks of one owner, mapped by all members; their claims, leases over them, and the ledger that counts them.
 *
 * The reader's form of a lease (an object, a pointer) is not known here. memory.h gives and takes memory under the cap
 * of the graph. */
#ifndef RCG_ARENA_H
#define RCG_ARENA_H

#include "platform.h"

/* ---- the ledger: bytes of claimed blocks, in all and of each of the last executions
 *
 * It is mapped once more than the board, because leases outlive their member. The users of a mapping are counted under
 * the host's lock. */

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

/* A new execution begins: on its own node by the driver, before others have blocks of it; on the others by the gate. */
static void ledger_begin(Ledger *l, uint64_t execution) {
    Account *c = account_of(l, execution);
    store_relaxed(&c->live_bytes, 0);
    store_relaxed(&c->peak_bytes, 0);
    store_relaxed(&c->execution, execution + 1);
}

/* Whether an execution, or a later one in its place, has begun. */
static bool ledger_has(Ledger *l, uint64_t execution) {
    return load_relaxed(&account_of(l, execution)->execution) > execution;
}

/* A block that was taken becomes that execution's; before the frame that names it is published. */
static void ledger_assign(Ledger *l, Block *b, uint64_t execution) {
    Account *c = account_of(l, execution);
    store_relaxed(&b->execution, execution);
    if (load_relaxed(&c->execution) != execution + 1) return;
    uint64_t bytes = block_committed(b);
    uint64_t live = add_relaxed(&c->live_bytes, bytes) + bytes;
    uint64_t peak = load_relaxed(&c->peak_bytes);
    while (live > peak && !atomic_compare_exchange_weak_explicit(&c->peak_bytes, &peak, live, memory_order_relaxed,
                                                                 memory_order_relaxed)) {}
}

static void ledger_freed(Ledger *l, uint64_t bytes, uint64_t execution) {
    sub_relaxed(&l->claimed_bytes, bytes);
    if (execution == NO_EXECUTION) return;
    Account *c = account_of(l, execution);
    if (load_relaxed(&c->execution) != execution + 1) return;
    /* Never below zero: the account may become another execution's just now. */
    uint64_t live = load_relaxed(&c->live_bytes);
    while (!atomic_compare_exchange_weak_explicit(&c->live_bytes, &live, live > bytes ? live - bytes : 0,
                                                  memory_order_relaxed, memory_order_relaxed)) {}
}

/* What the ledger says of executions: see ledger_survey(). */
typedef struct {
    uint64_t claimed, peak, live, most;
} Survey;

/* Of the executions from `seen` that the ledger still knows: of complete ones the highest peak; of those under way,
 * what they have now together and the highest peak so far. And the bytes that are claimed now. */
static Survey ledger_survey(Ledger *l, uint64_t seen, uint64_t complete, uint64_t submitted) {
    Survey s = {.claimed = atomic_load(&l->claimed_bytes)};
    uint64_t back = submitted > ACCOUNTS ? submitted - ACCOUNTS : 0;
    for (uint64_t i = seen > back ? seen : back; i < submitted; i++) {
        const Account *c = account_of(l, i);
        if (load_relaxed(&c->execution) != i + 1) continue;
        uint64_t now = load_relaxed(&c->live_bytes);
        uint64_t top = load_relaxed(&c->peak_bytes);
        if (i < complete) s.peak = top > s.peak ? top : s.peak;
        else s.live += now, s.most = top > s.most ? top : s.most;
    }
    return s;
}

/* ---- arenas */

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
    bool is_lent;     /* a loan of the owner's lies in it; see memory.h */
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

static bool block_is_free(const Arena *a, uint32_t id) { return load_acquire(&a->header->block[id].claims) == 0; }

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
    uint64_t bytes = block_committed(b), execution = load_relaxed(&b->execution);
    uint64_t before = atomic_fetch_sub_explicit(&b->claims, claims, memory_order_acq_rel);
    if (before != claims) return;
    ledger_freed(a->ledger->ledger, bytes, execution);
    atomic_fetch_add_explicit(&a->header->frees, 1, memory_order_release);
}

static void arena_release(Arena *a, uint32_t block) { arena_unclaim(a, block, claim_unit(a, a->holder)); }

/* The block, leased by this process, that holds address `p` of a mapping, or -1. Blocks lie in the order of ids. */
static int64_t arena_find(const Arena *a, const uint8_t *map, const uint8_t *p, uint64_t bytes) {
    if (!a->held || !map || p < map || p + bytes > map + a->reserve) return -1;
    uint64_t offset = (uint64_t)(p - map);
    uint32_t low = 0, high = load_acquire(&a->header->nblocks);
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
    uint64_t seen = load_relaxed(claims), wanted;
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

/* Has the owner's books contain number `id`. */
static bool reserve_book(Arena *a, uint32_t id) {
    Book *books = grown(a->books, &a->book_room, id, sizeof *books);
    if (books) a->books = books;
    return books;
}

/* An owner that joins once more leaves the blocks of its earlier self alone and goes on behind them. */
static bool arena_adopt(Arena *a) {
    uint32_t n = load_acquire(&a->header->nblocks);
    if (!n) return true;
    if (n > MAX_BLOCKS || !arena_reaches(a, ARENA_DATA) || !reserve_book(a, n - 1)) return false;
    for (uint32_t id = 0; id < n; id++) a->books[id].kind = KIND_EARLIER;
    a->nblocks = n;
    a->end = align_up(a->file_bytes - ARENA_DATA, GRANULE);
    return true;
}

/* The data of an arena, mapped when it is first used: most arenas are only ever mapped one way, and those whose blocks
 * never arrive here not at all. NULL with errno where there is no address space. */
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
    uint32_t *held = grown(a->held, &a->held_room, block, sizeof *held);
    if (!held) return false;
    a->held = held;
    held[block]++;
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

/* Makes a lease over bytes of the block that is claimed; that use passes to it. `map` is one of the mappings. */
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
