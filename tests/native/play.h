// SPDX-License-Identifier: Apache-2.0
/* The members of a stress test: what frames contain, writing and reading them with every byte compared, and joining and
 * leaving. What they do with each other is in alone.h and crossing.h. */
#ifndef RCG_TEST_PLAY_H
#define RCG_TEST_PLAY_H

#include "shims.h" /* before the core, and before headers of the system */

#include <stdarg.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "../../rcg/native/core.h"

#define MEMBERS_MOST 5
#define RINGS_MOST 6
#define CHANNELS_MOST 6
#define NODES_MOST 3
#define SLOTS 8
#define SLOT_BYTES 2048
#define WINDOW 6
#define SOME_BUFFERS 7
#define MOST_HELD 6
#define MOST_LENT 4
#define NEVENTS 256
#define KINDS 3
#define FAILURE (KINDS + 1) /* what a gate publishes in place of a frame that has no room on its node */

/* What a round is played with. A channel is a ring on each node that it goes to. */
typedef struct {
    uint32_t node;   /* of its writer */
    uint32_t from;   /* itself, or the channel whose buffers it forwards */
    uint64_t great;  /* bytes of a buffer in one frame of 8; 0 for none */
    bool is_awaited; /* a gate has room for its frames in any case */
} Channel;

typedef struct {
    uint32_t nmembers, nrings;
    uint32_t channels[RINGS_MOST]; /* by ring */
    RingSpec rings[RINGS_MOST];
    uint64_t cap_bytes, reserve_bytes;
} NodeSpec;

static const Channel *channels;
static const NodeSpec *nodes;
static uint32_t nnodes;
static int board_fds[NODES_MOST], arena_fds[NODES_MOST][MEMBERS_MOST];

/* The member that dies, or none. */
static struct {
    uint32_t node, member;
} victim;

/* What the members of a round share besides the boards. */
typedef struct {
    atomic_u32 expected;         /* members that come to an end by themselves */
    atomic_u32 stopped;          /* of them, those that write no more */
    atomic_u32 drained;          /* of them, those that have read everything */
    atomic_u32 progress;         /* executions that are complete */
    atomic_u32 is_over;          /* the boards are about to be poisoned */
    atomic_u64 copies, forwards; /* of all rounds: buffers in blocks of their own, and those sent on without a copy */
    atomic_u64 loans;            /* of all rounds */
    atomic_u64 refusals, cuts;   /* of all rounds: frames without room, and connections that ended within a frame */
    uint64_t stashes;            /* of all rounds: what passed through a heap */
} Meeting;

static uint64_t seed = 1;
static uint64_t executions;
static uint32_t round_number;
static Meeting *meeting;

static _Noreturn void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "stress: round %u: ", round_number);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    _exit(1);
}

/* ---- chance and patterns */

static uint64_t mix(uint64_t a, uint64_t b) { return fold(a ^ 0x9e3779b97f4a7c15u, b ^ 0xbf58476d1ce4e5b9u) + a + b; }

static uint64_t chance_of(uint64_t what) { return mix(mix(seed, round_number), what); }

static uint64_t draw(uint64_t *state, uint64_t below) {
    *state = mix(*state, 0x94d049bb133111ebu);
    return *state % below;
}

/* The k-th word of a pattern is key + k * STEP. */
#define STEP 0x9e3779b97f4a7c15u

static void fill(uint8_t *to, uint64_t bytes, uint64_t key) {
    for (uint64_t i = 0; i < bytes; i += 8, key += STEP) memcpy(to + i, &key, bytes - i < 8 ? bytes - i : 8);
}

static bool matches(const uint8_t *from, uint64_t bytes, uint64_t key) {
    for (uint64_t i = 0; i < bytes; i += 8, key += STEP)
        if (memcmp(from + i, &key, bytes - i < 8 ? bytes - i : 8)) return false;
    return true;
}

/* What a frame contains: its data by channel and number, its buffers by who made them first. */
typedef struct {
    uint32_t kind, nbuffers;
    uint64_t data_key, data_bytes, keys[SOME_BUFFERS], bytes[SOME_BUFFERS];
    bool is_written[SOME_BUFFERS];
} Content;

