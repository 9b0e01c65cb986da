// SPDX-License-Identifier: Apache-2.0
/* Links: the connections by which a member sends frames of its rings to the gates of other nodes.
 *
 * The member is a reader of its own ring. When it has published a frame, the same thread sends it, straight from the
 * slot and the blocks, as far as the sockets take it at once; a thread of the links, which needs no lock of the host,
 * sends the rest. Then the frame is taken as any reader takes it: its claims end, and its slot is free.
 *
 *   publish --> cargo: head, claims --> a parcel for each node --sendmsg--> ... --> the last parcel is sent: taken
 *
 * A link is a queue of parcels, in the order of publishing. `is_busy` says whether a thread sends; only that thread
 * takes parcels from the queue. A link that has failed drops what it gets: what to do about it is decided elsewhere,
 * where it is known whether a process died. */
#ifndef RCG_LINK_H
#define RCG_LINK_H

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "send.h"

/* ---- packets: what a frame is on a connection, and the checks of what arrives
 *
 *   Head (64 B) | sizes: uint64_t[nbuffers] | data | small buffers | large buffers
 *
 * `data` and the small buffers (up to INLINE_BUFFER bytes) lie together in the sender's slot or block, so they are one
 * piece of memory at both ends. A size has its lowest bit set where the reader will write to the buffer. Numbers are in
 * the byte order of the machines, which the start of a graph compares. A connection carries frames of any number of
 * channels, those of each in the order of executions: the head has the number of both, and a gap or a repeat ends the
 * connection with an error that names the channel. */

#define PACKET_MAGIC 0x70676372u
#define MOST_BUFFERS (1u << 24) /* of one frame; their table is 128 MiB then */

typedef struct {
    uint32_t magic, channel; /* channel: its number in the plan, the same on all nodes */
    uint32_t kind, nbuffers;
    uint64_t execution;
    uint64_t data_bytes, small_bytes; /* small_bytes: of all small buffers together */
    uint64_t payload_bytes;           /* data and all buffers */
    uint64_t check;                   /* of all other words */
    uint32_t is_apart, pad;           /* is_apart: its buffers are of several values, see Outgoing */
} Head;
_Static_assert(sizeof(Head) == LINE, "Head");

static uint64_t check_head(const Head *h) {
    return check_words(pair(h->magic, h->channel), h->execution, h->data_bytes, h->small_bytes,
                       pair(h->kind, h->nbuffers), h->payload_bytes ^ (uint64_t)h->is_apart << 63);
}

static uint64_t packed_size(const Desc *d) { return d->bytes << 1 | (d->flags & DESC_WRITABLE); }
static uint64_t size_bytes(uint64_t packed) { return packed >> 1; }
static bool size_is_written(uint64_t packed) { return packed & 1; }
static bool size_is_small(uint64_t packed) { return size_bytes(packed) <= INLINE_BUFFER; }

/* Whether a head is one of ours and adds up. */
static bool head_fits(const Head *h) {
    return h->magic == PACKET_MAGIC && h->check == check_head(h) && h->kind && h->nbuffers <= MOST_BUFFERS &&
           h->is_apart <= 1 && !h->pad && h->data_bytes <= h->payload_bytes &&
           h->small_bytes <= h->payload_bytes - h->data_bytes &&
           h->small_bytes <= (uint64_t)h->nbuffers * INLINE_BUFFER;
}

/* Whether the sizes are those that the head counts. */
static bool sizes_fit(const Head *h, const uint64_t *sizes) {
    uint64_t small = 0, left = h->payload_bytes - h->data_bytes;
    for (uint32_t i = 0; i < h->nbuffers; i++) {
        uint64_t bytes = size_bytes(sizes[i]);
        if (bytes > left) return false;
        left -= bytes;
        if (size_is_small(sizes[i])) small += bytes;
    }
    return !left && small == h->small_bytes;
}

/* ---- links */

#define MOST_LINKS 64
#define UNLOCKED_SEND (64u * 1024) /* the host's lock is released to send more than this */
#define MOST_PIECES 1024u          /* of one sendmsg (IOV_MAX) */

/* A frame that is being sent to one node or several. */
typedef struct {
    atomic_u32 left; /* parcels that are not sent yet */
    Ring *ring;
    uint32_t reader; /* the line of the member itself */
    uint32_t nclaims;
    uint64_t seq;
    struct {
        Arena *arena;
        uint32_t block;
    } *claims;
    uint64_t *sizes;
    Head head;
} Cargo;

