// SPDX-License-Identifier: Apache-2.0
/* Rounds over three nodes, whose members share nothing but connections. Each node has a gate, g.
 *
 *   A: a0, a1, g     a0 --c0--> a1 | b1, b2 | z1    a0 makes frames, of which some are larger than B's cap
 *                    a0 --c1--> a1 | b1             its second input: both are published in one step
 *                    a1 --c2-->    | b1      | z1   a1 forwards what it read of c0
 *   B: g, b1, b2     b1 --c3--> A: a0               b1 makes frames of its own
 *                    b2 --c4--> A: a0, Z: z1        b2 forwards what the gate received, or its failure
 *   Z: g, z1         z1 --c5--> A: a0               z1 is slow; some of its frames are larger than A's cap, and awaited
 *
 * As the host of a driver does, a0 has a lock that it lets go of while it copies, sends and waits, two threads that
 * submit, and one that reads. The sockets are of two kinds, some of them small, and take and give what they like
 * (shims.h). A round ends in one of five ways: all executions complete; somebody poisons the boards in the middle; a
 * connection is cut within a frame, by either end; a connection stands still until everything behind it does; or a
 * member, which may be a gate, dies by SIGKILL (if members are threads, a connection is cut instead). No connection may
 * end otherwise, and no frame may be refused but those that are larger than the cap of their node. */
#ifndef RCG_TEST_CROSSING_H
#define RCG_TEST_CROSSING_H

#include "play.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

enum { A, B, Z };
enum { CROSS_COMPLETE, CROSS_POISON, CROSS_CUT, CROSS_STALL, CROSS_DEATH, CROSS_ENDINGS };

#define KB 1024u
#define CROSS_CHANNELS 6
#define CROSS_PLAYERS 8
#define SUBMITTERS 2
#define CONNECTIONS_MOST 16

static const Channel cross_channels[CROSS_CHANNELS] = {{A, 0, 450 * KB, false}, {A, 1, 0, false},
                                                       {A, 0, 0, false},        {B, 3, 0, false},
                                                       {B, 0, 0, false},        {Z, 5, 850 * KB, true}};

/* A ring of a member that sends has a line for itself. The last member of each node only looks on. */
static const NodeSpec cross_nodes[NODES_MOST] = {
    {4,
     6,
     {5, 0, 1, 2, 3, 4},
     {{2, SLOTS, SLOT_BYTES, 1, {0}},
      {0, SLOTS, SLOT_BYTES, 2, {1, 0}},
      {0, SLOTS, SLOT_BYTES, 2, {0, 1}},
      {1, SLOTS, SLOT_BYTES, 1, {1}},
      {2, SLOTS, SLOT_BYTES, 1, {0}},
      {2, SLOTS, SLOT_BYTES, 1, {0}}},
     800 * KB,
     1400 * KB},
    {4,
     5,
     {0, 1, 2, 3, 4},
     {{0, SLOTS, SLOT_BYTES, 2, {1, 2}},
      {0, SLOTS, SLOT_BYTES, 1, {1}},
      {0, SLOTS, SLOT_BYTES, 1, {1}},
      {1, SLOTS, SLOT_BYTES, 1, {1}},
      {2, SLOTS, SLOT_BYTES, 1, {2}}},
     400 * KB,
     640 * KB},
    {3,
     4,
     {5, 4, 2, 0},
     {{1, SLOTS, SLOT_BYTES, 1, {1}},
      {0, SLOTS, SLOT_BYTES, 1, {1}},
      {0, SLOTS, SLOT_BYTES, 1, {1}},
      {0, SLOTS, SLOT_BYTES, 1, {1}}},
     1200 * KB,
     1800 * KB},
};
static const uint32_t cross_gates[NODES_MOST] = {2, 0, 0};
static const struct {
    uint32_t node, member;
} cross_players[CROSS_PLAYERS] = {{A, 2}, {B, 0}, {Z, 0}, {A, 1}, {B, 1}, {B, 2}, {Z, 1}, {A, 0}}; /* the driver last */

/* From a member to the gate of another node. */
typedef struct {
    uint32_t node, member, to;
    int near, far;
    bool stands_still;
} Connection;