static uint64_t draw_bytes(uint64_t *state) {
    switch (draw(state, 8)) {
    case 0: return draw(state, 3);
    case 1:
    case 2: return 1 + draw(state, INLINE_BUFFER);
    case 3:
    case 4: return 1 + draw(state, 16 * 1024);
    case 5:
    case 6: return 1 + draw(state, 64 * 1024);
    default: return 1 + draw(state, 96 * 1024);
    }
}

/* What a gate publishes in place of a frame. */
static Content failure_of(uint32_t channel, uint64_t number) {
    uint64_t own = chance_of(mix(channel + 0x300, number));
    return (Content){.kind = FAILURE, .data_bytes = draw(&own, draw(&own, 4) ? 200 : 4000), .data_key = own};
}

/* The memory that a frame needs outside of its slot. */
static uint64_t outside_of(const Content *c) {
    uint64_t body = c->nbuffers * sizeof(Desc) + c->data_bytes, large = 0;
    for (uint32_t i = 0; i < c->nbuffers; i++)
        if (c->bytes[i] > INLINE_BUFFER) large += c->bytes[i];
        else body += c->bytes[i];
    return large + (sizeof(Frame) + body > SLOT_BYTES ? body : 0);
}

static Content frame_of(uint32_t channel, uint64_t number, uint32_t node);

/* What its writer sends. */
static Content content_of(uint32_t channel, uint64_t number) {
    const Channel *about = &channels[channel];
    bool is_made = about->from == channel; /* the others forward */
    if (!is_made && frame_of(about->from, number, about->node).kind == FAILURE) return failure_of(channel, number);
    uint64_t chance = chance_of(mix(about->from, number)), own = mix(chance, channel + 1);
    Content c = {.nbuffers = (uint32_t)draw(&chance, draw(&chance, 4) ? 3 : SOME_BUFFERS + 1)};
    for (uint32_t i = 0; i < c.nbuffers; i++) {
        c.bytes[i] = draw_bytes(&chance);
        c.keys[i] = mix(chance, i);
        c.is_written[i] = !draw(&chance, 4) && is_made;
    }
    if (channels[about->from].great && c.nbuffers && !draw(&chance, 8)) {
        c.nbuffers = 1;
        c.bytes[0] = channels[about->from].great + draw(&chance, 100);
    }
    c.kind = 1 + (uint32_t)draw(&own, KINDS);
    c.data_bytes = draw(&own, 8) ? draw(&own, 256) : draw(&own, 20 * 1024);
    c.data_key = own;
    return c;
}

/* What its readers on a node find. */
static Content frame_of(uint32_t channel, uint64_t number, uint32_t node) {
    const Channel *about = &channels[channel];
    Content c = content_of(channel, number);
    if (about->node == node || about->is_awaited || outside_of(&c) <= nodes[node].cap_bytes) return c;
    return failure_of(channel, number);
}

/* ---- the host: no lock, no signal handlers */

static void *leave(void) { return NULL; }
static void enter(void *state) { (void)state; }
static bool go_on(void) { return true; }
static const Host host = {leave, enter, go_on};

/* ---- frames that were read */

typedef struct Received {
    struct Received *next;
    uint32_t channel;
    uint64_t number;
    Content content;
    uint32_t nbuffers;
    struct {
        Lease lease;
        uint8_t *heap; /* a copy instead */
        uint8_t *data;
        bool is_mine; /* to write to */
    } buffer[SOME_BUFFERS];
} Received;

/* One member: a thread or a process. */
typedef struct {
    uint32_t node;
    Member member;
    End ends[CHANNELS_MOST];
    bool reads[CHANNELS_MOST], writes[CHANNELS_MOST];
    Links links;
    Route routes[CHANNELS_MOST]; /* of those that go to other nodes as well */
    uint64_t chance;
    Received *held; /* newest first */
    uint32_t nheld;
    struct {
        Lease lease;
        uint64_t key;
    } lent[MOST_LENT]; /* loans that were made, and perhaps sent */
} Player;

static void received_check(const Received *r) {
    const Content *c = &r->content;
    for (uint32_t i = 0; i < r->nbuffers; i++)
        if (!r->buffer[i].is_mine && !matches(r->buffer[i].data, c->bytes[i], c->keys[i]))
            fail("channel %u, frame %lu: buffer %u changed while it was held", r->channel, r->number, i);
}

