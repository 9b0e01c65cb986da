// SPDX-License-Identifier: Apache-2.0
/* Rounds on one node. Five members, each a thread or a forked process, pass frames around:
 *
 *   0 --c0--> 1, 2, 4      0 makes frames of random shapes: data, and buffers small, large, for writing
 *   1 --c1--> 2, 3, 4      1 forwards the buffers that it read
 *   2 --c2--> 0            2 makes frames of its own, for one reader
 *   3 --c3--> 0            3 forwards what was forwarded
 *
 * Some of the buffers that 0 and 2 make are loans, which they keep for a while. The cap and the addresses are small, so
 * that memory is reclaimed, blocks are merged, and stashes are written and pulled. A round ends in one of three ways:
 * all executions complete; somebody poisons the board in the middle; or member 4 dies while it holds blocks (a process
 * by SIGKILL, a thread by leaving everything as it is) and the owners clear its claims. */
#ifndef RCG_TEST_ALONE_H
#define RCG_TEST_ALONE_H

#include "play.h"

#define MEMBERS 5
#define CHANNELS 4
#define VICTIM 4

enum { COMPLETE, POISON, DEATH, ENDINGS };

static const Channel alone_channels[CHANNELS] = {
    {0, 0, 0, false}, {0, 0, 0, false}, {0, 2, 0, false}, {0, 0, 0, false}};
static const NodeSpec alone_node = {MEMBERS,
                                    CHANNELS,
                                    {0, 1, 2, 3},
                                    {{0, SLOTS, SLOT_BYTES, 3, {1, 2, 4}},
                                     {1, SLOTS, SLOT_BYTES, 3, {2, 3, 4}},
                                     {2, SLOTS, SLOT_BYTES, 1, {0}},
                                     {3, SLOTS, SLOT_BYTES, 1, {0}}},
                                    800u * 1024,  /* one frame fits, but not all that are under way */
                                    640u * 1024}; /* of addresses: blocks have to become larger ones */

/* ---- what each member does until the board is poisoned */

static Outcome drive(Player *p, int ending) {
    uint64_t sent = 0, got = 0, until = ending == POISON ? 1 + draw(&p->chance, executions) : executions;
    Outcome outcome = DONE;
    while (got < until && !poisoned(&p->member)) {
        while (sent < executions && sent - got < WINDOW) {
            outcome = write_frame(p, 0, NULL, sent == got);
            if (outcome == NO_SHARED && sent > got) break;
            if (outcome) return outcome;
            sent++;
        }
        if ((outcome = read_frame(p, 2)) || (outcome = read_frame(p, 3))) return outcome;
        got++;
        atomic_fetch_add(&meeting->progress, 1);
        hold_at_most(p, (uint32_t)draw(&p->chance, MOST_HELD));
    }
    while (ending == DEATH && !poisoned(&p->member)) nap(200000); /* that is how this round ends */
    poison_board(&p->member, POISON_CLOSED, NO_MEMBER);
    return POISONED;
}

static Outcome forward(Player *p, uint32_t from, uint32_t to) {
    Outcome outcome;
    while (!(outcome = read_frame(p, from)) && !(outcome = write_frame(p, to, p->held, true)))
        hold_at_most(p, (uint32_t)draw(&p->chance, MOST_HELD));
    return outcome;
}

static Outcome join_two(Player *p) {
    Outcome outcome;
    while (!(outcome = read_frame(p, 0)) && !(outcome = read_frame(p, 1)) && !(outcome = write_frame(p, 2, NULL, true)))
        hold_at_most(p, (uint32_t)draw(&p->chance, MOST_HELD));
    return outcome;
}

/* Reads two rings as frames come; a thread may die of it. */
static Outcome look_on(Player *p, uint64_t dies_after) {
    Learned learned = learned_nothing(VICTIM);
    for (uint64_t count = 0; count < dies_after; count++) {
        Watch w[2] = {frame_watch(&p->ends[0]), frame_watch(&p->ends[1])};
        uint64_t waited = 0;
        Outcome outcome = wait_for(&p->member, w, 2, &learned, UINT64_MAX, 0, &waited);
        if (outcome) return outcome;
        if ((outcome = read_frame(p, has_frame(&p->ends[0]) ? 0 : 1))) return outcome;
        hold_at_most(p, (uint32_t)draw(&p->chance, MOST_HELD));
    }
    return DONE;
}

