// SPDX-License-Identifier: Apache-2.0
/* Waiting: watches, spinning and sleeping, and what is learned from the waits before. */
#ifndef RCG_WAIT_H
#define RCG_WAIT_H

#include "recorder.h"

#define BUDGET_PROBE 20000u

static Learned learned_nothing(uint32_t member) {
    /* the two sides must not change processors together */
    bool is_first = member == 0;
    return (Learned){.budget = BUDGET_PROBE,
                     .apart_limit = 16,
                     .together_limit = is_first ? 24 : 8,
                     .together_least = is_first ? 4 : 8};
}

typedef struct {
    atomic_u64 *word; /* the wait ends when it is not `seen` any more */
    uint64_t seen;
    atomic_u32 *waiting; /* announced here */
    atomic_u32 *cpu;     /* where the other side last ran, plus one; may be NULL */
} Watch;

#define BUDGET_MAX 200000u /* never spin longer, and only while waits end within it */
/* Where processors are shared, the driver keeps one for a wait that ends within the first of these, and a loop within
 * the second. Ray starts workers with a lower priority: a driver that yields on the processor of an actor that has work
 * to do goes on being chosen itself. So it sleeps through longer waits, and is woken where a loop yields, which takes
 * some 5 us; to wake an idle processor takes 20. */
#define CROWDED_BUDGET 120000u
#define CROWDED_LOOP_BUDGET 250000u
#define YIELD_BUDGET 50000u /* of the policy that always yields */
#define QUICK 200000u       /* after a wait as short as this the next may be short, too */
#define PAUSE_PHASE 2000u
#define BUDGET_STEPPED 100000u
#define TOGETHER_LIMIT 256 /* a step that does not pay costs some 100 us, as much as a tenth of so many turns */
#define CROWDED_LIMIT 48
#define LOOP_LEAST 16
#define SIGNAL_SLICE 100000000u /* the main thread looks for Ctrl-C this often */

/* A driver that shares processors with the rest of its graph. */
static bool is_crowded_driver(const Member *m) { return m->crowded && !m->looping; }

static bool watch_ready(const Watch *w, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (load_acquire(w[i].word) != w[i].seen) return true;
    return false;
}

/* Moves this thread off processor `cpu`, or onto it, and allows all again at once: a nudge that the scheduler may undo.
 * Never to a processor that the thread was not allowed before. */
static void nudge(uint32_t cpu, bool onto) {
    cpu_set_t all, wanted;
    if (sched_getaffinity(0, sizeof all, &all) || (onto && !CPU_ISSET(cpu, &all))) return;
    if (onto) CPU_ZERO(&wanted);
    else wanted = all;
    if (onto) CPU_SET(cpu, &wanted);
    else CPU_CLR(cpu, &wanted);
    if (!CPU_COUNT(&wanted) || sched_setaffinity(0, sizeof wanted, &wanted)) return;
    /* A thread that named its processors would never run on others, also if the control group gets more. So all that
     * can be named are, unless that allows more than the user did. */
    cpu_set_t any, now;
    memset(&any, 0xff, sizeof any);
    bool is_free = !sched_setaffinity(0, sizeof any, &any) && !sched_getaffinity(0, sizeof now, &now);
    if (!is_free || !CPU_EQUAL(&now, &all)) sched_setaffinity(0, sizeof all, &all);
}

/* Both sides on one processor: spinning would only keep the peer from running, and the scheduler may leave them there
 * for seconds, or bring them together again and again while others run. Every so often step off this processor; the two
 * sides use different limits, or they would move together. If waits were shorter after the last step, the next comes
 * sooner; if not, another process needs the other processor, and the next comes later. Whether it stepped. */
static bool step_aside(Learned *l, uint32_t cpu, uint32_t least, uint32_t most) {
    if (++l->together < l->together_limit) return false;
    bool has_paid = l->apart_waits && l->apart_ns / l->apart_waits < l->together_ns;
    if (has_paid && l->together_limit > least) l->together_limit /= 2;
    if (!has_paid && l->has_stepped && l->together_limit < most) l->together_limit *= 2;
    l->has_stepped = true;
    l->together = l->apart_waits = 0;
    l->apart_ns = 0;
    nudge(cpu, false);
    return true;
}

/* A wait took so long, for a peer on the same processor or on another one. */
static void note_wait(Learned *l, uint64_t took) {
    if (l->is_together) l->together_ns = (7 * l->together_ns + took) / 8;
    else {
        l->apart_ns += took;
        l->apart_waits++;
    }
}

