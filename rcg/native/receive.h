// SPDX-License-Identifier: Apache-2.0
/* Reading frames: checking one, holding its blocks, and taking it.
 *
 * A reader goes through a frame part by part and makes an object or a copy of each, as its caller asks. It checks every
 * part before it uses it, and does not read a checked word again. A frame can be read again until it is taken. */
#ifndef RCG_RECEIVE_H
#define RCG_RECEIVE_H

#include "send.h"

#define COPY_RATE 8u
#define LONGEST_HANDOVER 50000u /* ns */

/* A frame that is being read. */
typedef struct {
    Frame head;          /* a copy */
    const uint8_t *body; /* NULL: it is in the stash, and the reader has to pull it first */
    Desc *table, few_descs[FEW];
    uint32_t nclaims;
    Claim *claims, few_claims[FEW + 1]; /* the body's is the first, if it lies in a block */
} Incoming;

/* Where the bytes of one buffer are. */
typedef struct {
    enum { IN_BODY, IN_BLOCK, IN_STASH } where;
    bool writable;
    uint8_t *map; /* in a block: the mapping in which a lease over it is wanted; NULL: a copy is */
    Claim *claim; /* in a block */
    uint64_t at;  /* in the body, in the data of the arena; or its number in the stash */
    uint64_t bytes;
} Part;

/* ---- claims */

/* Holds the block that a descriptor names: where in the data its bytes are, once checked. DONE, DAMAGED or NO_HEAP. */
static Outcome hold_bytes(End *e, const Desc *d, Incoming *in, uint64_t *at) {
    Arena *a = d->arena < e->member->nmembers ? e->member->arenas[d->arena] : NULL;
    if (!a || !a->reaches_us || d->block >= MAX_BLOCKS || !arena_reaches(a, ARENA_DATA) ||
        d->block >= load_acquire(&a->header->nblocks))
        return damaged(e, "it names a block that is not there");
    const Block *b = &a->header->block[d->block];
    uint64_t offset = block_offset(b), capacity = block_capacity(b), committed = block_committed(b);
    if (committed > capacity) committed = capacity;
    if (offset > a->reserve || capacity > a->reserve - offset || !arena_reaches(a, ARENA_DATA + offset + committed) ||
        d->offset > committed || d->bytes > committed - d->offset)
        return damaged(e, "it names bytes outside their block");
    /* We may have as many uses of the block as we have claims on it, those of frames that are under way included. */
    uint64_t ours = (load_relaxed(&b->claims) & claim_mask(a, a->holder)) >> (a->claim_bits * a->holder);
    if (ours <= (d->block < a->held_room ? a->held[d->block] : 0))
        return damaged(e, "it names a block that was not sent to us");
    if (!arena_hold(a, d->block)) return NO_HEAP;
    in->claims[in->nclaims++] = (Claim){a, d->block, NULL};
    *at = offset + d->offset;
    return DONE;
}

/* Ends the reading. The frame was taken: its claims pass to the leases, and those of bytes that were copied end. Or it
 * was not: all of them stay with the frame, and the leases go without. */
static void settle(Incoming *in, bool taken) {
    for (uint32_t i = 0; i < in->nclaims; i++) {
        Claim *c = &in->claims[i];
        if (c->lease) {
            c->lease->owns = taken;
            continue;
        }
        c->arena->held[c->block]--;
        if (taken) arena_release(c->arena, c->block);
    }
    in->nclaims = 0;
    if (in->claims != in->few_claims) free(in->claims);
    if (in->table != in->few_descs) free(in->table);
    in->claims = in->few_claims;
    in->table = in->few_descs;
}

/* ---- a frame, part by part */

static Outcome check_stashed(End *e, uint64_t id, uint64_t bytes) {
    const Tray *t = tray_of(e->member, e->writer);
    if (!id || !atomic_load(&t->is_served) || bytes > atomic_load(&t->largest))
        return damaged(e, "it names what cannot be in a stash");
    return DONE;
}

