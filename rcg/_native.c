// SPDX-License-Identifier: Apache-2.0
/* The native core: rings, blocks, bells and the flight recorder, in shared memory.
 *
 * It moves frames of bytes between processes, waits, and writes down what happened. It knows nothing of Ray, of DAGs
 * or of pickling: `values.py` turns objects into (pickle bytes, buffers) and back, `channels/shm.py` names the errors.
 *
 * ---- Segments -------------------------------------------------------------------------------------------------
 *
 * A compiled graph has, on each node, one *board* and one *arena* per member (a member is one process of the graph;
 * the driver is member 0). Segments have no name: their descriptors travel over the control socket.
 *
 *   board    +--------------+---------+---------+-----+-------------+-----+--------+--------+-----+
 *   (RW)     | BoardHeader  | Bell[0] | Bell[1] | ... | Recorder[0] | ... | Ring 0 | Ring 1 | ... |
 *            +--------------+---------+---------+-----+-------------+-----+--------+--------+-----+
 *              magic, poison   one 64-byte line       now-line and          control lines, then slots
 *              used / cap      per member             events, per member
 *
 *   arena    +--------------+------------------------+---------------------------------------------------+
 *            | ArenaHeader  | Block[MAX_BLOCKS]      | data: block 0, block 1, ... (page aligned)        |
 *            +--------------+------------------------+---------------------------------------------------+
 *             mapped RW by all members                 mapped when first used: to read, or to write
 *
 * The writable mapping serves the owner and a torch tensor that has exactly one reader. Address space is
 * reserved once beyond the end of the file; memory is claimed with fallocate before anyone touches it, so a full
 * /dev/shm is an error code here and never a SIGBUS there.
 *
 * ---- Ring -----------------------------------------------------------------------------------------------------
 *
 *   control  | constants | writer: seq, cpu | room_wanted | reader 0: seq, waiting | reader 1: ... |
 *   slot     | Frame (64 B) | body: Desc[nbuffers], pickle bytes, small buffers |
 *
 * One writer, n readers, every reader sees every frame in order; frame k carries execution k, which is checked.
 * A body that does not fit its slot lies in a block of its own, named by Frame.body_block.
 *
 *   writer:  wait until seq - reader[i].seq < nslots for all i -> fill slot -> seq += 1 -> wake readers that wait
 *   reader:  wait until seq > mine -> copy out or lease -> mine += 1 -> wake the writer if it wants room
 *
 * A broken peer must not take others with it. A frame carries a sum of its header and table; a reader copies both,
 * compares every number with what it knows itself, makes all objects, and only then takes the frame and its claims. So
 * a damaged frame is an error as often as it is read, and one that there was no memory for can be read again. What
 * boards and rings are made of is copied when they are opened, and an owner keeps books of its own about its blocks.
 *
 * ---- Bell -----------------------------------------------------------------------------------------------------
 *
 * A member sleeps on one futex word whatever it waits for. It announces the wait in the ring (`waiting` of a reader,
 * `room_wanted` of a writer) so that nobody rings for what is not awaited:
 *
 *   sleeper: waiting += 1 | v = bell | look at the condition once more | futex_wait(bell, v) | waiting -= 1
 *   waker:   publish      | waiting? -> bell += 1, futex_wake(bell)
 *
 * Publishing and the load of `waiting`, and likewise `waiting += 1` and the second look, are sequentially consistent:
 * of a store and the load after it (Dekker's pattern), at least one side sees the other. Poison is one word in the
 * board; who sets it rings every bell, so every waiter leaves at once.
 *
 * ---- Block ----------------------------------------------------------------------------------------------------
 *
 *   free (claims == 0) --owner: claims = all readers--> in flight --reader: lease--> held --last lease dies--> free
 *                                                                         \--forward: more claims--> in flight
 *
 * `claims` is one atomic word with a field of `claim_bits` per member: a release is one subtraction, "free" is one
 * load, the claims of a dead member are cleared by one AND. The owner stores the claims of all readers before it
 * publishes, so messages that a dead reader never took are covered. Only a process that holds a claim may add others
 * (forwarding), hence the word cannot be zero meanwhile and the owner cannot reuse the block. What does not fit its
 * field is copied instead. In a forked child every release is a no-op.
 *
 * A block keeps its addresses when its memory is given back: `committed` says how much of it, from its start, has
 * memory. A free block's memory may be given back by any member, not only by the owner, who may be busy for long:
 *
 *   free, committed --anyone: claims = 1 of his | committed = 0, punch a hole | claims = 0--> free, without memory
 *
 * and the owner takes a block by the same exchange of 0 for claims, so the two cannot meet. Small blocks are committed
 * whole, large ones to the page. When addresses run out, neighbours that are free become one.
 *
 * ---- Stash ----------------------------------------------------------------------------------------------------
 *
 * A loop never waits for memory. What it writes when there is none, although everything free was reclaimed, it copies
 * to its own heap, the *stash*, and the frame names that copy. The reader pulls it piece by piece through the writer's
 * *tray* in the board, from a thread that needs no GIL, so it works while the writer is in a user's method:
 *
 *   reader:  user = me | id, offset; turn += 1 (odd) | turn even? -> copy `bytes` out of the tray, next piece | user = 0
 *   writer:  turn odd? -> copy a piece into the tray; turn += 1
 *
 * Nothing is taken by pulling: a reader that is interrupted begins again. The copy goes when every reader has moved
 * on past its frame.
 *
 * ---- Ledger ---------------------------------------------------------------------------------------------------
 *
 * The board counts the bytes of all blocks that are claimed, and for each of the last executions how many of them are
 * its own, now and at most. From that the driver learns how many executions fit beside each other. Leases outlive their
 * member, so the ledger is mapped once more for them.
 *
 * ---- Recorder -------------------------------------------------------------------------------------------------
 *
 * Per member a ring of 64-byte events, always on, and one line that says what the member does now and counts its
 * waits and its memory. A program's loop takes one timestamp per op: it closes one event and opens the next. Any
 * member can read any recorder at any time, also after its owner died; an event is valid when its `seq` is the number
 * that was asked for.
 *
 *   Recorder (head, now-line) | Event[nevents] | SpanName[MAX_SPANS]       per member
 *   ...                       | Event[TAPE_EVENTS]                         per member, at the end of the board
 *
 * While somebody drains the recorders (a Tape), `taping` is set and events go to the larger ring, so that a reader who
 * comes every few milliseconds loses none. Its memory is sparse until then. Event number n is in one ring or the other;
 * its `seq` says whether it is there, so turning over needs no agreement with the writers.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ABI_VERSION 5 /* of the layout below; members compare it when they start */

#define BOARD_MAGIC 0x31676372u /* "rcg1" */
#define ARENA_MAGIC 0x61676372u
#define FRAME_MAGIC 0x66676372u

#define MAX_MEMBERS 64 /* one claim bit each in the word of a block */
#define MAX_BLOCKS 65536u
#define PAGE 4096u
#define LINE 64u
#define MIN_BLOCK (16u * 1024u)
#define INLINE_BUFFER 4096u        /* buffers up to this size travel in the body of the frame */
#define UNLOCKED_COPY (64u * 1024) /* copies above this size release the GIL */
#define EXACT_FROM (1u << 20)      /* blocks above this size are committed to the page, not whole */
#define TRAY_BYTES (64u * 1024)    /* of the pieces that are pulled from a stash */
#define ACCOUNTS 1024u             /* so many executions back the ledger knows; a power of two */
#define KEEP_FREE (64ull << 20)    /* free memory that stays committed in any case, so that it stays warm */
#define NO_MEMBER UINT32_MAX
#define NO_BLOCK UINT32_MAX
#define STASHED 0x80005afeu /* in place of a block: the bytes are in the writer's stash; no block, nor like NO_BLOCK */
#define NO_EXECUTION UINT64_MAX

typedef _Atomic uint32_t atomic_u32;
typedef _Atomic uint64_t atomic_u64;

/* ============================================================ layout */

typedef struct {
    uint32_t magic, abi;
    uint32_t nmembers, nrings;
    uint64_t size_bytes;
    uint64_t recorder_offset, recorder_stride;
    uint32_t nevents, claim_bits;
    uint64_t cap_bytes;
    uint64_t tape_offset; /* Event[nmembers][TAPE_EVENTS], to the end of the board */
    _Alignas(LINE) atomic_u32 poison; /* 0, or POISON_* */
    atomic_u32 culprit;               /* member that died, or NO_MEMBER */
    atomic_u32 taping;                /* how many tapes run */
    atomic_u32 taped;                 /* whether the larger rings of events have memory */
    _Alignas(LINE) atomic_u64 used_bytes; /* committed by all arenas of the graph */
    uint64_t ledger_offset, tray_offset; /* Ledger; Tray[nmembers] */
    uint64_t pad1[5];
    /* then uint64_t ring_offset[nrings], Bell[nmembers], recorders, rings */
} BoardHeader;
_Static_assert(sizeof(BoardHeader) == 192, "BoardHeader");

typedef struct {
    _Alignas(LINE) atomic_u32 word;
    uint32_t pad[15];
} Bell;
_Static_assert(sizeof(Bell) == LINE, "Bell");

typedef struct {
    _Alignas(LINE) atomic_u64 seq;
    atomic_u32 waiting;
    uint32_t member;
    uint64_t pad[6];
} ReaderLine;
_Static_assert(sizeof(ReaderLine) == LINE, "ReaderLine");

typedef struct {
    uint32_t index, nslots, slot_bytes, nreaders, writer, pad0[11];
    _Alignas(LINE) atomic_u64 seq; /* frames published */
    atomic_u32 cpu;                /* of the last publisher, plus one */
    uint32_t pad1;
    atomic_u64 stashed; /* frames before this one may name copies in the stash, which take time to get */
    uint64_t pad2[5];
    _Alignas(LINE) atomic_u32 room_wanted;
    uint32_t pad3[15];
    ReaderLine reader[]; /* nreaders, then the slots */
} Ring;
_Static_assert(sizeof(Ring) == 3 * LINE, "Ring");

enum { KIND_PICKLE = 1, KIND_BYTES = 2, KIND_FAILURE = 3 };

typedef struct {
    uint32_t magic, kind;
    uint64_t execution;
    uint64_t body_bytes, data_bytes; /* body: descriptors + data + small buffers */
    uint32_t nbuffers, body_block;   /* NO_BLOCK: the body follows in the slot */
    uint64_t payload_bytes;          /* everything, for statistics */
    uint64_t check;                  /* of all other words and the table of descriptors */
    uint64_t body_stash;             /* with body_block STASHED: which of the stash */
} Frame;
_Static_assert(sizeof(Frame) == LINE, "Frame");

enum { DESC_WRITABLE = 1 }; /* the object over it is written to (torch): fresh block, never shared */

typedef struct {
    uint32_t arena, block; /* NO_BLOCK: `offset` counts from the start of the body; STASHED: it is the number there */
    uint32_t flags, pad;
    uint64_t offset, bytes;
} Desc;
_Static_assert(sizeof(Desc) == 32, "Desc");

typedef struct {
    atomic_u64 claims;
    uint64_t offset;
    atomic_u32 capacity, committed; /* in granules: addresses, and how many of them have memory */
    atomic_u64 execution;           /* whose it is, for the ledger */
} Block;
_Static_assert(sizeof(Block) == 32, "Block");
#define GRANULE 4096u

/* What one execution has in blocks: now, and at most so far. */
typedef struct {
    atomic_u64 execution; /* plus one: whose account it is */
    atomic_u64 live_bytes, peak_bytes;
    uint64_t pad;
} Account;

typedef struct {
    _Alignas(LINE) atomic_u64 claimed_bytes; /* of all blocks that somebody holds or that are on their way */
    atomic_u64 need_bytes;                   /* what an execution needs at its peak, as the driver has learned */
    atomic_u64 stashes, stashed_bytes;       /* how often there was no memory; how much lies in stashes now */
    uint64_t pad[4];
    Account account[ACCOUNTS];
} Ledger;
_Static_assert(sizeof(Ledger) == LINE + ACCOUNTS * 32, "Ledger");

/* Through which one member's stash is read. */
typedef struct {
    _Alignas(LINE) atomic_u32 user; /* the reader that uses it, plus one */
    atomic_u32 turn;                /* odd: the writer's */
    atomic_u32 is_served;           /* whether there ever was a stash */
    uint64_t id, offset, bytes;     /* bytes NO_BYTES: there is no such thing */
    _Alignas(LINE) uint8_t data[TRAY_BYTES];
} Tray;
_Static_assert(sizeof(Tray) == LINE + TRAY_BYTES, "Tray");
#define NO_BYTES UINT64_MAX

typedef struct {
    uint32_t magic, owner, claim_bits, pad0;
    uint64_t reserve_bytes, pad1[5];
    _Alignas(LINE) atomic_u32 nblocks;
    _Alignas(LINE) atomic_u64 frees; /* how often a block became free */
    uint64_t pad2[7];
    Block block[]; /* MAX_BLOCKS */
} ArenaHeader;
_Static_assert(sizeof(ArenaHeader) == 3 * LINE, "ArenaHeader");

#define LARGEST_PAGE 65536u /* some aarch64 kernels: what is mapped begins at a multiple of it */
#define ARENA_DATA                                                                                                     \
    ((sizeof(ArenaHeader) + (uint64_t)MAX_BLOCKS * sizeof(Block) + LARGEST_PAGE - 1) & ~(uint64_t)(LARGEST_PAGE - 1))

enum { NOW_IDLE = 0, NOW_RUNNING = 1, NOW_WAITING = 2 };

/* The `state` of a ref before its execution was submitted and from then on; what comes after is Python's. */
enum { REF_NEW = -1, REF_PENDING = 0 };

typedef struct {
    _Alignas(LINE) atomic_u64 head; /* events written so far */
    uint32_t pid;
    atomic_u32 nspans; /* names of spans so far */
    uint64_t pad0[6];
    _Alignas(LINE) atomic_u64 since_ns; /* the now-line */
    atomic_u64 execution;
    atomic_u32 op, state, ring, pad1;
    atomic_u64 waits, waited_ns; /* of all its threads, kept also when nothing is recorded */
    atomic_u64 waiting_since_ns; /* of who sleeps now and is not in waited_ns yet, else 0 */
    atomic_u64 committed_bytes;  /* of this member's arena */
} Recorder; /* then Event[nevents], SpanName[MAX_SPANS] */
_Static_assert(sizeof(Recorder) == 2 * LINE, "Recorder");

/* What one op of one execution did; the layout is that of rcg.trace.trace.EVENT. */
typedef struct {
    uint64_t start_ns, end_ns, waited_ns, coded_ns;
    uint64_t execution, bytes;
    uint32_t op;   /* from SPAN_BASE on a span of the user's */
    uint32_t peer; /* the member that was waited for, or NO_MEMBER */
} Record;
_Static_assert(sizeof(Record) == 56, "Record");

typedef struct {
    _Alignas(LINE) atomic_u64 seq; /* number of the event, counted from 1; written last */
    Record record;
} Event;
_Static_assert(sizeof(Event) == LINE, "Event");

typedef struct {
    char text[LINE]; /* UTF-8, ended by a zero */
} SpanName;

#define SPAN_BASE 0x80000000u
#define MAX_SPANS 256u
#define TAPE_EVENTS 65536u

/* The sum that a frame carries of its own header and its table of descriptors: what is damaged on its way is found out,
 * but for one time in 2^64. Words go in by pairs (wyhash's way), three of them at once. */
