// SPDX-License-Identifier: Apache-2.0
/* The flight recorder: its clock, its events, the open op of a loop, names of spans; and drains of all events. */
#ifndef RCG_RECORDER_H
#define RCG_RECORDER_H

#include "member.h"

/* ---- the recorder's clock
 *
 * Timestamps are most of what recording costs. Where the kernel itself keeps time by the processor's counter, which is
 * then the same on all processors, the counter is read directly and turned into CLOCK_MONOTONIC: from the last look at
 * that clock, which is less than a millisecond ago, by the rate between two looks. What that is off is about as long as
 * a look takes, some tens of nanoseconds. */

#define LOOK_TRUST 1000000u  /* ns for which a look is good */
#define BASE_MIN 1000000u    /* ns between the two looks that tell the rate */
#define BASE_MAX 1000000000u /* after which the older one is replaced */
#define LOOK_TICKS 1000u     /* a look that takes longer was interrupted */

#if defined(__x86_64__)
static inline uint64_t ticks(void) { return __builtin_ia32_rdtsc(); }
static bool has_ticks(void) {
    char name[16] = "";
    int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
    bool is_counter = fd >= 0 && read(fd, name, sizeof name - 1) > 0 && !strcmp(name, "tsc\n");
    if (fd >= 0) close(fd);
    return is_counter;
}
#else
static inline uint64_t ticks(void) { return 0; }
static bool has_ticks(void) { return false; }
#endif

static void learn_rate(RecordClock *c) {
    uint64_t ns = c->seen_ns - c->base_ns, passed = c->seen_ticks - c->base_ticks;
    if (ns < BASE_MIN && c->base_ns) return;
    if (c->base_ns && ns < 2 * (uint64_t)BASE_MAX && passed) {
        uint64_t rate = (uint64_t)(((unsigned __int128)ns << 32) / passed);
        /* Whatever else a machine does to its counter (it sleeps, it moves): what is not plausible starts anew. */
        bool is_plausible = rate && (!c->rate || (rate > c->rate - c->rate / 64 && rate < c->rate + c->rate / 64));
        c->rate = is_plausible ? rate : 0;
        c->trust = is_plausible ? (uint64_t)(((unsigned __int128)LOOK_TRUST << 32) / rate) : 0;
        if (is_plausible && ns < BASE_MAX) return;
    }
    c->base_ns = c->seen_ns;
    c->base_ticks = c->seen_ticks;
}

static uint64_t look_at_clock(RecordClock *c) {
    uint64_t ns = 0;
    for (int tries = 0; tries < 4; tries++) {
        uint64_t before = ticks();
        ns = now_ns();
        uint64_t took = ticks() - before;
        if (!c->is_used) break;
        if (took > LOOK_TICKS) continue;
        c->seen_ns = ns;
        c->seen_ticks = before + took / 2;
        learn_rate(c);
        break;
    }
    return ns > c->last_ns ? ns : c->last_ns; /* never back, not by a few ns either */
}

/* Now, for the recorder; under the host's lock. */
static inline uint64_t stamp(RecordClock *c) {
    uint64_t passed = ticks() - c->seen_ticks;
    uint64_t ns = passed < c->trust ? c->seen_ns + (uint64_t)(((unsigned __int128)passed * c->rate) >> 32) : 0;
    return c->last_ns = ns > c->last_ns ? ns : passed < c->trust ? c->last_ns : look_at_clock(c);
}

/* ---- events */

/* Where event number n lies, if the larger ring is in use or if it is not. */
static Event *event_at(const Member *m, uint32_t member, uint64_t n, bool draining) {
    return draining ? m->drains + (uint64_t)member * DRAIN_EVENTS + (n & (DRAIN_EVENTS - 1))
                    : (Event *)(recorder_of(m, member) + 1) + (n & (m->nevents - 1));
}

static SpanName *span_names(const Member *m, uint32_t member) {
    return (SpanName *)((Event *)(recorder_of(m, member) + 1) + m->nevents);
}

static bool is_taping(const Member *m) { return load_relaxed(&m->board->draining); }

/* Under the host's lock: threads of a process write one after the other, so no locked instruction is needed, which
 * would wait until all that was just published has left this processor. */
static void write_event(Member *m, const Record *record) {
    uint64_t n = load_relaxed(&m->recorder->head), words[RECORD_WORDS];
    Event *e = event_at(m, m->index, n, is_taping(m));
    memcpy(words, record, sizeof words);
    store_relaxed(&e->seq, 0);
    atomic_thread_fence(memory_order_release);
    for (size_t i = 0; i < RECORD_WORDS; i++) store_relaxed(&e->record[i], words[i]);
    store_release(&e->seq, n + 1);
    store_release(&m->recorder->head, n + 1);
    /* The next line is here when it is needed: publishing a frame waits until all that was written before has left. */
    __builtin_prefetch(event_at(m, m->index, n + 1, is_taping(m)), 1);
}

