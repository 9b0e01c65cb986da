// SPDX-License-Identifier: Apache-2.0
/* The whole core, for the one translation unit that includes it; and at its top, making boards and arenas out of files,
 * and joining them as a member. What lies where, and why it works, is in layout.h.
 *
 * Everything is static, so that the compiler sees through all of it. Lowest first: layout.h, platform.h, arena.h,
 * member.h, then memory.h beside recorder.h, wait.h, stash.h, ring.h, send.h, receive.h; and link.h, gate.h, for other
 * nodes. None of them knows Python: the stress test in tests/native compiles them alone. */
#ifndef RCG_CORE_H
#define RCG_CORE_H

#include "gate.h"
#include "receive.h"

/* ---- making */

/* What a ring shall be made of. */
typedef struct {
    uint32_t writer, nslots, slot_bytes, nreaders, readers[MAX_MEMBERS];
} RingSpec;

/* What is wrong with the rings of a board. */
typedef enum { RINGS_GOOD, RING_SHAPE, RING_NO_MEMBER, RING_READER_TWICE } RingFault;

typedef struct {
    RingFault fault;
    uint32_t ring, member;
} RingRefusal;

static RingRefusal check_rings(const RingSpec *rings, uint32_t nrings, uint32_t nmembers) {
    for (uint32_t i = 0; i < nrings; i++) {
        const RingSpec *r = &rings[i];
        if (r->writer >= nmembers || !is_ring(r->nslots, r->slot_bytes, r->nreaders))
            return (RingRefusal){RING_SHAPE, i, 0};
        for (uint32_t j = 0; j < r->nreaders; j++) {
            if (r->readers[j] >= nmembers) return (RingRefusal){RING_NO_MEMBER, i, r->readers[j]};
            for (uint32_t k = 0; k < j; k++)
                if (r->readers[k] == r->readers[j]) return (RingRefusal){RING_READER_TWICE, i, r->readers[j]};
        }
    }
    return (RingRefusal){0};
}

static uint64_t ring_bytes(const RingSpec *r) {
    return align_up(sizeof(Ring) + r->nreaders * sizeof(ReaderLine) + (uint64_t)r->nslots * r->slot_bytes, PAGE);
}

/* Whether a board may have so many members, and events of each. */
static bool is_board(uint32_t nmembers, uint32_t nevents) {
    return nmembers && nmembers <= MAX_MEMBERS && is_power_of_two(nevents);
}

/* Makes a file a board, whose figures have been checked: its size, or 0 with errno. */
static uint64_t format_board(int fd, uint32_t nmembers, const RingSpec *rings, uint32_t nrings, uint32_t nevents,
                             uint64_t cap_bytes) {
    uint64_t ledger = align_up(doorbells_offset(nrings) + nmembers * sizeof(Doorbell), LARGEST_PAGE);
    uint64_t trays = align_up(ledger + sizeof(Ledger), LARGEST_PAGE); /* the ledger's pages are its own */
    uint64_t recorders = trays + nmembers * sizeof(Tray);
    uint64_t stride = sizeof(Recorder) + (uint64_t)nevents * sizeof(Event) + MAX_SPANS * sizeof(SpanName);
    uint64_t first = align_up(recorders + nmembers * stride, PAGE), drains = first;
    for (uint32_t i = 0; i < nrings; i++) drains += ring_bytes(&rings[i]);
    uint64_t size = drains + nmembers * (uint64_t)DRAIN_EVENTS * sizeof(Event);
    if (claim_file(fd, 0, 0, drains) || ftruncate(fd, (off_t)size)) return 0;
    BoardHeader *board = map_file(fd, 0, size, true);
    if (!board) return 0;
    board->abi = ABI_VERSION;
    board->nmembers = nmembers;
    board->nrings = nrings;
    board->size_bytes = size;
    board->recorder_offset = recorders;
    board->recorder_stride = stride;
    board->nevents = nevents;
    board->drain_offset = drains;
    board->ledger_offset = ledger;
    board->tray_offset = trays;
    board->cap_bytes = cap_bytes;
    board->claim_bits = claim_bits_for(nmembers);
    atomic_store(&board->culprit, NO_MEMBER);
    uint64_t at = first;
    for (uint32_t i = 0; i < nrings; i++) {
        Ring *r = (Ring *)((uint8_t *)board + at);
        ring_offsets(board)[i] = at;
        r->index = i;
        r->nslots = rings[i].nslots;
        r->slot_bytes = rings[i].slot_bytes;
        r->nreaders = rings[i].nreaders;
        r->writer = rings[i].writer;
        for (uint32_t j = 0; j < r->nreaders; j++) r->reader[j].member = rings[i].readers[j];
        at += ring_bytes(&rings[i]);
    }
    board->magic = BOARD_MAGIC;
    munmap(board, size);
    return size;
}

static bool is_arena(uint32_t owner, uint32_t nmembers, uint64_t reserve_bytes) {
    return nmembers && nmembers <= MAX_MEMBERS && owner < nmembers && reserve_bytes >= MIN_BLOCK &&
           reserve_bytes % PAGE == 0;
}

/* Makes a file an arena, whose figures have been checked: 0, or -1 with errno. */
static int format_arena(int fd, uint32_t owner, uint32_t nmembers, uint64_t reserve_bytes) {
    ArenaHeader *h = claim_file(fd, 0, 0, PAGE) ? NULL : map_file(fd, 0, PAGE, true);
    if (!h) return -1;
    h->magic = ARENA_MAGIC;
    h->owner = owner;
    h->claim_bits = claim_bits_for(nmembers);
    h->reserve_bytes = reserve_bytes;
    munmap(h, PAGE);
    return 0;
}

