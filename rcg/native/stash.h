// SPDX-License-Identifier: Apache-2.0
/* The stash: heap copies of values without shared memory, and the tray through which readers pull them. */
#ifndef RCG_STASH_H
#define RCG_STASH_H

#include "wait.h"

/* A copy of some bytes on the heap. It goes when all readers of its frame have moved on. */
typedef struct Kept {
    struct Kept *next;
    uint64_t id, bytes, seq; /* seq NO_EXECUTION: its frame is not published yet */
    Ring *ring;
    uint32_t nreaders;
    uint8_t data[];
} Kept;

typedef struct Stash {
    pthread_mutex_t lock; /* of all that follows; the host's lock is not taken while it is held */
    Kept *first;
    uint64_t last_id;
    atomic_u32 stop;
    pthread_t thread;
    Tray *tray;
    Ledger *ledger;
} Stash;

#define SWEEP_NS 20000000u /* how often copies that are no longer needed are freed */

static bool is_needed(const Kept *k) {
    if (k->seq == NO_EXECUTION) return true;
    for (uint32_t i = 0; i < k->nreaders; i++)
        if (load_acquire(&k->ring->reader[i].seq) <= k->seq) return true;
    return false;
}

static void kept_free(Stash *s, Kept *k) {
    sub_relaxed(&s->ledger->stashed_bytes, k->bytes);
    free(k);
}

/* Frees copies that are no longer needed; returns whether any are left. */
static bool stash_sweep(Stash *s) {
    pthread_mutex_lock(&s->lock);
    for (Kept **at = &s->first; *at;) {
        Kept *k = *at;
        if (is_needed(k)) {
            at = &k->next;
            continue;
        }
        *at = k->next;
        kept_free(s, k);
    }
    bool is_empty = !s->first;
    pthread_mutex_unlock(&s->lock);
    return !is_empty;
}

/* Puts the piece that a reader asked for into the tray. */
static void stash_answer(Stash *s) {
    Tray *t = s->tray;
    uint64_t id = t->id, offset = t->offset, bytes = NO_BYTES;
    pthread_mutex_lock(&s->lock);
    Kept *k = s->first;
    while (k && k->id != id) k = k->next;
    if (k && offset <= k->bytes) {
        bytes = k->bytes - offset < TRAY_BYTES ? k->bytes - offset : TRAY_BYTES;
        memcpy(t->data, k->data + offset, bytes);
    }
    pthread_mutex_unlock(&s->lock);
    t->bytes = bytes;
}

/* The thread that serves a stash; it needs no lock of the host. */
static void *stash_serve(void *arg) {
    Stash *s = arg;
    Tray *t = s->tray;
    const struct timespec moment = {0, SWEEP_NS};
    bool has_some = true; /* what lies there is asked for sooner or later, which ends a long sleep */
    while (!atomic_load(&s->stop)) {
        uint32_t turn = atomic_load(&t->turn);
        if (turn & 1) {
            stash_answer(s);
            atomic_store(&t->turn, turn + 1);
            futex(&t->turn, FUTEX_WAKE, INT_MAX, NULL);
            has_some = true;
        } else {
            long r = futex(&t->turn, FUTEX_WAIT, turn, has_some ? &moment : NULL);
            if (!r || errno == ETIMEDOUT) has_some = stash_sweep(s);
        }
    }
    return NULL;
}

/* The stash of a member, with its thread; NULL if there can be none. */
static Stash *stash_of(Member *m) {
    if (m->stash) return m->stash;
    Stash *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->tray = tray_of(m, m->index);
    s->ledger = m->ledger->ledger;
    pthread_mutex_init(&s->lock, NULL);
    if (start_thread(&s->thread, stash_serve, s)) {
        free(s);
        return NULL;
    }
    atomic_store(&s->tray->is_served, 1);
    return m->stash = s;
}