static inline uint64_t fold(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t pair(uint32_t low, uint32_t high) { return low | (uint64_t)high << 32; }

static inline uint64_t check_header(const Frame *f) {
    return fold(pair(f->magic, f->kind) ^ 0x9e3779b97f4a7c15u, f->execution ^ 0xbf58476d1ce4e5b9u) ^
           fold(f->body_bytes ^ 0x94d049bb133111ebu, f->data_bytes ^ 0xd6e8feb86659fd93u) ^
           fold(pair(f->nbuffers, f->body_block) ^ 0xa0761d6478bd642fu,
                f->payload_bytes ^ 0xe7037ed1a0b428dbu ^ (f->body_stash << 32 | f->body_stash >> 32));
}

/* A body in a stash is pulled before the whole sum can be checked: its number carries a part of the header's. */
static inline uint64_t sign_stashed(Frame head, uint64_t id) {
    head.body_stash = id & UINT32_MAX;
    return head.body_stash | check_header(&head) << 32;
}

static inline uint64_t check_desc(uint64_t sum, const Desc *d) {
    sum = fold(sum ^ pair(d->arena, d->block), pair(d->flags, d->pad) ^ 0x8ebc6af09c88c6e3u);
    return fold(sum ^ d->offset, d->bytes ^ 0x589965cc75374cc3u);
}

enum { POISON_CLOSED = 1, POISON_BROKEN = 2 };

/* ============================================================ small things */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static uint64_t align_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

static long futex(atomic_u32 *word, int op, uint32_t value, const struct timespec *timeout) {
    return syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

/* A forked child shares our claims but does not own them: objects remember the generation they were made in. */
static atomic_u32 fork_generation;
static void after_fork_in_child(void) { atomic_fetch_add(&fork_generation, 1); }

typedef struct {
    PyTypeObject *arena_type, *member_type, *reader_type, *writer_type, *lease_type, *frame_type, *tape_type;
    PyObject *poisoned, *timed_out, *no_memory, *corrupt;
    PyObject *buffers_name, *execution_name, *state_name; /* "buffers", "execution", "state" */
} State;

static void *allocate_object(PyTypeObject *type) {
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return alloc(type, 0);
}

static void free_object(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF((PyObject *)type);
}

static State *state_of(PyTypeObject *type) {
    PyObject *module = PyType_GetModule(type);
    return module ? PyModule_GetState(module) : NULL;
}

/* ============================================================ arena: blocks of one owner, mapped by all members */

#define NCLASSES 160 /* 4 per doubling from 16 KiB reaches 16 KiB * 2^40 */

typedef struct {
    uint32_t *ids;
    uint32_t count, room, recent, cursor;
    uint64_t frees_seen;
} SizeClass;

/* What the owner knows of a block. Its memory is written by these numbers alone, never by what others could change. */
typedef struct {
    uint64_t offset, capacity;
    uint64_t used_at; /* tick of its last use */
    uint32_t kind;    /* its size class, or: */
} Book;

enum { KIND_MERGED = NCLASSES, KIND_EARLIER }; /* became part of a neighbour; is of an earlier owner */

/* The ledger as leases see it, which may outlive their member; counted with the GIL held. */
typedef struct {
    Ledger *ledger;
    uint32_t users;
} LedgerMap;

typedef struct {
    PyObject_HEAD
    State *state;
    ArenaHeader *header;
    uint8_t *readable, *writable; /* mapped when first used */
    bool reaches_us;              /* whether its blocks may arrive here */
    uint64_t reserve;
    uint32_t owner, holder, claim_bits, generation;
    uint32_t *held; /* by block: live leases of this process */
    uint32_t held_room;
    int fd;
    uint64_t file_bytes; /* the file is at least this long: what lies there can be read */
    LedgerMap *ledger;
    atomic_u64 *committed; /* bytes, in the owner's recorder; valid while the member is */
    /* the owner's books */
    uint64_t end, tick;
    Book *books;
    uint32_t nblocks, book_room;
    SizeClass classes[NCLASSES];
    uint64_t copies, forwards, grown;
} Arena;

/* The field of a member in the word of a block. */
static uint32_t claim_bits_for(uint32_t members) {
    return members <= 8 ? 8 : members <= 16 ? 4 : members <= 32 ? 2 : 1;
}
static uint64_t claim_unit(const Arena *a, uint32_t member) { return 1ull << (a->claim_bits * member); }
static uint64_t claim_mask(const Arena *a, uint32_t member) {
    uint64_t field = a->claim_bits == 64 ? ~0ull : (1ull << a->claim_bits) - 1;
    return field << (a->claim_bits * member);
}

static uint64_t block_capacity(const Block *b) {
    return (uint64_t)atomic_load_explicit(&b->capacity, memory_order_relaxed) * GRANULE;
}
static uint64_t block_committed(const Block *b) {
    return (uint64_t)atomic_load_explicit(&b->committed, memory_order_relaxed) * GRANULE;
}

/* ---- ledger */

static Account *account_of(Ledger *l, uint64_t execution) { return &l->account[execution & (ACCOUNTS - 1)]; }

/* A new execution begins; by the driver, before anybody else can have blocks of it. */
static void ledger_begin(Ledger *l, uint64_t execution) {
    Account *c = account_of(l, execution);
    atomic_store_explicit(&c->live_bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&c->peak_bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&c->execution, execution + 1, memory_order_relaxed);
}

/* A block that was taken becomes that execution's; before the frame that names it is published. */
static void ledger_assign(Ledger *l, Block *b, uint64_t execution) {
    Account *c = account_of(l, execution);
    atomic_store_explicit(&b->execution, execution, memory_order_relaxed);
    if (atomic_load_explicit(&c->execution, memory_order_relaxed) != execution + 1) return;
    uint64_t bytes = block_committed(b);
    uint64_t live = atomic_fetch_add_explicit(&c->live_bytes, bytes, memory_order_relaxed) + bytes;
    uint64_t peak = atomic_load_explicit(&c->peak_bytes, memory_order_relaxed);
    while (live > peak && !atomic_compare_exchange_weak_explicit(&c->peak_bytes, &peak, live, memory_order_relaxed,
                                                                 memory_order_relaxed)) {}
}

static void ledger_freed(Ledger *l, uint64_t bytes, uint64_t execution) {
    atomic_fetch_sub_explicit(&l->claimed_bytes, bytes, memory_order_relaxed);
    if (execution == NO_EXECUTION) return;
    Account *c = account_of(l, execution);
    if (atomic_load_explicit(&c->execution, memory_order_relaxed) != execution + 1) return;
    /* Never below zero: the account may become another execution's just now. */
    uint64_t live = atomic_load_explicit(&c->live_bytes, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&c->live_bytes, &live, live > bytes ? live - bytes : 0,
                                                  memory_order_relaxed, memory_order_relaxed)) {}
}

/* ---- claims */

static bool block_is_free(const Arena *a, uint32_t id) {
    return atomic_load_explicit(&a->header->block[id].claims, memory_order_acquire) == 0;
}

/* Takes a free block, whoever else tries. */
static bool block_claim(Arena *a, uint32_t id, uint64_t claims) {
    uint64_t none = 0;
    return atomic_compare_exchange_strong_explicit(&a->header->block[id].claims, &none, claims, memory_order_acq_rel,
                                                   memory_order_relaxed);
}

/* Lets go of a block that was claimed but never counted in the ledger. */
static void block_unclaim(Arena *a, uint32_t id, uint64_t claims) {
    atomic_fetch_sub_explicit(&a->header->block[id].claims, claims, memory_order_acq_rel);
    atomic_fetch_add_explicit(&a->header->frees, 1, memory_order_release);
}

static void arena_unclaim(Arena *a, uint32_t block, uint64_t claims) {
    Block *b = &a->header->block[block];
    /* looked at while the block is still ours */
    uint64_t bytes = block_committed(b), execution = atomic_load_explicit(&b->execution, memory_order_relaxed);
    uint64_t before = atomic_fetch_sub_explicit(&b->claims, claims, memory_order_acq_rel);
    if (before != claims) return;
    ledger_freed(a->ledger->ledger, bytes, execution);
    atomic_fetch_add_explicit(&a->header->frees, 1, memory_order_release);
}

static void arena_release(Arena *a, uint32_t block) { arena_unclaim(a, block, claim_unit(a, a->holder)); }

/* ---- memory of blocks */

/* Size classes: 4 per doubling, so at most a fifth of a block's addresses is unused. */
static uint32_t class_of(uint64_t bytes, uint64_t *capacity) {
    uint64_t base = MIN_BLOCK;
    uint32_t k = 0;
    while (base * 2 <= bytes) base *= 2, k += 4;
    uint64_t step = base / 4, q = bytes > base ? (bytes - base + step - 1) / step : 0;
    *capacity = base + q * step;
    return k + (uint32_t)q;
}

/* The largest class whose blocks fit into so many bytes, of which there are at least MIN_BLOCK. */
static uint32_t class_within(uint64_t bytes) {
    uint64_t capacity;
    uint32_t k = class_of(bytes, &capacity);
    return capacity > bytes ? k - 1 : k;
}

static int arena_fallocate(Arena *a, int mode, uint64_t offset, uint64_t bytes) {
    int r;
    do r = fallocate(a->fd, mode, (off_t)offset, (off_t)bytes);
    while (r && errno == EINTR);
    return r;
}

static int arena_commit(Arena *a, uint64_t offset, uint64_t bytes) { return arena_fallocate(a, 0, offset, bytes); }

static int arena_punch(Arena *a, uint64_t offset, uint64_t bytes) {
    return arena_fallocate(a, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, ARENA_DATA + offset, bytes);
}

/* Memory was given back to the system. */
static void arena_discount(Arena *a, BoardHeader *board, uint64_t bytes) {
    atomic_fetch_sub_explicit(&board->used_bytes, bytes, memory_order_relaxed);
    atomic_fetch_sub_explicit(a->committed, bytes, memory_order_relaxed);
}

/* Gives the memory of a block that is claimed for this back to the system; returns how much. */
static uint64_t block_empty(Arena *a, BoardHeader *board, uint32_t id) {
    Block *b = &a->header->block[id];
    uint64_t bytes = block_committed(b), capacity = block_capacity(b), offset = b->offset;
    if (bytes > capacity) bytes = capacity; /* damaged: not beyond the block at least */
    if (!bytes || offset > a->reserve || bytes > a->reserve - offset) return 0;
    atomic_store_explicit(&b->committed, 0, memory_order_relaxed);
    if (arena_punch(a, offset, bytes)) {
        atomic_store_explicit(&b->committed, (uint32_t)(bytes / GRANULE), memory_order_relaxed);
        return 0;
    }
    arena_discount(a, board, bytes);
    return bytes;
}

/* The same for a block of any member, if it is free. */
static uint64_t block_reclaim(Arena *a, BoardHeader *board, uint32_t id) {
    uint64_t unit = claim_unit(a, a->holder);
    if (!block_committed(&a->header->block[id]) || !block_is_free(a, id) || !block_claim(a, id, unit)) return 0;
    uint64_t bytes = block_empty(a, board, id);
    block_unclaim(a, id, unit);
    return bytes;
}

/* Gives the memory of the owner's free blocks back, least recently used first, until at most `keep` bytes of free
 * memory stay committed. */
static uint64_t arena_trim(Arena *a, BoardHeader *board, uint64_t keep) {
    uint64_t spare = 0, given = 0;
    for (uint32_t id = 0; id < a->nblocks; id++)
        if (block_is_free(a, id)) spare += block_committed(&a->header->block[id]);
    for (int pass = 0; pass < 2 && spare > keep; pass++) {
        uint64_t old = pass || a->tick < 64 ? UINT64_MAX : a->tick - 64; /* first what rested for 64 allocations */
        for (uint32_t id = 0; id < a->nblocks && spare > keep; id++) {
            if (a->books[id].used_at > old) continue;
            uint64_t bytes = block_reclaim(a, board, id);
            spare -= bytes < spare ? bytes : spare;
            given += bytes;
        }
    }
    return given;
}

/* A free committed block of class k, the most recently used first because its pages are warm; or -1. */
static int64_t class_take(Arena *a, uint32_t k, uint64_t claims) {
    SizeClass *c = &a->classes[k];
    if (!c->count) return -1;
    uint32_t id = c->ids[c->recent];
    if (block_committed(&a->header->block[id]) && block_is_free(a, id) && block_claim(a, id, claims)) return id;
    uint64_t frees = atomic_load_explicit(&a->header->frees, memory_order_acquire);
    if (frees == c->frees_seen) return -1;
    uint32_t look = c->count < 256 ? c->count : 256; /* bounded work a call when thousands are held */
    for (uint32_t i = 0; i < look; i++) {
        uint32_t j = c->cursor;
        c->cursor = (j + 1) % c->count;
        id = c->ids[j];
        if (block_committed(&a->header->block[id]) && block_is_free(a, id) && block_claim(a, id, claims)) {
            c->recent = j;
            return id;
        }
    }
    if (look == c->count) c->frees_seen = frees;
    return -1;
}

static int64_t class_take_cold(Arena *a, uint32_t k, uint64_t claims) {
    SizeClass *c = &a->classes[k];
    for (uint32_t i = 0; i < c->count; i++)
        if (block_is_free(a, c->ids[i]) && block_claim(a, c->ids[i], claims)) {
            c->recent = i;
            return c->ids[i];
        }
    return -1;
}

static bool reserve_books(Arena *a, uint32_t count) {
    if (count <= a->book_room) return true;
    uint32_t room = a->book_room ? a->book_room : 64;
    while (room < count) room *= 2;
    Book *p = realloc(a->books, room * sizeof *p);
    if (!p) return false;
    memset(p + a->book_room, 0, (room - a->book_room) * sizeof *p);
    a->books = p;
    a->book_room = room;
    return true;
}

static bool reserve_class(Arena *a, uint32_t k) {
    SizeClass *c = &a->classes[k];
    if (c->count == c->room) {
        uint32_t room = c->room ? c->room * 2 : 4;
        uint32_t *p = realloc(c->ids, room * sizeof *p);
        if (!p) return false;
        c->ids = p;
        c->room = room;
    }
    return true;
}

/* Enters a block under a class, where room was reserved. */
static void class_add(Arena *a, uint32_t k, uint32_t id) {
    SizeClass *c = &a->classes[k];
    c->recent = c->count;
    c->ids[c->count++] = id;
    a->books[id].kind = k;
}

static void class_remove(Arena *a, uint32_t id) {
    if (a->books[id].kind >= NCLASSES) return;
    SizeClass *c = &a->classes[a->books[id].kind];
    for (uint32_t i = 0; i < c->count; i++)
        if (c->ids[i] == id) {
            c->ids[i] = c->ids[--c->count];
            break;
        }
    c->recent = c->cursor = 0;
    a->books[id].kind = KIND_MERGED;
}

/* Says where a block lies; of one that is new, or claimed by the owner. */
static void block_place(Arena *a, uint32_t id, uint64_t offset, uint64_t capacity) {
    Block *b = &a->header->block[id];
    a->books[id].offset = b->offset = offset;
    a->books[id].capacity = capacity;
    atomic_store_explicit(&b->capacity, (uint32_t)(capacity / GRANULE), memory_order_relaxed);
}

/* A block at the end of the addresses in use, or -1 with errno. */
static int64_t arena_extend(Arena *a, uint32_t k, uint64_t capacity, uint64_t claims) {
    uint32_t n = a->nblocks;
    errno = ENOMEM;
    if (n == MAX_BLOCKS || a->end + capacity > a->reserve || !reserve_books(a, n + 1) || !reserve_class(a, k)) return -1;
    if (n % (PAGE / sizeof(Block)) == 0 && arena_commit(a, sizeof(ArenaHeader) + n * sizeof(Block), 2 * PAGE)) return -1;
    atomic_store_explicit(&a->header->block[n].claims, claims, memory_order_relaxed);
    atomic_store_explicit(&a->header->block[n].committed, 0, memory_order_relaxed);
    block_place(a, n, a->end, capacity);
    class_add(a, k, n);
    a->end += capacity;
    atomic_store_explicit(&a->header->nblocks, a->nblocks = n + 1, memory_order_release);
    return n;
}

static bool block_can_merge(const Arena *a, uint32_t id) { return a->books[id].kind != KIND_EARLIER && block_is_free(a, id); }

/* Addresses ran out: makes one block of neighbours that are free, or -1 with errno. What is left over becomes a block
 * with the number of the second of them; numbers that are not needed any more stay, with no addresses, so that blocks
 * lie in the order of their numbers. */
static int64_t arena_merge(Arena *a, BoardHeader *board, uint32_t k, uint64_t capacity, uint64_t claims) {
    uint64_t unit = claim_unit(a, a->holder), sum = 0;
    uint32_t first = 0, next = 0;
    errno = ENOMEM;
    if (!reserve_class(a, k)) return -1;
    for (;;) {
        while (next < a->nblocks && sum < capacity) {
            if (block_can_merge(a, next)) sum += a->books[next++].capacity;
            else first = ++next, sum = 0;
        }
        while (next < a->nblocks && next - first == 1 && !a->books[next].capacity) next++; /* a number for the rest */
        uint64_t more = sum < capacity ? capacity - sum : 0; /* at the end of all */
        if (more && (first == next || a->end + more > a->reserve)) return -1;
        uint32_t got = first;
        while (got < next && block_claim(a, got, unit)) got++;
        if (got == next) break;
        for (uint32_t id = first; id < got; id++) block_unclaim(a, id, unit); /* somebody reclaims one just now */
        first = next = got + 1;
        sum = 0;
    }
    for (uint32_t id = first; id < next; id++) {
        block_empty(a, board, id);
        class_remove(a, id);
    }
    uint64_t at = a->books[first].offset, rest = sum > capacity ? sum - capacity : 0;
    uint64_t end = sum < capacity ? at + capacity : at + sum;
    if (end > a->end) a->end = end;
    bool splits = rest >= MIN_BLOCK && next - first > 1;
    for (uint32_t id = next; --id > first;) block_place(a, id, end, 0);
    block_place(a, first, at, splits ? capacity : end - at);
    class_add(a, k, first);
    if (splits) {
        block_place(a, first + 1, at + capacity, rest);
        uint32_t kind = class_within(rest);
        if (reserve_class(a, kind)) class_add(a, kind, first + 1);
    }
    for (uint32_t id = first + 1; id < next; id++) block_unclaim(a, id, unit);
    atomic_store_explicit(&a->header->block[first].claims, claims, memory_order_relaxed);
    return first;
}

/* The block that holds address `p` and is leased by this process, or -1. Blocks lie in the order of their ids. */
static int64_t arena_find(const Arena *a, const uint8_t *p, uint64_t bytes) {
    if (!a->held || !a->readable || p < a->readable || p + bytes > a->readable + a->reserve) return -1;
    uint64_t offset = (uint64_t)(p - a->readable);
    uint32_t low = 0, high = atomic_load_explicit(&a->header->nblocks, memory_order_acquire);
    if (high > a->held_room) high = a->held_room;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (a->header->block[middle].offset <= offset) low = middle + 1;
        else high = middle;
    }
    if (!low) return -1;
    uint32_t id = low - 1;
    const Block *b = &a->header->block[id];
    if (offset + bytes > b->offset + block_capacity(b) || !a->held[id]) return -1;
    return id;
}

/* Adds the claims of the readers to a block that we hold. False when a field is full: copy instead. */
static bool arena_share(Arena *a, uint32_t block, const uint32_t *members, uint32_t n) {
    atomic_u64 *claims = &a->header->block[block].claims;
    uint64_t seen = atomic_load_explicit(claims, memory_order_relaxed), wanted;
    do {
        wanted = seen;
        for (uint32_t i = 0; i < n; i++) {
            uint64_t mask = claim_mask(a, members[i]);
            if ((wanted & mask) == mask) return false;
            wanted += claim_unit(a, members[i]);
        }
    } while (!atomic_compare_exchange_weak_explicit(claims, &seen, wanted, memory_order_relaxed, memory_order_relaxed));
    return true;
}

static void arena_unmap(Arena *a) {
    if (a->header) munmap(a->header, ARENA_DATA);
    if (a->readable) munmap(a->readable, a->reserve);
    if (a->writable) munmap(a->writable, a->reserve);
    a->header = NULL;
    a->readable = a->writable = NULL;
}

static LedgerMap *ledger_open(int fd, uint64_t offset) {
    LedgerMap *l = malloc(sizeof *l);
    void *p = l ? mmap(NULL, sizeof(Ledger), PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset) : MAP_FAILED;
    if (p == MAP_FAILED) {
        free(l);
        return NULL;
    }
    *l = (LedgerMap){p, 1};
    return l;
}

static void ledger_close(LedgerMap *l) {
    if (!l || --l->users) return;
    munmap(l->ledger, sizeof(Ledger));
    free(l);
}

static void arena_dealloc(PyObject *self) {
    Arena *a = (Arena *)self;
    arena_unmap(a);
    ledger_close(a->ledger);
    if (a->fd >= 0) close(a->fd);
    free(a->held);
    free(a->books);
    for (int k = 0; k < NCLASSES; k++) free(a->classes[k].ids);
    free_object(self);
}

/* Whether the file reaches to `end`; behind its end a mapping gives SIGBUS. It never shrinks. */
static bool arena_reaches(Arena *a, uint64_t end) {
    struct stat st;
    if (end > a->file_bytes && !fstat(a->fd, &st)) a->file_bytes = (uint64_t)st.st_size;
    return end <= a->file_bytes;
}

/* An owner that joins once more leaves the blocks of its earlier self alone and goes on behind them. */
static bool arena_adopt(Arena *a) {
    uint32_t n = atomic_load_explicit(&a->header->nblocks, memory_order_acquire);
    if (!n) return true;
    if (n > MAX_BLOCKS || !arena_reaches(a, ARENA_DATA) || !reserve_books(a, n)) return false;
    for (uint32_t id = 0; id < n; id++) a->books[id].kind = KIND_EARLIER;
    a->nblocks = n;
    a->end = align_up(a->file_bytes - ARENA_DATA, GRANULE);
    return true;
}

/* The data of an arena, mapped when it is first looked at or written to: most arenas are only ever mapped one way, and
 * those whose blocks never arrive here not at all. NULL with errno where there is no address space. */
static uint8_t *arena_map(Arena *a, bool writable) {
    uint8_t **map = writable ? &a->writable : &a->readable;
    if (!*map) {
        void *p = mmap(NULL, a->reserve, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED | MAP_NORESERVE, a->fd,
                       (off_t)ARENA_DATA);
        if (p == MAP_FAILED) return NULL;
        *map = p;
    }
    return *map;
}

static Arena *arena_open(State *state, int fd, uint32_t owner, uint32_t holder, uint32_t claim_bits,
                         LedgerMap *ledger) {
    Arena *a = allocate_object(state->arena_type);
    if (!a) return NULL;
    a->state = state;
    a->ledger = ledger;
    ledger->users++;
    a->fd = -1;
    a->owner = owner;
    a->holder = holder;
    a->generation = atomic_load(&fork_generation);
    if ((a->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3)) < 0) goto refused;
    void *p = mmap(NULL, ARENA_DATA, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED) goto refused;
    a->header = p;
    if (!arena_reaches(a, PAGE) || a->header->magic != ARENA_MAGIC || a->header->owner != owner ||
        a->header->claim_bits != claim_bits || (owner == holder && !arena_adopt(a))) {
        PyErr_Format(state->corrupt, "the segment handed over for member %u is not its arena", owner);
        Py_DECREF((PyObject *)a);
        return NULL;
    }
    a->reserve = a->header->reserve_bytes;
    a->claim_bits = claim_bits;
    return a;
refused:
    PyErr_SetFromErrno(PyExc_OSError);
    Py_DECREF((PyObject *)a);
    return NULL;
}

static PyType_Slot arena_slots[] = {{Py_tp_dealloc, arena_dealloc}, {0, NULL}};
static PyType_Spec arena_spec = {"rcg._native.Arena", sizeof(Arena), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, arena_slots};

/* ============================================================ lease: a buffer over a block, one claim while it lives */

typedef struct {
    PyObject_HEAD
    Arena *arena;
    uint32_t block;
    bool writable;
    bool owns; /* the claim passed to it: from then on its end is a release */
    uint8_t *data;
    Py_ssize_t bytes;
} Lease;

/* Counts one more use of a block in this process. */
static bool arena_hold(Arena *a, uint32_t block) {
    if (block >= a->held_room) {
        uint32_t room = a->held_room ? a->held_room : 64;
        while (room <= block) room *= 2;
        uint32_t *p = realloc(a->held, room * sizeof *p);
        if (!p) return false;
        memset(p + a->held_room, 0, (room - a->held_room) * sizeof *p);
        a->held = p;
        a->held_room = room;
    }
    a->held[block]++;
    return true;
}

/* A lease over `bytes` at `offset` of the data, all within a block that the caller holds; that use passes to it. The
 * data are mapped. */
static Lease *lease_new(Arena *a, uint32_t block, uint64_t offset, uint64_t bytes, bool writable) {
    Lease *l = allocate_object(a->state->lease_type);
    if (!l) return NULL;
    Py_INCREF((PyObject *)a);
    l->arena = a;
    l->block = block;
    l->writable = writable;
    l->data = (writable ? a->writable : a->readable) + offset;
    l->bytes = (Py_ssize_t)bytes;
    return l;
}

static void lease_dealloc(PyObject *self) {
    Lease *l = (Lease *)self;
    if (l->arena) {
        l->arena->held[l->block]--;
        if (l->owns && l->arena->generation == atomic_load(&fork_generation)) arena_release(l->arena, l->block);
        Py_DECREF((PyObject *)l->arena);
    }
    free_object(self);
}

static int lease_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    Lease *l = (Lease *)self;
    return PyBuffer_FillInfo(view, self, l->data, l->bytes, !l->writable, flags);
}

static PyType_Slot lease_slots[] = {
    {Py_tp_dealloc, lease_dealloc}, {Py_bf_getbuffer, lease_getbuffer}, {0, NULL}};
static PyType_Spec lease_spec = {"rcg._native.Lease", sizeof(Lease), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, lease_slots};

/* ============================================================ member: one process of one graph */

enum { POLICY_AUTO, POLICY_FUTEX, POLICY_YIELD, POLICY_SPIN };

/* What a waiting end learned about its peer (all times in ns). */
typedef struct {
    uint64_t budget;
    uint32_t probe, together, together_limit, apart, apart_limit;
    bool is_quick; /* the last wait was short */
} Learned;

#define BUDGET_PROBE 20000u

static Learned learned_nothing(uint32_t member) {
    /* the two sides must not step aside together */
    return (Learned){.budget = BUDGET_PROBE, .apart_limit = 16, .together_limit = member == 0 ? 24 : 8};
}

typedef struct {
    uint64_t seen_ns, seen_ticks; /* when CLOCK_MONOTONIC was last looked at */
    uint64_t base_ns, base_ticks; /* a look before that, from which the rate is known */
    uint64_t rate, trust;         /* ns per tick, times 2^32; ticks for which a look is good */
    uint64_t last_ns;
    bool is_used;
} RecordClock;