static Connection connections[CONNECTIONS_MOST];
static uint32_t nconnections;
static int cross_ending;

static uint32_t ring_of(uint32_t node, uint32_t channel) {
    uint32_t ring = 0;
    while (ring < nodes[node].nrings && nodes[node].channels[ring] != channel) ring++;
    return ring;
}

static bool goes_to(uint32_t channel, uint32_t node) {
    return channels[channel].node != node && ring_of(node, channel) < nodes[node].nrings;
}

/* The member that writes a channel, on its own node. */
static uint32_t writer_of(uint32_t channel) {
    uint32_t node = channels[channel].node;
    return nodes[node].rings[ring_of(node, channel)].writer;
}

static bool sends(const Connection *c, uint32_t channel) {
    return channels[channel].node == c->node && writer_of(channel) == c->member && goes_to(channel, c->to);
}

/* ---- the lock of the driver */

static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
static void *driver_leave(void) {
    pthread_mutex_unlock(&driver_lock);
    return NULL;
}
static void driver_enter(void *state) {
    (void)state;
    pthread_mutex_lock(&driver_lock);
}
static const Host driver_host = {driver_leave, driver_enter, go_on};

/* ---- sending members */

/* A connection has ended: that is how a round may end, and nothing else is. */
static void note_end(const char *what, uint32_t node, int error) {
    if (atomic_load(&meeting->is_over)) return;
    if (cross_ending != CROSS_CUT && cross_ending != CROSS_DEATH) fail("%s of node %u: error %d", what, node, error);
    poison_all(POISON_BROKEN);
}

static void link_failed(void *owner, uint32_t link, int error) {
    (void)link;
    if (error != EPIPE && error != ECONNRESET) fail("a link failed with %d", error);
    note_end("a link", ((Player *)owner)->node, error);
}

static void open_links(Player *p) {
    int fds[NODES_MOST];
    uint32_t count = 0;
    for (uint32_t i = 0; i < nconnections; i++) {
        const Connection *c = &connections[i];
        if (c->node != p->node || c->member != p->member.index) continue;
        for (uint32_t channel = 0; channel < CROSS_CHANNELS; channel++) {
            if (!sends(c, channel)) continue;
            End *e = &p->ends[channel];
            Route *route = &p->routes[channel];
            *route = (Route){&p->links, route->nodes | 1ull << count, 100 + channel, 0};
            while (e->readers[route->reader] != p->member.index) route->reader++;
        }
        fds[count++] = c->near;
    }
    if (count && links_open(&p->links, &p->member, fds, count, link_failed, p)) fail("no links: errno %d", errno);
}

/* As the host does it: the connections are closed once nothing is sent any more, also while threads submit. */
static void stop_links(Player *p) {
    if (!links_stop(&p->links)) fail("the links were stopped before");
    for (uint32_t i = 0; i < p->links.nlinks; i++) close(p->links.links[i].fd);
}

static void dawdle(Player *p) {
    long moment = (long)draw(&p->chance, 500000);
    if (!draw(&p->chance, 8)) nap(moment);
}

/* Reads frames of some channels and answers with one: made, or forwarded from what was read last. */
static Outcome answer(Player *p, const uint32_t *from, uint32_t nfrom, uint32_t to, bool is_slow) {
    Outcome outcome = DONE;
    for (;;) {
        for (uint32_t i = 0; i < nfrom; i++)
            if ((outcome = read_frame(p, from[i]))) return outcome;
        if (is_slow) dawdle(p);
        const Received *forwarded = channels[to].from == to ? NULL : p->held;
        if ((outcome = write_frame(p, to, forwarded, true))) return outcome;
        hold_at_most(p, (uint32_t)draw(&p->chance, MOST_HELD));
    }
}

/* ---- the driver */

typedef struct {
    Player *player;
    uint64_t got, window;
} Driver;

/* Whether all inputs of this execution have room, and nobody else was quicker. */
static bool submit_has_room(Player *p, uint64_t number) {
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t late;
        uint64_t at;
        Outcome outcome = p->ends[i].seq != number ? IN_USE : has_room(&p->ends[i], &late, &at);
        if (outcome == DAMAGED) fail("input %u: %s", i, p->ends[i].fault);
        if (outcome) return false;
    }
    return true;
}

