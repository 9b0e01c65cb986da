// SPDX-License-Identifier: Apache-2.0
/* A stress test of the native core alone: no Python, every sanitizer. `make native-check` builds and runs it.
 *
 *   stress threads|processes ROUNDS EXECUTIONS [SEED]
 *
 * Five members, each a thread or a forked process, pass frames around:
 *
 *   0 --r0--> 1, 2, 4      0 makes frames of random shapes: data, and buffers small, large, for writing
 *   1 --r1--> 2, 3, 4      1 forwards the buffers that it read
 *   2 --r2--> 0            2 makes frames of its own, for one reader
 *   3 --r3--> 0            3 forwards what was forwarded
 *
 * Some of the buffers that 0 and 2 make are loans, which they keep for a while.
 *
 * Every byte that arrives is compared with what its ring and number say; buffers are held for a while and compared once
 * more before they go. The cap and the addresses are small, so that memory is reclaimed, blocks are merged, and stashes
 * are written and pulled. A round ends in one of three ways: all executions complete; somebody poisons the board in the
 * middle; or member 4 dies while it holds blocks (a process by SIGKILL, a thread by leaving everything as it is) and
 * the owners clear its claims. After each no block may be claimed any more, and the memory must add up.
 *
 * Shapes, waits and ends follow from the seed; how the members interleave does not. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* The thread sanitizer knows memory by its address, and members map the same file more than once. Under it, all of them
 * get one mapping of each part of a file, readable and writable, or it would see neither their races nor what keeps
 * them from racing. Processes are beyond it: it is run on threads only. */
#ifdef __SANITIZE_THREAD__
#include <pthread.h>

#define MAPPINGS_MOST 256
static struct {
    ino_t inode;
    off_t offset;
    size_t bytes;
    void *at;
} mappings[MAPPINGS_MOST];
static int mapping_count;
static pthread_mutex_t mapping_lock = PTHREAD_MUTEX_INITIALIZER;

static void *map_once(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    struct stat st;
    if (fd < 0 || fstat(fd, &st)) return mmap(at, bytes, protection, flags, fd, offset);
    pthread_mutex_lock(&mapping_lock);
    int i = 0;
    while (i < mapping_count &&
           (mappings[i].inode != st.st_ino || mappings[i].offset != offset || mappings[i].bytes != bytes))
        i++;
    if (i == MAPPINGS_MOST) abort();
    if (i == mapping_count) {
        mappings[i].inode = st.st_ino;
        mappings[i].offset = offset;
        mappings[i].bytes = bytes;
        mappings[i].at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, offset);
        if (mappings[i].at != MAP_FAILED) mapping_count++;
    }
    void *found = mappings[i].at;
    pthread_mutex_unlock(&mapping_lock);
    return found;
}

static void unmap_all(void) {
    while (mapping_count--) munmap(mappings[mapping_count].at, mappings[mapping_count].bytes);
    mapping_count = 0;
}

#define mmap map_once
#define munmap(at, bytes) ((void)(at), (void)(bytes))
#endif

#include "../../rcg/native/core.h"

#define MEMBERS 5
#define RINGS 4
#define VICTIM 4
#define SLOTS 8
#define SLOT_BYTES 2048
#define WINDOW 6
#define SOME_BUFFERS 7
#define MOST_HELD 6
#define MOST_LENT 4
#define CAP_BYTES (800u * 1024)     /* one frame fits, but not all that are under way */
#define RESERVE_BYTES (640u * 1024) /* of addresses: blocks have to become larger ones */
#define NEVENTS 256
#define KINDS 3
#define TIME_LIMIT_S 240 /* against hanging */

enum { COMPLETE, POISON, DEATH, ENDINGS };

/* What the members of a round share besides the board. */
typedef struct {
    atomic_u32 expected;         /* members that come to an end by themselves */
    atomic_u32 stopped;          /* of them, those that write no more */
    atomic_u32 drained;          /* of them, those that have read everything */
    atomic_u32 progress;         /* executions that are complete */
    atomic_u64 copies, forwards; /* of all rounds: buffers in blocks of their own, and those sent on without a copy */
    atomic_u64 loans;            /* of all rounds */
    uint64_t stashes;            /* of all rounds: what passed through a heap */
} Meeting;

