// SPDX-License-Identifier: Apache-2.0
/* Writing frames: preparing, which takes memory and copies; then placing and publishing, which nothing interrupts. */
#ifndef RCG_SEND_H
#define RCG_SEND_H

#include "memory.h"
#include "ring.h"

/* ---- room */

/* Whether every reader left the slot that frame `seq` will use: DONE; NO_ROOM, and which reader is how far; DAMAGED. */
static Outcome has_room(End *e, uint32_t *late, uint64_t *at) {
    if (e->seq < e->room_until) return DONE;
    uint64_t behind = 0; /* how far the slowest reader is */
    for (uint32_t i = 0; i < e->nreaders; i++) {
        uint64_t seen = load_acquire(&e->ring->reader[i].seq);
        if (e->seq - seen > e->nslots) return damaged(e, "a reader's counter is damaged");
        if (e->seq - seen == e->nslots) {
            *late = i;
            *at = seen;
            return NO_ROOM;
        }
        if (e->seq - seen > behind) behind = e->seq - seen;
    }
    e->room_until = e->seq - behind + e->nslots;
    return DONE;
}

/* Waits until a reader has taken more than `seen` frames. */
static Outcome wait_for_reader(End *e, uint32_t reader, uint64_t seen, uint64_t deadline, uint64_t *waited,
                               uint32_t *peer) {
    Watch w = {&e->ring->reader[reader].seq, seen, &e->ring->room_wanted, NULL};
    if (e->member->recording) store_relaxed(&e->member->recorder->ring, e->index);
    *peer = e->readers[reader];
    return wait_for(e->member, &w, 1, &e->learned, deadline, 0, waited);
}

static Outcome wait_for_room(End *e, uint64_t deadline, uint64_t *waited, uint32_t *peer) {
    uint32_t late;
    uint64_t seen;
    Outcome outcome;
    while ((outcome = has_room(e, &late, &seen)) == NO_ROOM)
        if ((outcome = wait_for_reader(e, late, seen, deadline, waited, peer))) break;
    return outcome;
}

/* Waits until every reader has taken all frames that were written. */
static Outcome wait_until_taken(End *e, uint64_t deadline, uint64_t *waited, uint32_t *peer) {
    for (uint32_t i = 0; i < e->nreaders; i++) {
        uint64_t seen;
        while ((seen = load_acquire(&e->ring->reader[i].seq)) != e->seq) {
            if (e->seq - seen > e->nslots) return damaged(e, "a reader's counter is damaged");
            Outcome outcome = wait_for_reader(e, i, seen, deadline, waited, peer);
            if (outcome) return outcome;
        }
    }
    return DONE;
}

/* ---- preparing */

typedef struct {
    Arena *arena; /* of a block: fresh, lent or forwarded; NULL: a copy in the stash */
    uint32_t block;
    bool is_fresh, is_lent;
    Kept *kept;
} Taken;

#define FEW 4 /* buffers of a frame, or claims, for which nothing is allocated */

/* A frame on its way out: what it shall contain, and once it is prepared, where that lies and which claims it took. */
typedef struct {
    End *end;
    uint32_t kind;
    bool stashes; /* what there is no memory for goes to the stash */
    bool apart;   /* its buffers are of several values, each of which has to fit, and not all together */
    Span data;
    const Span *spans; /* the buffers; like the data they must live as long as this does */
    uint32_t nspans;
    /* once it is prepared */
    uint32_t ntaken, nlent, body_block; /* nlent: of them, how many lie in loans */
    uint64_t body_bytes, payload;
    Desc *table;
    Taken *taken;
    uint64_t refused_bytes; /* with NO_SHARED: how much was wanted, and errno */
    int refused;
    Desc few_descs[FEW];
    Taken few_taken[FEW + 1];
} Outgoing;

static void outgoing_begin(Outgoing *o, End *end, uint32_t kind) {
    o->end = end;
    o->kind = kind;
    o->stashes = end->member->looping;
    o->apart = false;
    o->data = (Span){0};
    o->spans = NULL;
    o->nspans = o->ntaken = o->nlent = 0;
    o->body_block = NO_BLOCK;
    o->payload = 0;
    o->table = o->few_descs;
    o->taken = o->few_taken;
}