typedef struct {
    PyObject_HEAD
    State *state;
    BoardHeader *board;
    /* of the board as it was when we joined: what others write over it later does no harm */
    uint64_t board_bytes, recorder_stride;
    uint32_t nrings, nevents;
    uint8_t *recorders;
    Event *tapes;
    Tray *trays;
    LedgerMap *ledger;
    Bell *bells;
    Recorder *recorder;
    Arena *arenas[MAX_MEMBERS];
    uint32_t index, nmembers, generation;
    uint64_t page; /* bytes of a page of memory */
    int policy;
    bool crowded;   /* more members than processors: pausing steals time from whom we wait for */
    bool recording; /* the flight recorder is on */
    bool looping;   /* runs a program: events are chained, poison ends it before more input is read */
    RecordClock clock;
    /* the open event of a looping member, and when the one before it ended, if nothing is open */
    Record open;
    uint64_t closed_ns;
    uint64_t coding_since_ns; /* the rest of it is decoding */
    bool is_open;
    Learned learned; /* of waits for any of several rings */
    struct Stash *stash; /* made when it is first needed */
    /* statistics */
    atomic_u64 spins, sleeps, wakes;
    atomic_u64 interrupts; /* of this process's own waits; watched like the sequence of a ring */
    atomic_u32 interruptible;
} Member;

static uint64_t *ring_offsets(BoardHeader *board) { return (uint64_t *)(board + 1); }
static uint64_t bells_offset(uint64_t nrings) {
    return align_up(sizeof(BoardHeader) + nrings * sizeof(uint64_t), LINE);
}
static Recorder *recorder_of(const Member *m, uint32_t member) {
    return (Recorder *)(m->recorders + member * m->recorder_stride);
}
static Tray *tray_of(const Member *m, uint32_t member) { return m->trays + member; }
static void ring_bell(Member *m, uint32_t member) {
    atomic_u32 *word = &m->bells[member].word;
    atomic_fetch_add(word, 1);
    futex(word, FUTEX_WAKE, INT_MAX, NULL);
    atomic_fetch_add_explicit(&m->wakes, 1, memory_order_relaxed);
}

/* ---- the recorder's clock
 *
 * Timestamps are most of what recording costs. Where the kernel itself keeps time by the processor's counter, which is
 * then the same on all processors, the counter is read directly and turned into CLOCK_MONOTONIC: from the last look at
 * that clock, which is less than a millisecond ago, by the rate between two looks. What that is off is about as long as
 * a look takes, some tens of nanoseconds. */

#define LOOK_TRUST 1000000u    /* ns for which a look is good */
#define BASE_MIN 1000000u      /* ns between the two looks that tell the rate */
#define BASE_MAX 1000000000u   /* after which the older one is replaced */
#define LOOK_TICKS 1000u       /* a look that takes longer was interrupted */

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

/* Now, for the recorder; with the GIL held. */
static inline uint64_t stamp(RecordClock *c) {
    uint64_t passed = ticks() - c->seen_ticks;
    uint64_t ns = passed < c->trust ? c->seen_ns + (uint64_t)(((unsigned __int128)passed * c->rate) >> 32) : 0;
    return c->last_ns = ns > c->last_ns ? ns : passed < c->trust ? c->last_ns : look_at_clock(c);
}

/* ============================================================ taking blocks */

/* Gives free blocks back to the system until that is `wanted` bytes: first the owner's, then the others'. */
static uint64_t reclaim(Member *m, uint64_t wanted) {
    uint64_t given = 0;
    for (uint32_t i = 0; i < m->nmembers && given < wanted; i++) {
        Arena *a = m->arenas[(m->index + i) % m->nmembers];
        uint32_t n = a ? atomic_load_explicit(&a->header->nblocks, memory_order_acquire) : 0;
        if (!n || n > MAX_BLOCKS || !arena_reaches(a, ARENA_DATA)) continue;
        for (uint32_t id = 0; id < n && given < wanted; id++) given += block_reclaim(a, m->board, id);
    }
    return given;
}

/* Admits so much more memory of blocks under the cap. */
static bool make_room(Member *m, uint64_t bytes) {
    BoardHeader *board = m->board;
    uint64_t used;
    do {
        used = atomic_fetch_add_explicit(&board->used_bytes, bytes, memory_order_relaxed) + bytes;
        if (used <= board->cap_bytes) return true;
        atomic_fetch_sub_explicit(&board->used_bytes, bytes, memory_order_relaxed);
    } while (reclaim(m, used - board->cap_bytes));
    return false;
}

/* Has `bytes` of a block of ours that is claimed be committed; false with errno. */
static bool block_commit(Member *m, uint32_t id, uint64_t bytes, bool is_short) {
    Arena *a = m->arenas[m->index];
    Block *b = &a->header->block[id];
    const Book *book = &a->books[id];
    uint64_t have = block_committed(b);
    if (have > book->capacity) have = 0; /* damaged */
    if (have < bytes) {
        uint64_t more = bytes - have;
        errno = ENOSPC;
        if (!make_room(m, more)) return false;
        int failed = arena_commit(a, ARENA_DATA + book->offset + have, more);
        /* The cap is not in the way, but the system: what is free may help here, too. */
        if (failed && errno == ENOSPC && reclaim(m, more)) failed = arena_commit(a, ARENA_DATA + book->offset + have, more);
        if (failed) {
            int e = errno;
            atomic_fetch_sub_explicit(&m->board->used_bytes, more, memory_order_relaxed);
            errno = e;
            return false;
        }
        atomic_fetch_add_explicit(a->committed, more, memory_order_relaxed);
        atomic_store_explicit(&b->committed, (uint32_t)(bytes / GRANULE), memory_order_relaxed);
        a->grown++;
    } else if (is_short && have - bytes >= EXACT_FROM / 4 && !arena_punch(a, book->offset + bytes, have - bytes)) {
        atomic_store_explicit(&b->committed, (uint32_t)(bytes / GRANULE), memory_order_relaxed);
        arena_discount(a, m->board, have - bytes);
    }
    return true;
}

/* Takes a block of at least `bytes` for the claims of `readers`; returns its id or -1 with errno. Warm blocks are taken
 * first, up to twice the size; while memory is short, of the right size only. */
static int64_t arena_take(Member *m, uint64_t bytes, uint64_t claims) {
    Arena *a = m->arenas[m->index];
    BoardHeader *board = m->board;
    uint64_t capacity, cap = board->cap_bytes, used = atomic_load_explicit(&board->used_bytes, memory_order_relaxed);
    uint32_t k = bytes <= a->reserve ? class_of(bytes, &capacity) : NCLASSES;
    int64_t id = -1;
    errno = ENOMEM;
    if (k >= NCLASSES || !arena_map(a, true)) return -1;
    bool is_short = used > cap / 2;
    uint64_t wanted = bytes < EXACT_FROM ? capacity : align_up(bytes, m->page);
    if (wanted > capacity) wanted = capacity;
    for (uint32_t j = k; j <= k + (is_short ? 0 : 4) && j < NCLASSES && id < 0; j++) id = class_take(a, j, claims);
    if (id < 0) {
        /* Growing: first give back what rests, so that changing sizes do not pile up. */
        uint64_t keep = used + wanted > cap / 2 ? 0 : cap / 8 > KEEP_FREE ? cap / 8 : KEEP_FREE;
        if (atomic_load_explicit(a->committed, memory_order_relaxed) > keep) arena_trim(a, board, keep);
        id = class_take_cold(a, k, claims);
        if (id < 0) id = arena_extend(a, k, capacity, claims);
        if (id < 0) id = arena_merge(a, board, k, capacity, claims);
        if (id < 0) return -1;
    }
    if (!block_commit(m, (uint32_t)id, wanted, is_short)) {
        int e = errno;
        block_unclaim(a, (uint32_t)id, claims);
        errno = e;
        return -1;
    }
    Block *b = &a->header->block[id];
    a->books[id].used_at = ++a->tick;
    atomic_store_explicit(&b->execution, NO_EXECUTION, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->ledger->ledger->claimed_bytes, block_committed(b), memory_order_relaxed);
    return id;
}

/* ---- events */

/* Where event number n lies, if the larger ring is in use or if it is not. */
static Event *event_at(const Member *m, uint32_t member, uint64_t n, bool taping) {
    return taping ? m->tapes + (uint64_t)member * TAPE_EVENTS + (n & (TAPE_EVENTS - 1))
                  : (Event *)(recorder_of(m, member) + 1) + (n & (m->nevents - 1));
}

static SpanName *span_names(const Member *m, uint32_t member) {
    return (SpanName *)((Event *)(recorder_of(m, member) + 1) + m->nevents);
}

static bool is_taping(const Member *m) { return atomic_load_explicit(&m->board->taping, memory_order_relaxed); }

/* With the GIL held: threads of a process write one after the other, so no locked instruction is needed, which would
 * wait until all that was just published has left this processor. */
static void write_event(Member *m, const Record *record) {
    uint64_t n = atomic_load_explicit(&m->recorder->head, memory_order_relaxed);
    Event *e = event_at(m, m->index, n, is_taping(m));
    atomic_store_explicit(&e->seq, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    e->record = *record;
    atomic_store_explicit(&e->seq, n + 1, memory_order_release);
    atomic_store_explicit(&m->recorder->head, n + 1, memory_order_release);
    /* The next line is here when it is needed: publishing a frame waits until all that was written before has left. */
    __builtin_prefetch(event_at(m, m->index, n + 1, is_taping(m)), 1);
}

/* Copies event number n of a member if it is (still) there. */
static bool read_event(const Member *m, uint32_t member, uint64_t n, Record *out) {
    bool taping = is_taping(m);
    for (int i = 0; i < 2; i++, taping = !taping) {
        if (taping && !atomic_load_explicit(&m->board->taped, memory_order_acquire)) continue; /* has no memory */
        Event *e = event_at(m, member, n, taping);
        if (atomic_load_explicit(&e->seq, memory_order_acquire) != n + 1) continue;
        *out = e->record;
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&e->seq, memory_order_relaxed) == n + 1) return true;
    }
    return false;
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

/* ---- waiting */

typedef struct {
    atomic_u64 *word; /* the wait ends when it is not `seen` any more */
    uint64_t seen;
    atomic_u32 *waiting; /* announced here */
    atomic_u32 *cpu;     /* where the other side last ran, plus one; may be NULL */
} Watch;

#define BUDGET_MAX 200000u /* never spin longer, and only while waits keep ending that soon */
#define CROWDED_BUDGET 50000u
#define QUICK 200000u /* a wait that ended so soon says that the next may as well */
#define PAUSE_PHASE 2000u
#define CROWDED_LIMIT 48
#define SIGNAL_SLICE 100000000u /* the main thread looks for Ctrl-C this often */

enum { WAIT_READY, WAIT_TIMEOUT, WAIT_SIGNALS, WAIT_POISON };

static bool watch_ready(const Watch *w, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (atomic_load_explicit(w[i].word, memory_order_acquire) != w[i].seen) return true;
    return false;
}

static bool poisoned(const Member *m) {
    return atomic_load_explicit(&m->board->poison, memory_order_acquire) != 0;
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
    sched_setaffinity(0, sizeof all, &all);
}

/* Both sides on one processor: spinning would only keep the peer from running, and the scheduler may leave them there
 * for seconds. Every so often step off this processor; the two sides use different limits, or they would move
 * together. */
static void step_aside(Learned *l, uint32_t cpu, uint32_t most) {
    if (++l->together < l->together_limit) return;
    l->together = 0;
    if (l->together_limit < most) l->together_limit *= 2;
    nudge(cpu, false);
}

/* The futex policy never spins, and waking an idle processor takes ten times as long as a switch on this one (on
 * virtual machines; FACTS: 20 to 100 us against 4 to 9). So while waits are short, which is when both sides take turns
 * and cannot run at the same time anyway, the loop goes where its writer is. */
static void step_closer(const Watch *w, Learned *l) {
    uint32_t there = w->cpu ? atomic_load_explicit(w->cpu, memory_order_relaxed) : 0;
    int here = sched_getcpu();
    if (!there || here < 0 || there == (uint32_t)here + 1 || !l->is_quick || ++l->apart < l->apart_limit) return;
    l->apart = 0;
    if (l->apart_limit < 4096) l->apart_limit *= 2;
    nudge(there - 1, true);
}

/* A wait ended after `took`: how long the next one may keep the processor. A loop that shares processors with the
 * rest of its graph yields rather than pauses, which costs the others nothing: it may do so for the whole budget
 * while executions follow each other closely, and a miss ends that. */
static void learn(const Member *m, Learned *l, uint64_t took, uint64_t times, uint64_t more) {
    uint64_t wanted = times * took + more, most = m->crowded ? CROWDED_BUDGET : BUDGET_MAX;
    if (wanted > most || (m->crowded && m->looping)) wanted = most;
    l->budget = m->crowded && m->looping ? wanted : (3 * l->budget + wanted) / 4;
}

/* How long ago that was, which the recorder's clock may have ahead by some tens of nanoseconds. */
static uint64_t since_ns(uint64_t start) {
    uint64_t t = now_ns();
    return t > start ? t - start : 0;
}

/* The part of a wait that keeps the processor: how long it took until ready, or 0. */
static uint64_t spin(Member *m, const Watch *w, uint32_t n, Learned *l, uint64_t start) {
    uint64_t budget, pause_phase;
    switch (m->policy) {
    case POLICY_FUTEX: return 0;
    case POLICY_YIELD: budget = CROWDED_BUDGET, pause_phase = 0; break;
    case POLICY_SPIN: budget = pause_phase = BUDGET_MAX; break;
    default:
        budget = l->budget;
        if (budget < PAUSE_PHASE) {
            if (++l->probe < 32) return 0;
            l->probe = 0;
            budget = BUDGET_PROBE;
        }
        pause_phase = m->crowded ? 0 : PAUSE_PHASE;
        if ((!m->crowded || !m->looping) && w->cpu) {
            int cpu = sched_getcpu();
            if (cpu >= 0 && atomic_load_explicit(w->cpu, memory_order_relaxed) == (uint32_t)cpu + 1) {
                step_aside(l, (uint32_t)cpu, m->crowded ? CROWDED_LIMIT : 65536);
                return 0;
            } else {
                l->together = 0;
                if (l->together_limit > 8 && !(++l->apart & 1023)) l->together_limit /= 2;
            }
        }
    }
    for (uint64_t t = 0; t < budget; t = since_ns(start)) {
        if (t < pause_phase)
            for (int i = 0; i < 16; i++) {
                relax();
                if (watch_ready(w, n)) goto ready;
            }
        else
            sched_yield();
        if (watch_ready(w, n)) goto ready;
        if (poisoned(m)) return 0;
    }
    l->budget /= 2;
    return 0;
ready:
    atomic_fetch_add_explicit(&m->spins, 1, memory_order_relaxed);
    uint64_t took = since_ns(start);
    learn(m, l, took, 2, 10000);
    return took + !took;
}

/* A thread that waits for nothing but an interrupt has nothing to do: that is not counted. */
static bool is_awaited(const Member *m, const Watch *w, uint32_t n) { return n > 1 || w->word != &m->interrupts; }

static void count_wait(Member *m, uint64_t took) {
    atomic_fetch_add_explicit(&m->recorder->waited_ns, took, memory_order_relaxed);
}

/* Waits without the GIL until one watch is ready. `deadline` in CLOCK_MONOTONIC ns, UINT64_MAX for none. Adds how long
 * it waited to `*took`, and stores in `*ended` when it woke up, if it slept. `now` is a timestamp just taken, or 0. */
static int wait_any(Member *m, const Watch *w, uint32_t n, Learned *l, uint64_t deadline, uint64_t now, uint64_t *took,
                    uint64_t *ended) {
    if (watch_ready(w, n)) return WAIT_READY;
    if (poisoned(m)) return WAIT_POISON;
    uint64_t start = now ? now : now_ns(), spun;
    if (start >= deadline) return WAIT_TIMEOUT;
    if ((spun = spin(m, w, n, l, start))) {
        *took += spun;
        if (is_awaited(m, w, n)) count_wait(m, spun);
        return WAIT_READY;
    }
    if (m->policy == POLICY_FUTEX && m->looping && !m->crowded) step_closer(w, l);

    atomic_u32 *bell = &m->bells[m->index].word;
    bool is_main = syscall(SYS_gettid) == getpid();
    int outcome;
    uint32_t state = m->recording ? atomic_exchange_explicit(&m->recorder->state, NOW_WAITING, memory_order_relaxed) : 0;
    if (is_awaited(m, w, n)) atomic_store_explicit(&m->recorder->waiting_since_ns, start, memory_order_relaxed);
    for (uint32_t i = 0; i < n; i++) atomic_fetch_add(w[i].waiting, 1);
    for (;;) {
        uint32_t value = atomic_load(bell);
        bool ready = false;
        for (uint32_t i = 0; i < n && !ready; i++) ready = atomic_load(w[i].word) != w[i].seen;
        if (ready) {
            outcome = WAIT_READY;
            break;
        }
        if (atomic_load(&m->board->poison)) {
            outcome = WAIT_POISON;
            break;
        }
        uint64_t t = now_ns(), left = deadline - t;
        if (t >= deadline) {
            outcome = WAIT_TIMEOUT;
            break;
        }
        if (is_main && left > SIGNAL_SLICE) left = SIGNAL_SLICE;
        struct timespec ts = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
        atomic_fetch_add_explicit(&m->sleeps, 1, memory_order_relaxed);
        long r = futex(bell, FUTEX_WAIT, value, deadline == UINT64_MAX && !is_main ? NULL : &ts);
        if (r && (errno == EINTR || (errno == ETIMEDOUT && is_main))) {
            outcome = watch_ready(w, n) ? WAIT_READY : now_ns() >= deadline ? WAIT_TIMEOUT : WAIT_SIGNALS;
            break;
        }
    }
    for (uint32_t i = 0; i < n; i++) atomic_fetch_sub(w[i].waiting, 1);
    if (m->recording) atomic_store_explicit(&m->recorder->state, state, memory_order_relaxed);
    *ended = now_ns();
    uint64_t slept = *ended > start ? *ended - start : 0;
    if (is_awaited(m, w, n)) {
        atomic_store_explicit(&m->recorder->waiting_since_ns, 0, memory_order_relaxed);
        count_wait(m, slept);
    }
    l->is_quick = outcome == WAIT_READY && slept < QUICK;
    if (l->is_quick) learn(m, l, slept, 1, 5000);
    *took += slept;
    return outcome;
}

static PyObject *raise_poison(Member *m) {
    uint32_t culprit = atomic_load(&m->board->culprit);
    PyObject *args = Py_BuildValue("(Ii)", atomic_load(&m->board->poison), culprit == NO_MEMBER ? -1 : (int)culprit);
    if (args) {
        PyErr_SetObject(m->state->poisoned, args);
        Py_DECREF(args);
    }
    return NULL;
}

/* Waits with the GIL held by the caller; 0 when ready, -1 with an exception. */
static int wait_for(Member *m, const Watch *w, uint32_t n, Learned *l, uint64_t deadline, uint64_t now,
                    uint64_t *waited) {
    uint64_t took = 0, ended = 0;
    int outcome;
    do {
        Py_BEGIN_ALLOW_THREADS
        outcome = wait_any(m, w, n, l, deadline, now, &took, &ended);
        now = 0;
        Py_END_ALLOW_THREADS
    } while (outcome == WAIT_SIGNALS && !PyErr_CheckSignals());
    *waited += took; /* waits of one op add up */
    /* Who slept also waits for Python's lock; after a spin, another timestamp would only lengthen the way. */
    if (ended && m->recording) *waited += now_ns() - ended;
    if (took && is_awaited(m, w, n)) atomic_fetch_add_explicit(&m->recorder->waits, 1, memory_order_relaxed);
    switch (outcome) {
    case WAIT_READY: return 0;
    case WAIT_TIMEOUT: PyErr_SetNone(m->state->timed_out); return -1;
    case WAIT_POISON: raise_poison(m); return -1;
    default: return -1; /* what a signal handler raised */
    }
}

/* ============================================================ stash: what there was no shared memory for */

/* A copy of some bytes on the heap. It goes when all readers of its frame have moved on. */
typedef struct Kept {
    struct Kept *next;
    uint64_t id, bytes, seq; /* seq NO_EXECUTION: its frame is not published yet */
    Ring *ring;
    uint32_t nreaders;
    uint8_t data[];
} Kept;

typedef struct Stash {
    pthread_mutex_t lock; /* of all that follows; no Python code runs while it is held */
    Kept *first;
    uint64_t last_id;
    atomic_u32 stop;
    pthread_t thread;
    Tray *tray;
    Ledger *ledger;
} Stash;

#define SWEEP_NS 20000000u /* so soon is a copy freed that nobody needs any more */

static bool is_needed(const Kept *k) {
    if (k->seq == NO_EXECUTION) return true;
    for (uint32_t i = 0; i < k->nreaders; i++)
        if (atomic_load_explicit(&k->ring->reader[i].seq, memory_order_acquire) <= k->seq) return true;
    return false;
}

static void kept_free(Stash *s, Kept *k) {
    atomic_fetch_sub_explicit(&s->ledger->stashed_bytes, k->bytes, memory_order_relaxed);
    free(k);
}

/* Frees what nobody needs any more; returns whether anything is left. */
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

/* The thread that serves a stash; it needs no Python. */
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
    sigset_t all, before; /* signals are for the threads of Python */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&s->thread, NULL, stash_serve, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        free(s);
        return NULL;
    }
    atomic_store(&s->tray->is_served, 1);
    return m->stash = s;
}

