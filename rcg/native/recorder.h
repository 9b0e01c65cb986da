// SPDX-License-Identifier: Apache-2.0
/* The flight recorder: its clock, its events, the open op of a loop, and names of spans. */
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

static bool is_taping(const Member *m) { return atomic_load_explicit(&m->board->draining, memory_order_relaxed); }

/* Under the host's lock: threads of a process write one after the other, so no locked instruction is needed, which
 * would wait until all that was just published has left this processor. */
static void write_event(Member *m, const Record *record) {
    uint64_t n = atomic_load_explicit(&m->recorder->head, memory_order_relaxed), words[RECORD_WORDS];
    Event *e = event_at(m, m->index, n, is_taping(m));
    memcpy(words, record, sizeof words);
    atomic_store_explicit(&e->seq, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (size_t i = 0; i < RECORD_WORDS; i++) atomic_store_explicit(&e->record[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&e->seq, n + 1, memory_order_release);
    atomic_store_explicit(&m->recorder->head, n + 1, memory_order_release);
    /* The next line is here when it is needed: publishing a frame waits until all that was written before has left. */
    __builtin_prefetch(event_at(m, m->index, n + 1, is_taping(m)), 1);
}

/* Copies event number n of a member if it is (still) there. */
static bool read_event(const Member *m, uint32_t member, uint64_t n, Record *out) {
    bool draining = is_taping(m);
    for (int i = 0; i < 2; i++, draining = !draining) {
        if (draining && !atomic_load_explicit(&m->board->drained, memory_order_acquire)) continue; /* has no memory */
        Event *e = event_at(m, member, n, draining);
        if (atomic_load_explicit(&e->seq, memory_order_acquire) != n + 1) continue;
        uint64_t words[RECORD_WORDS];
        for (size_t j = 0; j < RECORD_WORDS; j++) words[j] = atomic_load_explicit(&e->record[j], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&e->seq, memory_order_relaxed) != n + 1) continue;
        memcpy(out, words, sizeof words);
        return true;
    }
    return false;
}

/* The oldest event from number n on that can still be there. */
static uint64_t oldest_event(const Member *m, uint64_t n, uint64_t head) {
    uint64_t most = m->nevents;
    if (most < DRAIN_EVENTS && atomic_load_explicit(&m->board->drained, memory_order_acquire)) most = DRAIN_EVENTS;
    return head > most && n < head - most ? head - most : n;
}

static void now_doing(Member *m, uint32_t op, uint64_t execution, uint64_t since, uint32_t state) {
    Recorder *r = m->recorder;
    atomic_store_explicit(&r->op, op, memory_order_relaxed);
    atomic_store_explicit(&r->execution, execution, memory_order_relaxed);
    atomic_store_explicit(&r->state, state, memory_order_relaxed);
    atomic_store_explicit(&r->since_ns, since, memory_order_release);
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
    m->coding_since_ns = 0;
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
    uint32_t n = atomic_load_explicit(&m->recorder->nspans, memory_order_relaxed), i = 0;
    while (i < n && (strncmp(names[i].text, text, length) || names[i].text[length])) i++;
    if (i == n && n < MAX_SPANS) {
        memcpy(names[n].text, text, length); /* the rest of it is zeros */
        atomic_store_explicit(&m->recorder->nspans, n + 1, memory_order_release);
    }
    return SPAN_BASE + i; /* MAX_SPANS itself stands for all others */
}

#endif
