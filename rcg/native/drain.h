// SPDX-License-Identifier: Apache-2.0
/* A drain: takes all members' events as they come, on a thread of its own that never needs the host's lock. */
#ifndef RCG_DRAIN_H
#define RCG_DRAIN_H

#include "recorder.h"

/* The events of one member. */
typedef struct {
    Record *records;
    size_t count, room;
    uint64_t next, lost, given; /* given: records that were taken out before the end */
} Track;

typedef struct {
    Member *member;
    uint64_t most;    /* records of each track */
    atomic_u64 taken; /* records so far, of all tracks */
    atomic_u32 stop;
    bool runs;
    pthread_mutex_t lock; /* of the tracks; the host's lock is not taken while it is held */
    Track tracks[MAX_MEMBERS];
} Drain;

static void drain_track(Drain *t, uint32_t index) {
    Member *m = t->member;
    Track *k = &t->tracks[index];
    uint64_t head = atomic_load_explicit(&recorder_of(m, index)->head, memory_order_acquire);
    uint64_t from = oldest_event(m, k->next, head);
    k->lost += from - k->next;
    for (k->next = from; k->next < head; k->next++) {
        if (k->count == k->room && k->given + k->count < t->most) {
            size_t room = k->room ? 2 * k->room : 4096;
            Record *records = realloc(k->records, room * sizeof(Record));
            if (records) {
                k->records = records;
                k->room = room;
            }
        }
        if (k->given + k->count >= t->most || k->count == k->room) k->lost++;
        else if (read_event(m, index, k->next, &k->records[k->count])) {
            k->count++;
            t->taken++;
        } else {
            Event *e = event_at(m, index, k->next, is_taping(m));
            if (atomic_load_explicit(&e->seq, memory_order_acquire) <= k->next) break; /* is being written */
            k->lost++;
        }
    }
}

static void drain_all(Drain *t) {
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < t->member->nmembers; i++) drain_track(t, i);
    pthread_mutex_unlock(&t->lock);
}

/* From now on events go to the larger rings; each member may fill its part of `most`. The drain is all zeros before.
 * DONE, or SYSTEM with errno. */
static Outcome drain_open(Drain *t, Member *m, int board_fd, uint64_t most) {
    uint64_t from = (uint64_t)((uint8_t *)m->drains - (uint8_t *)m->board);
    if (!atomic_load(&m->board->drained) &&
        claim_file(board_fd, 0, from, m->nmembers * (uint64_t)DRAIN_EVENTS * sizeof(Event)))
        return SYSTEM;
    pthread_mutex_init(&t->lock, NULL);
    t->member = m;
    t->most = (most + m->nmembers - 1) / m->nmembers;
    atomic_store(&m->board->drained, 1);
    atomic_fetch_add(&m->board->draining, 1);
    t->runs = true;
    for (uint32_t i = 0; i < m->nmembers; i++) t->tracks[i].next = atomic_load(&recorder_of(m, i)->head);
    return DONE;
}

/* Takes events until drain_stop(), and then what came before it. Without the host's lock. */
static void drain_follow(Drain *t, uint64_t period_ns) {
    struct timespec ts = {(time_t)(period_ns / 1000000000u), (long)(period_ns % 1000000000u)};
    while (!atomic_load(&t->stop)) {
        drain_all(t);
        futex(&t->stop, FUTEX_WAIT, 0, &ts);
    }
    drain_all(t);
}

static void drain_end(Drain *t) {
    if (t->runs && member_is_ours(t->member)) atomic_fetch_sub(&t->member->board->draining, 1);
    t->runs = false;
}

/* Ends drain_follow(); any thread, any number of times. */
static void drain_halt(Drain *t) {
    drain_end(t);
    atomic_store(&t->stop, 1);
    futex(&t->stop, FUTEX_WAKE, INT_MAX, NULL);
}

static void drain_close(Drain *t) {
    if (t->member) drain_end(t);
    for (uint32_t i = 0; i < MAX_MEMBERS; i++) free(t->tracks[i].records);
}

#endif