static void stash_close(Member *m) {
    Stash *s = m->stash;
    m->stash = NULL;
    if (!s || m->generation != atomic_load(&fork_generation)) return; /* the thread stayed with the parent */
    atomic_store(&s->stop, 1);
    /* It sleeps on a word that only says whose turn it is: wake it until it has seen that it is over. */
    const struct timespec moment = {0, 50000};
    for (;;) {
        futex(&s->tray->turn, FUTEX_WAKE, INT_MAX, NULL);
        if (!pthread_tryjoin_np(s->thread, NULL)) break;
        nanosleep(&moment, NULL);
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
    pthread_mutex_unlock(&s->lock);
    atomic_fetch_add_explicit(&s->ledger->stashes, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->ledger->stashed_bytes, bytes, memory_order_relaxed);
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
static int tray_wait(Member *m, Tray *t, atomic_u32 *word, uint32_t seen, uint64_t deadline) {
    uint64_t now = now_ns(), left = deadline > now ? deadline - now : 0;
    if (!left) return WAIT_TIMEOUT;
    bool is_turn = word == &t->turn;
    uint64_t slice = is_turn ? SIGNAL_SLICE : 50000; /* who lets go of a tray wakes nobody */
    if (left > slice) left = slice;
    struct timespec ts = {0, (long)left};
    if (is_turn) {
        long r = futex(word, FUTEX_WAIT, seen, &ts);
        if (!r || errno == EAGAIN) return WAIT_READY;
    } else
        nanosleep(&ts, NULL);
    if (atomic_load(word) != seen) return WAIT_READY;
    if (poisoned(m)) return WAIT_POISON; /* the writer may have left */
    return syscall(SYS_gettid) == getpid() ? WAIT_SIGNALS : WAIT_READY;
}

/* Pulls what is missing of a copy in a member's stash: WAIT_READY when it is all here, else why not. Without the GIL. */
static int pull_pieces(Member *m, Tray *t, uint64_t id, uint8_t *to, uint64_t bytes, uint64_t *have, uint64_t deadline,
                       bool *is_gone) {
    int outcome = WAIT_READY;
    uint32_t nobody = 0;
    while (!atomic_compare_exchange_strong(&t->user, &nobody, m->index + 1)) {
        if ((outcome = tray_wait(m, t, &t->user, nobody, deadline)) != WAIT_READY) return outcome;
        nobody = 0;
    }
    while (*have < bytes && outcome == WAIT_READY) {
        uint32_t turn;
        /* who was here before may have left while its answer was on the way */
        while (outcome == WAIT_READY && (turn = atomic_load(&t->turn)) & 1) outcome = tray_wait(m, t, &t->turn, turn, deadline);
        if (outcome != WAIT_READY) break;
        t->id = id;
        t->offset = *have;
        atomic_store(&t->turn, turn + 1);
        futex(&t->turn, FUTEX_WAKE, INT_MAX, NULL);
        while (outcome == WAIT_READY && atomic_load(&t->turn) == turn + 1)
            outcome = tray_wait(m, t, &t->turn, turn + 1, deadline);
        if (outcome != WAIT_READY) break;
        uint64_t got = t->bytes;
        if (!got || got > TRAY_BYTES || got > bytes - *have) {
            *is_gone = true;
            break;
        }
        memcpy(to + *have, t->data, got);
        *have += got;
    }
    atomic_store(&t->user, 0);
    return outcome;
}

/* timeout argument in ns: negative = never */
static int deadline_from(PyObject *timeout, uint64_t *deadline) {
    *deadline = UINT64_MAX;
    if (!timeout || timeout == Py_None) return 0;
    long long ns = PyLong_AsLongLong(timeout);
    if (ns == -1 && PyErr_Occurred()) return -1;
    if (ns >= 0) *deadline = now_ns() + (uint64_t)ns;
    return 0;
}

static int check_usable(Member *m) {
    if (m->generation == atomic_load(&fork_generation)) return 0;
    PyErr_SetString(PyExc_RuntimeError,
                    "this process was forked from a member of the graph and is not one itself; use the graph in the "
                    "parent process");
    return -1;
}

/* ============================================================ ends of a ring */

/* A copy that is pulled from a stash: kept until its frame is taken, so that who is interrupted goes on from there. */
typedef struct {
    uint64_t id, have; /* have: bytes so far */
    PyObject *object;
} Pulled;

typedef struct {
    PyObject_HEAD
    Member *member;
    Ring *ring;
    uint32_t index, nslots, slot_bytes, nreaders, writer; /* as they were when it was opened, like the next two */
    uint8_t *slots;
    uint32_t readers[MAX_MEMBERS];
    uint64_t claims; /* one for each reader */
    uint64_t seq;    /* next frame */
    uint32_t op;
    uint32_t reader; /* index of this reader in the ring */
    bool busy;       /* a thread is inside */
    Learned learned;
    PyObject *decode, *failure; /* Reader: (data[, buffers=]) -> value, (data) -> failed value */
    uint64_t room_until;        /* Writer: frames up to here have room */
    uint64_t opened_ns;         /* Writer: when the next write began, if it was opened */
    uint64_t pull_until;        /* Reader: how long what lies in a stash may be waited for */
    Pulled *pulled;             /* Reader: what came from a stash for the next frame so far */
    uint32_t npulled, pulled_room;
    bool has_signals; /* Reader: pulling stopped for signal handlers to run, and goes on after that */
} End;

static uint8_t *slot_of(const End *e) { return e->slots + (e->seq & (e->nslots - 1)) * (uint64_t)e->slot_bytes; }

static void pulled_clear(End *e) {
    while (e->npulled) Py_DECREF(e->pulled[--e->npulled].object);
}

static void end_dealloc(PyObject *self) {
    End *e = (End *)self;
    pulled_clear(e);
    free(e->pulled);
    Py_XDECREF(e->decode);
    Py_XDECREF(e->failure);
    Py_XDECREF((PyObject *)e->member);
    free_object(self);
}

static int end_enter(End *e) {
    if (check_usable(e->member)) return -1;
    if (e->busy) {
        PyErr_SetString(PyExc_RuntimeError, "this end of the ring is in use by another thread");
        return -1;
    }
    e->busy = true;
    return 0;
}

static PyObject *end_get_seq(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(((End *)self)->seq);
}

/* In Python 3.11 any container that is made may start a collection of garbage, and so any __del__. Where one must not
 * run, because it may come back to what is half done, this goes around the making; with the lock of Python held. */
#define WITHOUT_COLLECTING(statement)                                                                                  \
    do {                                                                                                               \
        int collects_ = PyGC_Disable();                                                                                \
        statement;                                                                                                     \
        if (collects_) PyGC_Enable();                                                                                  \
    } while (0)

static PyObject *raise_corrupt(const End *e, const char *what) {
    WITHOUT_COLLECTING(PyErr_Format(e->member->state->corrupt, "ring %u, frame %llu: %s", e->index,
                                    (unsigned long long)e->seq, what));
    return NULL;
}

/* ---- writing */

/* Whether every reader left the slot that frame `seq` will use: 1, or 0 and which reader is how far; -1 with an
 * exception. */
static int has_room(End *e, uint32_t *late, uint64_t *at) {
    if (e->seq < e->room_until) return 1;
    uint64_t behind = 0; /* how far the slowest reader is */
    for (uint32_t i = 0; i < e->nreaders; i++) {
        uint64_t seen = atomic_load_explicit(&e->ring->reader[i].seq, memory_order_acquire);
        if (e->seq - seen > e->nslots) {
            raise_corrupt(e, "a reader's counter is damaged");
            return -1;
        }
        if (e->seq - seen == e->nslots) {
            *late = i;
            *at = seen;
            return 0;
        }
        if (e->seq - seen > behind) behind = e->seq - seen;
    }
    e->room_until = e->seq - behind + e->nslots;
    return 1;
}

static int wait_for_room(End *e, uint64_t deadline, uint64_t *waited, uint32_t *peer) {
    Ring *r = e->ring;
    uint32_t late;
    uint64_t seen;
    int room;
    while (!(room = has_room(e, &late, &seen))) {
        Watch w = {&r->reader[late].seq, seen, &r->room_wanted, NULL};
        if (e->member->recording) atomic_store_explicit(&e->member->recorder->ring, e->index, memory_order_relaxed);
        *peer = e->readers[late];
        if (wait_for(e->member, &w, 1, &e->learned, deadline, 0, waited)) return -1;
    }
    return room < 0 ? -1 : 0;
}

typedef struct {
    Arena *arena; /* of a block, fresh or forwarded; NULL: a copy in the stash */
    uint32_t block;
    bool is_fresh;
    Kept *kept;
} Taken;

static PyObject *raise_no_memory(Member *m, uint64_t bytes) {
    int e = errno;
    PyObject *args =
        Py_BuildValue("(KKKi)", (unsigned long long)bytes,
                      (unsigned long long)atomic_load_explicit(&m->board->used_bytes, memory_order_relaxed),
                      (unsigned long long)m->board->cap_bytes, e);
    if (args) {
        PyErr_SetObject(m->state->no_memory, args);
        Py_DECREF(args);
    }
    return NULL;
}

static void copy(uint8_t *to, const void *from, uint64_t bytes) {
    if (bytes > UNLOCKED_COPY) {
        Py_BEGIN_ALLOW_THREADS
        memcpy(to, from, bytes);
        Py_END_ALLOW_THREADS
    } else
        memcpy(to, from, bytes);
}

/* Which buffers of a frame will be written to: bit i of `bits`, or byte i of `each` where there are more than 64. */
typedef struct {
    uint64_t bits;
    const char *each;
    Py_ssize_t count;
} Writable;

static bool is_writable(const Writable *w, uint32_t i) {
    return w->each ? i < w->count && w->each[i] : i < 64 && (w->bits >> i) & 1;
}

/* A frame on its way out: what it shall contain, and once it is prepared, where that lies and which claims it took. */
typedef struct {
    End *end;
    uint32_t kind, ntaken;
    const char *data;
    uint64_t data_bytes;
    PyObject *buffers; /* list or NULL */
    Writable writable;
    Py_buffer view; /* of data that is not bytes */
    Py_buffer *views; /* of the buffers */
    uint32_t nviews, body_block;
    Desc *table;
    Taken *taken;
    uint64_t body_bytes, payload;
    uint64_t ended_ns; /* when it was prepared, for the recorder */
    bool stashes;      /* what there is no memory for goes to the stash */
} Outgoing;

static void outgoing_begin(Outgoing *o, End *end) {
    *o = (Outgoing){.end = end, .body_block = NO_BLOCK, .stashes = end->member->looping};
}

/* From (kind, data, buffers=None, writable=0). What it refers to must live as long as it does. */
static int outgoing_parse(Outgoing *o, PyObject *const *args, Py_ssize_t nargs) {
    o->kind = (uint32_t)PyLong_AsUnsignedLong(args[0]);
    if (PyErr_Occurred()) return -1;
    o->buffers = nargs > 2 && args[2] != Py_None ? args[2] : NULL;
    if (o->buffers && !PyList_Check(o->buffers)) {
        PyErr_SetString(PyExc_TypeError, "buffers must be a list or None");
        return -1;
    }
    if (nargs > 3 && PyBytes_Check(args[3])) {
        if (PyBytes_AsStringAndSize(args[3], (char **)&o->writable.each, &o->writable.count)) return -1;
    } else if (nargs > 3) {
        o->writable.bits = PyLong_AsUnsignedLongLong(args[3]);
        if (PyErr_Occurred()) return -1;
    }
    Py_ssize_t bytes;
    if (PyBytes_Check(args[1])) {
        if (PyBytes_AsStringAndSize(args[1], (char **)&o->data, &bytes)) return -1;
    } else {
        if (PyObject_GetBuffer(args[1], &o->view, PyBUF_SIMPLE)) return -1;
        o->data = o->view.buf;
        bytes = o->view.len;
    }
    o->data_bytes = (uint64_t)bytes;
    return 0;
}

/* May run users' code, as getting and releasing buffers does. */
static void outgoing_clear(Outgoing *o) {
    if (o->view.obj) PyBuffer_Release(&o->view);
    for (uint32_t i = 0; i < o->nviews; i++) PyBuffer_Release(&o->views[i]);
    PyMem_Free(o->views);
    PyMem_Free(o->table);
    PyMem_Free(o->taken);
}

/* Takes back the claims of a frame that will not be published after all. */
static void outgoing_undo(Outgoing *o) {
    bool is_ours = o->end->member->generation == atomic_load(&fork_generation);
    for (; o->ntaken; o->ntaken--) {
        const Taken *t = &o->taken[o->ntaken - 1];
        if (!is_ours) continue;
        if (t->kept) stash_drop(o->end->member, t->kept);
        else arena_unclaim(t->arena, t->block, o->end->claims);
    }
}

/* Room for some bytes of a frame outside of its slot: a block, or if there is no memory for one, a copy in the stash.
 * NULL with an exception if there is neither. */
static uint8_t *outgoing_take(Outgoing *o, uint64_t bytes) {
    End *e = o->end;
    Member *m = e->member;
    Arena *mine = m->arenas[m->index];
    Taken *t = &o->taken[o->ntaken];
    int64_t id = arena_take(m, bytes, e->claims);
    if (id >= 0) {
        *t = (Taken){.arena = mine, .block = (uint32_t)id, .is_fresh = true};
        o->ntaken++;
        return mine->writable + mine->books[id].offset;
    }
    int reason = errno;
    Kept *k = o->stashes ? stash_keep(m, bytes) : NULL;
    if (!k) {
        errno = reason;
        raise_no_memory(m, bytes);
        return NULL;
    }
    *t = (Taken){.block = STASHED, .kept = k};
    o->ntaken++;
    return k->data;
}

/* The frame is about to be published: what it took becomes its execution's. */
static void outgoing_assign(const Outgoing *o) {
    End *e = o->end;
    Member *m = e->member;
    for (uint32_t i = 0; i < o->ntaken; i++) {
        const Taken *t = &o->taken[i];
        if (t->kept) {
            stash_publish(m, t->kept, e->ring, e->nreaders, e->seq);
            atomic_store_explicit(&e->ring->stashed, e->seq + 1, memory_order_relaxed);
        } else if (t->is_fresh) ledger_assign(m->ledger->ledger, &t->arena->header->block[t->block], e->seq);
    }
}

/* The first half of writing a frame: everything but its slot. Gets the buffers, which may run users' code, takes blocks
 * and copies into them what does not travel in the slot, which lets other threads run. The ring is not touched, so any
 * number of threads may prepare frames for it at once. 0, or -1 with an exception and nothing left behind. */
static int prepare(Outgoing *o) {
    End *e = o->end;
    Member *m = e->member;
    PyObject *buffers = o->buffers;
    const uint64_t data_bytes = o->data_bytes;
    Arena *mine = m->arenas[m->index];
    uint32_t n = buffers ? (uint32_t)PyList_Size(buffers) : 0;
    int result = -1;
    uint64_t body = n * sizeof(Desc) + data_bytes, total = data_bytes;
    if (n) {
        o->views = PyMem_Calloc(n, sizeof *o->views);
        o->table = PyMem_Calloc(n, sizeof *o->table);
        if (!o->views || !o->table) {
            PyErr_NoMemory();
            goto done;
        }
        for (; o->nviews < n; o->nviews++) {
            PyObject *item = PyList_GetItem(buffers, o->nviews);
            if (!item) goto done;
            Py_INCREF(item); /* getting its buffer may run code that changes the list */
            int refused = PyObject_GetBuffer(item, &o->views[o->nviews], PyBUF_ANY_CONTIGUOUS);
            Py_DECREF(item);
            if (refused) goto done;
            uint64_t bytes = (uint64_t)o->views[o->nviews].len;
            total += bytes;
            if (bytes <= INLINE_BUFFER) body += bytes;
        }
    }
    bool spills = sizeof(Frame) + body > e->slot_bytes;
    uint64_t outside = total - (body - n * sizeof(Desc)); /* of the slot: the large buffers */
    if (spills) outside += body;
    if (outside > m->board->cap_bytes) { /* no order of executions would make this fit */
        errno = EFBIG;
        raise_no_memory(m, outside);
        goto done;
    }
    if (n + spills && !(o->taken = PyMem_Calloc(n + spills, sizeof *o->taken))) {
        PyErr_NoMemory();
        goto done;
    }
    uint8_t *at = NULL; /* of the body, if it lies outside the slot */
    if (spills) {
        if (!(at = outgoing_take(o, body))) goto done;
        o->body_block = o->taken[0].block;
    }
    uint64_t offset = n * sizeof(Desc) + data_bytes;
    for (uint32_t i = 0; i < n; i++) {
        const Py_buffer *v = &o->views[i];
        uint64_t bytes = (uint64_t)v->len;
        bool writes = is_writable(&o->writable, i);
        Desc d = {m->index, NO_BLOCK, writes ? DESC_WRITABLE : 0, 0, 0, bytes};
        if (bytes <= INLINE_BUFFER) {
            d.offset = offset;
            if (spills) memcpy(at + offset, v->buf, bytes);
            offset += bytes;
            o->table[i] = d;
            continue;
        }
        int64_t id = -1;
        Arena *from = NULL;
        if (!writes) /* a buffer that came to us read-only goes on with one more claim, not with a copy */
            for (uint32_t j = 0; j < m->nmembers && id < 0; j++)
                if (m->arenas[j] && (id = arena_find(m->arenas[j], v->buf, bytes)) >= 0) {
                    from = m->arenas[j];
                    if (!arena_share(from, (uint32_t)id, e->readers, e->nreaders)) id = -1;
                    break;
                }
        if (id >= 0) {
            d.arena = from->owner;
            d.block = (uint32_t)id;
            d.offset = (uint64_t)((uint8_t *)v->buf - from->readable) - from->header->block[id].offset;
            o->taken[o->ntaken++] = (Taken){.arena = from, .block = d.block};
            mine->forwards++;
        } else {
            uint8_t *to = outgoing_take(o, bytes);
            if (!to) goto done;
            const Taken *t = &o->taken[o->ntaken - 1];
            d.block = t->block;
            if (t->kept) d.offset = t->kept->id;
            copy(to, v->buf, bytes);
            mine->copies++;
        }
        o->table[i] = d;
    }
    if (spills) {
        if (n) memcpy(at, o->table, n * sizeof(Desc));
        copy(at + n * sizeof(Desc), o->data, data_bytes);
    }
    o->body_bytes = body;
    o->payload = total;
    result = check_usable(m); /* users' code may have forked, and this be the child */
done:
    if (result) outgoing_undo(o);
    return result;
}

/* The second half: puts a prepared frame into the next slot of its ring. Nothing else runs meanwhile. */
static void place(const Outgoing *o) {
    End *e = o->end;
    uint32_t n = o->nviews;
    Frame *f = (Frame *)slot_of(e);
    if (o->body_block == NO_BLOCK) {
        uint8_t *at = (uint8_t *)(f + 1);
        if (n) memcpy(at, o->table, n * sizeof(Desc));
        memcpy(at + n * sizeof(Desc), o->data, o->data_bytes);
        for (uint32_t i = 0; i < n; i++)
            if (o->table[i].block == NO_BLOCK) memcpy(at + o->table[i].offset, o->views[i].buf, o->table[i].bytes);
    }
    Frame head = {FRAME_MAGIC, o->kind, e->seq, o->body_bytes, o->data_bytes, n, o->body_block, o->payload, 0, 0};
    if (o->body_block == STASHED) head.body_stash = sign_stashed(head, o->taken[0].kept->id);
    head.check = check_header(&head);
    for (uint32_t i = 0; i < n; i++) head.check = check_desc(head.check, &o->table[i]);
    *f = head;
}

static void publish(End *e) {
    Ring *r = e->ring;
    Member *m = e->member;
    int cpu = sched_getcpu();
    atomic_store_explicit(&r->cpu, (uint32_t)(cpu + 1), memory_order_relaxed);
    atomic_store(&r->seq, ++e->seq); /* sequentially consistent: before the loads of `waiting` */
    for (uint32_t i = 0; i < e->nreaders; i++)
        if (atomic_load(&r->reader[i].waiting)) ring_bell(m, e->readers[i]);
}

/* open(): the next write begins now, with encoding its value; for the recorder */
static PyObject *writer_open(PyObject *self, PyObject *unused) {
    (void)unused;
    End *e = (End *)self;
    if (check_usable(e->member)) return NULL;
    if (e->member->looping) mark(e->member, e->op, e->seq);
    if (e->member->recording) e->opened_ns = e->member->looping ? e->member->open.start_ns : stamp(&e->member->clock);
    Py_RETURN_NONE;
}

/* shut(): what was opened is not written; any number of times */
static PyObject *writer_shut(PyObject *self, PyObject *unused) {
    (void)unused;
    ((End *)self)->opened_ns = 0;
    Py_RETURN_NONE;
}

/* Writes one frame, waiting for room first, while nothing is held: 0, or -1 with an exception and nothing written. */
static int send_frame(Outgoing *o, uint64_t deadline) {
    End *e = o->end;
    Member *m = e->member;
    uint64_t waited = 0, coded = 0, opened = e->opened_ns;
    uint32_t peer = NO_MEMBER;
    int failed = -1;
    if (end_enter(e)) return -1;
    if (m->looping) {
        mark(m, e->op, e->seq);
        if (poisoned(m)) {
            raise_poison(m);
            goto done;
        }
    }
    if (m->recording && (opened || !m->looping)) {
        uint64_t t = stamp(&m->clock);
        if (opened) coded = t - opened;
        else opened = t;
    }
    if (wait_for_room(e, deadline, &waited, &peer) || prepare(o)) goto done;
    place(o);
    if (m->looping) {
        m->open.waited_ns += waited;
        m->open.coded_ns += coded;
        m->open.bytes += o->payload;
        m->open.peer = peer;
    }
    /* A loop's write ends here: whoever is woken up by publishing may take the processor. It is written down after
     * that, because what waits for the frame would wait for that, too. */
    uint64_t ended = m->recording && m->looping ? stamp(&m->clock) : 0;
    if (!m->looping) ledger_begin(m->ledger->ledger, e->seq);
    outgoing_assign(o);
    publish(e);
    if (ended) close_open(m, ended);
    else if (m->recording) {
        ended = stamp(&m->clock);
        write_event(m, &(Record){opened, ended, waited, coded, e->seq - 1, o->payload, e->op, peer});
        now_doing(m, e->op, e->seq - 1, ended, NOW_IDLE);
    }
    failed = 0;
done:
    e->opened_ns = 0;
    e->busy = false;
    return failed;
}

/* write(kind, data, buffers=None, writable=0, timeout_ns=-1); `writable`: bit i, or byte i of bytes, for buffer i */
static PyObject *writer_write(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    End *e = (End *)self;
    if (nargs < 2) {
        PyErr_SetString(PyExc_TypeError, "write(kind, data, buffers=None, writable=0, timeout_ns=-1)");
        return NULL;
    }
    Outgoing o;
    outgoing_begin(&o, e);
    uint64_t deadline = UINT64_MAX;
    int failed = (nargs > 4 && deadline_from(args[4], &deadline)) || outgoing_parse(&o, args, nargs) ||
                 send_frame(&o, deadline);
    outgoing_clear(&o);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

/* ---- reading */

typedef struct {
    uint32_t kind;
    uint64_t payload;
    PyObject *data;    /* bytes, or a lease over a large body */
    PyObject *buffers; /* list or NULL */
} Message;

static void message_clear(Message *msg) {
    Py_CLEAR(msg->data);
    Py_CLEAR(msg->buffers);
}

/* While more than half the cap is claimed, or another execution would not fit beside what is, results are copied to the
 * heap instead of holding blocks. */
static bool memory_is_short(const Member *m, const Arena *a) {
    const Ledger *l = m->ledger->ledger;
    uint64_t claimed = atomic_load_explicit(&l->claimed_bytes, memory_order_relaxed), cap = m->board->cap_bytes;
    return claimed > cap / 2 || claimed + atomic_load_explicit(&l->need_bytes, memory_order_relaxed) > cap ||
           atomic_load_explicit(&a->header->nblocks, memory_order_relaxed) > MAX_BLOCKS / 2;
}

static PyObject *heap_room(uint64_t bytes, bool writable) {
    return writable ? PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)bytes)
                    : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
}

static uint8_t *heap_bytes(PyObject *o) { return (uint8_t *)(PyBytes_Check(o) ? PyBytes_AsString(o) : PyByteArray_AsString(o)); }

static PyObject *heap_copy(const uint8_t *from, uint64_t bytes, bool writable) {
    PyObject *o = heap_room(bytes, writable);
    if (o) copy(heap_bytes(o), from, bytes);
    return o;
}

/* A copy of bytes of an arena's data that may not be mapped here. */
static PyObject *copy_out(Arena *a, uint64_t at, uint64_t bytes, bool writable) {
    const uint8_t *map = a->readable ? a->readable : a->writable;
    if (map) return heap_copy(map + at, bytes, writable);
    PyObject *o = heap_room(bytes, writable);
    if (!o) return NULL;
    uint8_t *to = heap_bytes(o);
    int failed = 0;
    Py_BEGIN_ALLOW_THREADS
    while (bytes && !failed) {
        ssize_t n = pread(a->fd, to, bytes, (off_t)(ARENA_DATA + at));
        if (n > 0) to += n, at += (uint64_t)n, bytes -= (uint64_t)n;
        else failed = n == 0 || errno != EINTR;
    }
    Py_END_ALLOW_THREADS
    if (!failed) return o;
    Py_DECREF(o);
    PyErr_SetFromErrno(PyExc_OSError);
    return NULL;
}

/* What was pulled so far of a copy for the next frame; NULL with an exception. */
static Pulled *pulled_of(End *e, uint64_t id, uint64_t bytes, bool writable) {
    for (uint32_t i = 0; i < e->npulled; i++)
        if (e->pulled[i].id == id) return &e->pulled[i];
    if (e->npulled == e->pulled_room) {
        uint32_t room = e->pulled_room ? 2 * e->pulled_room : 4;
        Pulled *p = realloc(e->pulled, room * sizeof *p);
        if (!p) {
            PyErr_NoMemory();
            return NULL;
        }
        e->pulled = p;
        e->pulled_room = room;
    }
    PyObject *object = heap_room(bytes, writable);
    if (!object) return NULL;
    e->pulled[e->npulled] = (Pulled){id, 0, object};
    return &e->pulled[e->npulled++];
}

/* Pulls what lies in the stash of the ring's writer: the object, or NULL with an exception, or without one where signal
 * handlers have to run first (`has_signals`). What came stays for the next attempt; nothing is taken. */
static PyObject *pull(End *e, uint64_t id, uint64_t bytes, bool writable) {
    Member *m = e->member;
    bool is_gone = false;
    Tray *tray = tray_of(m, e->writer);
    if (!id || !atomic_load(&tray->is_served) || bytes > m->board->cap_bytes)
        return raise_corrupt(e, "it names what cannot be in a stash");
    Pulled *p = pulled_of(e, id, bytes, writable);
    if (!p) return NULL;
    uint8_t *to = heap_bytes(p->object);
    uint64_t have = p->have;
    int outcome;
    Py_BEGIN_ALLOW_THREADS
    outcome = pull_pieces(m, tray, id, to, bytes, &have, e->pull_until, &is_gone);
    Py_END_ALLOW_THREADS
    p->have = have;
    if (outcome == WAIT_READY && !is_gone) return Py_NewRef(p->object);
    if (outcome == WAIT_TIMEOUT) PyErr_SetNone(m->state->timed_out);
    else if (outcome == WAIT_POISON) raise_poison(m);
    else if (is_gone) raise_corrupt(e, "it names bytes that are not in the stash");
    else e->has_signals = true;
    return NULL;
}

/* The claims that a frame brings, from their first sight until the frame is taken, or is not after all. Meanwhile each
 * counts as a use of its block in this process, so one claim is never taken for two. */
typedef struct {
    Arena *arena;
    uint32_t block;
    Lease *lease; /* NULL: the bytes were copied */
} Claim;

#define FEW 4

typedef struct {
    uint32_t count;
    Claim *all, few[FEW];
} Claims;

/* Finds the bytes that a descriptor names and holds their block: their offset in the data of the arena. */
static int hold_bytes(End *e, const Desc *d, Claims *claims, uint64_t *at) {
    Arena *a = d->arena < e->member->nmembers ? e->member->arenas[d->arena] : NULL;
    if (!a || !a->reaches_us || d->block >= MAX_BLOCKS || !arena_reaches(a, ARENA_DATA) ||
        d->block >= atomic_load_explicit(&a->header->nblocks, memory_order_acquire)) {
        raise_corrupt(e, "it names a block that is not there");
        return -1;
    }
    const Block *b = &a->header->block[d->block];
    uint64_t offset = b->offset, capacity = block_capacity(b), committed = block_committed(b);
    if (committed > capacity) committed = capacity;
    if (offset > a->reserve || capacity > a->reserve - offset || !arena_reaches(a, ARENA_DATA + offset + committed) ||
        d->offset > committed || d->bytes > committed - d->offset) {
        raise_corrupt(e, "it names bytes outside their block");
        return -1;
    }
    /* We may have as many uses of the block as we have claims on it, those of frames that are under way included. */
    uint64_t ours = (atomic_load_explicit(&b->claims, memory_order_relaxed) & claim_mask(a, a->holder)) >>
                    (a->claim_bits * a->holder);
    if (ours <= (d->block < a->held_room ? a->held[d->block] : 0)) {
        raise_corrupt(e, "it names a block that was not sent to us");
        return -1;
    }
    if (!arena_hold(a, d->block)) {
        PyErr_NoMemory();
        return -1;
    }
    claims->all[claims->count++] = (Claim){a, d->block, NULL};
    *at = offset + d->offset;
    return 0;
}

/* One buffer of the frame as an object with the buffer protocol. */
static PyObject *take_buffer(End *e, const Desc *d, const uint8_t *body, uint64_t body_bytes, Claims *claims) {
    bool writable = d->flags & DESC_WRITABLE;
    if (d->block == NO_BLOCK) {
        if (d->offset > body_bytes || d->bytes > body_bytes - d->offset)
            return raise_corrupt(e, "a small buffer lies outside the frame");
        return heap_copy(body + d->offset, d->bytes, writable);
    }
    if (d->block == STASHED)
        return d->arena == e->writer ? pull(e, d->offset, d->bytes, writable)
                                     : raise_corrupt(e, "it names the stash of another member");
    uint64_t at;
    if (hold_bytes(e, d, claims, &at)) return NULL;
    Claim *claim = &claims->all[claims->count - 1];
    if ((writable && e->nreaders > 1) || memory_is_short(e->member, claim->arena) || !arena_map(claim->arena, writable))
        return copy_out(claim->arena, at, d->bytes, writable);
    return (PyObject *)(claim->lease = lease_new(claim->arena, d->block, at, d->bytes, writable));
}

/* The frame was taken: its claims pass to the leases, and those of bytes that were copied end. Or it was not: all of
 * them stay with the frame, and the leases go without. */
static void settle(Claims *claims, bool taken) {
    for (uint32_t i = 0; i < claims->count; i++) {
        Claim *c = &claims->all[i];
        if (c->lease) {
            c->lease->owns = taken;
            continue;
        }
        c->arena->held[c->block]--;
        if (taken) arena_release(c->arena, c->block);
    }
    if (claims->all != claims->few) PyMem_Free(claims->all);
}

/* Makes the message of a frame whose header is sound. */
static int parse_body(End *e, const Frame *f, const Desc *table, const uint8_t *body, Message *msg, Claims *claims) {
    bool spilled = f->body_block != NO_BLOCK && f->body_block != STASHED;
    uint64_t at = (uint64_t)f->nbuffers * sizeof(Desc);
    uint64_t sum = check_header(f);
    for (uint32_t i = 0; i < f->nbuffers; i++) sum = check_desc(sum, &table[i]);
    if (sum != f->check) {
        raise_corrupt(e, "its header is damaged");
        return -1;
    }
    if (f->nbuffers) WITHOUT_COLLECTING(msg->buffers = PyList_New(f->nbuffers));
    if (f->nbuffers && !msg->buffers) return -1;
    for (uint32_t i = 0; i < f->nbuffers; i++) {
        PyObject *o = take_buffer(e, &table[i], body, f->body_bytes, claims);
        if (!o || PyList_SetItem(msg->buffers, i, o)) return -1;
    }
    if (spilled && f->kind == KIND_PICKLE && f->data_bytes > INLINE_BUFFER) { /* the body's claim is the first */
        Claim *c = &claims->all[0];
        c->lease = lease_new(c->arena, c->block, (uint64_t)(body - c->arena->readable) + at, f->data_bytes, false);
        msg->data = (PyObject *)c->lease;
    } else
        msg->data = heap_copy(body + at, f->data_bytes, false);
    return msg->data ? 0 : -1;
}

/* Reads the current slot into a message, to be settled: 0, or -1 with an exception and the frame as it was, so that
 * whoever failed for want of memory may try again. Nothing in the frame is believed before it was checked, and nothing
 * is read twice where it matters. */
static int parse_slot(End *e, Message *msg, Claims *claims) {
    Frame f = *(const Frame *)slot_of(e);
    const uint8_t *body = slot_of(e) + sizeof(Frame);
    *msg = (Message){f.kind, f.payload_bytes, NULL, NULL};
    claims->count = 0;
    claims->all = claims->few;
    claims->few[0] = (Claim){0};
    if (f.magic != FRAME_MAGIC || f.kind < KIND_PICKLE || f.kind > KIND_FAILURE) {
        raise_corrupt(e, "its header is damaged");
        return -1;
    }
    if (f.execution != e->seq) {
        WITHOUT_COLLECTING(PyErr_Format(e->member->state->corrupt, "ring %u: expected execution %llu and found %llu",
                                        e->index, (unsigned long long)e->seq, (unsigned long long)f.execution));
        return -1;
    }
    PyObject *pulled = NULL;
    if (f.body_block == STASHED && f.body_stash != sign_stashed(f, f.body_stash)) {
        raise_corrupt(e, "its header is damaged");
        return -1;
    }
    if (f.body_block == STASHED) {
        if (!(pulled = pull(e, f.body_stash & UINT32_MAX, f.body_bytes, false))) return -1;
        body = heap_bytes(pulled);
    } else if (f.body_block != NO_BLOCK) {
        Desc where = {e->writer, f.body_block, 0, 0, 0, f.body_bytes};
        uint64_t at;
        if (hold_bytes(e, &where, claims, &at)) return -1;
        if (!arena_map(claims->few[0].arena, false)) {
            settle(claims, false);
            PyErr_SetFromErrno(PyExc_OSError);
            return -1;
        }
        body = claims->few[0].arena->readable + at;
    } else if (f.body_bytes > e->slot_bytes - sizeof(Frame)) {
        raise_corrupt(e, "it is longer than its slot");
        return -1;
    }
    uint64_t table = (uint64_t)f.nbuffers * sizeof(Desc);
    int failed = -1;
    if (table > f.body_bytes || f.data_bytes > f.body_bytes - table) raise_corrupt(e, "it is truncated");
    else {
        bool is_few = f.nbuffers < FEW;
        Desc few[FEW], *descs = is_few ? few : PyMem_Malloc(table);
        Claim *all = is_few ? claims->few : PyMem_Malloc((f.nbuffers + 1ull) * sizeof *all);
        if (descs && all) {
            all[0] = claims->few[0]; /* the body's, if it has one */
            claims->all = all;
            if (table) memcpy(descs, body, table);
            failed = parse_body(e, &f, descs, body, msg, claims);
        } else {
            PyErr_NoMemory();
            if (!is_few) PyMem_Free(all);
        }
        if (!is_few) PyMem_Free(descs);
    }
    Py_XDECREF(pulled);
    if (failed) {
        settle(claims, false);
        message_clear(msg);
    }
    return failed;
}

/* Moves on to the next frame; the message is the caller's. `start` and `waited` are of the wait for it. */
static void advance(End *e, const Message *msg, Claims *claims, uint64_t start, uint64_t waited) {
    Member *m = e->member;
    Ring *r = e->ring;
    settle(claims, true);
    pulled_clear(e);
    atomic_store(&r->reader[e->reader].seq, ++e->seq); /* before the load of `room_wanted` */
    if (atomic_load(&r->room_wanted)) ring_bell(m, e->writer);
    uint32_t peer = waited ? e->writer : NO_MEMBER;
    if (m->looping) {
        m->open.waited_ns += waited;
        m->open.bytes += msg->payload;
        m->open.peer = peer;
    } else if (m->recording) {
        uint64_t end = stamp(&m->clock);
        if (waited > end - start) waited = end - start; /* it is measured by another clock */
        write_event(m, &(Record){start, end, waited, 0, e->seq - 1, msg->payload, e->op, peer});
        now_doing(m, e->op, e->seq - 1, end, NOW_IDLE);
    }
}

/* Waits for the next frame and takes it off the ring; one thread at a time. */
static int receive(End *e, uint64_t deadline, Message *msg) {
    Member *m = e->member;
    Ring *r = e->ring;
    Claims claims;
    uint64_t start = 0, waited = 0;
    if (end_enter(e)) return -1;
    int result = -1;
    e->pull_until = deadline;
    if (m->looping) start = mark(m, e->op, e->seq);
    else if (m->recording) start = stamp(&m->clock);
    if (m->looping && poisoned(m)) {
        raise_poison(m);
        goto done;
    }
    if (atomic_load_explicit(&r->seq, memory_order_acquire) == e->seq) {
        Watch w = {&r->seq, e->seq, &r->reader[e->reader].waiting, &r->cpu};
        if (m->recording && !m->looping) now_doing(m, e->op, e->seq, start, NOW_IDLE);
        if (m->recording) atomic_store_explicit(&m->recorder->ring, e->index, memory_order_relaxed);
        if (wait_for(m, &w, 1, &e->learned, deadline, start, &waited)) {
            m->open.waited_ns += waited; /* a loop comes again for the same frame */
            goto done;
        }
    }
    while ((result = parse_slot(e, msg, &claims)) && e->has_signals) {
        e->has_signals = false;
        e->busy = false; /* a handler may read here, too */
        uint64_t seq = e->seq;
        if (PyErr_CheckSignals()) return -1;
        if (end_enter(e)) return -1;
        if (e->seq != seq) { /* and has taken this frame */
            PyErr_SetString(PyExc_RuntimeError, "a signal handler has read the frame that was being read");
            break;
        }
    }
    if (!result) advance(e, msg, &claims, start, waited);
done:
    e->busy = false;
    return result;
}

/* Consumes the message. */
static PyObject *decode(Message *msg, PyObject *loads, PyObject *failure, State *state) {
    PyObject *value = NULL;
    switch (msg->kind) {
    case KIND_BYTES:
        value = msg->data;
        msg->data = NULL;
        break;
    case KIND_PICKLE:
        if (!msg->buffers) value = PyObject_CallFunctionObjArgs(loads, msg->data, NULL);
        else {
            PyObject *args = PyTuple_New(1), *kwargs = PyDict_New();
            if (args && kwargs && !PyDict_SetItem(kwargs, state->buffers_name, msg->buffers)) {
                Py_INCREF(msg->data);
                if (!PyTuple_SetItem(args, 0, msg->data)) value = PyObject_Call(loads, args, kwargs);
            }
            Py_XDECREF(args);
            Py_XDECREF(kwargs);
        }
        break;
    default: value = PyObject_CallFunctionObjArgs(failure, msg->data, NULL);
    }
    message_clear(msg);
    return value;
}

/* read(timeout_ns=-1) -> value */
static PyObject *reader_read(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    End *e = (End *)self;
    uint64_t deadline = UINT64_MAX;
    Message msg;
    if (nargs && deadline_from(args[0], &deadline)) return NULL;
    if (receive(e, deadline, &msg)) return NULL;
    if (e->member->looping && e->member->recording && msg.kind == KIND_PICKLE) e->member->coding_since_ns = stamp(&e->member->clock);
    return decode(&msg, e->decode, e->failure, e->member->state);
}

/* A frame that was taken and not decoded yet. It owns what it needs, so it may wait for its reader anywhere. */
typedef struct {
    PyObject_HEAD
    State *state;
    Message msg;
    PyObject *decode, *failure;
    PyObject *value; /* once decoded */
    Member *member;  /* who records the decoding, or NULL */
    uint64_t execution;
    uint32_t op, depth;    /* how often the thread `decoder` is decoding it now */
    unsigned long decoder;
} FrameObject;

#define DEEPEST_DECODING 16 /* a signal handler, or what decoding itself drops, may ask for what is being decoded */

static FrameObject *frame_new(End *e) {
    FrameObject *f = allocate_object(e->member->state->frame_type);
    if (!f) return NULL;
    f->state = e->member->state;
    Py_INCREF(e->decode);
    f->decode = e->decode;
    Py_INCREF(e->failure);
    f->failure = e->failure;
    f->execution = e->seq;
    f->op = e->op;
    if (e->member->recording && !e->member->looping) {
        Py_INCREF((PyObject *)e->member);
        f->member = e->member;
    }
    return f;
}

static void frame_dealloc(PyObject *self) {
    FrameObject *f = (FrameObject *)self;
    message_clear(&f->msg);
    Py_XDECREF(f->decode);
    Py_XDECREF(f->failure);
    Py_XDECREF(f->value);
    Py_XDECREF((PyObject *)f->member);
    free_object(self);
}

/* decode(at_once=False) -> the value, the same each time; the frame itself while another thread decodes it, unless it is
 * wanted at once. Decoding may run any code, which may need that other thread to go on, or be what interrupted it: so
 * several may decode, and all get what the first one made. What decoding raises leaves the frame as it was, so an
 * interrupted attempt can be repeated. */
static PyObject *frame_decode(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    FrameObject *f = (FrameObject *)self;
    if (!f->value) {
        unsigned long thread = PyThread_get_thread_ident();
        bool is_second = f->depth && f->decoder != thread;
        if (is_second && !(nargs && args[0] == Py_True)) {
            Py_INCREF(self);
            return self;
        }
        if (!is_second && f->depth >= DEEPEST_DECODING) {
            PyErr_SetString(PyExc_RuntimeError, "unpickling this result asks for the result itself");
            return NULL;
        }
        Message msg = f->msg; /* a copy with references of its own: decoding may run any code */
        Py_XINCREF(msg.data);
        Py_XINCREF(msg.buffers);
        bool is_timed = f->member && msg.kind == KIND_PICKLE;
        uint64_t start = is_timed ? stamp(&f->member->clock) : 0;
        if (!is_second && !f->depth++) f->decoder = thread;
        PyObject *value = decode(&msg, f->decode, f->failure, f->state);
        if (!is_second) f->depth--;
        if (!value) return NULL;
        if (f->value) {
            Py_DECREF(value); /* another one was quicker */
            Py_INCREF(f->value);
            return f->value;
        }
        f->value = value;
        Py_INCREF(value); /* letting go of the rest may run any code, too */
        Member *m = f->member;
        f->member = NULL;
        if (is_timed && m->generation == atomic_load(&fork_generation)) { /* a forked child records nothing */
            uint64_t end = stamp(&m->clock);
            write_event(m, &(Record){start, end, 0, end - start, f->execution, 0, f->op, NO_MEMBER});
        }
        message_clear(&f->msg);
        Py_XDECREF((PyObject *)m);
        return value;
    }
    Py_INCREF(f->value);
    return f->value;
}

static PyObject *frame_get_is_failure(PyObject *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(((FrameObject *)self)->msg.kind == KIND_FAILURE);
}

static PyMethodDef frame_methods[] = {
    {"decode", (PyCFunction)(void (*)(void))frame_decode, METH_FASTCALL,
     "decode(at_once=False): the value; the frame itself while another thread decodes it."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef frame_getset[] = {
    {"is_failure", frame_get_is_failure, NULL, "Whether it stands for a value that is not there.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot frame_slots[] = {{Py_tp_dealloc, frame_dealloc},
                                    {Py_tp_methods, frame_methods},
                                    {Py_tp_getset, frame_getset},
                                    {0, NULL}};
static PyType_Spec frame_spec = {"rcg._native.Frame", sizeof(FrameObject), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, frame_slots};

/* take(timeout_ns=-1) -> Frame, not decoded */
static PyObject *reader_take(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    End *e = (End *)self;
    uint64_t deadline = UINT64_MAX;
    if (nargs && deadline_from(args[0], &deadline)) return NULL;
    FrameObject *f = frame_new(e);
    if (!f) return NULL;
    Message msg;
    if (receive(e, deadline, &msg)) {
        Py_DECREF((PyObject *)f);
        return NULL;
    }
    f->msg = msg;
    f->execution = e->seq - 1;
    return (PyObject *)f;
}

/* Takes the frame that lies on the ring into the dict, or leaves it where it is: 0, -1 with an exception, or 1 if signal
 * handlers have to run before it goes on. */
static int collect_one(End *e, PyObject *frames, uint64_t start, uint64_t waited) {
    PyObject *key = PyLong_FromUnsignedLongLong(e->seq);
    FrameObject *f = key ? frame_new(e) : NULL;
    Claims claims;
    int failed = -1;
    if (f) {
        e->busy = true;
        if (!parse_slot(e, &f->msg, &claims)) {
            if ((failed = PyDict_SetItem(frames, key, (PyObject *)f))) settle(&claims, false);
            else advance(e, &f->msg, &claims, start, waited);
        } else if (e->has_signals) {
            e->has_signals = false;
            failed = 1;
        }
        e->busy = false;
    }
    Py_XDECREF((PyObject *)f);
    Py_XDECREF(key);
    return failed;
}

/* A wait of a driver that ended without a frame. */
static void record_wait(End *e, uint64_t start, uint64_t waited) {
    Member *m = e->member;
    if (!m->recording || m->looping || !waited || !start) return;
    uint64_t end = stamp(&m->clock);
    write_event(m, &(Record){start, end, end - start, 0, e->seq, 0, e->op, e->writer});
}

/* collect(frames, execution, timeout_ns=-1): take frames into the dict {execution: Frame} until that of `execution` is
 * taken, by whomever: any number of threads may be inside, and each sees every arrival. Nothing can come between
 * taking a frame and having it in the dict, Ctrl-C neither. */
static PyObject *reader_collect(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    End *e = (End *)self;
    Member *m = e->member;
    if (nargs < 2 || !PyDict_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "collect(frames, execution, timeout_ns=-1)");
        return NULL;
    }
    uint64_t execution = PyLong_AsUnsignedLongLong(args[1]), deadline = UINT64_MAX, waited = 0;
    if ((execution == UINT64_MAX && PyErr_Occurred()) || (nargs > 2 && deadline_from(args[2], &deadline)) ||
        check_usable(m))
        return NULL;
    uint64_t start = m->recording ? stamp(&m->clock) : 0;
    while (e->seq <= execution) {
        if (e->busy) { /* another thread is copying a frame out of its slot */
            if (now_ns() >= deadline) {
                PyErr_SetNone(m->state->timed_out);
                return NULL;
            }
            struct timespec moment = {0, 20000};
            Py_BEGIN_ALLOW_THREADS
            nanosleep(&moment, NULL);
            Py_END_ALLOW_THREADS
            if (PyErr_CheckSignals()) return NULL;
        } else if (atomic_load_explicit(&e->ring->seq, memory_order_acquire) == e->seq) {
            Watch w = {&e->ring->seq, e->seq, &e->ring->reader[e->reader].waiting, &e->ring->cpu};
            Learned learned = e->learned; /* a copy, because others may wait here too */
            if (m->recording) {
                now_doing(m, e->op, e->seq, start, NOW_IDLE);
                atomic_store_explicit(&m->recorder->ring, e->index, memory_order_relaxed);
            }
            int failed = wait_for(m, &w, 1, &learned, deadline, waited ? 0 : start, &waited);
            e->learned = learned;
            if (failed) {
                record_wait(e, start, waited);
                return NULL;
            }
        } else {
            e->pull_until = deadline;
            int failed = collect_one(e, args[0], start, waited);
            if (failed < 0 || (failed && PyErr_CheckSignals())) return NULL;
            if (failed) continue;
            waited = 0;
            if (m->recording && e->seq <= execution) start = stamp(&m->clock);
        }
    }
    Py_RETURN_NONE;
}

/* collect_pending(frames): take what lies on the ring into the dict, without waiting; what another thread is taking
 * at this moment it brings itself */
static PyObject *reader_collect_pending(PyObject *self, PyObject *frames) {
    End *e = (End *)self;
    if (!PyDict_Check(frames)) {
        PyErr_SetString(PyExc_TypeError, "collect_pending(frames)");
        return NULL;
    }
    if (check_usable(e->member)) return NULL;
    uint64_t until = now_ns() + SIGNAL_SLICE;
    while (!e->busy && atomic_load_explicit(&e->ring->seq, memory_order_acquire) != e->seq) {
        e->pull_until = until;
        int failed = collect_one(e, frames, e->member->recording ? stamp(&e->member->clock) : 0, 0);
        if (failed > 0 && PyErr_CheckSignals()) return NULL;
        if (failed < 0) {
            if (!PyErr_ExceptionMatches(e->member->state->timed_out)) return NULL;
            PyErr_Clear(); /* its writer does not answer now: the frame stays where it is */
            break;
        }
    }
    Py_RETURN_NONE;
}

static PyObject *reader_pending(PyObject *self, PyObject *unused) {
    (void)unused;
    End *e = (End *)self;
    uint64_t published = atomic_load(&e->ring->seq);
    if (atomic_load_explicit(&e->ring->stashed, memory_order_relaxed) > e->seq) return PyLong_FromLong(0);
    return PyLong_FromUnsignedLongLong(published - e->seq);
}

static PyMethodDef reader_methods[] = {
    {"read", (PyCFunction)(void (*)(void))reader_read, METH_FASTCALL,
     "read(timeout_ns=-1): wait for the next frame and return its value."},
    {"take", (PyCFunction)(void (*)(void))reader_take, METH_FASTCALL,
     "take(timeout_ns=-1): wait for the next frame and return it undecoded."},
    {"collect", (PyCFunction)(void (*)(void))reader_collect, METH_FASTCALL,
     "collect(frames, execution, timeout_ns=-1): take frames into the dict up to that of an execution."},
    {"collect_pending", reader_collect_pending, METH_O,
     "collect_pending(frames): take what lies on the ring into the dict, without waiting."},
    {"pending", reader_pending, METH_NOARGS, "How many frames could be read without waiting; none as long as one comes from a stash."},
    {NULL, NULL, 0, NULL}};
static PyMethodDef writer_methods[] = {
    {"shut", writer_shut, METH_NOARGS, "shut(): what was opened is not written."},
    {"open", writer_open, METH_NOARGS, "Say that the next write begins now, with encoding its value."},
    {"write", (PyCFunction)(void (*)(void))writer_write, METH_FASTCALL,
     "write(kind, data, buffers=None, writable=0, timeout_ns=-1): publish the next frame."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef end_getset[] = {{"seq", end_get_seq, NULL, "Index of the next frame.", NULL},
                                   {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot reader_slots[] = {{Py_tp_dealloc, end_dealloc},
                                     {Py_tp_methods, reader_methods},
                                     {Py_tp_getset, end_getset},
                                     {0, NULL}};
static PyType_Slot writer_slots[] = {{Py_tp_dealloc, end_dealloc},
                                     {Py_tp_methods, writer_methods},
                                     {Py_tp_getset, end_getset},
                                     {0, NULL}};
static PyType_Spec reader_spec = {"rcg._native.Reader", sizeof(End), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, reader_slots};
static PyType_Spec writer_spec = {"rcg._native.Writer", sizeof(End), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, writer_slots};

/* ============================================================ Member as a Python object */

static void member_dealloc(PyObject *self) {
    Member *m = (Member *)self;
    stash_close(m);
    for (uint32_t i = 0; i < MAX_MEMBERS; i++) Py_XDECREF((PyObject *)m->arenas[i]);
    ledger_close(m->ledger);
    if (m->board) munmap(m->board, m->board_bytes);
    free_object(self);
}

static int policy_of(const char *name) {
    static const char *const names[] = {"auto", "futex", "yield", "spin"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, names[i])) return i;
    PyErr_Format(PyExc_ValueError, "unknown wait policy '%s': use auto, futex, yield or spin", name);
    return -1;
}

/* Whether all that a board says to have lies within it. */
static bool board_fits(const BoardHeader *b) {
    uint64_t room = b->size_bytes, stride = b->recorder_stride, recorders = b->recorder_offset;
    return b->nevents && !(b->nevents & (b->nevents - 1)) && b->claim_bits == claim_bits_for(b->nmembers) && recorders % LINE == 0 && stride % LINE == 0 &&
           recorders <= room && stride <= room &&
           stride >= sizeof(Recorder) + b->nevents * sizeof(Event) + MAX_SPANS * sizeof(SpanName) &&
           b->nmembers * stride <= room - recorders && b->tape_offset % PAGE == 0 && b->tape_offset <= room &&
           b->nmembers * (uint64_t)TAPE_EVENTS * sizeof(Event) <= room - b->tape_offset &&
           b->ledger_offset % LARGEST_PAGE == 0 && b->ledger_offset <= room && sizeof(Ledger) <= room - b->ledger_offset &&
           b->tray_offset % LINE == 0 && b->tray_offset <= room && b->nmembers * sizeof(Tray) <= room - b->tray_offset &&
           bells_offset(b->nrings) + b->nmembers * sizeof(Bell) <= recorders;
}

/* Member(board_fd, arena_fds, index, wait="auto", record=True, looping=False, reach=-1); the descriptors stay the
 * caller's. Bit i of `reach` says whether blocks of member i may arrive here; the free ones of all can be reclaimed. */
static int member_join(PyObject *self, PyObject *args, PyObject *kwargs) {
    Member *m = (Member *)self;
    static char *names[] = {"board_fd", "arena_fds", "index", "wait", "record", "looping", "reach", NULL};
    unsigned long long reach = ~0ull;
    int fd, record = 1, looping = 0;
    unsigned index;
    PyObject *fds;
    const char *wait = "auto";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iOI|sppK", names, &fd, &fds, &index, &wait, &record, &looping,
                                     &reach))
        return -1;
    if (!(m->state = state_of(Py_TYPE(self)))) return -1;
    if ((m->policy = policy_of(wait)) < 0) return -1;
    struct stat st;
    if (fstat(fd, &st)) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    BoardHeader head;
    if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head || head.magic != BOARD_MAGIC ||
        head.abi != ABI_VERSION || head.size_bytes != (uint64_t)st.st_size || head.nmembers > MAX_MEMBERS ||
        index >= head.nmembers || !board_fits(&head)) {
        PyErr_SetString(m->state->corrupt, "the descriptor is not a board of this version of rcg");
        return -1;
    }
    void *p = mmap(NULL, head.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    m->board = p;
    m->board_bytes = head.size_bytes;
    m->nrings = head.nrings;
    m->nevents = head.nevents;
    m->bells = (Bell *)((uint8_t *)p + bells_offset(head.nrings));
    m->recorders = (uint8_t *)p + head.recorder_offset;
    m->recorder_stride = head.recorder_stride;
    m->tapes = (Event *)((uint8_t *)p + head.tape_offset);
    m->trays = (Tray *)((uint8_t *)p + head.tray_offset);
    m->page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (!(m->ledger = ledger_open(fd, head.ledger_offset))) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    m->recorder = recorder_of(m, index);
    m->index = index;
    m->nmembers = head.nmembers;
    m->generation = atomic_load(&fork_generation);
    m->recording = record;
    m->clock.is_used = record && has_ticks();
    m->looping = looping;
    m->learned = learned_nothing(index);
    m->recorder->pid = (uint32_t)getpid();
    cpu_set_t cpus;
    m->crowded = !sched_getaffinity(0, sizeof cpus, &cpus) && (int)m->nmembers > CPU_COUNT(&cpus);
    if (!PyList_Check(fds) || PyList_Size(fds) != (Py_ssize_t)m->nmembers) {
        PyErr_SetString(PyExc_ValueError, "arena_fds must be a list with one descriptor (or -1) per member");
        return -1;
    }
    for (uint32_t i = 0; i < m->nmembers; i++) {
        long arena_fd = PyLong_AsLong(PyList_GetItem(fds, i));
        if (arena_fd == -1 && PyErr_Occurred()) return -1;
        if (arena_fd < 0) continue;
        if (!(m->arenas[i] = arena_open(m->state, (int)arena_fd, i, index, head.claim_bits, m->ledger))) return -1;
        m->arenas[i]->committed = &recorder_of(m, i)->committed_bytes;
        m->arenas[i]->reaches_us = i == index || (reach >> i & 1);
    }
    if (!m->arenas[index]) {
        PyErr_SetString(PyExc_ValueError, "a member needs its own arena");
        return -1;
    }
    return 0;
}

static PyObject *member_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *self = allocate_object(type);
    if (self && member_join(self, args, kwargs)) Py_CLEAR(self);
    return self;
}

/* What a ring is made of, copied and checked. */
typedef struct {
    Ring *ring;
    uint32_t nslots, slot_bytes, nreaders, writer, readers[MAX_MEMBERS];
} Shape;

static int ring_at(Member *m, unsigned index, Shape *shape) {
    if (index >= m->nrings) {
        PyErr_Format(PyExc_IndexError, "the board has %u rings and no ring %u", m->nrings, index);
        return -1;
    }
    uint64_t room = m->board_bytes, at = ring_offsets(m->board)[index];
    if (at % LINE || at > room || room - at < sizeof(Ring)) goto damaged;
    Ring *r = (Ring *)((uint8_t *)m->board + at);
    *shape = (Shape){r, r->nslots, r->slot_bytes, r->nreaders, r->writer, {0}};
    if (!shape->nslots || (shape->nslots & (shape->nslots - 1)) || shape->slot_bytes < 2 * sizeof(Frame) ||
        shape->slot_bytes % LINE || !shape->nreaders || shape->nreaders > MAX_MEMBERS || shape->writer >= m->nmembers ||
        shape->nreaders * sizeof(ReaderLine) + (uint64_t)shape->nslots * shape->slot_bytes > room - at - sizeof(Ring))
        goto damaged;
    for (uint32_t i = 0; i < shape->nreaders; i++)
        if ((shape->readers[i] = r->reader[i].member) >= m->nmembers) goto damaged;
    return 0;
damaged:
    PyErr_Format(m->state->corrupt, "ring %u: its description is damaged", index);
    return -1;
}

static End *end_new(Member *m, PyTypeObject *type, const Shape *shape, unsigned index, unsigned op) {
    End *e = allocate_object(type);
    if (!e) return NULL;
    Py_INCREF((PyObject *)m);
    e->member = m;
    e->ring = shape->ring;
    e->index = index;
    e->nslots = shape->nslots;
    e->slot_bytes = shape->slot_bytes;
    e->nreaders = shape->nreaders;
    e->writer = shape->writer;
    for (uint32_t i = 0; i < shape->nreaders; i++) {
        e->readers[i] = shape->readers[i];
        e->claims |= claim_unit(m->arenas[m->index], shape->readers[i]);
    }
    e->slots = (uint8_t *)&shape->ring->reader[shape->nreaders];
    e->op = op;
    e->learned = learned_nothing(m->index);
    return e;
}

static PyObject *member_reader(PyObject *self, PyObject *args) {
    Member *m = (Member *)self;
    unsigned index, op;
    PyObject *loads, *failure;
    if (!PyArg_ParseTuple(args, "IIOO", &index, &op, &loads, &failure) || check_usable(m)) return NULL;
    Shape shape;
    if (ring_at(m, index, &shape)) return NULL;
    for (uint32_t i = 0; i < shape.nreaders; i++)
        if (shape.readers[i] == m->index) {
            End *e = end_new(m, m->state->reader_type, &shape, index, op);
            if (!e) return NULL;
            e->reader = i;
            e->seq = atomic_load(&shape.ring->reader[i].seq);
            Py_INCREF(loads);
            e->decode = loads;
            Py_INCREF(failure);
            e->failure = failure;
            return (PyObject *)e;
        }
    return PyErr_Format(PyExc_ValueError, "member %u does not read ring %u", m->index, index);
}

static PyObject *member_writer(PyObject *self, PyObject *args) {
    Member *m = (Member *)self;
    unsigned index, op;
    if (!PyArg_ParseTuple(args, "II", &index, &op) || check_usable(m)) return NULL;
    Shape shape;
    if (ring_at(m, index, &shape)) return NULL;
    if (shape.writer != m->index)
        return PyErr_Format(PyExc_ValueError, "member %u does not write ring %u", m->index, index);
    End *e = end_new(m, m->state->writer_type, &shape, index, op);
    if (e) e->seq = atomic_load(&shape.ring->seq);
    return (PyObject *)e;
}

/* mark(op, execution): close the open op and open this one; for looping members */
static PyObject *member_mark(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "mark(op, execution)");
        return NULL;
    }
    uint32_t op = (uint32_t)PyLong_AsUnsignedLong(args[0]);
    uint64_t execution = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred() || check_usable((Member *)self)) return NULL;
    mark((Member *)self, op, execution);
    Py_RETURN_NONE;
}