/* Lets go of what preparing allocated; the claims stay. */
static void outgoing_end(Outgoing *o) {
    if (o->table != o->few_descs) free(o->table);
    if (o->taken != o->few_taken) free(o->taken);
    o->table = o->few_descs;
    o->taken = o->few_taken;
}

/* Room in `table` and `taken` for so many buffers, and a body; false if malloc failed. */
static bool outgoing_reserve(Outgoing *o, uint32_t n) {
    return n <= FEW || ((o->table = calloc(n, sizeof *o->table)) && (o->taken = calloc(n + 1ull, sizeof *o->taken)));
}

/* Takes back the claims of a frame that will not be published after all. */
static void outgoing_undo(Outgoing *o) {
    bool is_ours = member_is_ours(o->end->member);
    for (; o->ntaken; o->ntaken--) {
        const Taken *t = &o->taken[o->ntaken - 1];
        if (!is_ours) continue;
        if (t->kept) stash_drop(o->end->member, t->kept);
        else arena_unclaim(t->arena, t->block, o->end->claims);
    }
}

COLD static Outcome outgoing_refuse(Outgoing *o, uint64_t bytes, int reason) {
    o->refused_bytes = bytes;
    o->refused = reason;
    return NO_SHARED;
}

/* Room outside of the slot: a block, or without memory for one, a copy in the stash. NULL, the reason noted, if
 * neither. */
static uint8_t *outgoing_take(Outgoing *o, uint64_t bytes) {
    End *e = o->end;
    Member *m = e->member;
    Arena *mine = m->arenas[m->index];
    Taken *t = &o->taken[o->ntaken];
    int64_t id = arena_take(m, bytes, e->claims);
    if (id >= 0) {
        *t = (Taken){.arena = mine, .block = (uint32_t)id, .is_fresh = true};
        o->ntaken++;
        return mine->writable + mine->books[id].offset;
    }
    int reason = errno;
    Kept *k = o->stashes ? stash_keep(m, bytes) : NULL;
    if (!k) {
        outgoing_refuse(o, bytes, reason);
        return NULL;
    }
    *t = (Taken){.block = STASHED, .kept = k};
    o->ntaken++;
    return k->data;
}

/* The frame is about to be published: what it took becomes its execution's. */
static void outgoing_assign(const Outgoing *o) {
    End *e = o->end;
    Member *m = e->member;
    for (uint32_t i = 0; i < o->ntaken; i++) {
        const Taken *t = &o->taken[i];
        if (t->kept) {
            stash_publish(m, t->kept, e->ring, e->nreaders, e->seq);
            store_relaxed(&e->ring->stashed, e->seq + 1);
            continue;
        }
        Block *b = &t->arena->header->block[t->block];
        /* A loan belongs to the first execution that sends it: its memory is there once, however often it is sent. */
        bool is_first = t->is_lent && load_relaxed(&b->execution) == NO_EXECUTION;
        if (t->is_fresh || is_first) ledger_assign(m->ledger->ledger, b, e->seq);
    }
}

/* Adds claims of the readers to a block that we hold, for bytes at `at` of the data. False when a field is full. */
static bool outgoing_share(Outgoing *o, Arena *from, uint32_t id, uint64_t at, bool is_lent, Desc *d) {
    End *e = o->end;
    if (!arena_share(from, id, e->readers, e->nreaders)) return false;
    d->arena = from->owner;
    d->block = id;
    d->offset = at - block_offset(&from->header->block[id]);
    o->taken[o->ntaken++] = (Taken){.arena = from, .block = id, .is_lent = is_lent};
    o->nlent += is_lent;
    e->member->arenas[e->member->index]->forwards++;
    return true;
}

/* One more claim on the block that a buffer lies in, instead of a copy: a loan of ours, or what came to us read-only. A
 * reader that writes gets the block itself only if nobody else has a claim on it by then. */