typedef struct Parcel {
    struct Parcel *next;
    Cargo *cargo;
    uint32_t npieces, at; /* pieces before `at` are sent */
    struct iovec pieces[];
} Parcel;

typedef struct {
    int fd; /* owned by the host; -1 once it is closed */
    pthread_mutex_t lock;
    Parcel *first, **last;
    bool is_busy, is_waiting; /* is_waiting: the thread waits until the socket takes more */
    _Atomic int failed;       /* errno */
    bool is_reported;
    atomic_u64 sent_bytes;
} Link;

typedef struct Links {
    Member *member;
    uint32_t nlinks;
    Link links[MOST_LINKS];
    pthread_t thread;
    _Atomic bool has_thread;
    int wake; /* eventfd */
    atomic_u32 stop;
    atomic_u32 senders;                                    /* other threads that send */
    void (*failed)(void *owner, uint32_t link, int error); /* called by the thread */
    void *owner;
} Links;

/* Which way frames of a ring go. */
typedef struct {
    Links *links;
    uint64_t nodes;   /* bit i: by link i */
    uint32_t channel; /* its number in the plan */
    uint32_t reader;  /* the line of the member itself in the ring */
} Route;

/* ---- the end of a frame's way */

/* The member has taken frame `seq` of its own ring. Links may finish it in any order: the count only grows. */
static void ring_taken(Member *m, Ring *r, uint32_t reader, uint64_t seq) {
    atomic_u64 *count = &r->reader[reader].seq;
    uint64_t seen = load_relaxed(count);
    while (seen <= seq && !atomic_compare_exchange_weak(count, &seen, seq + 1)) {}
    if (atomic_load(&r->room_wanted)) ring_doorbell(m, r->writer);
}

/* One parcel less; the last one lets go of the frame. Without the host's lock, or with it. */
static void parcel_done(Member *m, Parcel *p) {
    Cargo *c = p->cargo;
    free(p);
    if (atomic_fetch_sub(&c->left, 1) != 1) return;
    for (uint32_t i = 0; i < c->nclaims; i++)
        arena_unclaim(c->claims[i].arena, c->claims[i].block, claim_unit(c->claims[i].arena, m->index));
    ring_taken(m, c->ring, c->reader, c->seq);
    free(c);
}

/* ---- sending */

/* Takes the sent or dropped first parcel out of the queue; whether there is another one. */
static bool link_advance(Links *all, Link *l) {
    pthread_mutex_lock(&l->lock);
    Parcel *p = l->first;
    l->first = p->next;
    if (!l->first) l->last = &l->first;
    bool goes_on = l->first;
    l->is_busy = goes_on;
    pthread_mutex_unlock(&l->lock);
    parcel_done(all->member, p);
    return goes_on;
}

/* Sends what the socket takes at once, as the thread for which the link is busy. False where the rest has to wait. */
static bool link_flush(Links *all, Link *l) {
    do {
        Parcel *p = l->first; /* others only append */
        while (p->at < p->npieces && !l->failed) {
            uint32_t count = p->npieces - p->at;
            struct msghdr msg = {.msg_iov = &p->pieces[p->at], .msg_iovlen = count < MOST_PIECES ? count : MOST_PIECES};
            ssize_t n = sendmsg(l->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL | (count > MOST_PIECES ? MSG_MORE : 0));
            if (n < 0) {
                if (errno == EINTR) continue;
                if (errno == EAGAIN) return false;
                l->failed = errno;
                break;
            }
            add_relaxed(&l->sent_bytes, (uint64_t)n);
            for (size_t left = (size_t)n; p->at < p->npieces;) {
                struct iovec *piece = &p->pieces[p->at];
                if (left < piece->iov_len) {
                    piece->iov_base = (uint8_t *)piece->iov_base + left;
                    piece->iov_len -= left;
                    break;
                }
                left -= piece->iov_len;
                p->at++;
            }
        }
    } while (link_advance(all, l));
    return true;
}

static void link_set_waiting(Link *l, bool is_waiting) {
    pthread_mutex_lock(&l->lock);
    l->is_waiting = is_waiting;
    pthread_mutex_unlock(&l->lock);
}