/* wait_any(readers, timeout_ns, interrupts): wait until one of the readers has a frame, or somebody interrupts. A
 * reader may be given as (reader, seq): then until frame `seq` was published, whoever took it meanwhile */
static PyObject *member_wait_any(PyObject *self, PyObject *args) {
    Member *m = (Member *)self;
    PyObject *readers, *timeout = NULL, *interrupts = NULL;
    if (!PyArg_ParseTuple(args, "O!|OO", &PyList_Type, &readers, &timeout, &interrupts) || check_usable(m)) return NULL;
    uint64_t deadline, waited = 0, seen = 0;
    if (deadline_from(timeout, &deadline)) return NULL;
    bool listens = interrupts && interrupts != Py_None;
    if (listens && (seen = PyLong_AsUnsignedLongLong(interrupts)) == UINT64_MAX && PyErr_Occurred()) return NULL;
    Py_ssize_t n = PyList_Size(readers);
    if (n + listens < 1) {
        PyErr_SetString(PyExc_ValueError, "wait_any needs something to wait for");
        return NULL;
    }
    Watch *w = PyMem_Calloc((size_t)n + listens, sizeof *w);
    if (!w) return PyErr_NoMemory();
    End *only = NULL;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *o = PyList_GetItem(readers, i);
        unsigned long long before = 0;
        bool is_pair = PyTuple_Check(o);
        if (is_pair && !PyArg_ParseTuple(o, "OK", &o, &before)) {
            PyMem_Free(w);
            return NULL;
        }
        if (!PyObject_TypeCheck(o, m->state->reader_type) || ((End *)o)->member != m) {
            PyMem_Free(w);
            PyErr_SetString(PyExc_TypeError, "wait_any takes readers of this member");
            return NULL;
        }
        End *e = (End *)o;
        only = e;
        w[i] = (Watch){&e->ring->seq, is_pair ? before : e->seq, &e->ring->reader[e->reader].waiting, &e->ring->cpu};
    }
    if (m->recording) /* which ring, if it is one */
        atomic_store_explicit(&m->recorder->ring, n == 1 ? only->index : UINT32_MAX, memory_order_relaxed);
    if (listens) w[n] = (Watch){&m->interrupts, seen, &m->interruptible, NULL};
    Learned learned = m->learned; /* a copy, because others may wait here too */
    uint64_t start = m->recording ? stamp(&m->clock) : 0;
    if (start && n == 1 && !listens && !m->looping) now_doing(m, only->op, only->seq, start, NOW_IDLE);
    int failed = wait_for(m, w, (uint32_t)(n + listens), &learned, deadline, start, &waited);
    m->learned = learned;
    PyMem_Free(w);
    if (only) record_wait(only, start, waited);
    if (failed) return NULL;
    return PyLong_FromUnsignedLongLong(atomic_load(&m->interrupts));
}