static bool outgoing_forward(Outgoing *o, const Span *span, Desc *d) {
    Member *m = o->end->member;
    const uint8_t *p = span->data;
    Arena *mine = m->arenas[m->index];
    int64_t id = loan_find(m, span);
    if (id >= 0) return outgoing_share(o, mine, (uint32_t)id, (uint64_t)(p - mine->writable), true, d);
    if (span->is_written) return false;
    for (uint32_t j = 0; j < m->nmembers; j++) {
        Arena *from = m->arenas[j];
        id = from ? arena_find(from, from->readable, p, span->bytes) : -1;
        if (id >= 0) return outgoing_share(o, from, (uint32_t)id, (uint64_t)(p - from->readable), false, d);
    }
    return false;
}

/* Has one large buffer lie outside of the slot. */
static Outcome outgoing_place_large(Outgoing *o, const Span *span, Desc *d) {
    Member *m = o->end->member;
    if (outgoing_forward(o, span, d)) return DONE;
    uint8_t *to = outgoing_take(o, span->bytes);
    if (!to) return NO_SHARED;
    const Taken *t = &o->taken[o->ntaken - 1];
    d->block = t->block;
    if (t->kept) d->offset = t->kept->id;
    copy_bytes(m->host, to, span->data, span->bytes);
    m->arenas[m->index]->copies++;
    return DONE;
}

static Outcome outgoing_fill(Outgoing *o, uint64_t body, bool spills) {
    End *e = o->end;
    Member *m = e->member;
    uint32_t n = o->nspans;
    uint8_t *at = NULL; /* of the body, if it lies outside the slot */
    if (spills) {
        if (!(at = outgoing_take(o, body))) return NO_SHARED;
        o->body_block = o->taken[0].block;
    }
    uint64_t offset = n * sizeof(Desc) + o->data.bytes;
    for (uint32_t i = 0; i < n; i++) {
        const Span *span = &o->spans[i];
        Desc d = {m->index, NO_BLOCK, span->is_written ? DESC_WRITABLE : 0, 0, 0, span->bytes};
        if (span->bytes <= INLINE_BUFFER) {
            d.offset = offset;
            if (spills && span->bytes) memcpy(at + offset, span->data, span->bytes);
            offset += span->bytes;
        } else if (outgoing_place_large(o, span, &d)) return NO_SHARED;
        o->table[i] = d;
    }
    if (spills) {
        if (n) memcpy(at, o->table, n * sizeof(Desc));
        if (o->data.bytes) copy_bytes(m->host, at + n * sizeof(Desc), o->data.data, o->data.bytes);
    }
    return DONE;
}

/* The first half of writing a frame: everything but its slot. Takes blocks and copies into them what does not travel in
 * the slot, which lets other threads run. The ring is not touched, so any number of threads may prepare frames for it
 * at once. DONE; NO_SHARED, NO_HEAP or FORKED with nothing left behind. */
static Outcome prepare(Outgoing *o) {
    End *e = o->end;
    uint32_t n = o->nspans;
    uint64_t body = n * sizeof(Desc) + o->data.bytes, total = o->data.bytes, largest = 0;
    for (uint32_t i = 0; i < n; i++) {
        total += o->spans[i].bytes;
        if (o->spans[i].bytes > largest) largest = o->spans[i].bytes;
        if (o->spans[i].bytes <= INLINE_BUFFER) body += o->spans[i].bytes;
    }
    bool spills = sizeof(Frame) + body > e->slot_bytes;
    uint64_t outside = total - (body - n * sizeof(Desc)); /* of the slot: the large buffers */
    if (spills) outside += body;
    if (o->apart) outside = spills && body > largest ? body : largest;
    /* no order of executions would make this fit */
    if (outside > e->member->board->cap_bytes) return outgoing_refuse(o, outside, EFBIG);
    if (!outgoing_reserve(o, n)) return NO_HEAP;
    Outcome outcome = n || spills ? outgoing_fill(o, body, spills) : DONE;
    if (!outcome && !member_is_ours(e->member))
        outcome = FORKED; /* users' code may have forked, and this be the child */
    if (outcome) {
        outgoing_undo(o);
        return outcome;
    }
    o->body_bytes = body;
    o->payload = total;
    return DONE;
}

/* ---- publishing */