/* Submits the next execution, as Member.submit() does: all its frames are prepared, which lets other threads run, and
 * then published in one step. DONE, NO_ROOM or POISONED. */
static Outcome submit(Driver *d) {
    Player *p = d->player;
    uint64_t number = p->ends[0].seq, ours[2];
    if (poisoned(&p->member)) return POISONED;
    if (number >= executions || number - d->got >= d->window || !submit_has_room(p, number)) return NO_ROOM;
    Draft drafts[2];
    Outgoing out[2];
    uint32_t prepared = 0;
    Outcome outcome = DONE;
    for (; prepared < 2 && !outcome; prepared++) {
        Content c = content_of(prepared, number);
        drafts[prepared] = draft_begin(p, &c, NULL, false);
        outcome = draft_prepare(p, &p->ends[prepared], &drafts[prepared], &out[prepared], number == d->got);
    }
    if (!outcome && !submit_has_room(p, number)) outcome = NO_ROOM;
    for (uint32_t i = 0; i < prepared && outcome; i++) outgoing_undo(&out[i]);
    if (!outcome) {
        for (uint32_t i = 0; i < 2; i++) place(&out[i]);
        ledger_begin(p->member.ledger->ledger, number);
        for (uint32_t i = 0; i < 2; i++) outgoing_assign(&out[i]);
        for (uint32_t i = 0; i < 2; i++) publish(&p->ends[i]);
        for (uint32_t i = 0; i < 2; i++) ours[i] = links_load(&out[i], &p->routes[i]);
        for (uint32_t i = 0; i < 2; i++) links_send(&p->links, ours[i], out[i].payload);
    }
    for (uint32_t i = 0; i < prepared; i++) {
        outgoing_end(&out[i]);
        draft_end(&drafts[i]);
    }
    return outcome == POISONED ? POISONED : outcome ? NO_ROOM : DONE;
}

static void *run_submitter(void *arg) {
    Driver *d = arg;
    pthread_mutex_lock(&driver_lock);
    for (Outcome outcome; (outcome = submit(d)) != POISONED;) {
        if (!outcome) continue;
        pthread_mutex_unlock(&driver_lock);
        nap(50000);
        pthread_mutex_lock(&driver_lock);
    }
    pthread_mutex_unlock(&driver_lock);
    return NULL;
}

static Outcome drive_across(Player *p) {
    pthread_t threads[SUBMITTERS];
    Driver d = {p, 0, cross_ending == CROSS_STALL ? executions : WINDOW};
    uint64_t until = cross_ending == CROSS_POISON ? 1 + draw(&p->chance, executions) : executions;
    Outcome outcome = DONE;
    for (uint32_t i = 0; i < SUBMITTERS; i++) pthread_create(&threads[i], NULL, run_submitter, &d);
    pthread_mutex_lock(&driver_lock);
    while (!outcome && d.got < until) {
        for (uint32_t channel = 3; channel < 6 && !outcome; channel++) outcome = read_frame(p, channel);
        if (outcome) break;
        d.got++;
        atomic_fetch_add(&meeting->progress, 1);
        hold_at_most(p, (uint32_t)draw(&p->chance, MOST_HELD));
    }
    pthread_mutex_unlock(&driver_lock);
    while (cross_ending == CROSS_DEATH && !poisoned(&p->member)) nap(200000);
    if (!outcome) poison_all(POISON_CLOSED);
    stop_links(p); /* others may be in the middle of sending */
    for (uint32_t i = 0; i < SUBMITTERS; i++) pthread_join(threads[i], NULL);
    pthread_mutex_lock(&driver_lock);
    return POISONED;
}

/* ---- gates */

static void gate_has_lost(void *owner, const Loss *loss) {
    const Player *p = owner;
    bool is_torn = (loss->why == LOST_CLOSED && loss->error) || loss->why == LOST_SYSTEM;
    if (loss->why != LOST_CLOSED && loss->why != LOST_SYSTEM)
        fail("the gate of node %u lost connection %u for reason %d, channel %u, expected %lu, found %lu", p->node,
             loss->sender, (int)loss->why, loss->channel, loss->expected, loss->found);
    if (is_torn) atomic_fetch_add(&meeting->cuts, 1);
    note_end("a gate", p->node, loss->error);
}