/* One entry of submit: (writer, kind, data, buffers, writable), the last two optional. */
static int outgoing_from(Member *m, Outgoing *out, Py_ssize_t i, PyObject *entry) {
    PyObject *args[4];
    Py_ssize_t n = PyTuple_Check(entry) ? PyTuple_Size(entry) - 1 : 0;
    PyObject *writer = n >= 2 && n <= 4 ? PyTuple_GetItem(entry, 0) : NULL;
    if (!writer || !PyObject_TypeCheck(writer, m->state->writer_type) || ((End *)writer)->member != m) {
        PyErr_SetString(PyExc_TypeError, "submit takes frames of (writer of this member, kind, data, buffers, writable)");
        return -1;
    }
    outgoing_begin(&out[i], (End *)writer);
    for (Py_ssize_t j = 0; j < i; j++)
        if (out[j].end->ring == out[i].end->ring) {
            PyErr_Format(PyExc_ValueError, "ring %u is listed twice", out[i].end->index);
            return -1;
        }
    for (Py_ssize_t j = 0; j < n; j++) args[j] = PyTuple_GetItem(entry, j + 1);
    return outgoing_parse(&out[i], args, n);
}

/* Gives an attribute of a ref, or of each in a list, this value: as many as it could. */
static Py_ssize_t set_each(PyObject *refs, PyObject *name, PyObject *value, Py_ssize_t count) {
    Py_ssize_t i = 0;
    if (!PyList_Check(refs)) return count && !PyObject_SetAttr(refs, name, value);
    while (i < count && !PyObject_SetAttr(PyList_GetItem(refs, i), name, value)) i++;
    return i;
}

