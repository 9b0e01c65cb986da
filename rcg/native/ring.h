// SPDX-License-Identifier: Apache-2.0
/* The ends of rings: opening and checking them, and the threads inside an end. */
#ifndef RCG_RING_H
#define RCG_RING_H

#include "stash.h"

/* The constants of a ring, copied and checked. */
typedef struct {
    Ring *ring;
    uint32_t nslots, slot_bytes, nreaders, writer, readers[MAX_MEMBERS];
} Shape;

typedef struct {
    Member *member;
    Ring *ring;
    uint32_t index, nslots, slot_bytes, nreaders, writer; /* as they were when it was opened, like the next two */
    uint8_t *slots;
    uint32_t readers[MAX_MEMBERS];
    uint64_t claims; /* one for each reader */
    uint64_t seq;    /* next frame */
    uint32_t op;
    uint32_t reader; /* index of this reader in the ring */
    uint32_t kinds;  /* Reader: frames are of kind 1 to this */
    bool busy;       /* a thread is inside */
    Learned learned;
    uint64_t room_until; /* Writer: frames up to here have room */
    uint64_t opened_ns;  /* Writer: when the next write began, if it was opened */
    bool moves;          /* Reader: of writable buffers a copy is made elsewhere, so they need none of their own */
    bool goes_on;        /* Writer: its op does more than write, and stays open for the recorder */
    const char *fault;   /* with DAMAGED: what is */
    uint64_t found;      /* with OUT_OF_ORDER: the execution that was found */
} End;

static uint8_t *slot_of(const End *e) { return e->slots + (e->seq & (e->nslots - 1)) * (uint64_t)e->slot_bytes; }

static bool is_ring(uint32_t nslots, uint32_t slot_bytes, uint32_t nreaders) {
    return is_power_of_two(nslots) && slot_bytes >= 2 * sizeof(Frame) && slot_bytes % LINE == 0 && nreaders &&
           nreaders <= MAX_MEMBERS;
}

/* DONE or DAMAGED. */
static Outcome ring_shape(const Member *m, uint32_t index, Shape *shape) {
    uint64_t room = m->board_bytes, at = ring_offsets(m->board)[index];
    if (at % LINE || at > room || room - at < sizeof(Ring)) return DAMAGED;
    Ring *r = (Ring *)((uint8_t *)m->board + at);
    *shape = (Shape){r, r->nslots, r->slot_bytes, r->nreaders, r->writer, {0}};
    if (!is_ring(shape->nslots, shape->slot_bytes, shape->nreaders) || shape->writer >= m->nmembers ||
        shape->nreaders * sizeof(ReaderLine) + (uint64_t)shape->nslots * shape->slot_bytes > room - at - sizeof(Ring))
        return DAMAGED;
    for (uint32_t i = 0; i < shape->nreaders; i++)
        if ((shape->readers[i] = r->reader[i].member) >= m->nmembers) return DAMAGED;
    return DONE;
}

static void end_open(End *e, Member *m, const Shape *shape, uint32_t index, uint32_t op) {
    *e = (End){.member = m,
               .ring = shape->ring,
               .index = index,
               .nslots = shape->nslots,
               .slot_bytes = shape->slot_bytes,
               .nreaders = shape->nreaders,
               .writer = shape->writer,
               .slots = (uint8_t *)&shape->ring->reader[shape->nreaders],
               .op = op,
               .learned = learned_nothing(m->index)};
    for (uint32_t i = 0; i < shape->nreaders; i++) {
        e->readers[i] = shape->readers[i];
        e->claims |= claim_unit(m->arenas[m->index], shape->readers[i]);
    }
}

/* Opens the member's reading end, for frames of kind 1 to `kinds`; false if the ring is not for it. */
static bool reader_open(End *e, Member *m, const Shape *shape, uint32_t index, uint32_t op, uint32_t kinds) {
    uint32_t i = 0;
    while (i < shape->nreaders && shape->readers[i] != m->index) i++;
    if (i == shape->nreaders) return false;
    end_open(e, m, shape, index, op);
    e->reader = i;
    e->kinds = kinds;
    e->seq = atomic_load(&shape->ring->reader[i].seq);
    return true;
}

/* Opens the member's writing end; false if it is not the ring's writer. */
static bool writer_open(End *e, Member *m, const Shape *shape, uint32_t index, uint32_t op) {
    if (shape->writer != m->index) return false;
    end_open(e, m, shape, index, op);
    e->seq = atomic_load(&shape->ring->seq);
    return true;
}

/* DONE, FORKED or IN_USE. */
static Outcome end_enter(End *e) {
    if (!member_is_ours(e->member)) return FORKED;
    if (e->busy) return IN_USE;
    e->busy = true;
    return DONE;
}

COLD static Outcome damaged(End *e, const char *what) {
    e->fault = what;
    return DAMAGED;
}

#endif