static uint64_t seed = 1;
static uint64_t executions;
static uint32_t round_number;
static int board_fd, arena_fds[MEMBERS];
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

/* What a frame contains: its data by ring and number, its buffers by who made them first. */
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

static Content content_of(uint32_t ring, uint64_t number) {
    bool is_made = ring == 0 || ring == 2; /* the others forward what was made for ring 0 */
    uint64_t chance = mix(mix(seed, round_number), mix(is_made ? ring : 0, number)), own = mix(chance, ring + 1);
    Content c = {.nbuffers = (uint32_t)draw(&chance, draw(&chance, 4) ? 3 : SOME_BUFFERS + 1)};
    for (uint32_t i = 0; i < c.nbuffers; i++) {
        c.bytes[i] = draw_bytes(&chance);
        c.keys[i] = mix(chance, i);
        c.is_written[i] = !draw(&chance, 4) && is_made;
    }
    c.kind = 1 + (uint32_t)draw(&own, KINDS);
    c.data_bytes = draw(&own, 8) ? draw(&own, 256) : draw(&own, 20 * 1024);
    c.data_key = own;
    return c;
}

/* ---- the host: no lock, no signal handlers */

static void *leave(void) { return NULL; }
static void enter(void *state) { (void)state; }
static bool go_on(void) { return true; }
static const Host host = {leave, enter, go_on};

/* ---- frames that were read */

typedef struct Received {
    struct Received *next;
    uint32_t ring;
    uint64_t number;
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
    Member member;
    End ends[RINGS];
    bool reads[RINGS], writes[RINGS];
    uint64_t chance;
    Received *held; /* newest first */
    uint32_t nheld;
    struct {
        Lease lease;
        uint64_t key;
    } lent[MOST_LENT]; /* loans that were made, and perhaps sent */
} Player;

static void received_check(const Received *r) {
    Content c = content_of(r->ring, r->number);
    for (uint32_t i = 0; i < r->nbuffers; i++)
        if (!r->buffer[i].is_mine && !matches(r->buffer[i].data, c.bytes[i], c.keys[i]))
            fail("ring %u, frame %llu: buffer %u changed while it was held", r->ring, (unsigned long long)r->number, i);
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
    Content c = content_of(e->index, e->seq);
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
        fail("ring %u, frame %llu: other data arrived", e->index, (unsigned long long)e->seq);
    for (uint32_t i = 0; !outcome && i < c.nbuffers; i++) {
        Part part;
        if (!(outcome = incoming_part(e, in, i, &part))) outcome = take_part(e, in, &part, r, i);
        if (outcome) break;
        if (part.bytes != c.bytes[i] || part.writable != c.is_written[i] ||
            !matches(r->buffer[i].data, c.bytes[i], c.keys[i]))
            fail("ring %u, frame %llu: another buffer %u arrived", e->index, (unsigned long long)e->seq, i);
    }
    free(pulled);
    if (outcome == DAMAGED) fail("ring %u, frame %llu: %s", e->index, (unsigned long long)e->seq, e->fault);
    if (outcome == OUT_OF_ORDER || outcome == NO_HEAP || outcome == SYSTEM) fail("a read ended with %d", outcome);
    return outcome;
}

static Received *received_new(const End *e) {
    Received *r = calloc(1, sizeof *r);
    r->ring = e->index;
    r->number = e->seq;
    return r;
}

/* Reads the next frame of a ring and holds it: DONE or POISONED. */
static Outcome read_frame(Player *p, uint32_t ring) {
    End *e = &p->ends[ring];
    Reading times;
    Incoming in;
    Outcome outcome = read_begin(e, UINT64_MAX, &times);
    if (outcome) return outcome;
    Received *r = received_new(e);
    if (!draw(&p->chance, 16)) { /* what is not taken can be read again */
        outcome = parse(e, &in, r);
        settle(&in, false);
        received_free(r);
        r = received_new(e);
    }
    if (!outcome && !(outcome = parse(e, &in, r))) read_take(e, &in, &times);
    else settle(&in, false);
    e->busy = false;
    if (outcome) {
        received_free(r);
        return outcome;
    }
    for (uint32_t i = 0; i < r->nbuffers; i++) /* nobody else may see this */
        if (r->buffer[i].is_mine) fill(r->buffer[i].data, content_of(ring, r->number).bytes[i], ~0ull);
    r->next = p->held;
    p->held = r;
    p->nheld++;
    return DONE;
}