static void stash_close(Member *m) {
    Stash *s = m->stash;
    m->stash = NULL;
    if (!s || !member_is_ours(m)) return; /* the thread stayed with the parent */
    atomic_store(&s->stop, 1);
    /* It sleeps on a word that only says whose turn it is: wake it until it has seen that it is over. */
    for (;; nap(50000)) {
        futex(&s->tray->turn, FUTEX_WAKE, INT_MAX, NULL);
        if (!pthread_tryjoin_np(s->thread, NULL)) break;
    }
    while (s->first) {
        Kept *k = s->first;
        s->first = k->next;
        kept_free(s, k);
    }
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* Room for so many bytes in the stash, for a frame that is being made; or NULL. */
static Kept *stash_keep(Member *m, uint64_t bytes) {
    Stash *s = stash_of(m);
    Kept *k = s ? malloc(sizeof *k + bytes) : NULL;
    if (!k) return NULL;
    *k = (Kept){.bytes = bytes, .seq = NO_EXECUTION};
    pthread_mutex_lock(&s->lock);
    k->id = s->last_id++ % UINT32_MAX + 1; /* never 0, and 32 bits */
    k->next = s->first;
    s->first = k;
    if (bytes > s->tray->largest) atomic_store(&s->tray->largest, bytes);
    pthread_mutex_unlock(&s->lock);
    add_relaxed(&s->ledger->stashes, 1);
    add_relaxed(&s->ledger->stashed_bytes, bytes);
    return k;
}

/* The frame that names it is about to be published. */
static void stash_publish(Member *m, Kept *k, Ring *ring, uint32_t nreaders, uint64_t seq) {
    Stash *s = m->stash;
    pthread_mutex_lock(&s->lock);
    k->ring = ring;
    k->nreaders = nreaders;
    k->seq = seq;
    pthread_mutex_unlock(&s->lock);
}

/* The frame will not be published. */
static void stash_drop(Member *m, Kept *gone) {
    Stash *s = m->stash;
    pthread_mutex_lock(&s->lock);
    Kept **at = &s->first;
    while (*at != gone) at = &(*at)->next;
    *at = gone->next;
    pthread_mutex_unlock(&s->lock);
    kept_free(s, gone);
}

/* Waits a moment while the tray is used by another reader, or the turn is the writer's. */
static Outcome tray_wait(Member *m, Tray *t, atomic_u32 *word, uint32_t seen, uint64_t deadline) {
    uint64_t now = now_ns(), left = deadline > now ? deadline - now : 0;
    if (!left) return TIMED_OUT;
    bool is_turn = word == &t->turn;
    uint64_t slice = is_turn ? SIGNAL_SLICE : 50000; /* releasing a tray wakes no waiter */
    if (left > slice) left = slice;
    struct timespec ts = {0, (long)left};
    if (is_turn) {
        long r = futex(word, FUTEX_WAIT, seen, &ts);
        if (!r || errno == EAGAIN) return DONE;
    } else nanosleep(&ts, NULL);
    if (atomic_load(word) != seen) return DONE;
    if (poisoned(m)) return POISONED; /* the writer may have left */
    return is_main_thread() ? SIGNALS : DONE;
}

/* Pulls what is missing of a copy in a member's stash. Without the host's lock. */
static Outcome pull_pieces(Member *m, Tray *t, uint64_t id, uint8_t *to, uint64_t bytes, uint64_t *have,
                           uint64_t deadline) {
    Outcome outcome = DONE;
    uint32_t nobody = 0;
    while (!atomic_compare_exchange_strong(&t->user, &nobody, m->index + 1)) {
        if ((outcome = tray_wait(m, t, &t->user, nobody, deadline)) != DONE) return outcome;
        nobody = 0;
    }
    while (*have < bytes && outcome == DONE) {
        uint32_t turn;
        /* the previous user may have left while its answer was on the way */
        while (outcome == DONE && (turn = atomic_load(&t->turn)) & 1)
            outcome = tray_wait(m, t, &t->turn, turn, deadline);
        if (outcome != DONE) break;
        t->id = id;
        t->offset = *have;
        atomic_store(&t->turn, turn + 1);
        futex(&t->turn, FUTEX_WAKE, INT_MAX, NULL);
        while (outcome == DONE && atomic_load(&t->turn) == turn + 1)
            outcome = tray_wait(m, t, &t->turn, turn + 1, deadline);
        if (outcome != DONE) break;
        uint64_t got = t->bytes;
        if (!got || got > TRAY_BYTES || got > bytes - *have) {
            outcome = NOT_STASHED;
            break;
        }
        memcpy(to + *have, t->data, got);
        *have += got;
        /* an answer that is always there before it is waited for must not hide the deadline */
        if (*have < bytes && now_ns() >= deadline) outcome = TIMED_OUT;
    }
    atomic_store(&t->user, 0);
    return outcome;
}

#endif