/* Enters an execution into the books: `left` remembers which of its outputs are wanted, and the refs become its own.
 * 0, or -1 with an exception and all as it was. */
static int enter_execution(State *state, PyObject *key, PyObject *left, PyObject *wanted, PyObject *refs) {
    Py_ssize_t count = PyList_Check(refs) ? PyList_Size(refs) : 1, done;
    PyObject *pending = PyLong_FromLong(REF_PENDING), *unborn = PyLong_FromLong(REF_NEW);
    int failed = -1;
    if (pending && unborn && set_each(refs, state->execution_name, key, count) == count &&
        !PyDict_SetItem(left, key, wanted)) {
        if ((done = set_each(refs, state->state_name, pending, count)) == count) failed = 0;
        else {
            PyObject *type, *error, *traceback;
            PyErr_Fetch(&type, &error, &traceback);
            set_each(refs, state->state_name, unborn, done);
            PyDict_DelItem(left, key);
            PyErr_Restore(type, error, traceback);
        }
    }
    Py_XDECREF(pending);
    Py_XDECREF(unborn);
    return failed;
}

/* The last step of submit: numbers an execution, enters it into the books and publishes its frames, or does nothing.
 * The index, None where the limit is reached, or NULL with an exception. */
static PyObject *publish_all(Member *m, Outgoing *out, Py_ssize_t n, uint64_t limit, PyObject *left, PyObject *wanted,
                             PyObject *refs) {
    uint64_t execution = out->end->seq, seen;
    uint32_t late;
    if (execution >= limit) Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < n; i++) {
        End *e = out[i].end;
        if (e->busy || e->seq != execution) {
            PyErr_Format(PyExc_RuntimeError,
                         e->busy ? "this end of the ring is in use by another thread"
                                 : "ring %u is not at the execution of the others", e->index);
            return NULL;
        }
        int room = has_room(e, &late, &seen);
        if (!room) PyErr_SetNone(m->state->timed_out);
        if (room <= 0) return NULL;
    }
    PyObject *key = PyLong_FromUnsignedLongLong(execution);
    if (!key) return NULL;
    for (Py_ssize_t i = 0; i < n; i++) place(&out[i]);
    if (enter_execution(m->state, key, left, wanted, refs)) {
        Py_DECREF(key);
        return NULL;
    }
    ledger_begin(m->ledger->ledger, execution);
    for (Py_ssize_t i = 0; i < n; i++) outgoing_assign(&out[i]);
    for (Py_ssize_t i = 0; i < n; i++) publish(out[i].end);
    return key;
}

/* submit(frames, limit, left, wanted, refs, started_ns=0, stash=False) -> index of the execution, or None
 *
 * Publishes the inputs of one execution, each on a ring of its own, or none of them; None where the rings are at `limit`
 * already. With `stash`, what there is no memory for goes to the stash.
 *
 * In two steps. First all frames are prepared: users' code may run, other threads too, and nothing is held. Then the
 * execution gets its number, `left[number] = wanted`, its refs get their `execution` and `state`, and the frames are
 * published. Between these nothing else runs: the lock of Python is held, no signal handler is asked for, garbage is not
 * collected (Python 3.11 does that, and so runs any __del__, wherever a container is made), and nothing waits. So
 * whatever runs between two instructions of Python's, or in another thread, finds an execution that does not exist or
 * one that is whole, and no lock is needed against it. */
static PyObject *member_submit(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    Member *m = (Member *)self;
    if (nargs < 5 || nargs > 7 || !PyTuple_Check(args[0]) || !PyTuple_Size(args[0]) || !PyDict_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError,
                        "submit(((writer, kind, data, buffers, writable), ...), limit, left, wanted, refs, started_ns=0, "
                        "stash=False)");
        return NULL;
    }
    uint64_t limit = PyLong_AsUnsignedLongLong(args[1]);
    int stashes = nargs > 6 ? PyObject_IsTrue(args[6]) : 0;
    uint64_t started = nargs > 5 && !PyErr_Occurred() ? PyLong_AsUnsignedLongLong(args[5]) : 0;
    if (PyErr_Occurred() || check_usable(m)) return NULL;
    uint64_t opened = m->recording ? stamp(&m->clock) : 0, coded = 0;
    if (opened && started && started < opened) { /* encoding, which ended now, is part of the first frame's */
        coded = opened - started;
        opened = started;
    }
    Py_ssize_t n = PyTuple_Size(args[0]), parsed = 0, prepared = 0;
    Outgoing few[2], *out = n > 2 ? PyMem_Calloc((size_t)n, sizeof *out) : few;
    if (!out) return PyErr_NoMemory();
    PyObject *execution = NULL;
    for (; parsed < n; parsed++)
        if (outgoing_from(m, out, parsed, PyTuple_GetItem(args[0], parsed))) break;
        else out[parsed].stashes |= stashes > 0;
    if (parsed == n && out->end->seq >= limit) execution = Py_NewRef(Py_None); /* nothing is copied in vain */
    else if (parsed == n) {
        for (; prepared < n && !prepare(&out[prepared]); prepared++)
            if (opened && prepared + 1 < n) out[prepared].ended_ns = stamp(&m->clock);
        if (prepared == n) {
            WITHOUT_COLLECTING(execution = publish_all(m, out, n, limit, args[2], args[3], args[4]));
        }
        bool is_published = execution && execution != Py_None;
        while (prepared && !is_published) outgoing_undo(&out[--prepared]);
        if (is_published && opened) {
            uint64_t number = out->end->seq - 1;
            out[n - 1].ended_ns = stamp(&m->clock); /* the last frame's end is that of publishing */
            for (Py_ssize_t i = 0; i < n; i++) {
                Outgoing *o = &out[i];
                write_event(m, &(Record){opened, o->ended_ns, 0, coded, number, o->payload, o->end->op, NO_MEMBER});
                opened = o->ended_ns;
                coded = 0;
            }
            now_doing(m, out[n - 1].end->op, number, opened, NOW_IDLE);
        }
    }
    for (Py_ssize_t i = 0; i < parsed; i++) outgoing_clear(&out[i]);
    if (out != few) PyMem_Free(out);
    return execution;
}

/* interrupt(): end this process's own wait_any calls that listen; any thread */
static PyObject *member_interrupt(PyObject *self, PyObject *unused) {
    (void)unused;
    Member *m = (Member *)self;
    if (check_usable(m)) return NULL;
    atomic_fetch_add(&m->interrupts, 1);
    if (atomic_load(&m->interruptible)) ring_bell(m, m->index);
    Py_RETURN_NONE;
}

/* poison(code, culprit=-1): end every wait of every member; the first one stands */
static PyObject *member_poison(PyObject *self, PyObject *args) {
    Member *m = (Member *)self;
    unsigned code;
    int culprit = -1;
    if (!PyArg_ParseTuple(args, "I|i", &code, &culprit) || check_usable(m)) return NULL;
    uint32_t none = 0;
    if (!atomic_load(&m->board->poison) && culprit >= 0) atomic_store(&m->board->culprit, (uint32_t)culprit);
    bool first = atomic_compare_exchange_strong(&m->board->poison, &none, code);
    if (!first && code == POISON_CLOSED) atomic_store(&m->board->poison, code); /* closing also ends a broken graph */
    for (uint32_t i = 0; i < m->nmembers; i++) ring_bell(m, i);
    return PyBool_FromLong(first);
}

static PyObject *member_get_poison(PyObject *self, void *closure) {
    (void)closure;
    Member *m = (Member *)self;
    uint32_t culprit = atomic_load(&m->board->culprit);
    return Py_BuildValue("(Ii)", atomic_load(&m->board->poison), culprit == NO_MEMBER ? -1 : (int)culprit);
}

/* now(member) -> (pid, op, execution, since_ns, state, ring, events so far) */
static PyObject *member_now(PyObject *self, PyObject *args) {
    Member *m = (Member *)self;
    unsigned index;
    if (!PyArg_ParseTuple(args, "I", &index)) return NULL;
    if (index >= m->nmembers) return PyErr_Format(PyExc_IndexError, "no member %u", index);
    Recorder *r = recorder_of(m, index);
    return Py_BuildValue("(IIKKIIK)", r->pid, atomic_load(&r->op), (unsigned long long)atomic_load(&r->execution),
                         (unsigned long long)atomic_load(&r->since_ns), atomic_load(&r->state),
                         atomic_load(&r->ring), (unsigned long long)atomic_load(&r->head));
}

/* counters(member) -> (waits, waited_ns, committed_bytes) */
static PyObject *member_counters(PyObject *self, PyObject *args) {
    Member *m = (Member *)self;
    unsigned index;
    if (!PyArg_ParseTuple(args, "I", &index)) return NULL;
    if (index >= m->nmembers) return PyErr_Format(PyExc_IndexError, "no member %u", index);
    Recorder *r = recorder_of(m, index);
    return Py_BuildValue("(KKK)", (unsigned long long)atomic_load(&r->waits),
                         (unsigned long long)atomic_load(&r->waited_ns),
                         (unsigned long long)atomic_load(&r->committed_bytes));
}

/* waiting_since(member) -> ns, or 0 if it does not sleep; what it waits since then is not in its counters yet */
static PyObject *member_waiting_since(PyObject *self, PyObject *args) {
    Member *m = (Member *)self;
    unsigned index;
    if (!PyArg_ParseTuple(args, "I", &index)) return NULL;
    if (index >= m->nmembers) return PyErr_Format(PyExc_IndexError, "no member %u", index);
    return PyLong_FromUnsignedLongLong(atomic_load(&recorder_of(m, index)->waiting_since_ns));
}

/* The oldest event from number n on that can still be there. */
static uint64_t oldest_event(const Member *m, uint64_t n, uint64_t head) {
    uint64_t most = m->nevents;
    if (most < TAPE_EVENTS && atomic_load_explicit(&m->board->taped, memory_order_acquire)) most = TAPE_EVENTS;
    return head > most && n < head - most ? head - most : n;
}

/* events(member, start) -> (next, lost, records) */
static PyObject *member_events(PyObject *self, PyObject *args) {
    Member *m = (Member *)self;
    unsigned index;
    unsigned long long start;
    if (!PyArg_ParseTuple(args, "IK", &index, &start)) return NULL;
    if (index >= m->nmembers) return PyErr_Format(PyExc_IndexError, "no member %u", index);
    uint64_t head = atomic_load_explicit(&recorder_of(m, index)->head, memory_order_acquire);
    uint64_t n = oldest_event(m, start, head), lost = n - start, count = 0;
    Record *records = n < head ? PyMem_Malloc((size_t)(head - n) * sizeof(Record)) : NULL;
    if (n < head && !records) return PyErr_NoMemory();
    for (; n < head; n++)
        if (read_event(m, index, n, &records[count])) count++;
        else lost++; /* overwritten, or being written, while we looked */
    PyObject *found = PyBytes_FromStringAndSize((const char *)records, (Py_ssize_t)(count * sizeof(Record)));
    PyMem_Free(records);
    return found ? Py_BuildValue("(KKN)", (unsigned long long)n, (unsigned long long)lost, found) : NULL;
}

/* record(op, execution, start_ns, end_ns, coded_ns=0): write an event; any thread */
static PyObject *member_record(PyObject *self, PyObject *args) {
    Member *m = (Member *)self;
    unsigned op;
    unsigned long long execution, start, end, coded = 0;
    if (!PyArg_ParseTuple(args, "IKKK|K", &op, &execution, &start, &end, &coded) || check_usable(m)) return NULL;
    if (m->recording)
        write_event(m, &(Record){.start_ns = start, .end_ns = end, .coded_ns = coded, .execution = execution, .op = op,
                                 .peer = NO_MEMBER});
    Py_RETURN_NONE;
}

/* waited(ns): the op that is open in this loop waited so long for something outside of the graph */
static PyObject *member_waited(PyObject *self, PyObject *arg) {
    uint64_t ns = PyLong_AsUnsignedLongLong(arg);
    if (ns == UINT64_MAX && PyErr_Occurred()) return NULL;
    if (check_usable((Member *)self)) return NULL;
    ((Member *)self)->open.waited_ns += ns;
    Py_RETURN_NONE;
}

/* span(name) -> the `op` of spans of this name. Names are kept for good; what is too many or too long is cut. */
static PyObject *member_span(PyObject *self, PyObject *name) {
    Member *m = (Member *)self;
    if (check_usable(m)) return NULL;
    PyObject *bytes = PyUnicode_AsEncodedString(name, "utf-8", "replace");
    if (!bytes) return NULL;
    char *text = PyBytes_AsString(bytes);
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
    Py_DECREF(bytes);
    return PyLong_FromUnsignedLong(SPAN_BASE + i); /* MAX_SPANS itself stands for all others */
}