/* ---- frames that are written */

/* Writes the next frame of a ring; with buffers that were read if there are any. DONE, POISONED or NO_SHARED. */
static Outcome write_frame(Player *p, uint32_t ring, const Received *forwarded, bool stashes) {
    End *e = &p->ends[ring];
    Content c = content_of(ring, e->seq);
    uint8_t *made[SOME_BUFFERS] = {NULL}, *data = malloc(c.data_bytes + 1);
    Span spans[SOME_BUFFERS];
    fill(data, c.data_bytes, c.data_key);
    bool lends = !forwarded && draw(&p->chance, 2);
    uint32_t nlent = 0;
    for (uint32_t i = 0; i < c.nbuffers; i++) {
        bool copies = !forwarded || forwarded->buffer[i].is_mine;
        /* one of a frame: the next might drop it before it is sent */
        uint8_t *from = lends && !nlent ? loan_make(p, c.bytes[i], c.keys[i]) : NULL;
        nlent += from != NULL;
        if (copies && !from) from = made[i] = malloc(c.bytes[i] + 1);
        if (copies) fill(from, c.bytes[i], c.keys[i]);
        spans[i] = (Span){copies ? from : forwarded->buffer[i].data, c.bytes[i], c.is_written[i]};
    }
    if (draw(&p->chance, 2)) write_open(e);
    Outgoing o;
    Writing times;
    Outcome outcome = write_begin(e, UINT64_MAX, &times);
    if (!outcome) {
        outgoing_begin(&o, e, c.kind);
        o.stashes |= stashes;
        o.data = (Span){data, c.data_bytes, false};
        o.spans = spans;
        o.nspans = c.nbuffers;
        if (!draw(&p->chance, 16)) { /* what is prepared need not be published */
            if (!prepare(&o)) outgoing_undo(&o);
            outgoing_end(&o);
            o.body_block = NO_BLOCK;
        }
        if (!(outcome = prepare(&o))) write_publish(&o, &times);
        else if (outcome != NO_SHARED || o.stashes) fail("a write ended with %d, errno %d", outcome, o.refused);
        outgoing_end(&o);
        write_end(e);
    } else if (outcome == DAMAGED) fail("ring %u: %s", ring, e->fault);
    for (uint32_t i = 0; i < c.nbuffers; i++) free(made[i]);
    free(data);
    if (draw(&p->chance, 2)) drop_loans(p);
    return outcome;
}

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
    const struct timespec moment = {0, 200000};
    while (ending == DEATH && !poisoned(&p->member)) nanosleep(&moment, NULL); /* that is how this round ends */
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

/* ---- joining and leaving */

static void join(Member *m, uint32_t index, int policy) {
    Role role = {index, policy, true, index >= 1 && index <= 3, ~0ull};
    uint32_t which = 0;
    Joined joined = member_open(m, &host, board_fd, arena_fds, MEMBERS, &role, &which);
    if (joined) fail("member %u could not join: %d", index, joined);
}

static void player_open(Player *p, uint32_t index) {
    p->chance = mix(mix(seed, round_number), 0x100 + index);
    join(&p->member, index, (int)draw(&p->chance, 4));
    for (uint32_t i = 0; i < RINGS; i++) {
        Shape shape;
        if (ring_shape(&p->member, i, &shape)) fail("ring %u is damaged", i);
        p->writes[i] = writer_open(&p->ends[i], &p->member, &shape, i, i);
        p->reads[i] = !p->writes[i] && reader_open(&p->ends[i], &p->member, &shape, i, i, KINDS);
        p->ends[i].moves = i % 3 == 0; /* what arrives is only read */
    }
}

