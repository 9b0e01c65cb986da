// SPDX-License-Identifier: Apache-2.0
/* The gate of a node: receives the frames that members of other nodes send, and publishes them in rings of its own
 * node.
 *
 * It is a member with an arena of its own. A thread that needs no lock of the host waits for all its connections, so
 * frames pass while the process of the gate runs a method. Large buffers are received into the blocks in which their
 * readers find them. Of each frame the head comes first, then the sizes of its buffers; whether there is memory for it
 * is known before any is claimed. A value without memory is received and dropped, and a failure takes its place.
 *
 *   HEAD --> SIZES --> BODY (data, small buffers) --> LARGE, one by one --> published --> HEAD
 *              `--no memory--> SKIP --> failure published --> HEAD
 *
 * What arrives is from a process that has proved that it belongs to the graph, but it is checked as if it had not: a
 * wrong head, a frame out of order or of another process's channel ends the connection, and the host reports it. */
#ifndef RCG_GATE_H
#define RCG_GATE_H

#include <sys/epoll.h>

#include "link.h"

#define STAGING (32u * 1024)    /* what is read ahead of a connection */
#define DIRECT_FROM (8u * 1024) /* bytes that are worth a call of their own, past the staging */
#define ROUND_BYTES (4u << 20)  /* of one connection before the others have their turn */
#define READY_MOST 64
#define IDLE_TRIM_MS 2000 /* after so long without a frame, free memory goes back to the system, as in loops */
#define NO_PASSAGE UINT32_MAX

/* One channel that arrives: the ring of this node that it goes on in. `is_awaited`: its frames may not be refused. What
 * there is no shared memory for goes through the heap of this process, whatever its size. */
typedef struct {
    End end;
    uint32_t channel;
    bool is_awaited;
} Passage;

typedef enum { AT_HEAD, AT_SIZES, AT_BODY, AT_LARGE, AT_SKIP } Stage;

/* A connection from one process of another node. */
typedef struct Arrival {
    struct Arrival *next;
    int fd; /* owned */
    uint32_t sender;
    uint32_t nallowed, *allowed; /* the passages that it may use */
    uint8_t *staging;
    uint32_t begin, end; /* of what is in it */
    Stage stage;
    uint8_t *to; /* where the bytes of this stage go, and how many are missing */
    uint64_t missing;
    Head head;
    uint64_t started_ns;
    Passage *passage;
    uint64_t *sizes;
    Span *spans;
    uint8_t *small; /* data and small buffers on their way into a slot */
    uint64_t small_room;
    Outgoing out;
    bool is_out;       /* `out` has to be let go of */
    uint32_t at, took; /* of the buffers, and of what was taken for them */
    atomic_u64 received_bytes;
} Arrival;

/* Why a connection ended. */
typedef enum {
    LOST_CLOSED = 1, /* by its other end */
    LOST_SYSTEM,     /* errno */
    LOST_FRAME,      /* no frame of ours */
    LOST_CHANNEL,    /* of a channel that is not that process's */
    LOST_ORDER,      /* another execution than the next */
    LOST_MEMORY,     /* of this process */
} Lost;

typedef struct {
    uint32_t sender, channel;
    Lost why;
    int error;
    uint64_t expected, found;
} Loss;

typedef struct Gate {
    Member *member;
    uint32_t npassages;
    Passage *passages;
    uint32_t failure_kind, last_kind; /* last_kind: no frame has a higher one */
    int poller, wake;
    pthread_t thread;
    _Atomic bool has_thread;
    atomic_u32 stop;
    pthread_mutex_t lock; /* of `coming` */
    Arrival *coming;      /* connections that the thread has to take over */
    Arrival *arrivals;    /* the thread's */
    atomic_u64 frames, bytes;
    /* Called by the thread: */
    void (*lost)(void *owner, const Loss *loss);
    /* Returns what a failure frame carries if there is no memory for a frame (malloc), or NULL. */
    uint8_t *(*refused)(void *owner, const Head *head, uint64_t wanted, int reason, uint64_t *bytes);
    void *owner;
} Gate;

static void arrival_free(Arrival *a) {
    if (a->fd >= 0) close(a->fd);
    free(a->allowed);
    free(a->staging);
    free(a->sizes);
    free(a->spans);
    free(a->small);
    free(a);
}

