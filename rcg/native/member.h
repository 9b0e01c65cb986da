// SPDX-License-Identifier: Apache-2.0
/* A member in its own process: its mappings, what it has learned, its counters. core.h opens and closes it. */
#ifndef RCG_MEMBER_H
#define RCG_MEMBER_H

#include "arena.h"

enum { POLICY_AUTO, POLICY_FUTEX, POLICY_YIELD, POLICY_SPIN };

/* What a waiting end learned about its peer (all times in ns). */
typedef struct {
    uint64_t budget, expected; /* expected: how long a wait takes (a moving mean), of a driver that shares processors */
    uint32_t probe, apart, apart_limit;
    bool is_quick; /* the last wait was short */
    /* of waits for a peer on the same processor: how many in a row, how many are endured, now and at least; how long
     * they take (a moving mean); and the waits since this side last stepped aside */
    uint32_t together, together_limit, together_least, apart_waits;
    bool is_together, has_stepped;
    uint64_t together_ns, apart_ns;
} Learned;

typedef struct {
    uint64_t seen_ns, seen_ticks; /* when CLOCK_MONOTONIC was last looked at */
    uint64_t base_ns, base_ticks; /* a look before that, from which the rate is known */
    uint64_t rate, trust;         /* ns per tick, times 2^32; ticks for which a look is good */
    uint64_t last_ns;
    bool is_used;
} RecordClock;

typedef struct {
    const Host *host;
    BoardHeader *board;
    /* of the board as it was when we joined: what others write over it later does no harm */
    uint64_t board_bytes, recorder_stride;
    uint32_t nrings, nevents;
    uint8_t *recorders;
    Event *drains;
    Tray *trays;
    LedgerMap *ledger;
    Doorbell *doorbells;
    Recorder *recorder;
    Arena *arenas[MAX_MEMBERS];
    uint32_t index, nmembers, generation;
    int bell;      /* wakes the event loops of the driver on this node; -1 where nobody here does */
    uint64_t page; /* bytes of a page of memory */
    int policy;
    bool crowded;   /* more members than processors: pausing steals time from whom we wait for */
    bool recording; /* the flight recorder is on */
    bool looping;   /* runs a program: events are chained, poison ends it before more input is read */
    RecordClock clock;
    /* the open event of a looping member, and when the one before it ended, if nothing is open */
    Record open;
    uint64_t closed_ns;
    uint64_t coding_since_ns; /* the rest of it is decoding */
    uint64_t left_ns;         /* when it began to wait for a frame, if that wait timed out; it goes on with the next */
    bool is_open;
    Learned learned;     /* of waits for any of several rings */
    struct Stash *stash; /* made when it is first needed */
    /* statistics */
    atomic_u64 spins, sleeps, wakes;
    atomic_u64 interrupts; /* of this process's own waits; watched like the sequence of a ring */
    atomic_u32 interruptible;
} Member;

static uint64_t *ring_offsets(BoardHeader *board) { return (uint64_t *)(board + 1); }

static uint64_t doorbells_offset(uint64_t nrings) {
    return align_up(sizeof(BoardHeader) + nrings * sizeof(uint64_t), LINE);
}

static Recorder *recorder_of(const Member *m, uint32_t member) {
    return (Recorder *)(m->recorders + member * m->recorder_stride);
}

static Tray *tray_of(const Member *m, uint32_t member) { return m->trays + member; }

/* Whether this process is the one that joined, and not a fork of it. */
static bool member_is_ours(const Member *m) { return m->generation == atomic_load(&fork_generation); }

static bool poisoned(const Member *m) { return load_acquire(&m->board->poison) != 0; }

static void ring_doorbell(Member *m, uint32_t member) {
    Doorbell *doorbell = &m->doorbells[member];
    atomic_fetch_add(&doorbell->word, 1);
    futex(&doorbell->word, FUTEX_WAKE, INT_MAX, NULL);
    if (m->bell >= 0 && atomic_load(&doorbell->listens) && atomic_exchange(&doorbell->listens, 0)) ring_bell(m->bell);
    add_relaxed(&m->wakes, 1);
}

/* Ends this process's own waits that listen for it; any thread, without the host's lock. */
static void interrupt_waits(Member *m) {
    atomic_fetch_add(&m->interrupts, 1);
    if (atomic_load(&m->interruptible)) ring_doorbell(m, m->index);
}

/* Ends every wait of every member; whether this was the first to. The first code stands, but closing also ends a broken
 * graph. `culprit` may be NO_MEMBER. */
static bool poison_board(Member *m, uint32_t code, uint32_t culprit) {
    uint32_t none = 0;
    if (!atomic_load(&m->board->poison) && culprit != NO_MEMBER) atomic_store(&m->board->culprit, culprit);
    bool first = atomic_compare_exchange_strong(&m->board->poison, &none, code);
    if (!first && code == POISON_CLOSED) atomic_store(&m->board->poison, code);
    for (uint32_t i = 0; i < m->nmembers; i++) ring_doorbell(m, i);
    return first;
}

#endif