static void received_free(Received *r) {
    for (uint32_t i = 0; i < r->nbuffers; i++) {
        lease_end(&r->buffer[i].lease);
        free(r->buffer[i].heap);
    }
    free(r);
}

static void hold_at_most(Player *p, uint32_t most) {
    while (p->nheld > most) {
        Received **at = &p->held;
        while ((*at)->next) at = &(*at)->next;
        Received *oldest = *at;
        *at = NULL;
        p->nheld--;
        received_check(oldest);
        received_free(oldest);
    }
}

/* Ends a loan: it contains what its maker wrote, whatever its readers did. */
static void loan_drop(Player *p, uint32_t i) {
    Lease *l = &p->lent[i].lease;
    if (!l->arena) return;
    if (!matches(l->data, l->bytes, p->lent[i].key)) fail("member %u: a loan changed", p->member.index);
    loan_end(l);
}

static void drop_loans(Player *p) {
    for (uint32_t i = 0; i < MOST_LENT; i++) loan_drop(p, i);
}

/* A loan in place of one that is dropped; NULL if there is none. */
static uint8_t *loan_make(Player *p, uint64_t bytes, uint64_t key) {
    uint32_t i = (uint32_t)draw(&p->chance, MOST_LENT);
    loan_drop(p, i);
    p->lent[i].key = key;
    if (!loan_begin(&p->lent[i].lease, &p->member, bytes, false)) return NULL;
    atomic_fetch_add(&meeting->loans, 1);
    return p->lent[i].lease.data;
}

static Outcome pull_all(End *e, uint64_t id, uint8_t *to, uint64_t bytes) {
    uint64_t have = 0;
    Outcome outcome;
    do outcome = pull(e, id, to, bytes, &have, UINT64_MAX);
    while (outcome == SIGNALS);
    return outcome;
}

static Outcome take_part(End *e, const Incoming *in, const Part *part, Received *r, uint32_t i) {
    bool leases = part->where == IN_BLOCK && part->map;
    uint8_t *heap = leases ? NULL : malloc(part->bytes + 1);
    r->buffer[i].heap = heap;
    r->buffer[i].data = heap;
    r->buffer[i].is_mine = part->writable && !e->moves;
    r->nbuffers = i + 1;
    if (leases) {
        lease_begin(&r->buffer[i].lease, part->claim, part->map, part->at, part->bytes);
        r->buffer[i].data = r->buffer[i].lease.data;
    } else if (part->where == IN_BODY) memcpy(heap, in->body + part->at, part->bytes);
    else if (part->where == IN_STASH) return pull_all(e, part->at, heap, part->bytes);
    else if (arena_copy_out(part->claim->arena, &host, heap, part->at, part->bytes)) return SYSTEM;
    return DONE;
}

/* Goes through the frame that lies in the current slot, and compares it. */
static Outcome parse(End *e, Incoming *in, Received *r) {
    Content c = r->content;
    uint8_t *pulled = NULL;
    Outcome outcome = incoming_begin(e, in);
    if (!outcome && !in->body) {
        pulled = malloc(in->head.body_bytes);
        in->body = pulled;
        outcome = pull_all(e, in->head.body_stash & UINT32_MAX, pulled, in->head.body_bytes);
    }
    if (!outcome) outcome = incoming_open(e, in);
    if (!outcome && (in->head.kind != c.kind || in->head.nbuffers != c.nbuffers ||
                     in->head.data_bytes != c.data_bytes || !matches(incoming_data(in), c.data_bytes, c.data_key)))
        fail("channel %u, frame %lu: other data arrived", e->op, e->seq);
    for (uint32_t i = 0; !outcome && i < c.nbuffers; i++) {
        Part part;
        if (!(outcome = incoming_part(e, in, i, &part))) outcome = take_part(e, in, &part, r, i);
        if (outcome) break;
        if (part.bytes != c.bytes[i] || part.writable != c.is_written[i] ||
            !matches(r->buffer[i].data, c.bytes[i], c.keys[i]))
            fail("channel %u, frame %lu: another buffer %u arrived", e->op, e->seq, i);
    }
    free(pulled);
    if (outcome == DAMAGED) fail("channel %u, frame %lu: %s", e->op, e->seq, e->fault);
    if (outcome == OUT_OF_ORDER || outcome == NO_HEAP || outcome == SYSTEM) fail("a read ended with %d", outcome);
    return outcome;
}