/* What was claimed for the frame that is arriving goes back. */
static void arrival_undo(Arrival *a) {
    if (!a->is_out) return;
    outgoing_undo(&a->out);
    outgoing_end(&a->out);
    a->is_out = false;
}

static void arrival_await(Arrival *a, Stage stage, uint8_t *to, uint64_t bytes) {
    a->stage = stage;
    a->to = to;
    a->missing = bytes;
}

static void arrival_begin(Arrival *a) { arrival_await(a, AT_HEAD, (uint8_t *)&a->head, sizeof a->head); }

/* ---- making room */

/* All that the frame needs in this node's memory, as prepare() takes it. DONE; NO_SHARED, the reason noted; NO_HEAP. */
static Outcome arrival_take_room(Gate *g, Arrival *a) {
    const Head *h = &a->head;
    Outgoing *o = &a->out;
    End *e = &a->passage->end;
    uint32_t n = h->nbuffers;
    outgoing_begin(o, e, h->kind);
    a->is_out = true;
    o->stashes = true; /* what there is no memory for now, goes through the heap of this process */
    uint64_t inside = h->data_bytes + h->small_bytes, body = n * sizeof(Desc) + inside, largest = 0;
    bool spills = sizeof(Frame) + body > e->slot_bytes;
    for (uint32_t i = 0; i < n; i++)
        if (size_bytes(a->sizes[i]) > largest) largest = size_bytes(a->sizes[i]);
    uint64_t outside = h->payload_bytes - inside + (spills ? body : 0);
    if (h->is_apart) outside = spills && body > largest ? body : largest; /* as prepare() counts */
    if (outside > g->member->board->cap_bytes && !a->passage->is_awaited) return outgoing_refuse(o, outside, EFBIG);
    if (!outgoing_reserve(o, n)) return NO_HEAP;
    if (!spills && inside > a->small_room) {
        uint8_t *p = realloc(a->small, inside);
        if (!p) return NO_HEAP;
        a->small = p;
        a->small_room = inside;
    }
    if (spills) {
        if (!outgoing_take(o, body)) return NO_SHARED;
        o->body_block = o->taken[0].block;
    }
    uint64_t offset = n * sizeof(Desc) + h->data_bytes;
    for (uint32_t i = 0; i < n; i++) {
        Desc d = {g->member->index,       NO_BLOCK, size_is_written(a->sizes[i]) ? DESC_WRITABLE : 0, 0, offset,
                  size_bytes(a->sizes[i])};
        if (size_is_small(a->sizes[i])) offset += d.bytes;
        else {
            if (!outgoing_take(o, d.bytes)) return NO_SHARED;
            const Taken *t = &o->taken[o->ntaken - 1];
            d.block = t->block;
            d.offset = t->kept ? t->kept->id : 0;
        }
        o->table[i] = d;
    }
    o->nspans = n;
    o->data.bytes = h->data_bytes;
    o->body_bytes = body;
    o->payload = h->payload_bytes;
    return DONE;
}

/* The memory of what was taken, number i. */
static uint8_t *taken_at(const Outgoing *o, uint32_t i) {
    const Taken *t = &o->taken[i];
    return t->kept ? t->kept->data : t->arena->writable + t->arena->books[t->block].offset;
}

/* ---- publishing */

/* Publishes the frame in the ring of this node, and begins the next. DONE, POISONED or DAMAGED. */
static Outcome arrival_publish(Gate *g, Arrival *a) {
    Member *m = g->member;
    Outgoing *o = &a->out;
    End *e = o->end;
    uint64_t waited = 0, execution = e->seq;
    uint32_t peer;
    Outcome outcome = wait_for_room(e, UINT64_MAX, &waited, &peer); /* there is: as many slots as executions */
    if (outcome) return outcome;
    place(o);
    if (!ledger_has(m->ledger->ledger, execution)) ledger_begin(m->ledger->ledger, execution);
    outgoing_assign(o);
    publish(e);
    if (m->recording) {
        uint64_t ended = stamp(&m->clock);
        write_event(m, &(Record){a->started_ns, ended, waited, 0, execution, o->payload, e->op, NO_MEMBER});
        now_doing(m, e->op, execution, ended, NOW_IDLE);
    }
    add_relaxed(&g->frames, 1);
    add_relaxed(&g->bytes, o->payload);
    outgoing_end(o);
    a->is_out = false;
    arrival_begin(a);
    return DONE;
}