/* Copies event number n of a member if it is (still) there. */
static bool read_event(const Member *m, uint32_t member, uint64_t n, Record *out) {
    bool draining = is_taping(m);
    for (int i = 0; i < 2; i++, draining = !draining) {
        if (draining && !load_acquire(&m->board->drained)) continue; /* has no memory */
        Event *e = event_at(m, member, n, draining);
        if (load_acquire(&e->seq) != n + 1) continue;
        uint64_t words[RECORD_WORDS];
        for (size_t j = 0; j < RECORD_WORDS; j++) words[j] = load_relaxed(&e->record[j]);
        atomic_thread_fence(memory_order_acquire);
        if (load_relaxed(&e->seq) != n + 1) continue;
        memcpy(out, words, sizeof words);
        return true;
    }
    return false;
}

/* The oldest event from number n on that can still be there. */
static uint64_t oldest_event(const Member *m, uint64_t n, uint64_t head) {
    uint64_t most = m->nevents;
    if (most < DRAIN_EVENTS && load_acquire(&m->board->drained)) most = DRAIN_EVENTS;
    return head > most && n < head - most ? head - most : n;
}

static void now_doing(Member *m, uint32_t op, uint64_t execution, uint64_t since, uint32_t state) {
    Recorder *r = m->recorder;
    store_relaxed(&r->op, op);
    store_relaxed(&r->execution, execution);
    store_relaxed(&r->state, state);
    store_release(&r->since_ns, since);
}

/* Ends the open op of a loop, which is when the next one begins. */
static void close_open(Member *m, uint64_t t) {
    m->closed_ns = m->open.end_ns = t;
    if (m->coding_since_ns) m->open.coded_ns += t - m->coding_since_ns;
    uint64_t most = t - m->open.start_ns - m->open.coded_ns;
    if (m->open.waited_ns > most) m->open.waited_ns = most; /* it is measured by another clock */
    write_event(m, &m->open);
    m->is_open = false;
}

/* One timestamp closes the open op and opens the next. An op that is open already goes on: a Write is opened before
 * its value is encoded, and again by the ring. Returns when the op began, 0 if it was open before. */
static uint64_t mark(Member *m, uint32_t op, uint64_t execution) {
    if (!m->recording || (m->is_open && m->open.op == op && m->open.execution == execution)) return 0;
    if (m->is_open) close_open(m, stamp(&m->clock));
    uint64_t t = m->closed_ns ? m->closed_ns : stamp(&m->clock);
    m->open = (Record){.start_ns = t, .execution = execution, .op = op, .peer = NO_MEMBER};
    m->coding_since_ns = m->left_ns = 0;
    m->is_open = true;
    now_doing(m, op, execution, t, NOW_RUNNING);
    return t;
}

/* ---- transfers: tensors that the open op moves by other means than a ring */

/* What was decoded so far is decoded; now tensors move. */
static void transfer_begin(Member *m) {
    if (m->coding_since_ns) m->open.coded_ns += stamp(&m->clock) - m->coding_since_ns;
    m->coding_since_ns = 0;
}

/* So many bytes were moved. Their value is decoded next, or the op ends here. */
static void transfer_end(Member *m, uint64_t bytes, bool is_decoded_next) {
    if (!m->recording || !m->is_open) return;
    m->open.bytes += bytes;
    uint64_t t = stamp(&m->clock);
    if (is_decoded_next) m->coding_since_ns = t;
    else close_open(m, t);
}

/* ---- spans */

/* The `op` of spans of this name, UTF-8. Names are kept for good; what is too many or too long is cut. */
static uint32_t span_number(Member *m, const char *text) {
    size_t length = strlen(text);
    if (length >= sizeof(SpanName)) /* whole characters only */
        for (length = sizeof(SpanName) - 1; length && ((unsigned char)text[length] & 0xc0) == 0x80;) length--;
    SpanName *names = span_names(m, m->index);
    uint32_t n = load_relaxed(&m->recorder->nspans), i = 0;
    while (i < n && (strncmp(names[i].text, text, length) || names[i].text[length])) i++;
    if (i == n && n < MAX_SPANS) {
        memcpy(names[n].text, text, length); /* the rest of it is zeros */
        store_release(&m->recorder->nspans, n + 1);
    }
    return SPAN_BASE + i; /* MAX_SPANS itself stands for all others */
}

/* ---- drains
 *
 * A drain takes all members' events as they come, on a thread of its own that never needs the host's lock. */

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
    uint64_t head = load_acquire(&recorder_of(m, index)->head);
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
            if (load_acquire(&e->seq) <= k->next) break; /* is being written */
            k->lost++;
        }
    }
}

static void drain_all(Drain *t) {
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < t->member->nmembers; i++) drain_track(t, i);
    pthread_mutex_unlock(&t->lock);
}

/* Has events go to the larger rings; each member may fill its part of `most`. All zeros before. DONE, or SYSTEM with
 * errno. */
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