/* spans(member) -> names of its spans */
static PyObject *member_spans(PyObject *self, PyObject *args) {
    Member *m = (Member *)self;
    unsigned index;
    if (!PyArg_ParseTuple(args, "I", &index)) return NULL;
    if (index >= m->nmembers) return PyErr_Format(PyExc_IndexError, "no member %u", index);
    uint32_t n = atomic_load_explicit(&recorder_of(m, index)->nspans, memory_order_acquire);
    const SpanName *names = span_names(m, index);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < n && i < MAX_SPANS; i++) {
        size_t length = strnlen(names[i].text, sizeof names[i].text);
        PyObject *name = PyUnicode_DecodeUTF8(names[i].text, (Py_ssize_t)length, "replace");
        if (!name || PyList_Append(list, name)) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

/* ring(index) -> (published, [consumed by reader ...]) */
static PyObject *member_ring(PyObject *self, PyObject *args) {
    Member *m = (Member *)self;
    unsigned index;
    if (!PyArg_ParseTuple(args, "I", &index)) return NULL;
    Shape shape;
    if (ring_at(m, index, &shape)) return NULL;
    PyObject *list = PyList_New(shape.nreaders);
    for (uint32_t i = 0; list && i < shape.nreaders; i++) {
        PyObject *o = PyLong_FromUnsignedLongLong(atomic_load(&shape.ring->reader[i].seq));
        if (!o || PyList_SetItem(list, i, o)) Py_CLEAR(list);
    }
    return list ? Py_BuildValue("(KN)", (unsigned long long)atomic_load(&shape.ring->seq), list) : NULL;
}

/* trim(keep_bytes=0) -> bytes given back to the system; for the thread that writes */
static PyObject *member_trim(PyObject *self, PyObject *args) {
    Member *m = (Member *)self;
    unsigned long long keep = 0;
    if (!PyArg_ParseTuple(args, "|K", &keep) || check_usable(m)) return NULL;
    return PyLong_FromUnsignedLongLong(arena_trim(m->arenas[m->index], m->board, keep));
}

/* forget(member) -> blocks whose claims were cleared, because the member is dead */
static PyObject *member_forget(PyObject *self, PyObject *args) {
    Member *m = (Member *)self;
    unsigned dead;
    if (!PyArg_ParseTuple(args, "I", &dead) || check_usable(m)) return NULL;
    if (dead >= m->nmembers || dead == m->index) return PyErr_Format(PyExc_ValueError, "member %u cannot be forgotten", dead);
    Arena *a = m->arenas[m->index];
    uint64_t mask = claim_mask(a, dead), cleared = 0;
    for (uint32_t id = 0; id < a->nblocks; id++) {
        Block *b = &a->header->block[id];
        uint64_t bytes = block_committed(b), execution = atomic_load_explicit(&b->execution, memory_order_relaxed);
        uint64_t before = atomic_fetch_and(&b->claims, ~mask);
        if (!(before & mask)) continue;
        cleared++;
        if (before & ~mask) continue;
        ledger_freed(m->ledger->ledger, bytes, execution);
        atomic_fetch_add(&a->header->frees, 1);
    }
    return PyLong_FromUnsignedLongLong(cleared);
}

/* survey(seen, complete, submitted) -> (claimed, peak, live, most): the bytes that are claimed now; at its peak, of the
 * executions from `seen` that are complete, the one that needed most; of those under way, what they all have now and
 * what one of them had at its peak so far. As far as the ledger goes back. */
static PyObject *member_survey(PyObject *self, PyObject *args) {
    Member *m = (Member *)self;
    unsigned long long seen, complete, submitted;
    if (!PyArg_ParseTuple(args, "KKK", &seen, &complete, &submitted)) return NULL;
    Ledger *l = m->ledger->ledger;
    uint64_t peak = 0, live = 0, most = 0, back = submitted > ACCOUNTS ? submitted - ACCOUNTS : 0;
    for (uint64_t i = seen > back ? seen : back; i < submitted; i++) {
        const Account *c = account_of(l, i);
        if (atomic_load_explicit(&c->execution, memory_order_relaxed) != i + 1) continue;
        uint64_t now = atomic_load_explicit(&c->live_bytes, memory_order_relaxed);
        uint64_t top = atomic_load_explicit(&c->peak_bytes, memory_order_relaxed);
        if (i < complete) peak = top > peak ? top : peak;
        else live += now, most = top > most ? top : most;
    }
    return Py_BuildValue("(KKKK)", (unsigned long long)atomic_load(&l->claimed_bytes), (unsigned long long)peak,
                         (unsigned long long)live, (unsigned long long)most);
}

/* expect(bytes): what an execution needs at its peak, so that whoever reads leaves room for it */
static PyObject *member_expect(PyObject *self, PyObject *arg) {
    uint64_t bytes = PyLong_AsUnsignedLongLong(arg);
    if (bytes == UINT64_MAX && PyErr_Occurred()) return NULL;
    atomic_store_explicit(&((Member *)self)->ledger->ledger->need_bytes, bytes, memory_order_relaxed);
    Py_RETURN_NONE;
}

static PyObject *member_statistics(PyObject *self, PyObject *unused) {
    (void)unused;
    Member *m = (Member *)self;
    Arena *a = m->arenas[m->index];
    uint32_t n = atomic_load(&a->header->nblocks), busy = 0; /* also those of an earlier self */
    if (n > MAX_BLOCKS || !arena_reaches(a, ARENA_DATA)) n = 0;
    uint64_t held = 0;
    for (uint32_t id = 0; id < n; id++)
        if (!block_is_free(a, id)) busy++, held += block_committed(&a->header->block[id]);
    const Ledger *l = m->ledger->ledger;
    return Py_BuildValue("{sKsKsKsKsKsKsKsKsKsIsIsKsK}", "used_bytes",
                         (unsigned long long)atomic_load(&m->board->used_bytes), "cap_bytes",
                         (unsigned long long)m->board->cap_bytes, "committed_bytes", (unsigned long long)atomic_load(a->committed),
                         "claimed_bytes", (unsigned long long)held, "copies", (unsigned long long)a->copies, "forwards",
                         (unsigned long long)a->forwards, "spins", (unsigned long long)atomic_load(&m->spins), "sleeps",
                         (unsigned long long)atomic_load(&m->sleeps), "wakes", (unsigned long long)atomic_load(&m->wakes), "blocks", n,
                         "blocks_claimed", busy, "stashes", (unsigned long long)atomic_load(&l->stashes), "stashed_bytes",
                         (unsigned long long)atomic_load(&l->stashed_bytes));
}

static PyMethodDef member_methods[] = {
    {"reader", member_reader, METH_VARARGS, "reader(ring, op, decode, failure): this member's reading end."},
    {"writer", member_writer, METH_VARARGS, "writer(ring, op): this member's writing end."},
    {"mark", (PyCFunction)(void (*)(void))member_mark, METH_FASTCALL,
     "mark(op, execution): one timestamp closes the open op and opens this one."},
    {"submit", (PyCFunction)(void (*)(void))member_submit, METH_FASTCALL,
     "submit(frames, limit, left, wanted, refs, started_ns=0, stash=False): publish the inputs of an execution, or none."},
    {"wait_any", member_wait_any, METH_VARARGS,
     "wait_any(readers, timeout_ns=-1, interrupts=None): wait until one has a frame."},
    {"interrupt", member_interrupt, METH_NOARGS, "End this process's own waits that listen for it."},
    {"poison", member_poison, METH_VARARGS, "poison(code, culprit=-1): wake every waiter; True if first."},
    {"now", member_now, METH_VARARGS, "now(member) -> (pid, op, execution, since_ns, state, ring, events)."},
    {"counters", member_counters, METH_VARARGS,
     "counters(member) -> (waits, waited_ns, committed_bytes); a wait is counted when it ends."},
    {"waiting_since", member_waiting_since, METH_VARARGS, "waiting_since(member) -> ns, or 0 if it does not sleep."},
    {"events", member_events, METH_VARARGS, "events(member, start) -> (next, lost, records as bytes)."},
    {"record", member_record, METH_VARARGS, "record(op, execution, start_ns, end_ns, coded_ns=0): write an event."},
    {"waited", member_waited, METH_O, "waited(ns): the open op of this loop waited so long."},
    {"span", member_span, METH_O, "span(name) -> the op of spans of this name."},
    {"spans", member_spans, METH_VARARGS, "spans(member) -> names of its spans."},
    {"ring", member_ring, METH_VARARGS, "ring(index) -> (published, [consumed, ...])."},
    {"survey", member_survey, METH_VARARGS, "survey(seen, complete, submitted) -> (claimed, peak, live, most), in bytes."},
    {"expect", member_expect, METH_O, "expect(bytes): what an execution needs at its peak."},
    {"trim", member_trim, METH_VARARGS, "trim(keep_bytes=0): give free memory back to the system."},
    {"forget", member_forget, METH_VARARGS, "forget(member): clear the claims of a dead member."},
    {"statistics", member_statistics, METH_NOARGS, "Counters of this member as a dict."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef member_getset[] = {{"poisoned", member_get_poison, NULL, "(code, culprit or -1)", NULL},
                                      {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot member_slots[] = {{Py_tp_doc, "One process of one graph: its bell, its arena, its ends of rings."},
                                     {Py_tp_new, member_new},
                                     {Py_tp_dealloc, member_dealloc},
                                     {Py_tp_methods, member_methods},
                                     {Py_tp_getset, member_getset},
                                     {0, NULL}};
static PyType_Spec member_spec = {"rcg._native.Member", sizeof(Member), 0, Py_TPFLAGS_DEFAULT, member_slots};

/* ============================================================ tape */

/* Takes all members' events as they come, on a thread of its own that never needs the GIL. */
typedef struct {
    Record *records;
    size_t count, room;
    uint64_t next, lost;
} Track;

typedef struct {
    PyObject_HEAD
    Member *member;
    uint64_t most;    /* records of each track */
    atomic_u64 taken; /* records so far, of all tracks */
    atomic_u32 stop;
    bool runs;
    Track tracks[MAX_MEMBERS];
} Tape;

static void tape_track(Tape *t, uint32_t index) {
    Member *m = t->member;
    Track *k = &t->tracks[index];
    uint64_t head = atomic_load_explicit(&recorder_of(m, index)->head, memory_order_acquire);
    uint64_t from = oldest_event(m, k->next, head);
    k->lost += from - k->next;
    for (k->next = from; k->next < head; k->next++) {
        if (k->count == k->room && k->count < t->most) {
            size_t room = k->room ? 2 * k->room : 4096;
            Record *records = realloc(k->records, room * sizeof(Record));
            if (records) {
                k->records = records;
                k->room = room;
            }
        }
        if (k->count >= t->most || k->count == k->room) k->lost++;
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

static void tape_drain(Tape *t) {
    for (uint32_t i = 0; i < t->member->nmembers; i++) tape_track(t, i);
}

/* Tape(member, board_fd, most): from now on events go to the larger rings; each member may fill its part of `most` */
static PyObject *tape_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *member;
    int fd;
    unsigned long long most;
    State *state = state_of(type);
    if (!state) return NULL;
    if (kwargs && PyDict_Size(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Tape(member, board_fd, most) takes no keywords");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OiK", &member, &fd, &most)) return NULL;
    if (!PyObject_TypeCheck(member, state->member_type)) {
        PyErr_SetString(PyExc_TypeError, "Tape(member, board_fd, most)");
        return NULL;
    }
    Member *m = (Member *)member;
    if (check_usable(m)) return NULL;
    uint64_t from = (uint64_t)((uint8_t *)m->tapes - (uint8_t *)m->board);
    int r = 0;
    if (!atomic_load(&m->board->taped)) {
        do r = fallocate(fd, 0, (off_t)from, (off_t)(m->nmembers * (uint64_t)TAPE_EVENTS * sizeof(Event)));
        while (r && errno == EINTR);
    }
    if (r) return PyErr_SetFromErrno(PyExc_OSError);
    Tape *t = allocate_object(type);
    if (!t) return NULL;
    Py_INCREF(member);
    t->member = m;
    t->most = (most + m->nmembers - 1) / m->nmembers;
    atomic_store(&m->board->taped, 1);
    atomic_fetch_add(&m->board->taping, 1);
    t->runs = true;
    for (uint32_t i = 0; i < m->nmembers; i++) t->tracks[i].next = atomic_load(&recorder_of(m, i)->head);
    return (PyObject *)t;
}

/* run(period_ns): take events until stop(); returns when all that came before it are taken */
static PyObject *tape_run(PyObject *self, PyObject *period) {
    Tape *t = (Tape *)self;
    uint64_t ns = PyLong_AsUnsignedLongLong(period);
    if (ns == UINT64_MAX && PyErr_Occurred()) return NULL;
    struct timespec ts = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    Py_BEGIN_ALLOW_THREADS
    while (!atomic_load(&t->stop)) {
        tape_drain(t);
        futex(&t->stop, FUTEX_WAIT, 0, &ts);
    }
    tape_drain(t);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static void tape_end(Tape *t) {
    if (t->runs && t->member->generation == atomic_load(&fork_generation)) atomic_fetch_sub(&t->member->board->taping, 1);
    t->runs = false;
}

/* stop(): end run(); any thread, any number of times */
static PyObject *tape_stop(PyObject *self, PyObject *unused) {
    (void)unused;
    Tape *t = (Tape *)self;
    tape_end(t);
    atomic_store(&t->stop, 1);
    futex(&t->stop, FUTEX_WAKE, INT_MAX, NULL);
    Py_RETURN_NONE;
}

/* take(member) -> (lost, records as bytes), once run() has returned; the same each time */
static PyObject *tape_take(PyObject *self, PyObject *arg) {
    Tape *t = (Tape *)self;
    unsigned long index = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred()) return NULL;
    if (index >= t->member->nmembers) return PyErr_Format(PyExc_IndexError, "no member %lu", index);
    Track *k = &t->tracks[index];
    PyObject *found = PyBytes_FromStringAndSize((const char *)k->records, (Py_ssize_t)(k->count * sizeof(Record)));
    if (!found) return NULL;
    return Py_BuildValue("(KN)", (unsigned long long)k->lost, found);
}

static void tape_dealloc(PyObject *self) {
    Tape *t = (Tape *)self;
    tape_end(t);
    for (uint32_t i = 0; i < MAX_MEMBERS; i++) free(t->tracks[i].records);
    Py_DECREF((PyObject *)t->member);
    free_object(self);
}

static PyMethodDef tape_methods[] = {{"run", tape_run, METH_O, "run(period_ns): take events until stop()."},
                                     {"stop", tape_stop, METH_NOARGS, "stop(): end run(); any thread."},
                                     {"take", tape_take, METH_O, "take(member) -> (lost, records as bytes)."},
                                     {NULL, NULL, 0, NULL}};
static PyObject *tape_get_taken(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(atomic_load(&((Tape *)self)->taken));
}

static PyGetSetDef tape_getset[] = {{"taken", tape_get_taken, NULL, "How many records it has so far.", NULL},
                                    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot tape_slots[] = {{Py_tp_new, tape_new},
                                   {Py_tp_getset, tape_getset},
                                   {Py_tp_dealloc, tape_dealloc},
                                   {Py_tp_methods, tape_methods},
                                   {0, NULL}};
static PyType_Spec tape_spec = {"rcg._native.Tape", sizeof(Tape), 0, Py_TPFLAGS_DEFAULT, tape_slots};

/* ============================================================ module functions */

/* format_board(fd, members, rings, events, cap_bytes) -> size; rings = [(writer, (reader, ...), slots, slot_bytes)] */
static PyObject *format_board(PyObject *module, PyObject *args) {
    (void)module;
    int fd;
    unsigned nmembers, nevents;
    unsigned long long cap;
    PyObject *rings;
    if (!PyArg_ParseTuple(args, "iIOIK", &fd, &nmembers, &rings, &nevents, &cap)) return NULL;
    if (!nmembers || nmembers > MAX_MEMBERS || !nevents || (nevents & (nevents - 1)) || !PyList_Check(rings)) {
        PyErr_Format(PyExc_ValueError, "a board has 1 to %d members and room for a power of two of events", MAX_MEMBERS);
        return NULL;
    }
    Py_ssize_t nrings = PyList_Size(rings);
    uint64_t ledger = align_up(bells_offset((uint64_t)nrings) + nmembers * sizeof(Bell), LARGEST_PAGE);
    uint64_t trays = align_up(ledger + sizeof(Ledger), LARGEST_PAGE); /* the ledger's pages are its own */
    uint64_t recorders = trays + nmembers * sizeof(Tray);
    uint64_t stride = sizeof(Recorder) + (uint64_t)nevents * sizeof(Event) + MAX_SPANS * sizeof(SpanName);
    uint64_t tapes = 0, size = 0;
    BoardHeader *board = NULL;
    /* twice over the rings: first their sizes, then their contents */
    for (int pass = 0; pass < 2; pass++) {
        uint64_t at = align_up(recorders + nmembers * stride, PAGE);
        for (Py_ssize_t i = 0; i < nrings; i++) {
            unsigned writer, nslots, slot_bytes;
            PyObject *readers;
            PyObject *item = PyList_GetItem(rings, i);
            if (!PyTuple_Check(item) || !PyArg_ParseTuple(item, "IO!II", &writer, &PyTuple_Type, &readers, &nslots, &slot_bytes))
                goto refused;
            Py_ssize_t nreaders = PyTuple_Size(readers);
            if (writer >= nmembers || nreaders < 1 || nreaders > MAX_MEMBERS || !nslots || (nslots & (nslots - 1)) ||
                slot_bytes < 2 * sizeof(Frame) || slot_bytes % LINE) {
                PyErr_Format(PyExc_ValueError,
                             "ring %zd: needs a member as writer, 1 to %d readers, a power of two of slots and slots of "
                             "a multiple of %u bytes",
                             i, MAX_MEMBERS, LINE);
                goto refused;
            }
            if (pass) {
                Ring *r = (Ring *)((uint8_t *)board + at);
                ring_offsets(board)[i] = at;
                r->index = (uint32_t)i;
                r->nslots = nslots;
                r->slot_bytes = slot_bytes;
                r->nreaders = (uint32_t)nreaders;
                r->writer = writer;
                for (Py_ssize_t j = 0; j < nreaders; j++) {
                    unsigned long member = PyLong_AsUnsignedLong(PyTuple_GetItem(readers, j));
                    if (PyErr_Occurred()) goto refused;
                    if (member >= nmembers) {
                        PyErr_Format(PyExc_ValueError, "ring %zd: no member %lu", i, member);
                        goto refused;
                    }
                    for (Py_ssize_t k = 0; k < j; k++)
                        if (r->reader[k].member == member) {
                            PyErr_Format(PyExc_ValueError, "ring %zd: member %lu is listed twice", i, member);
                            goto refused;
                        }
                    r->reader[j].member = (uint32_t)member;
                }
            }
            at += align_up(sizeof(Ring) + (uint64_t)nreaders * sizeof(ReaderLine) + (uint64_t)nslots * slot_bytes, PAGE);
        }
        if (pass) break;
        tapes = at;
        size = tapes + nmembers * (uint64_t)TAPE_EVENTS * sizeof(Event);
        int r;
        do r = fallocate(fd, 0, 0, (off_t)tapes);
        while (r && errno == EINTR);
        if (!r) r = ftruncate(fd, (off_t)size);
        void *p = r ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) return PyErr_SetFromErrno(PyExc_OSError);
        board = p;
        board->abi = ABI_VERSION;
        board->nmembers = nmembers;
        board->nrings = (uint32_t)nrings;
        board->size_bytes = size;
        board->recorder_offset = recorders;
        board->recorder_stride = stride;
        board->nevents = nevents;
        board->tape_offset = tapes;
        board->ledger_offset = ledger;
        board->tray_offset = trays;
        board->cap_bytes = cap;
        board->claim_bits = claim_bits_for(nmembers);
        atomic_store(&board->culprit, NO_MEMBER);
    }
    board->magic = BOARD_MAGIC;
    munmap(board, size);
    return PyLong_FromUnsignedLongLong(size);
refused:
    if (board) munmap(board, size);
    return NULL;
}

/* format_arena(fd, owner, members, reserve_bytes) */
static PyObject *format_arena(PyObject *module, PyObject *args) {
    (void)module;
    int fd;
    unsigned owner, nmembers;
    unsigned long long reserve;
    if (!PyArg_ParseTuple(args, "iIIK", &fd, &owner, &nmembers, &reserve)) return NULL;
    if (!nmembers || nmembers > MAX_MEMBERS || owner >= nmembers || reserve < MIN_BLOCK || reserve % PAGE) {
        PyErr_SetString(PyExc_ValueError, "an arena needs an owner among 1 to 64 members and whole pages to reserve");
        return NULL;
    }
    int r;
    do r = fallocate(fd, 0, 0, PAGE);
    while (r && errno == EINTR);
    void *p = r ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return PyErr_SetFromErrno(PyExc_OSError);
    ArenaHeader *h = p;
    h->magic = ARENA_MAGIC;
    h->owner = owner;
    h->claim_bits = claim_bits_for(nmembers);
    h->reserve_bytes = reserve;
    munmap(p, PAGE);
    Py_RETURN_NONE;
}

/* memcpy(destination, source): the limit for moving bytes, without the GIL */
static PyObject *native_memcpy(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer to, from;
    if (!PyArg_ParseTuple(args, "w*y*", &to, &from)) return NULL;
    size_t n = (size_t)(from.len < to.len ? from.len : to.len);
    Py_BEGIN_ALLOW_THREADS
    memcpy(to.buf, from.buf, n);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&to);
    PyBuffer_Release(&from);
    return PyLong_FromSize_t(n);
}

/* ping_pong(fd, role, rounds): the limit for waking a process. Two processes call it with roles 0 and 1 on the same
 * descriptor of at least 4096 bytes; role 0 gets the round-trip times in ns as bytes of native uint64. Pure futex. */
static PyObject *native_ping_pong(PyObject *module, PyObject *args) {
    (void)module;
    int fd, role;
    unsigned rounds;
    if (!PyArg_ParseTuple(args, "iiI", &fd, &role, &rounds)) return NULL;
    atomic_u32 *words = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (words == MAP_FAILED) return PyErr_SetFromErrno(PyExc_OSError);
    PyObject *times = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(rounds * sizeof(uint64_t)));
    if (times) {
        uint64_t *out = (uint64_t *)PyBytes_AsString(times);
        atomic_u32 *mine = &words[role ? 16 : 0], *theirs = &words[role ? 0 : 16];
        bool gone = false;
        Py_BEGIN_ALLOW_THREADS
        struct timespec patience = {30, 0};
        for (uint32_t i = 1; i <= rounds && !gone; i++) {
            uint64_t start = now_ns();
            if (!role) {
                atomic_store(theirs, i);
                futex(theirs, FUTEX_WAKE, 1, NULL);
            }
            for (uint32_t seen; (seen = atomic_load(mine)) != i && !gone;)
                gone = futex(mine, FUTEX_WAIT, seen, &patience) && errno == ETIMEDOUT;
            if (role) {
                atomic_store(theirs, i);
                futex(theirs, FUTEX_WAKE, 1, NULL);
            }
            out[i - 1] = now_ns() - start;
        }
        Py_END_ALLOW_THREADS
        if (gone) {
            Py_CLEAR(times);
            PyErr_SetString(PyExc_TimeoutError, "the other side of the ping-pong went away");
        }
    }
    munmap((void *)words, PAGE);
    return times;
}

/* release(left, execution, output): note that an output of an execution was fetched or its ref dropped; once is as good
 * as twice. `left` maps an execution to the bits of its outputs that are still wanted. One step, in which nothing else
 * runs, because refs go away anywhere. */
static PyObject *native_release(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    if (nargs != 3 || !PyDict_Check(args[0]) || !PyLong_Check(args[1]) || !PyLong_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "release(left, execution, output)");
        return NULL;
    }
    PyObject *left = args[0], *execution = args[1], *wanted = PyDict_GetItemWithError(left, execution);
    if (!wanted) {
        if (PyErr_Occurred()) return NULL;
        Py_RETURN_NONE;
    }
    Py_INCREF(wanted);
    PyObject *one = PyLong_FromLong(1);
    PyObject *bit = one ? PyNumber_Lshift(one, args[2]) : NULL;
    PyObject *others = bit ? PyNumber_Invert(bit) : NULL;
    PyObject *rest = others ? PyNumber_And(wanted, others) : NULL;
    int any = rest ? PyObject_IsTrue(rest) : -1;
    int failed = any < 0 || (any ? PyDict_SetItem(left, execution, rest) : PyDict_DelItem(left, execution));
    Py_XDECREF(rest);
    Py_XDECREF(others);
    Py_XDECREF(bit);
    Py_XDECREF(one);
    Py_DECREF(wanted);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"release", (PyCFunction)(void (*)(void))native_release, METH_FASTCALL,
     "release(left, execution, output): an output was fetched or dropped; once is as good as twice."},
    {"format_board", format_board, METH_VARARGS, "format_board(fd, members, rings, events, cap_bytes) -> size"},
    {"format_arena", format_arena, METH_VARARGS, "format_arena(fd, owner, members, reserve_bytes)"},
    {"memcpy", native_memcpy, METH_VARARGS, "memcpy(destination, source) -> bytes copied"},
    {"ping_pong", native_ping_pong, METH_VARARGS, "ping_pong(fd, role, rounds) -> round-trip times in ns, as bytes"},
    {NULL, NULL, 0, NULL}};

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type) {
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type ? PyModule_AddType(module, *type) : -1;
}

static int add_error(PyObject *module, const char *name, const char *doc, PyObject **error) {
    char full[64];
    PyOS_snprintf(full, sizeof full, "rcg._native.%s", name);
    *error = PyErr_NewExceptionWithDoc(full, doc, NULL, NULL);
    return *error ? PyModule_AddObjectRef(module, name, *error) : -1;
}

static int module_exec(PyObject *module) {
    static bool watching_forks; /* of the process, not of the interpreter */
    State *s = PyModule_GetState(module);
    if (!watching_forks) {
        if (pthread_atfork(NULL, NULL, after_fork_in_child)) {
            PyErr_SetString(PyExc_RuntimeError, "pthread_atfork failed");
            return -1;
        }
        watching_forks = true;
    }
    if (!(s->buffers_name = PyUnicode_InternFromString("buffers")) ||
        !(s->execution_name = PyUnicode_InternFromString("execution")) ||
        !(s->state_name = PyUnicode_InternFromString("state")))
        return -1;
    if (add_type(module, &arena_spec, &s->arena_type) || add_type(module, &lease_spec, &s->lease_type) ||
        add_type(module, &frame_spec, &s->frame_type) || add_type(module, &reader_spec, &s->reader_type) ||
        add_type(module, &writer_spec, &s->writer_type) || add_type(module, &member_spec, &s->member_type) ||
        add_type(module, &tape_spec, &s->tape_type))
        return -1;
    if (add_error(module, "Poisoned", "Poisoned(code, culprit): the graph was closed or broke.", &s->poisoned) ||
        add_error(module, "TimedOut", "The deadline passed.", &s->timed_out) ||
        add_error(module, "NoMemory", "NoMemory(wanted, used, cap, errno)", &s->no_memory) ||
        add_error(module, "Corrupt", "A frame or a segment is damaged.", &s->corrupt))
        return -1;
    static const struct {
        const char *name;
        long value;
    } constants[] = {{"ABI_VERSION", ABI_VERSION},     {"KIND_PICKLE", KIND_PICKLE},     {"KIND_BYTES", KIND_BYTES},
                     {"KIND_FAILURE", KIND_FAILURE},   {"POISON_CLOSED", POISON_CLOSED},
                     {"POISON_BROKEN", POISON_BROKEN}, {"MAX_MEMBERS", MAX_MEMBERS},     {"INLINE_BUFFER", INLINE_BUFFER},
                     {"MAX_SPANS", MAX_SPANS},         {"TAPE_EVENTS", TAPE_EVENTS},       {"SPAN_BASE", SPAN_BASE},
                     {"FRAME_BYTES", sizeof(Frame)},   {"NOW_IDLE", NOW_IDLE},           {"NOW_RUNNING", NOW_RUNNING},
                     {"NOW_WAITING", NOW_WAITING},     {"MIN_BLOCK", MIN_BLOCK},         {"REF_NEW", REF_NEW},
                     {"REF_PENDING", REF_PENDING}};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value)) return -1;
    return 0;
}

static void module_free(void *module) {
    State *s = PyModule_GetState(module);
    if (!s) return;
    Py_CLEAR(s->arena_type);
    Py_CLEAR(s->lease_type);
    Py_CLEAR(s->frame_type);
    Py_CLEAR(s->tape_type);
    Py_CLEAR(s->reader_type);
    Py_CLEAR(s->writer_type);
    Py_CLEAR(s->member_type);
    Py_CLEAR(s->poisoned);
    Py_CLEAR(s->timed_out);
    Py_CLEAR(s->no_memory);
    Py_CLEAR(s->corrupt);
    Py_CLEAR(s->buffers_name);
    Py_CLEAR(s->execution_name);
    Py_CLEAR(s->state_name);
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};
static struct PyModuleDef module_def = {.m_base = PyModuleDef_HEAD_INIT,
                                        .m_name = "rcg._native",
                                        .m_doc = "Rings, blocks, bells and the flight recorder in shared memory.",
                                        .m_size = sizeof(State),
                                        .m_methods = module_methods,
                                        .m_slots = module_slots,
                                        .m_free = module_free};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module_def); }