static void *links_run(void *arg) {
    Links *all = arg;
    struct pollfd polled[MOST_LINKS + 1];
    uint32_t which[MOST_LINKS + 1];
    while (!atomic_load(&all->stop)) {
        nfds_t n = 0;
        polled[n++] = (struct pollfd){all->wake, POLLIN, 0};
        for (uint32_t i = 0; i < all->nlinks; i++) {
            Link *l = &all->links[i];
            pthread_mutex_lock(&l->lock);
            bool waits = l->is_waiting;
            int problem = l->failed && !l->is_reported ? l->failed : 0;
            l->is_reported |= problem != 0;
            pthread_mutex_unlock(&l->lock);
            if (problem) all->failed(all->owner, i, problem);
            if (waits) {
                which[n] = i;
                polled[n++] = (struct pollfd){l->fd, POLLOUT, 0};
            }
        }
        if (poll(polled, n, -1) < 0 && errno != EINTR) break;
        uint64_t count;
        if (polled[0].revents && read(all->wake, &count, sizeof count) < 0) continue; /* another reader: not ours */
        for (nfds_t j = 1; j < n; j++) {
            if (!polled[j].revents) continue;
            Link *l = &all->links[which[j]];
            link_set_waiting(l, false); /* first: when all is sent, another thread may come to wait at once */
            if (!link_flush(all, l)) link_set_waiting(l, true);
        }
    }
    return NULL;
}

/* Appends a parcel; whether the caller is to send. */
static bool link_append(Link *l, Parcel *p) {
    pthread_mutex_lock(&l->lock);
    *l->last = p;
    l->last = &p->next;
    bool is_ours = !l->is_busy;
    l->is_busy = true;
    pthread_mutex_unlock(&l->lock);
    return is_ours;
}

/* ---- loading */

/* Where the bytes of a buffer of a prepared frame lie. */
static const uint8_t *buffer_at(const Outgoing *o, uint32_t i, uint32_t *taken) {
    Member *m = o->end->member;
    const Desc *d = &o->table[i];
    const Taken *t = &o->taken[(*taken)++];
    if (d->block == STASHED) return t->kept->data;
    const Arena *a = m->arenas[d->arena];
    const uint8_t *map = d->arena == m->index ? a->writable : a->readable;
    return map + block_offset(&a->header->block[d->block]) + d->offset;
}

/* Where the data of a published frame lie, with the small buffers behind them. */
static const uint8_t *body_at(const Outgoing *o, const uint8_t *slot) {
    const uint8_t *body = slot + sizeof(Frame);
    if (o->body_block == STASHED) body = o->taken[0].kept->data;
    else if (o->body_block != NO_BLOCK) {
        const Arena *mine = o->end->member->arenas[o->end->member->index];
        body = mine->writable + mine->books[o->body_block].offset;
    }
    return body + o->nspans * sizeof(Desc);
}

/* The cargo of a published frame, with all that is sent of it in `pieces`; NULL if malloc fails. */
static Cargo *cargo_load(const Outgoing *o, const Route *route, struct iovec *pieces, uint32_t *npieces) {
    const End *e = o->end;
    uint64_t seq = e->seq - 1;
    const uint8_t *slot = e->slots + (seq & (e->nslots - 1)) * (uint64_t)e->slot_bytes;
    Cargo *c = malloc(sizeof *c + o->nspans * sizeof(uint64_t) + o->ntaken * sizeof *c->claims);
    if (!c) return NULL;
    *c = (Cargo){.ring = e->ring, .reader = route->reader, .seq = seq};
    c->sizes = (uint64_t *)(c + 1);
    c->claims = (void *)(c->sizes + o->nspans);
    for (uint32_t i = 0; i < o->ntaken; i++)
        if (!o->taken[i].kept) {
            c->claims[c->nclaims].arena = o->taken[i].arena;
            c->claims[c->nclaims++].block = o->taken[i].block;
        }
    uint32_t n = 3, taken = o->body_block != NO_BLOCK;
    uint64_t small = 0;
    for (uint32_t i = 0; i < o->nspans; i++) {
        const Desc *d = &o->table[i];
        c->sizes[i] = packed_size(d);
        if (d->block == NO_BLOCK) small += d->bytes;
        else pieces[n++] = (struct iovec){(void *)buffer_at(o, i, &taken), d->bytes};
    }
    c->head =
        (Head){PACKET_MAGIC, route->channel, o->kind, o->nspans, seq, o->data.bytes, small, o->payload, 0, o->apart, 0};
    c->head.check = check_head(&c->head);
    pieces[0] = (struct iovec){&c->head, sizeof c->head};
    pieces[1] = (struct iovec){c->sizes, o->nspans * sizeof(uint64_t)};
    pieces[2] = (struct iovec){(void *)body_at(o, slot), o->data.bytes + small};
    *npieces = n;
    return c;
}