static Received *received_new(const Player *p, const End *e) {
    Received *r = calloc(1, sizeof *r);
    r->channel = e->op;
    r->number = e->seq;
    r->content = frame_of(e->op, e->seq, p->node);
    return r;
}

/* Reads the next frame of a channel and holds it: DONE or POISONED. */
static Outcome read_frame(Player *p, uint32_t channel) {
    End *e = &p->ends[channel];
    Reading times;
    Incoming in;
    Outcome outcome = read_begin(e, UINT64_MAX, &times);
    if (outcome) return outcome;
    Received *r = received_new(p, e);
    if (!draw(&p->chance, 16)) { /* what is not taken can be read again */
        outcome = parse(e, &in, r);
        settle(&in, false);
        received_free(r);
        r = received_new(p, e);
    }
    if (!outcome && !(outcome = parse(e, &in, r))) read_take(e, &in, &times);
    else settle(&in, false);
    e->busy = false;
    if (outcome) {
        received_free(r);
        return outcome;
    }
    for (uint32_t i = 0; i < r->nbuffers; i++) /* nobody else may see this */
        if (r->buffer[i].is_mine) fill(r->buffer[i].data, r->content.bytes[i], ~0ull);
    r->next = p->held;
    p->held = r;
    p->nheld++;
    return DONE;
}

/* ---- frames that are written */

/* A frame that is going to be written, and its memory. */
typedef struct {
    uint32_t kind, nbuffers;
    uint8_t *data, *made[SOME_BUFFERS];
    uint64_t data_bytes;
    Span spans[SOME_BUFFERS];
} Draft;

/* With the buffers of a frame that was read, if there is one; or with a loan among them. */
static Draft draft_begin(Player *p, const Content *c, const Received *forwarded, bool lends) {
    Draft d = {
        .kind = c->kind, .nbuffers = c->nbuffers, .data_bytes = c->data_bytes, .data = malloc(c->data_bytes + 1)};
    fill(d.data, c->data_bytes, c->data_key);
    uint32_t nlent = 0;
    for (uint32_t i = 0; i < c->nbuffers; i++) {
        bool copies = !forwarded || forwarded->buffer[i].is_mine;
        /* one of a frame: the next might drop it before it is sent */
        uint8_t *from = lends && !nlent ? loan_make(p, c->bytes[i], c->keys[i]) : NULL;
        nlent += from != NULL;
        if (copies && !from) from = d.made[i] = malloc(c->bytes[i] + 1);
        if (copies) fill(from, c->bytes[i], c->keys[i]);
        d.spans[i] = (Span){copies ? from : forwarded->buffer[i].data, c->bytes[i], c->is_written[i]};
    }
    return d;
}

static void draft_end(Draft *d) {
    for (uint32_t i = 0; i < d->nbuffers; i++) free(d->made[i]);
    free(d->data);
}

/* Prepares it: DONE, or NO_SHARED. */
static Outcome draft_prepare(Player *p, End *e, const Draft *d, Outgoing *o, bool stashes) {
    outgoing_begin(o, e, d->kind);
    o->stashes |= stashes;
    o->data = (Span){d->data, d->data_bytes, false};
    o->spans = d->spans;
    o->nspans = d->nbuffers;
    if (!draw(&p->chance, 16)) { /* what is prepared need not be published */
        if (!prepare(o)) outgoing_undo(o);
        outgoing_end(o);
        o->body_block = NO_BLOCK;
    }
    Outcome outcome = prepare(o);
    if (outcome && (outcome != NO_SHARED || o->stashes)) fail("a write ended with %d, errno %d", outcome, o->refused);
    return outcome;
}