/* The second half: puts a prepared frame into the next slot of its ring. Nothing else runs meanwhile. */
static void place(const Outgoing *o) {
    End *e = o->end;
    uint32_t n = o->nspans;
    Frame *f = (Frame *)slot_of(e);
    if (o->body_block == NO_BLOCK) {
        uint8_t *at = (uint8_t *)(f + 1);
        if (n) memcpy(at, o->table, n * sizeof(Desc));
        if (o->data.bytes) memcpy(at + n * sizeof(Desc), o->data.data, o->data.bytes);
        for (uint32_t i = 0; i < n; i++)
            if (o->table[i].block == NO_BLOCK && o->table[i].bytes)
                memcpy(at + o->table[i].offset, o->spans[i].data, o->table[i].bytes);
    }
    Frame head = {FRAME_MAGIC, o->kind, e->seq, o->body_bytes, o->data.bytes, n, o->body_block, o->payload, 0, 0};
    if (o->body_block == STASHED) head.body_stash = sign_stashed(head, o->taken[0].kept->id);
    head.check = check_header(&head);
    for (uint32_t i = 0; i < n; i++) head.check = check_desc(head.check, &o->table[i]);
    *f = head;
}

static void publish(End *e) {
    Ring *r = e->ring;
    Member *m = e->member;
    int cpu = sched_getcpu();
    store_relaxed(&r->cpu, (uint32_t)(cpu + 1));
    atomic_store(&r->seq, ++e->seq); /* sequentially consistent: before the loads of `waiting` */
    for (uint32_t i = 0; i < e->nreaders; i++)
        if (atomic_load(&r->reader[i].waiting)) ring_doorbell(m, e->readers[i]);
}

/* ---- one frame after the other */

/* Times of a write, for the recorder. */
typedef struct {
    uint64_t opened, coded, waited;
    uint32_t peer;
} Writing;

/* The next write begins now, with encoding its value. */
static void write_open(End *e) {
    Member *m = e->member;
    if (m->looping) mark(m, e->op, e->seq);
    if (m->recording) e->opened_ns = m->looping ? m->open.start_ns : stamp(&m->clock);
}

static void write_end(End *e) {
    e->opened_ns = 0;
    e->busy = false;
}

/* Enters the end and waits for room, while nothing is held. After DONE comes write_end(). */
static Outcome write_begin(End *e, uint64_t deadline, Writing *w) {
    Member *m = e->member;
    *w = (Writing){.opened = e->opened_ns, .peer = NO_MEMBER};
    Outcome outcome = end_enter(e);
    if (outcome) return outcome;
    if (m->looping) {
        mark(m, e->op, e->seq);
        if (poisoned(m)) {
            write_end(e);
            return POISONED;
        }
    }
    if (m->recording && (w->opened || !m->looping)) {
        uint64_t t = stamp(&m->clock);
        if (w->opened) w->coded = t - w->opened;
        else w->opened = t;
    }
    if ((outcome = wait_for_room(e, deadline, &w->waited, &w->peer))) write_end(e);
    return outcome;
}

/* Publishes a prepared frame, for which there is room. */
static void write_publish(Outgoing *o, const Writing *w) {
    End *e = o->end;
    Member *m = e->member;
    place(o);
    if (m->looping) {
        m->open.waited_ns += w->waited;
        m->open.coded_ns += w->coded;
        m->open.bytes += o->payload;
        if (w->peer != NO_MEMBER) m->open.peer = w->peer;
    }
    /* A loop's write ends here: a process woken by publishing may take the processor. It is written down after
     * that, because what waits for the frame would wait for that, too. */
    uint64_t ended = m->recording && m->looping && !e->goes_on ? stamp(&m->clock) : 0;
    if (!m->looping) ledger_begin(m->ledger->ledger, e->seq);
    outgoing_assign(o);
    publish(e);
    if (ended) close_open(m, ended);
    else if (m->recording && !m->looping) {
        ended = stamp(&m->clock);
        write_event(m, &(Record){w->opened, ended, w->waited, w->coded, e->seq - 1, o->payload, e->op, w->peer});
        now_doing(m, e->op, e->seq - 1, ended, NOW_IDLE);
    }
}

#endif