/* ---- joining */

/* Whether all that a board says to have lies within it. */
static bool board_fits(const BoardHeader *b) {
    uint64_t room = b->size_bytes, stride = b->recorder_stride, recorders = b->recorder_offset;
    return is_power_of_two(b->nevents) && b->claim_bits == claim_bits_for(b->nmembers) && recorders % LINE == 0 &&
           stride % LINE == 0 && recorders <= room && stride <= room &&
           stride >= sizeof(Recorder) + b->nevents * sizeof(Event) + MAX_SPANS * sizeof(SpanName) &&
           b->nmembers * stride <= room - recorders && b->drain_offset % PAGE == 0 && b->drain_offset <= room &&
           b->nmembers * (uint64_t)DRAIN_EVENTS * sizeof(Event) <= room - b->drain_offset &&
           b->ledger_offset % LARGEST_PAGE == 0 && b->ledger_offset <= room &&
           sizeof(Ledger) <= room - b->ledger_offset && b->tray_offset % LINE == 0 && b->tray_offset <= room &&
           b->nmembers * sizeof(Tray) <= room - b->tray_offset &&
           doorbells_offset(b->nrings) + b->nmembers * sizeof(Doorbell) <= recorders;
}

typedef enum {
    JOINED,
    JOIN_SYSTEM, /* errno says why */
    JOIN_NO_HEAP,
    JOIN_NO_BOARD,    /* it is none of this version */
    JOIN_ARENA_COUNT, /* not one descriptor for each member */
    JOIN_WRONG_ARENA, /* `*which` is not that member's */
    JOIN_NO_ARENA,    /* of its own */
} Joined;

/* How a member takes part. */
typedef struct {
    uint32_t index;
    int policy;
    bool recording, looping;
    int bell;       /* a descriptor, which stays the caller's; -1: none */
    uint64_t reach; /* bit i: blocks of member i may arrive here; the free ones of all can be reclaimed */
} Role;

/* Opens a member, all zeros before; member_close() ends it, whatever this returns. The descriptors stay the caller's;
 * -1 stands for an arena that is not here. */
static Joined member_open(Member *m, const Host *host, int board_fd, const int *arena_fds, uint32_t narenas,
                          const Role *role, uint32_t *which) {
    struct stat st;
    BoardHeader head;
    uint32_t index = role->index;
    if (fstat(board_fd, &st)) return JOIN_SYSTEM;
    if (pread(board_fd, &head, sizeof head, 0) != (ssize_t)sizeof head || head.magic != BOARD_MAGIC ||
        head.abi != ABI_VERSION || head.size_bytes != (uint64_t)st.st_size || head.nmembers > MAX_MEMBERS ||
        index >= head.nmembers || !board_fits(&head))
        return JOIN_NO_BOARD;
    uint8_t *p = map_file(board_fd, 0, head.size_bytes, true);
    if (!p) return JOIN_SYSTEM;
    m->host = host;
    m->board = (BoardHeader *)p;
    m->board_bytes = head.size_bytes;
    m->bell = role->bell < 0 ? -1 : fcntl(role->bell, F_DUPFD_CLOEXEC, 0);
    if (role->bell >= 0 && m->bell < 0) return JOIN_SYSTEM;
    m->nrings = head.nrings;
    m->nevents = head.nevents;
    m->doorbells = (Doorbell *)(p + doorbells_offset(head.nrings));
    m->recorders = p + head.recorder_offset;
    m->recorder_stride = head.recorder_stride;
    m->drains = (Event *)(p + head.drain_offset);
    m->trays = (Tray *)(p + head.tray_offset);
    m->page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (!(m->ledger = ledger_open(board_fd, head.ledger_offset))) return JOIN_SYSTEM;
    m->recorder = recorder_of(m, index);
    m->index = index;
    m->nmembers = head.nmembers;
    m->generation = atomic_load(&fork_generation);
    m->policy = role->policy;
    m->recording = role->recording;
    m->clock.is_used = role->recording && has_ticks();
    m->looping = role->looping;
    m->learned = learned_nothing(index);
    store_relaxed(&m->recorder->pid, (uint32_t)getpid());
    cpu_set_t cpus;
    m->crowded = !sched_getaffinity(0, sizeof cpus, &cpus) && (int)m->nmembers > CPU_COUNT(&cpus);
    if (narenas != m->nmembers) return JOIN_ARENA_COUNT;
    for (uint32_t i = 0; i < narenas; i++) {
        if (arena_fds[i] < 0) continue;
        Outcome outcome = arena_open(&m->arenas[i], arena_fds[i], i, index, head.claim_bits, m->ledger);
        *which = i;
        if (outcome) return outcome == DAMAGED ? JOIN_WRONG_ARENA : outcome == NO_HEAP ? JOIN_NO_HEAP : JOIN_SYSTEM;
        m->arenas[i]->committed = &recorder_of(m, i)->committed_bytes;
        m->arenas[i]->reaches_us = i == index || (role->reach >> i & 1);
    }
    return m->arenas[index] ? JOINED : JOIN_NO_ARENA;
}

static void member_close(Member *m) {
    stash_close(m);
    for (uint32_t i = 0; i < MAX_MEMBERS; i++) arena_close(m->arenas[i]);
    ledger_close(m->ledger);
    if (m->board) {
        if (m->bell >= 0) close(m->bell);
        munmap(m->board, m->board_bytes);
    }
    *m = (Member){0};
}

#endif