/* The frame is all here. */
static Outcome arrival_finish(Gate *g, Arrival *a) {
    Outgoing *o = &a->out;
    uint32_t n = o->nspans;
    if (o->body_block != NO_BLOCK) {
        if (n) memcpy(taken_at(o, 0), o->table, n * sizeof(Desc));
    } else {
        uint64_t offset = 0;
        o->data.data = a->small;
        for (uint32_t i = 0; i < n; i++) {
            a->spans[i] = (Span){a->small + a->head.data_bytes + offset, o->table[i].bytes, false};
            if (o->table[i].block == NO_BLOCK) offset += o->table[i].bytes;
        }
        o->spans = a->spans;
    }
    return arrival_publish(g, a);
}

/* A failure in place of the frame, whose bytes were dropped. */
static Outcome arrival_fail(Gate *g, Arrival *a) {
    Outgoing *o = &a->out;
    uint64_t bytes = 0;
    uint8_t *text = g->refused(g->owner, &a->head, o->refused_bytes, o->refused, &bytes);
    if (!text) return NO_HEAP;
    arrival_undo(a);
    outgoing_begin(o, &a->passage->end, g->failure_kind);
    a->is_out = true;
    o->stashes = true;
    o->data = (Span){text, bytes, false};
    Outcome outcome = prepare(o);
    if (!outcome) outcome = arrival_publish(g, a);
    free(text);
    return outcome;
}

/* ---- stages */

static Passage *passage_of(Gate *g, const Arrival *a) {
    for (uint32_t i = 0; i < a->nallowed; i++)
        if (g->passages[a->allowed[i]].channel == a->head.channel) return &g->passages[a->allowed[i]];
    return NULL;
}

/* The next large buffer after number `at`, or the end of the frame. */
static Outcome arrival_go_on(Gate *g, Arrival *a) {
    Outgoing *o = &a->out;
    while (a->at < o->nspans && o->table[a->at].block == NO_BLOCK) a->at++;
    if (a->at == o->nspans) return arrival_finish(g, a);
    arrival_await(a, AT_LARGE, taken_at(o, a->took++), o->table[a->at++].bytes);
    return DONE;
}

static Outcome arrival_open_body(Gate *g, Arrival *a) {
    const Head *h = &a->head;
    Outgoing *o = &a->out;
    Outcome outcome = poisoned(g->member) ? POISONED : arrival_take_room(g, a);
    a->at = 0;
    a->took = o->body_block != NO_BLOCK;
    if (outcome == NO_SHARED && a->passage->is_awaited) outcome = NO_HEAP;
    if (outcome == NO_SHARED) {
        outgoing_undo(o);
        arrival_await(a, AT_SKIP, NULL, h->payload_bytes);
        return h->payload_bytes ? DONE : arrival_fail(g, a);
    }
    if (outcome) return outcome;
    uint64_t inside = h->data_bytes + h->small_bytes;
    uint8_t *to = o->body_block == NO_BLOCK ? a->small : taken_at(o, 0) + o->nspans * sizeof(Desc);
    if (!inside) return arrival_go_on(g, a);
    arrival_await(a, AT_BODY, to, inside);
    return DONE;
}

/* The head is here. */
static Outcome arrival_open_head(Gate *g, Arrival *a, Loss *loss) {
    const Head *h = &a->head;
    *loss = (Loss){.sender = a->sender, .channel = h->channel, .why = LOST_FRAME};
    if (!head_fits(h) || h->kind > g->last_kind) return DAMAGED;
    loss->why = LOST_CHANNEL;
    if (!(a->passage = passage_of(g, a))) return DAMAGED;
    loss->why = LOST_ORDER;
    loss->expected = a->passage->end.seq;
    loss->found = h->execution;
    if (loss->expected != loss->found) return DAMAGED;
    if (g->member->recording) now_doing(g->member, a->passage->end.op, h->execution, a->started_ns, NOW_RUNNING);
    loss->why = LOST_MEMORY;
    if (!h->nbuffers) return arrival_open_body(g, a);
    uint64_t *sizes = realloc(a->sizes, h->nbuffers * sizeof *sizes);
    if (sizes) a->sizes = sizes;
    Span *spans = sizes ? realloc(a->spans, h->nbuffers * sizeof *spans) : NULL;
    if (spans) a->spans = spans;
    if (!spans) return NO_HEAP;
    arrival_await(a, AT_SIZES, (uint8_t *)sizes, h->nbuffers * sizeof *sizes);
    return DONE;
}