static void meet(atomic_u32 *count) {
    const struct timespec moment = {0, 200000};
    atomic_fetch_add(count, 1);
    while (atomic_load(count) < atomic_load(&meeting->expected)) nanosleep(&moment, NULL);
}

/* Takes what lies on the rings once nobody writes any more, clears the claims of the dead, and leaves. */
static void player_close(Player *p, bool has_died) {
    Member *m = &p->member;
    drop_loans(p);
    meet(&meeting->stopped);
    m->looping = false; /* a loop reads nothing on a poisoned board */
    for (uint32_t i = 0; i < RINGS; i++)
        while (p->reads[i] && has_frame(&p->ends[i])) {
            Outcome outcome = read_frame(p, i);
            if (outcome == POISONED) continue; /* who pulls does not wait for others that do, once there is poison */
            if (outcome) fail("the rest of ring %u could not be read: %d", i, outcome);
            hold_at_most(p, 0);
        }
    hold_at_most(p, 0);
    if (has_died) forget_claims(m, VICTIM);
    meet(&meeting->drained);
    Census census = arena_census(m->arenas[m->index]);
    if (census.claimed) fail("member %u: %u blocks stay claimed", m->index, census.claimed);
    atomic_fetch_add(&meeting->copies, m->arenas[m->index]->copies);
    atomic_fetch_add(&meeting->forwards, m->arenas[m->index]->forwards);
    member_close(m);
}

static Player *dead; /* a thread's; its memory is freed at the end of the round */

static void play(uint32_t index, int ending, bool is_thread) {
    Player *p = calloc(1, sizeof *p);
    player_open(p, index);
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
        dead = p; /* as if this had been a process: it holds what it holds, and somebody else notices */
        poison_board(&p->member, POISON_BROKEN, VICTIM);
        return;
    }
    if (outcome != POISONED) fail("member %u ended with %d", index, outcome);
    player_close(p, ending == DEATH);
    free(p);
}

/* ---- a round */

static void make_segments(int ending) {
    static const RingSpec rings[RINGS] = {{0, SLOTS, SLOT_BYTES, 3, {1, 2, 4}},
                                          {1, SLOTS, SLOT_BYTES, 3, {2, 3, 4}},
                                          {2, SLOTS, SLOT_BYTES, 1, {0}},
                                          {3, SLOTS, SLOT_BYTES, 1, {0}}};
    if (check_rings(rings, RINGS, MEMBERS).fault || !is_board(MEMBERS, NEVENTS)) fail("the rings are wrong");
    board_fd = memfd_create("board", MFD_CLOEXEC);
    if (!format_board(board_fd, MEMBERS, rings, RINGS, NEVENTS, CAP_BYTES)) fail("no board: errno %d", errno);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        arena_fds[i] = memfd_create("arena", MFD_CLOEXEC);
        if (!is_arena(i, MEMBERS, RESERVE_BYTES) || format_arena(arena_fds[i], i, MEMBERS, RESERVE_BYTES))
            fail("no arena: errno %d", errno);
    }
    atomic_store(&meeting->expected, ending == DEATH ? MEMBERS - 1 : MEMBERS);
    atomic_store(&meeting->stopped, 0);
    atomic_store(&meeting->drained, 0);
    atomic_store(&meeting->progress, 0);
}

/* Nothing is claimed, and what the counters say of memory is what the blocks say. */
static void check_segments(int ending) {
    Member m = {0};
    join(&m, VICTIM, POLICY_FUTEX);
    uint64_t committed = 0;
    for (uint32_t i = 0; i < MEMBERS; i++) {
        uint64_t sum = 0;
        Census census = arena_census(m.arenas[i]);
        if (census.claimed) fail("%u blocks of member %u stay claimed", census.claimed, i);
        for (uint32_t id = 0; id < census.blocks; id++) sum += block_committed(&m.arenas[i]->header->block[id]);
        if (sum != atomic_load(&recorder_of(&m, i)->committed_bytes)) fail("member %u counts its memory wrongly", i);
        committed += sum;
    }
    if (committed != atomic_load(&m.board->used_bytes)) fail("the board counts its memory wrongly");
    const Ledger *l = m.ledger->ledger;
    /* Who dies between letting go of a block and its entry in the ledger leaves the entry. */
    if (ending != DEATH && atomic_load(&l->claimed_bytes)) fail("the ledger still has claimed bytes");
    if (atomic_load(&l->stashed_bytes)) fail("the ledger still has stashed bytes");
    meeting->stashes += atomic_load(&l->stashes);
    member_close(&m);
}

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
            if (t->records[j].end_ns < t->records[j].start_ns || t->records[j].op >= RINGS)
                fail("the drain has an event that never was");
    }
}