/* Finds the body of the frame in the current slot. The caller must call settle() after it in any case. */
static Outcome incoming_begin(End *e, Incoming *in) {
    in->head = *(const Frame *)slot_of(e);
    in->body = slot_of(e) + sizeof(Frame);
    in->nclaims = 0;
    in->claims = in->few_claims;
    in->table = in->few_descs;
    const Frame *f = &in->head;
    if (f->magic != FRAME_MAGIC || !f->kind || f->kind > e->kinds) return damaged(e, "its header is damaged");
    if (f->execution != e->seq) {
        e->found = f->execution;
        return OUT_OF_ORDER;
    }
    if (f->body_block == STASHED) {
        if (f->body_stash != sign_stashed(*f, f->body_stash)) return damaged(e, "its header is damaged");
        in->body = NULL;
        return check_stashed(e, f->body_stash & UINT32_MAX, f->body_bytes);
    }
    if (f->body_block != NO_BLOCK) {
        Desc where = {e->writer, f->body_block, 0, 0, 0, f->body_bytes};
        uint64_t at;
        Outcome outcome = hold_bytes(e, &where, in, &at);
        if (outcome) return outcome;
        if (!arena_map(in->claims[0].arena, false)) return SYSTEM;
        in->body = in->claims[0].arena->readable + at;
    } else if (f->body_bytes > e->slot_bytes - sizeof(Frame)) return damaged(e, "it is longer than its slot");
    return DONE;
}

/* Checks the body's table of descriptors, once the body is here: DONE, DAMAGED or NO_HEAP. */
static Outcome incoming_open(End *e, Incoming *in) {
    const Frame *f = &in->head;
    uint64_t table = (uint64_t)f->nbuffers * sizeof(Desc);
    if (table > f->body_bytes || f->data_bytes > f->body_bytes - table) return damaged(e, "it is truncated");
    if (f->nbuffers > FEW) {
        Claim *claims = malloc((f->nbuffers + 1ull) * sizeof *claims);
        if (!claims) return NO_HEAP;
        if (in->nclaims) claims[0] = in->few_claims[0]; /* the body's */
        in->claims = claims;
        Desc *descs = malloc(table);
        if (!descs) return NO_HEAP;
        in->table = descs;
    }
    if (table) memcpy(in->table, in->body, table);
    uint64_t sum = check_header(f);
    for (uint32_t i = 0; i < f->nbuffers; i++) sum = check_desc(sum, &in->table[i]);
    return sum == f->check ? DONE : damaged(e, "its header is damaged");
}

/* Whether a claim of ours is the only one on its block. Then nobody else can read or write it, nor add a claim: it is
 * ours alone. Not so while the maker of a loan still holds that. */
static bool is_only_ours(const Claim *c) {
    const Arena *a = c->arena;
    return load_acquire(&a->header->block[c->block].claims) == claim_unit(a, a->holder);
}

/* is_only_ours(), waiting a moment for the maker of a loan to let go of it: it does so as soon as it comes back from
 * publishing. Not longer than copying would take, at COPY_RATE bytes per ns. */
static bool becomes_only_ours(const Claim *c, uint64_t bytes) {
    if (is_only_ours(c)) return true;
    uint64_t budget = bytes / COPY_RATE, start = now_ns();
    if (budget > LONGEST_HANDOVER) budget = LONGEST_HANDOVER;
    do {
        for (int i = 0; i < 16; i++) relax();
        if (is_only_ours(c)) return true;
        sched_yield(); /* it may need this processor */
    } while (since_ns(start) < budget);
    return is_only_ours(c);
}

/* Says where buffer number i is, and holds its block. */
static Outcome incoming_part(End *e, Incoming *in, uint32_t i, Part *p) {
    const Desc *d = &in->table[i];
    *p = (Part){.writable = d->flags & DESC_WRITABLE, .at = d->offset, .bytes = d->bytes};
    if (d->block == NO_BLOCK) {
        p->where = IN_BODY;
        if (d->offset > in->head.body_bytes || d->bytes > in->head.body_bytes - d->offset)
            return damaged(e, "a small buffer lies outside the frame");
        return DONE;
    }
    if (d->block == STASHED) {
        p->where = IN_STASH;
        return d->arena == e->writer ? check_stashed(e, d->offset, d->bytes)
                                     : damaged(e, "it names the stash of another member");
    }
    p->where = IN_BLOCK;
    Outcome outcome = hold_bytes(e, d, in, &p->at);
    if (outcome) return outcome;
    p->claim = &in->claims[in->nclaims - 1];
    Arena *a = p->claim->arena;
    if (p->writable && e->moves) p->map = arena_map_movable(a); /* nobody writes to it, and it is let go of soon */
    else if ((!p->writable || (e->nreaders == 1 && becomes_only_ours(p->claim, p->bytes))) &&
             !memory_is_short(e->member, a))
        p->map = arena_map(a, p->writable);
    return DONE;
}