/* Queues a frame that was just published at every link of its route: bit i for a link by which the caller has to send.
 * With the host's lock, and before anything else is published, so that each link has all frames in their order. */
static uint64_t links_load(const Outgoing *o, const Route *route) {
    Links *all = route->links;
    struct iovec few[3 + FEW], *pieces = few;
    uint32_t npieces = 0, count = (uint32_t)__builtin_popcountll(route->nodes);
    uint64_t ours = 0;
    if (o->nspans > FEW) pieces = malloc((3 + o->nspans) * sizeof *pieces);
    Cargo *c = pieces ? cargo_load(o, route, pieces, &npieces) : NULL;
    if (c) atomic_store(&c->left, count);
    for (uint32_t i = 0; i < all->nlinks; i++) {
        if (!(route->nodes >> i & 1)) continue;
        Link *l = &all->links[i];
        Parcel *p = c ? malloc(sizeof *p + npieces * sizeof *pieces) : NULL;
        if (!p) { /* a frame that is missing ends the link */
            if (!l->failed) l->failed = ENOMEM;
            wake_poller(all->wake);
            continue; /* what was claimed for it stays so: the graph is about to end */
        }
        *p = (Parcel){.cargo = c, .npieces = npieces};
        memcpy(p->pieces, pieces, npieces * sizeof *pieces);
        if (link_append(l, p)) ours |= 1ull << i;
    }
    if (pieces != few) free(pieces);
    return ours;
}

/* Sends by the links that links_load() left to the caller. The host's lock is released if `bytes` are many. */
static void links_send(Links *all, uint64_t ours, uint64_t bytes) {
    if (!ours) return;
    void *state = bytes > UNLOCKED_SEND ? all->member->host->leave() : NULL;
    atomic_fetch_add(&all->senders, 1); /* before the loads of `failed` */
    for (uint32_t i = 0; i < all->nlinks; i++) {
        Link *l = &all->links[i];
        if (!(ours >> i & 1)) continue;
        bool is_sent = link_flush(all, l);
        if (!is_sent) link_set_waiting(l, true);
        if (!is_sent || l->failed) wake_poller(all->wake); /* the thread sends the rest, or reports the failure */
    }
    atomic_fetch_sub(&all->senders, 1);
    if (bytes > UNLOCKED_SEND) all->member->host->enter(state);
}

/* ---- opening and closing */

/* Links over connected sockets, which stay the caller's; all zeros before. 0, or -1 with errno. */
static int links_open(Links *all, Member *m, const int *fds, uint32_t n,
                      void (*failed)(void *owner, uint32_t link, int error), void *owner) {
    all->member = m;
    all->failed = failed;
    all->owner = owner;
    if ((all->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) return -1;
    for (; all->nlinks < n; all->nlinks++) {
        Link *l = &all->links[all->nlinks];
        l->fd = fds[all->nlinks];
        l->last = &l->first;
        pthread_mutex_init(&l->lock, NULL);
    }
    all->has_thread = !start_thread(&all->thread, links_run, all);
    return all->has_thread ? 0 : -1;
}

/* Ends the thread, if this process has it, and drops what was not sent; whether this call did. After it nothing uses
 * the sockets any more. Without the host's lock, which `failed` may want. */
static bool links_stop(Links *all) {
    if (!atomic_exchange(&all->has_thread, false) || !member_is_ours(all->member)) return false;
    atomic_store(&all->stop, 1);
    wake_poller(all->wake);
    pthread_join(all->thread, NULL);
    for (uint32_t i = 0; i < all->nlinks; i++) {
        int none = 0;
        atomic_compare_exchange_strong(&all->links[i].failed, &none, ECANCELED);
    }
    while (atomic_load(&all->senders)) nap(50000); /* no send waits */
    return true;
}

/* After links_stop(), with the member still open; what is queued is let go of. */
static void links_close(Links *all) {
    bool is_ours = all->member && member_is_ours(all->member);
    for (uint32_t i = 0; i < all->nlinks; i++) {
        Link *l = &all->links[i];
        while (is_ours && l->first) link_advance(all, l);
        pthread_mutex_destroy(&l->lock);
    }
    all->nlinks = 0;
    if (all->member && all->wake >= 0) close(all->wake);
    all->wake = -1;
}

#endif