/* The futex policy never spins, and waking an idle processor takes ten times as long as a switch on this one (on
 * virtual machines: 20 to 100 us against 4 to 9). So while waits are short, which is when both sides take turns
 * and cannot run at the same time anyway, the loop goes where its writer is. */
static void step_closer(const Watch *w, Learned *l) {
    uint32_t there = w->cpu ? load_relaxed(w->cpu) : 0;
    int here = sched_getcpu();
    if (!there || here < 0 || there == (uint32_t)here + 1 || !l->is_quick || ++l->apart < l->apart_limit) return;
    l->apart = 0;
    if (l->apart_limit < 4096) l->apart_limit *= 2;
    nudge(there - 1, true);
}

/* A wait ended after `took`: how long the next one may keep the processor. A loop that shares processors with the
 * rest of its graph yields rather than pauses, which costs the others little: while executions follow each other
 * closely it may do so for as long as they take, and a miss ends that. */
static void learn(const Member *m, Learned *l, uint64_t took, uint64_t times, uint64_t more) {
    if (is_crowded_driver(m)) {
        uint64_t counted = took < 4 * CROWDED_BUDGET ? took : 4 * CROWDED_BUDGET; /* one long wait is soon forgotten */
        l->expected = (3 * l->expected + counted) / 4;
        uint64_t wanted = l->expected + l->expected / 4 + 5000;
        l->budget = wanted > CROWDED_BUDGET ? 0 : wanted;
        return;
    }
    uint64_t wanted = times * took + more, most = m->crowded ? CROWDED_LOOP_BUDGET : BUDGET_MAX;
    if (wanted > most) wanted = most;
    l->budget = m->crowded ? wanted : (3 * l->budget + wanted) / 4;
}

/* Whether the peer last ran where this thread runs. */
static bool is_beside(const Watch *w, int cpu) { return cpu >= 0 && load_relaxed(w->cpu) == (uint32_t)cpu + 1; }

/* The part of a wait that keeps the processor: how long it took until ready, or 0. */
static uint64_t spin(Member *m, const Watch *w, uint32_t n, Learned *l, uint64_t start) {
    uint64_t budget, pause_phase;
    l->is_together = false;
    switch (m->policy) {
    case POLICY_FUTEX: return 0;
    case POLICY_YIELD: budget = YIELD_BUDGET, pause_phase = 0; break;
    case POLICY_SPIN: budget = pause_phase = BUDGET_MAX; break;
    default:
        budget = l->budget;
        if (is_crowded_driver(m)) {
            if (!budget) return 0;
        } else if (budget < PAUSE_PHASE) {
            if (++l->probe < 32) return 0;
            l->probe = 0;
            budget = BUDGET_PROBE;
        }
        pause_phase = m->crowded ? 0 : PAUSE_PHASE;
        if (!w->cpu) break;
        int cpu = sched_getcpu();
        if (!is_beside(w, cpu)) {
            l->together = 0;
            break;
        }
        uint32_t least = !m->crowded ? l->together_least : m->looping ? LOOP_LEAST : CROWDED_LIMIT / 2;
        uint32_t most = is_crowded_driver(m) ? CROWDED_LIMIT : TOGETHER_LIMIT;
        l->is_together = !step_aside(l, (uint32_t)cpu, least, most);
        /* Loops on one processor leave another one idle, where the driver would have to be woken: they go on. */
        if (m->crowded && m->looping) break;
        if (l->is_together || m->crowded) return 0;
        /* It must not sleep soon, although caches are cold: its peer, which would wake it, would bring it back. */
        budget = l->budget = BUDGET_STEPPED;
    }
    for (uint64_t t = 0; t < budget; t = since_ns(start)) {
        if (t < pause_phase)
            for (int i = 0; i < 16; i++) {
                relax();
                if (watch_ready(w, n)) goto ready;
            }
        else sched_yield();
        if (watch_ready(w, n)) goto ready;
        if (poisoned(m)) return 0;
    }
    if (!is_crowded_driver(m)) l->budget /= 2;
    return 0;
ready:
    add_relaxed(&m->spins, 1);
    uint64_t took = since_ns(start);
    learn(m, l, took, 2, 10000);
    note_wait(l, took);
    return took + !took;
}

/* A thread that waits for nothing but an interrupt has nothing to do: that is not counted. */
static bool is_awaited(const Member *m, const Watch *w, uint32_t n) { return n > 1 || w->word != &m->interrupts; }