/* The data of the frame, within its body. */
static const uint8_t *incoming_data(const Incoming *in) {
    return in->body + (uint64_t)in->head.nbuffers * sizeof(Desc);
}

/* Where a lease over the data would begin in the body's arena; only where the body lies in a block. */
static uint64_t incoming_data_offset(const Incoming *in) {
    return (uint64_t)(incoming_data(in) - in->claims[0].arena->readable);
}

static bool is_in_block(const Incoming *in) {
    return in->head.body_block != NO_BLOCK && in->head.body_block != STASHED;
}

/* Pulls a copy out of the stash of the ring's writer, from `*have` on. After SIGNALS it may go on. */
static Outcome pull(End *e, uint64_t id, uint8_t *to, uint64_t bytes, uint64_t *have, uint64_t deadline) {
    Member *m = e->member;
    uint64_t got = *have;
    void *state = m->host->leave();
    Outcome outcome = pull_pieces(m, tray_of(m, e->writer), id, to, bytes, &got, deadline);
    m->host->enter(state);
    *have = got;
    return outcome == NOT_STASHED ? damaged(e, "it names bytes that are not in the stash") : outcome;
}

/* ---- one frame after the other */

/* Times of a read, for the recorder. */
typedef struct {
    uint64_t start, waited;
} Reading;

static bool has_frame(const End *e) { return load_acquire(&e->ring->seq) != e->seq; }

/* The wait for the next frame of a ring. */
static Watch frame_watch(const End *e) {
    return (Watch){&e->ring->seq, e->seq, &e->ring->reader[e->reader].waiting, &e->ring->cpu};
}

/* Enters the end and waits for the next frame. After DONE the end is busy until the caller says it is not. */
static Outcome read_begin(End *e, uint64_t deadline, Reading *r) {
    Member *m = e->member;
    *r = (Reading){0};
    Outcome outcome = end_enter(e);
    if (outcome) return outcome;
    if (m->looping) r->start = mark(m, e->op, e->seq);
    else if (m->recording) r->start = stamp(&m->clock);
    uint64_t left = m->looping ? m->left_ns : 0; /* that wait goes on, whatever the loop did meanwhile */
    if (m->looping && poisoned(m)) outcome = POISONED;
    else if (!has_frame(e)) {
        Watch w = frame_watch(e);
        if (m->recording && !m->looping) now_doing(m, e->op, e->seq, r->start, NOW_IDLE);
        if (m->recording) store_relaxed(&m->recorder->ring, e->index);
        outcome = wait_for(m, &w, 1, &e->learned, deadline, r->start, &r->waited);
        if (outcome == TIMED_OUT && m->is_open) m->left_ns = left ? left : r->start ? r->start : now_ns() - r->waited;
        else if (outcome && !left) m->open.waited_ns += r->waited; /* a loop comes again for the same frame */
    }
    if (left && !outcome) {
        r->waited = since_ns(left);
        m->left_ns = 0;
    }
    if (outcome) e->busy = false;
    return outcome;
}

/* Takes the frame and moves on to the next. */
static void read_take(End *e, Incoming *in, const Reading *times) {
    Member *m = e->member;
    Ring *r = e->ring;
    uint64_t waited = times->waited, payload = in->head.payload_bytes;
    settle(in, true);
    atomic_store(&r->reader[e->reader].seq, ++e->seq); /* before the load of `room_wanted` */
    if (atomic_load(&r->room_wanted)) ring_doorbell(m, e->writer);
    uint32_t peer = waited ? e->writer : NO_MEMBER;
    if (m->looping) {
        m->open.waited_ns += waited;
        m->open.bytes += payload;
        if (waited) m->open.peer = peer;
    } else if (m->recording) {
        uint64_t end = stamp(&m->clock);
        if (waited > end - times->start) waited = end - times->start; /* it is measured by another clock */
        write_event(m, &(Record){times->start, end, waited, 0, e->seq - 1, payload, e->op, peer});
        now_doing(m, e->op, e->seq - 1, end, NOW_IDLE);
    }
}

/* A wait of a driver that ended without a frame. */
static void record_wait(End *e, uint64_t start, uint64_t waited) {
    Member *m = e->member;
    if (!m->recording || m->looping || !waited || !start) return;
    uint64_t end = stamp(&m->clock);
    write_event(m, &(Record){start, end, end - start, 0, e->seq, 0, e->op, e->writer});
}

#endif