/* What this stage waited for is here. */
static Outcome arrival_step(Gate *g, Arrival *a, Loss *loss) {
    *loss = (Loss){.sender = a->sender, .channel = a->head.channel, .why = LOST_MEMORY};
    switch (a->stage) {
    case AT_HEAD: return arrival_open_head(g, a, loss);
    case AT_SIZES:
        if (sizes_fit(&a->head, a->sizes)) return arrival_open_body(g, a);
        loss->why = LOST_FRAME;
        return DAMAGED;
    case AT_SKIP: return arrival_fail(g, a);
    default: return arrival_go_on(g, a);
    }
}

/* ---- receiving */

/* Takes bytes of the staging for the present stage. */
static void arrival_unstage(Arrival *a) {
    uint64_t here = a->end - a->begin, n = here < a->missing ? here : a->missing;
    if (a->to) {
        memcpy(a->to, a->staging + a->begin, n);
        a->to += n;
    }
    a->begin += (uint32_t)n;
    a->missing -= n;
}

/* Receives more: the bytes; 0 at the end; -1 with errno. */
static ssize_t arrival_receive(Arrival *a) {
    ssize_t n;
    if (a->to && a->missing >= DIRECT_FROM) {
        n = recv(a->fd, a->to, a->missing, MSG_DONTWAIT);
        if (n > 0) {
            a->to += n;
            a->missing -= (uint64_t)n;
        }
    } else {
        n = recv(a->fd, a->staging, STAGING, MSG_DONTWAIT);
        a->begin = 0;
        a->end = n > 0 ? (uint32_t)n : 0;
    }
    if (n > 0) add_relaxed(&a->received_bytes, (uint64_t)n);
    return n;
}

/* Handles what a connection brings: whether it goes on. */
static bool arrival_serve(Gate *g, Arrival *a, Loss *loss) {
    for (uint64_t round = 0;;) {
        while (a->end > a->begin || !a->missing) {
            if (a->stage == AT_HEAD && a->missing == sizeof a->head && g->member->recording)
                a->started_ns = stamp(&g->member->clock);
            arrival_unstage(a);
            if (a->missing) break;
            Outcome outcome = arrival_step(g, a, loss);
            if (outcome) {
                loss->error = outcome == POISONED ? 0 : errno;
                return false;
            }
        }
        if (round >= ROUND_BYTES) return true; /* with nothing left that would wait for more to come */
        ssize_t n = arrival_receive(a);
        if (n > 0) round += (uint64_t)n;
        else if (n < 0 && errno == EAGAIN) return true;
        else if (n < 0 && errno == EINTR) continue;
        else {
            bool is_clean = !n && a->stage == AT_HEAD && a->missing == sizeof a->head;
            *loss = (Loss){.sender = a->sender, .why = n ? LOST_SYSTEM : LOST_CLOSED, .error = n ? errno : !is_clean};
            return false;
        }
    }
}

/* ---- the thread */

/* Takes over connections that were added. */
static void gate_take_in(Gate *g) {
    pthread_mutex_lock(&g->lock);
    Arrival *a = g->coming;
    g->coming = NULL;
    pthread_mutex_unlock(&g->lock);
    while (a) {
        Arrival *next = a->next;
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = a};
        a->next = g->arrivals;
        g->arrivals = a;
        if (epoll_ctl(g->poller, EPOLL_CTL_ADD, a->fd, &event)) {
            Loss loss = {.sender = a->sender, .why = LOST_SYSTEM, .error = errno};
            g->lost(g->owner, &loss);
        }
        a = next;
    }
}