static Player *dead; /* a thread's; its memory is freed at the end of the round */

static void play(uint32_t index, int ending, bool is_thread) {
    Player *p = calloc(1, sizeof *p);
    player_open(p, &host, 0, index, index >= 1 && index <= 3);
    bool dies = ending == DEATH && index == VICTIM;
    Outcome outcome = DONE;
    switch (index) {
    case 0: outcome = drive(p, ending); break;
    case 1: outcome = forward(p, 0, 1); break;
    case 2: outcome = join_two(p); break;
    case 3: outcome = forward(p, 1, 3); break;
    default:
        outcome = look_on(p, dies && is_thread ? 1 + draw(&p->chance, executions) : UINT64_MAX);
        if (outcome) break;
        dead = p; /* like a dead process: it keeps what it holds, and another member notices */
        poison_board(&p->member, POISON_BROKEN, VICTIM);
        return;
    }
    if (outcome != POISONED) fail("member %u ended with %d", index, outcome);
    player_close(p, ending == DEATH);
    free(p);
}

/* ---- a round */

static void *play_thread(void *arg) {
    uintptr_t which = (uintptr_t)arg;
    play((uint32_t)(which / ENDINGS), (int)(which % ENDINGS), true);
    return NULL;
}

/* A drain beside the members: it must find each event once, or count it as lost. */
static Drain drain;
static void *run_drain(void *arg) {
    (void)arg;
    drain_follow(&drain, 1000000);
    return NULL;
}

static void check_drain(const Member *m) {
    for (uint32_t i = 0; i < MEMBERS; i++) {
        const Track *t = &drain.tracks[i];
        if (t->count + t->lost != atomic_load(&recorder_of(m, i)->head))
            fail("the drain missed events of member %u", i);
        for (size_t j = 0; j < t->count; j++)
            if (t->records[j].end_ns < t->records[j].start_ns || t->records[j].op >= CHANNELS)
                fail("the drain has an event that never was");
    }
}

static void play_threads(int ending) {
    pthread_t threads[MEMBERS], drainer;
    Member observer;
    join_aside(&observer, 0);
    drain = (Drain){0};
    if (drain_open(&drain, &observer, board_fds[0], 1u << 20)) fail("no drain: errno %d", errno);
    pthread_create(&drainer, NULL, run_drain, NULL);
    for (uintptr_t i = 0; i < MEMBERS; i++)
        pthread_create(&threads[i], NULL, play_thread, (void *)(i * ENDINGS + (uintptr_t)ending));
    for (uint32_t i = 0; i < MEMBERS; i++) pthread_join(threads[i], NULL);
    if (dead) {
        for (Received *r = dead->held; r;) {
            Received *next = r->next;
            for (uint32_t i = 0; i < r->nbuffers; i++) r->buffer[i].lease.owns = false; /* it was cleared */
            received_free(r);
            r = next;
        }
        member_close(&dead->member);
        free(dead);
        dead = NULL;
    }
    drain_halt(&drain);
    pthread_join(drainer, NULL);
    check_drain(&observer);
    drain_close(&drain);
    member_close(&observer);
}

static void play_processes(int ending) {
    pid_t pids[MEMBERS];
    fflush(NULL);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        pids[i] = fork();
        if (pids[i] < 0) fail("fork: errno %d", errno);
        if (pids[i]) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        play(i, ending, false);
        exit(0);
    }
    if (ending == DEATH) kill_victim(pids[VICTIM]);
    await_processes(ending == DEATH ? MEMBERS - 1 : MEMBERS);
}

static void play_alone(bool has_threads) {
    int ending = (int)(round_number % ENDINGS);
    channels = alone_channels;
    nodes = &alone_node;
    nnodes = 1;
    victim.node = 0;
    victim.member = VICTIM;
    make_segments(ending == DEATH ? MEMBERS - 1 : MEMBERS);
    if (has_threads) play_threads(ending);
    else play_processes(ending);
    check_segments(ending == DEATH, false);
    close_segments();
}

#endif