static void count_wait(Member *m, uint64_t took) { add_relaxed(&m->recorder->waited_ns, took); }

/* Sleeps on the member's doorbell until one watch is ready; the wait was announced before. */
static Outcome sleep_until(Member *m, const Watch *w, uint32_t n, uint64_t deadline) {
    atomic_u32 *doorbell = &m->doorbells[m->index].word;
    bool is_main = is_main_thread();
    for (;;) {
        uint32_t value = atomic_load(doorbell);
        for (uint32_t i = 0; i < n; i++)
            if (atomic_load(w[i].word) != w[i].seen) return DONE;
        if (atomic_load(&m->board->poison)) return POISONED;
        uint64_t t = now_ns(), left = deadline - t;
        if (t >= deadline) return TIMED_OUT;
        if (is_main && left > SIGNAL_SLICE) left = SIGNAL_SLICE;
        struct timespec ts = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
        add_relaxed(&m->sleeps, 1);
        long r = futex(doorbell, FUTEX_WAIT, value, deadline == UINT64_MAX && !is_main ? NULL : &ts);
        if (r && (errno == EINTR || (errno == ETIMEDOUT && is_main)))
            return watch_ready(w, n) ? DONE : now_ns() >= deadline ? TIMED_OUT : SIGNALS;
    }
}

/* Waits, without the host's lock, until one watch is ready. `deadline` (UINT64_MAX: none) and `now`, a timestamp just
 * taken or 0, are of CLOCK_MONOTONIC. Adds the time to `*took`, and stores in `*ended` when it woke up, if it slept. */
static Outcome wait_any(Member *m, const Watch *w, uint32_t n, Learned *l, uint64_t deadline, uint64_t now,
                        uint64_t *took, uint64_t *ended) {
    if (watch_ready(w, n)) return DONE;
    if (poisoned(m)) return POISONED;
    uint64_t start = now ? now : now_ns(), spun;
    if (start >= deadline) return TIMED_OUT;
    if ((spun = spin(m, w, n, l, start))) {
        *took += spun;
        if (is_awaited(m, w, n)) count_wait(m, spun);
        return DONE;
    }
    if (m->policy == POLICY_FUTEX && m->looping && !m->crowded) step_closer(w, l);

    uint32_t state =
        m->recording ? atomic_exchange_explicit(&m->recorder->state, NOW_WAITING, memory_order_relaxed) : 0;
    if (is_awaited(m, w, n)) store_relaxed(&m->recorder->waiting_since_ns, start);
    for (uint32_t i = 0; i < n; i++) atomic_fetch_add(w[i].waiting, 1);
    Outcome outcome = sleep_until(m, w, n, deadline);
    for (uint32_t i = 0; i < n; i++) atomic_fetch_sub(w[i].waiting, 1);
    if (m->recording) store_relaxed(&m->recorder->state, state);
    *ended = now_ns();
    uint64_t slept = *ended > start ? *ended - start : 0;
    if (is_awaited(m, w, n)) {
        store_relaxed(&m->recorder->waiting_since_ns, 0);
        count_wait(m, slept);
    }
    note_wait(l, slept);
    l->is_quick = outcome == DONE && slept < QUICK;
    if (l->is_quick || (is_crowded_driver(m) && outcome == DONE)) learn(m, l, slept, 1, 5000);
    *took += slept;
    return outcome;
}

/* Waits, with the host's lock held: DONE, TIMED_OUT, POISONED or INTERRUPTED. Adds the time to `*waited`. */
static Outcome wait_for(Member *m, const Watch *w, uint32_t n, Learned *l, uint64_t deadline, uint64_t now,
                        uint64_t *waited) {
    uint64_t took = 0, ended = 0;
    Outcome outcome;
    do {
        void *state = m->host->leave();
        outcome = wait_any(m, w, n, l, deadline, now, &took, &ended);
        now = 0;
        m->host->enter(state);
    } while (outcome == SIGNALS && m->host->go_on());
    *waited += took; /* waits of one op add up */
    /* Who slept also waits for the host's lock; after a spin, another timestamp would only lengthen the way. */
    if (ended && m->recording) *waited += now_ns() - ended;
    if (took && is_awaited(m, w, n)) add_relaxed(&m->recorder->waits, 1);
    return outcome == SIGNALS ? INTERRUPTED : outcome;
}

#endif