/* Ends a connection, of which a process that was forked from this one may have a copy: closing it would neither tell
 * the other end nor have the poller forget it. */
static void gate_drop(Gate *g, Arrival *gone) {
    Arrival **at = &g->arrivals;
    while (*at != gone) at = &(*at)->next;
    *at = gone->next;
    epoll_ctl(g->poller, EPOLL_CTL_DEL, gone->fd, NULL);
    shutdown(gone->fd, SHUT_RDWR);
    arrival_undo(gone);
    arrival_free(gone);
}

static void *gate_run(void *arg) {
    Gate *g = arg;
    Arena *mine = g->member->arenas[g->member->index];
    struct epoll_event ready[READY_MOST];
    uint64_t trimmed = 0; /* so many frames had passed then */
    while (!atomic_load(&g->stop)) {
        uint64_t passed = atomic_load(&g->frames);
        int n = epoll_wait(g->poller, ready, READY_MOST, passed > trimmed ? IDLE_TRIM_MS : -1);
        if (n < 0 && errno != EINTR) break;
        if (!n) {
            arena_trim(mine, g->member->board, 0);
            trimmed = passed;
        }
        for (int i = 0; i < n; i++) {
            Arrival *a = ready[i].data.ptr;
            Loss loss = {0};
            uint64_t count;
            if (!a) {
                if (read(g->wake, &count, sizeof count) > 0) gate_take_in(g);
            } else if (!arrival_serve(g, a, &loss)) {
                if (!poisoned(g->member)) g->lost(g->owner, &loss);
                gate_drop(g, a);
            }
        }
    }
    return NULL;
}

/* ---- opening and closing */

/* Starts a gate whose member, passages and calls are set; all else is zero before. 0, or -1 with errno. */
static int gate_open(Gate *g) {
    g->poller = g->wake = -1;
    pthread_mutex_init(&g->lock, NULL);
    if ((g->poller = epoll_create1(EPOLL_CLOEXEC)) < 0 || (g->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        return -1;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(g->poller, EPOLL_CTL_ADD, g->wake, &event)) return -1;
    g->has_thread = !start_thread(&g->thread, gate_run, g);
    return g->has_thread ? 0 : -1;
}

/* Has the gate listen to a connection, its own from now on, for these passages. 0, or -1 with errno and it stays the
 * caller's. */
static int gate_add(Gate *g, int fd, uint32_t sender, const uint32_t *allowed, uint32_t nallowed) {
    Arrival *a = calloc(1, sizeof *a);
    if (!a) return -1;
    a->fd = -1;
    a->staging = malloc(STAGING);
    a->allowed = malloc(nallowed * sizeof *allowed + 1);
    if (!a->staging || !a->allowed) {
        arrival_free(a);
        errno = ENOMEM;
        return -1;
    }
    memcpy(a->allowed, allowed, nallowed * sizeof *allowed);
    a->nallowed = nallowed;
    a->sender = sender;
    a->fd = fd;
    arrival_begin(a);
    pthread_mutex_lock(&g->lock);
    a->next = g->coming;
    g->coming = a;
    pthread_mutex_unlock(&g->lock);
    wake_poller(g->wake);
    return 0;
}

/* Ends the thread, if this process has it; whether this call did. Without the host's lock, which its calls may want. */
static bool gate_stop(Gate *g) {
    if (!atomic_exchange(&g->has_thread, false) || !member_is_ours(g->member)) return false;
    atomic_store(&g->stop, 1);
    wake_poller(g->wake);
    pthread_join(g->thread, NULL);
    return true;
}

/* After gate_stop(), with the member still open: closes the connections and lets go of what was arriving. */
static void gate_close(Gate *g) {
    for (Arrival **list = &g->arrivals; list; list = list == &g->arrivals ? &g->coming : NULL)
        while (*list) {
            Arrival *a = *list;
            *list = a->next;
            arrival_undo(a);
            arrival_free(a);
        }
    if (g->poller > 0) close(g->poller);
    if (g->wake > 0) close(g->wake);
    g->poller = g->wake = -1;
    free(g->passages);
    g->passages = NULL;
    pthread_mutex_destroy(&g->lock);
}

#endif