static uint8_t *gate_has_refused(void *owner, const Head *head, uint64_t wanted, int reason, uint64_t *bytes) {
    const Player *p = owner;
    Content sent = content_of(head->channel - 100, head->execution);
    Content c = frame_of(head->channel - 100, head->execution, p->node);
    if (c.kind != FAILURE || sent.kind == FAILURE || wanted != outside_of(&sent) || reason != EFBIG)
        fail("the gate of node %u refused %lu bytes, errno %d", p->node, wanted, reason);
    atomic_fetch_add(&meeting->refusals, 1);
    uint8_t *text = malloc(c.data_bytes + 1);
    fill(text, c.data_bytes, c.data_key);
    *bytes = c.data_bytes;
    return text;
}

static void keep_gate(Player *p) {
    Gate g = {.member = &p->member,
              .failure_kind = FAILURE,
              .last_kind = FAILURE,
              .lost = gate_has_lost,
              .refused = gate_has_refused,
              .owner = p};
    g.passages = calloc(CROSS_CHANNELS, sizeof *g.passages);
    for (uint32_t channel = 0; channel < CROSS_CHANNELS; channel++)
        if (p->writes[channel])
            g.passages[g.npassages++] = (Passage){p->ends[channel], 100 + channel, channels[channel].is_awaited};
    if (gate_open(&g)) fail("no gate: errno %d", errno);
    for (uint32_t i = 0; i < nconnections; i++) {
        const Connection *c = &connections[i];
        uint32_t allowed[CROSS_CHANNELS], n = 0;
        if (c->to != p->node || c->stands_still) continue;
        for (uint32_t j = 0; j < g.npassages; j++)
            if (sends(c, g.passages[j].channel - 100)) allowed[n++] = j;
        if (gate_add(&g, c->far, i, allowed, n)) fail("a connection was not added: errno %d", errno);
    }
    long a_while = 5000000 + (long)draw(&p->chance, 20000000);
    if (cross_ending == CROSS_STALL && p->node == Z) {
        nap(a_while);
        poison_all(POISON_CLOSED);
    }
    while (!poisoned(&p->member)) nap(200000);
    if (!gate_stop(&g)) fail("the gate was stopped before");
    for (uint32_t i = 0; i < g.npassages && cross_ending == CROSS_COMPLETE; i++)
        if (g.passages[i].end.seq != executions)
            fail("of channel %u %lu frames have passed", g.passages[i].channel - 100, g.passages[i].end.seq);
    gate_close(&g);
    for (uint32_t i = 0; i < nconnections; i++)
        if (connections[i].to == p->node && connections[i].stands_still) close(connections[i].far);
}

/* ---- a round */

static void play_across(uint32_t number) {
    static const uint32_t a1[] = {1, 0}, b1[] = {0, 1, 2}, b2[] = {0}, z1[] = {0, 2, 4};
    uint32_t node = cross_players[number].node, member = cross_players[number].member;
    bool is_gate = member == cross_gates[node], is_driver = node == A && member == 0;
    Player *p = calloc(1, sizeof *p);
    player_open(p, is_driver ? &driver_host : &host, node, member, !is_gate && !is_driver);
    if (!is_gate) open_links(p);
    Outcome outcome = POISONED;
    if (is_gate) keep_gate(p);
    else if (is_driver) outcome = drive_across(p);
    else if (node == A) outcome = answer(p, a1, 2, 2, false);
    else if (node == Z) outcome = answer(p, z1, 3, 5, true);
    else if (member == 1) outcome = answer(p, b1, 3, 3, false);
    else outcome = answer(p, b2, 1, 4, true);
    if (outcome != POISONED) fail("member %u of node %u ended with %d", member, node, outcome);
    if (!is_gate && !is_driver) stop_links(p);
    if (!is_gate) links_close(&p->links);
    player_close(p, cross_ending == CROSS_DEATH);
    if (is_driver) pthread_mutex_unlock(&driver_lock);
    free(p);
}