/* Writes the next frame of a channel; with buffers that were read if there are any. DONE, POISONED or NO_SHARED. */
static Outcome write_frame(Player *p, uint32_t channel, const Received *forwarded, bool stashes) {
    End *e = &p->ends[channel];
    Content c = content_of(channel, e->seq);
    Draft d = draft_begin(p, &c, forwarded, !forwarded && draw(&p->chance, 2));
    if (draw(&p->chance, 2)) write_open(e);
    Outgoing o;
    Writing times;
    Outcome outcome = write_begin(e, UINT64_MAX, &times);
    if (!outcome) {
        const Route *route = &p->routes[channel];
        if (!(outcome = draft_prepare(p, e, &d, &o, stashes))) {
            write_publish(&o, &times);
            if (route->nodes) links_send(route->links, links_load(&o, route), o.payload);
        }
        outgoing_end(&o);
        write_end(e);
    } else if (outcome == DAMAGED) fail("channel %u: %s", channel, e->fault);
    draft_end(&d);
    if (draw(&p->chance, 2)) drop_loans(p);
    return outcome;
}

/* ---- joining and leaving */

static void join(Member *m, const Host *with, uint32_t node, uint32_t index, int policy, bool loops) {
    Role role = {index, policy, true, loops, -1, ~0ull};
    uint32_t which = 0;
    Joined joined = member_open(m, with, board_fds[node], arena_fds[node], nodes[node].nmembers, &role, &which);
    if (joined) fail("member %u of node %u could not join: %d", index, node, joined);
}

/* Somebody who looks on. */
static void join_aside(Member *m, uint32_t node) {
    *m = (Member){0};
    join(m, &host, node, nodes[node].nmembers - 1, POLICY_FUTEX, false);
}

/* Ends the round on all nodes, of which one is this. */
static void poison_all(uint32_t code) {
    atomic_store(&meeting->is_over, 1);
    for (uint32_t i = 0; i < nnodes; i++) {
        Member m;
        join_aside(&m, i);
        poison_board(&m, code, code == POISON_BROKEN && victim.node == i ? victim.member : NO_MEMBER);
        member_close(&m);
    }
}

static void player_open(Player *p, const Host *with, uint32_t node, uint32_t index, bool loops) {
    p->node = node;
    p->chance = chance_of(0x100 + 0x10 * node + index);
    join(&p->member, with, node, index, (int)draw(&p->chance, 4), loops);
    for (uint32_t i = 0; i < nodes[node].nrings; i++) {
        Shape shape;
        uint32_t channel = nodes[node].channels[i];
        End *e = &p->ends[channel];
        if (ring_shape(&p->member, i, &shape)) fail("ring %u is damaged", i);
        p->writes[channel] = writer_open(e, &p->member, &shape, i, channel);
        p->reads[channel] = !p->writes[channel] && reader_open(e, &p->member, &shape, i, channel, FAILURE);
        e->moves = channel % 3 == 0; /* what arrives is only read */
    }
}

static void meet(atomic_u32 *count) {
    atomic_fetch_add(count, 1);
    while (atomic_load(count) < atomic_load(&meeting->expected)) nap(200000);
}

/* Takes what lies on the rings once nobody writes any more, clears the claims of the dead, and leaves. */
static void player_close(Player *p, bool has_died) {
    Member *m = &p->member;
    has_died = has_died && victim.node == p->node;
    drop_loans(p);
    meet(&meeting->stopped);
    m->looping = false; /* a loop reads nothing on a poisoned board */
    for (uint32_t i = 0; i < CHANNELS_MOST; i++) {
        if (has_died && p->ends[i].writer == victim.member) continue; /* who knows what it has written */
        while (p->reads[i] && has_frame(&p->ends[i])) {
            Outcome outcome = read_frame(p, i);
            if (outcome == POISONED) continue; /* who pulls does not wait for others that do, once there is poison */
            if (outcome) fail("the rest of channel %u could not be read: %d", i, outcome);
            hold_at_most(p, 0);
        }
    }
    hold_at_most(p, 0);
    if (has_died) forget_claims(m, victim.member);
    meet(&meeting->drained);
    Census census = arena_census(m->arenas[m->index]);
    if (census.claimed) fail("member %u of node %u: %u blocks stay claimed", m->index, p->node, census.claimed);
    atomic_fetch_add(&meeting->copies, m->arenas[m->index]->copies);
    atomic_fetch_add(&meeting->forwards, m->arenas[m->index]->forwards);
    member_close(m);
}

/* ---- processes */