static void play_threads(int ending) {
    pthread_t threads[MEMBERS], drainer;
    Member observer = {0};
    join(&observer, VICTIM, POLICY_FUTEX);
    drain = (Drain){0};
    if (drain_open(&drain, &observer, board_fd, 1u << 20)) fail("no drain: errno %d", errno);
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

/* A member that died may have left a tray in use; who pulls through it would wait until the graph is closed. */
static void clear_trays(const Member *m) {
    for (uint32_t i = 0; i < MEMBERS; i++) {
        uint32_t user = VICTIM + 1;
        atomic_compare_exchange_strong(&tray_of(m, i)->user, &user, 0);
    }
}

static void kill_victim(pid_t victim) {
    uint64_t chance = mix(mix(seed, round_number), 0x200);
    uint32_t after = (uint32_t)draw(&chance, executions);
    const struct timespec moment = {0, 20000}, more = {0, (long)draw(&chance, 1000000)};
    while (atomic_load(&meeting->progress) < after && waitpid(victim, NULL, WNOHANG) == 0) nanosleep(&moment, NULL);
    nanosleep(&more, NULL);
    kill(victim, SIGKILL);
    waitpid(victim, NULL, 0);
    Member m = {0};
    join(&m, VICTIM, POLICY_FUTEX);
    clear_trays(&m);
    poison_board(&m, POISON_BROKEN, VICTIM);
    member_close(&m);
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
    for (uint32_t left = ending == DEATH ? MEMBERS - 1 : MEMBERS; left; left--) {
        int status = 0;
        pid_t pid = waitpid(-1, &status, 0); /* whoever fails first: the others end with this process */
        if (pid < 0 || status) fail("process %d ended with status %#x", (int)pid, (unsigned)status);
    }
}

int main(int argc, char **argv) {
    if (argc < 4 || (strcmp(argv[1], "threads") && strcmp(argv[1], "processes"))) {
        fprintf(stderr, "usage: %s threads|processes ROUNDS EXECUTIONS [SEED]\n", argv[0]);
        return 2;
    }
    bool has_threads = !strcmp(argv[1], "threads");
    uint32_t rounds = (uint32_t)strtoul(argv[2], NULL, 10);
    executions = strtoull(argv[3], NULL, 10);
    if (argc > 4) seed = strtoull(argv[4], NULL, 10);
    meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_atfork(NULL, NULL, after_fork_in_child);
    alarm(TIME_LIMIT_S);
    uint64_t start = now_ns();
    for (round_number = 0; round_number < rounds; round_number++) {
        int ending = (int)(round_number % ENDINGS);
        make_segments(ending);
        if (has_threads) play_threads(ending);
        else play_processes(ending);
        check_segments(ending);
        close(board_fd);
        for (uint32_t i = 0; i < MEMBERS; i++) close(arena_fds[i]);
#ifdef __SANITIZE_THREAD__
        unmap_all();
#endif
    }
    unsigned long long copies = atomic_load(&meeting->copies), forwards = atomic_load(&meeting->forwards);
    unsigned long long loans = atomic_load(&meeting->loans);
    printf("stress: %s: %u rounds of %llu executions in %.1f s, seed %llu: %llu buffers copied, %llu forwarded, %llu "
           "stashed, %llu loans\n",
           argv[1], rounds, (unsigned long long)executions, (double)(now_ns() - start) / 1e9, (unsigned long long)seed,
           copies, forwards, (unsigned long long)meeting->stashes, loans);
    fflush(stdout);
    if (!copies || !forwards || !meeting->stashes || !loans) fail("something was never tried");
    return 0;
}