static void connect_pair(Connection *c, uint64_t *chance) {
    int fds[2], one = 1;
    if (draw(chance, 2)) {
        int room = 4096 << draw(chance, 6); /* TCP waits for its timers with little of it */
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds)) fail("no sockets: errno %d", errno);
        setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    } else {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
        socklen_t size = sizeof at;
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (bind(listener, (struct sockaddr *)&at, size) || listen(listener, 1) ||
            getsockname(listener, (struct sockaddr *)&at, &size) || connect(fds[0], (struct sockaddr *)&at, size) ||
            (fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0)
            fail("no connection: errno %d", errno);
        setsockopt(fds[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        close(listener);
    }
    c->near = fds[0];
    c->far = fds[1];
}

static void make_connections(void) {
    uint64_t chance = chance_of(0x400);
    nconnections = 0;
    for (uint32_t i = 0; i < CROSS_PLAYERS; i++)
        for (uint32_t to = 0; to < nnodes; to++) {
            Connection c = {cross_players[i].node, cross_players[i].member, to, -1, -1, false};
            uint32_t channel = 0;
            while (channel < CROSS_CHANNELS && !sends(&c, channel)) channel++;
            if (channel == CROSS_CHANNELS || c.member == cross_gates[c.node]) continue;
            connect_pair(&c, &chance);
            connections[nconnections++] = c;
        }
    Connection *one = &connections[draw(&chance, nconnections)];
    cut.fd = -1;
    if (cross_ending == CROSS_STALL) one->stands_still = true;
    if (cross_ending == CROSS_CUT) {
        cut.fd = draw(&chance, 2) ? one->near : one->far;
        atomic_store(&cut.left, (int64_t)draw(&chance, executions * 2048));
    }
}

static void *cross_thread(void *arg) {
    play_across((uint32_t)(uintptr_t)arg);
    return NULL;
}

/* A process keeps only its own ends of connections, so that they end with it. */
static void keep_own_ends(uint32_t number) {
    uint32_t node = cross_players[number].node, member = cross_players[number].member;
    for (uint32_t i = 0; i < nconnections; i++) {
        const Connection *c = &connections[i];
        if (c->node != node || c->member != member) close(c->near);
        if (c->to != node || cross_gates[node] != member) close(c->far);
    }
}

static void cross_processes(uint32_t who) {
    pid_t pids[CROSS_PLAYERS];
    fflush(NULL);
    for (uint32_t i = 0; i < CROSS_PLAYERS; i++) {
        pids[i] = fork();
        if (pids[i] < 0) fail("fork: errno %d", errno);
        if (pids[i]) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        keep_own_ends(i);
        play_across(i);
        exit(0);
    }
    for (uint32_t i = 0; i < nconnections; i++) {
        close(connections[i].near);
        close(connections[i].far);
    }
    if (cross_ending == CROSS_DEATH) kill_victim(pids[who]);
    await_processes(cross_ending == CROSS_DEATH ? CROSS_PLAYERS - 1 : CROSS_PLAYERS);
}

static void play_crossing(bool has_threads) {
    uint64_t chance = chance_of(0x500);
    cross_ending = (int)(round_number % CROSS_ENDINGS);
    if (has_threads && cross_ending == CROSS_DEATH) cross_ending = CROSS_CUT;
    channels = cross_channels;
    nodes = cross_nodes;
    nnodes = NODES_MOST;
    uint32_t who = (uint32_t)draw(&chance, CROSS_PLAYERS - 1);
    victim.node = cross_players[who].node;
    victim.member = cross_players[who].member;
    make_segments(cross_ending == CROSS_DEATH ? CROSS_PLAYERS - 1 : CROSS_PLAYERS);
    make_connections();
    if (has_threads) {
        pthread_t threads[CROSS_PLAYERS];
        for (uintptr_t i = 0; i < CROSS_PLAYERS; i++) pthread_create(&threads[i], NULL, cross_thread, (void *)i);
        for (uint32_t i = 0; i < CROSS_PLAYERS; i++) pthread_join(threads[i], NULL);
    } else cross_processes(who);
    check_segments(cross_ending == CROSS_DEATH, true);
    close_segments();
}

#endif