/* A member that died may have left a tray in use; who pulls through it would wait until the graph is closed. */
static void clear_trays(void) {
    Member m;
    join_aside(&m, victim.node);
    for (uint32_t i = 0; i < nodes[victim.node].nmembers; i++) {
        uint32_t user = victim.member + 1;
        atomic_compare_exchange_strong(&tray_of(&m, i)->user, &user, 0);
    }
    member_close(&m);
}

/* Kills the victim at some moment, and has the others notice. */
static void kill_victim(pid_t pid) {
    uint64_t chance = chance_of(0x200);
    uint32_t after = (uint32_t)draw(&chance, executions);
    long more = (long)draw(&chance, 1000000);
    while (atomic_load(&meeting->progress) < after && waitpid(pid, NULL, WNOHANG) == 0) nap(20000);
    nap(more);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    clear_trays();
    poison_all(POISON_BROKEN);
}

static void await_processes(uint32_t count) {
    for (; count; count--) {
        int status = 0;
        pid_t pid = waitpid(-1, &status, 0); /* the first that fails: the others end with this process */
        if (pid < 0 || status) fail("process %d ended with status %#x", (int)pid, (unsigned)status);
    }
}

/* ---- segments */

static void make_segments(uint32_t expected) {
    for (uint32_t i = 0; i < nnodes; i++) {
        const NodeSpec *n = &nodes[i];
        if (check_rings(n->rings, n->nrings, n->nmembers).fault || !is_board(n->nmembers, NEVENTS))
            fail("the rings are wrong");
        board_fds[i] = memfd_create("board", MFD_CLOEXEC);
        if (!format_board(board_fds[i], n->nmembers, n->rings, n->nrings, NEVENTS, n->cap_bytes))
            fail("no board: errno %d", errno);
        for (uint32_t j = 0; j < n->nmembers; j++) {
            arena_fds[i][j] = memfd_create("arena", MFD_CLOEXEC);
            if (!is_arena(j, n->nmembers, n->reserve_bytes) ||
                format_arena(arena_fds[i][j], j, n->nmembers, n->reserve_bytes))
                fail("no arena: errno %d", errno);
        }
    }
    atomic_store(&meeting->expected, expected);
    atomic_store(&meeting->stopped, 0);
    atomic_store(&meeting->drained, 0);
    atomic_store(&meeting->progress, 0);
    atomic_store(&meeting->is_over, 0);
}

/* Nothing is claimed, and what the counters say of memory is what the blocks say. `has_died`: who dies between letting
 * go of a block and its entry in the ledger leaves the entry; `is_torn`: it had memory of its own, too. */
static void check_segments(bool has_died, bool is_torn) {
    for (uint32_t node = 0; node < nnodes; node++) {
        Member m;
        join_aside(&m, node);
        bool is_hit = has_died && victim.node == node;
        uint64_t committed = 0;
        for (uint32_t i = 0; i < nodes[node].nmembers; i++) {
            uint64_t sum = 0;
            if (is_hit && is_torn && i == victim.member) continue;
            Census census = arena_census(m.arenas[i]);
            if (census.claimed) fail("%u blocks of member %u of node %u stay claimed", census.claimed, i, node);
            for (uint32_t id = 0; id < census.blocks; id++) sum += block_committed(&m.arenas[i]->header->block[id]);
            if (sum != atomic_load(&recorder_of(&m, i)->committed_bytes) && !(is_hit && is_torn))
                fail("member %u of node %u counts its memory wrongly", i, node);
            committed += sum;
        }
        const Ledger *l = m.ledger->ledger;
        if (!(is_hit && is_torn)) {
            if (committed != atomic_load(&m.board->used_bytes)) fail("board %u counts its memory wrongly", node);
            if (atomic_load(&l->stashed_bytes)) fail("ledger %u still has stashed bytes", node);
        }
        if (!is_hit && atomic_load(&l->claimed_bytes)) fail("ledger %u still has claimed bytes", node);
        meeting->stashes += atomic_load(&l->stashes);
        member_close(&m);
    }
}

static void close_segments(void) {
    for (uint32_t i = 0; i < nnodes; i++) {
        close(board_fds[i]);
        for (uint32_t j = 0; j < nodes[i].nmembers; j++) close(arena_fds[i][j]);
    }
    unmap_all();
}

#endif
