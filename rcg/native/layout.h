// SPDX-License-Identifier: Apache-2.0
/* The layout of shared memory: the bytes, the states, and the writers and readers of each shared word.
 *
 * The core moves frames of bytes between processes, waits, and records events. It knows nothing of Python, Ray, graphs
 * or serialization: it takes spans of bytes, and the kind of a frame is a number that it passes on.
 *
 * ---- Segments -------------------------------------------------------------------------------------------------
 *
 * A compiled graph has, on each node, one *board* and one *arena* per member (a member is one process of the graph;
 * the driver is member 0). Segments have no name: their descriptors travel over the control socket.
 *
 *   board    +--------------+---------+-----+--------+---------+-------------+-----+--------+-----+-------+
 *   (RW)     | BoardHeader  | Doorbell[0] | ... | Ledger | Tray[0] | Recorder[0] | ... | Ring 0 | ... | drains |
 *            +--------------+---------+-----+--------+---------+-------------+-----+--------+-----+-------+
 *              magic, poison   one 64-byte line                  now-line and        control lines, then
 *              used / cap      per member                        events, per member  slots
 *
 *   arena    +--------------+------------------------+---------------------------------------------------+
 *            | ArenaHeader  | Block[MAX_BLOCKS]      | data: block 0, block 1, ... (page aligned)        |
 *            +--------------+------------------------+---------------------------------------------------+
 *             mapped RW by all members                 mapped when first used: to read, or to write
 *
 * The writable mapping serves the owner and a value that has exactly one reader, which may write to it. A reader that
 * moves values to a device maps the data once more for that. Address space is reserved once beyond the end of the file;
 * memory is claimed with fallocate before it is touched, so a full /dev/shm causes an error code and never a SIGBUS.
 *
 * ---- Ring -----------------------------------------------------------------------------------------------------
 *
 *   control  | constants | writer: seq, cpu | room_wanted | reader 0: seq, waiting | reader 1: ... |
 *   slot     | Frame (64 B) | body: Desc[nbuffers], data, small buffers |
 *
 * A ring has one writer and n readers. Every reader sees every frame in order; frame k carries execution k, which is
 * checked. A body that does not fit its slot is in a block of its own, named by Frame.body_block.
 *
 *   writer:  wait until seq - reader[i].seq < nslots for all i -> fill slot -> seq += 1 -> wake readers that wait
 *   reader:  wait until seq > mine -> copy out or lease -> mine += 1 -> wake the writer if it wants room
 *
 * A broken peer must not break others. A frame carries a checksum of its header and table; a reader copies both,
 * compares every number with its own data, makes all objects, and only then takes the frame and its claims. So every
 * read of a damaged frame is an error, and a frame for which there was no memory can be read again. The constants of
 * boards and rings are copied when they are opened, and an owner keeps its own record of its blocks.
 *
 * ---- Doorbell -----------------------------------------------------------------------------------------------------
 *
 * A member sleeps on one futex word for all its waits. It announces the wait in the ring (`waiting` of a reader,
 * `room_wanted` of a writer) so that peers ring only if the member waits:
 *
 *   sleeper: waiting += 1 | v = doorbell | check the condition once more | futex_wait(doorbell, v) | waiting -= 1
 *   waker:   publish      | waiting? -> doorbell += 1, futex_wake(doorbell)
 *
 * Publishing and the load of `waiting`, and likewise `waiting += 1` and the second check, are sequentially consistent:
 * of a store and the load after it (Dekker's pattern), at least one side sees the other. Poison is one word in the
 * board; the process that sets it rings every doorbell, so every wait ends at once.
 *
 * The event loops of the driver sleep on an eventfd instead, the bell, which all members of its board have. They
 * announce their waits in the same way, and say before the second check that they listen: who then rings the doorbell
 * takes that back and rings the bell, so it is rung once, however much comes before they look.
 *
 * ---- Block ----------------------------------------------------------------------------------------------------
 *
 *   free (claims == 0) --owner: claims = all readers--> in flight --reader: lease--> held --last lease ends--> free
 *                                                                         \--forward: more claims--> in flight
 *
 * `claims` is one atomic word with a field of `claim_bits` per member: a release is one subtraction, "free" is one
 * load, the claims of a dead member are cleared by one AND. The owner stores the claims of all readers before it
 * publishes, so messages that a dead reader never took are covered. Only a process that holds a claim may add others
 * (forwarding), hence the word cannot be zero in between and the owner cannot reuse the block. If the claims do not fit
 * their field, the buffer is copied instead. In a forked child every release is a no-op.
 *
 * A *loan* is a block that its owner claims for itself, fills in place, and sends by adding the claims of the readers.
 * The owner's own claim lasts until the host lets go of it. A reader that shall write to what it gets takes the block
 * itself only where its claim is the only one, and copies otherwise.
 *
 * A block keeps its addresses when its memory is given back: `committed` says how much of it, from its start, has
 * memory. Any member may give back the memory of a free block, because the owner may be busy for long:
 *
 *   free, committed --anyone: claims = 1 of its own | committed = 0, punch a hole | claims = 0--> free, without memory
 *
 * and the owner takes a block by the same exchange of 0 for claims, so the two cannot collide. Small blocks are
 * committed whole, large ones to the page. When addresses run out, free neighbours are merged.
 *
 * ---- Stash ----------------------------------------------------------------------------------------------------
 *
 * A loop never waits for memory. If there is none after all free memory was reclaimed, it copies the value to its own
 * heap, the *stash*, and the frame names that copy. The reader pulls it piece by piece through the writer's *tray* in
 * the board. A thread of the writer that needs no lock of its host serves the tray, so it works while the writer runs a
 * user's method:
 *
 *   reader:  user = me | id, offset; turn += 1 (odd) | turn even? -> copy `bytes` out, next piece | user = 0
 *   writer:  turn odd? -> copy a piece into the tray; turn += 1
 *
 * Pulling does not consume the copy: a reader that is interrupted begins again. The copy is freed when every reader has
 * moved past its frame.
 *
 * ---- Ledger ---------------------------------------------------------------------------------------------------
 *
 * The board counts the bytes of all claimed blocks, and for each of the last executions its part of them, now and at
 * its peak. From that the driver learns how many executions fit beside each other. Leases outlive their member, so the
 * ledger is mapped a second time for them.
 *
 * ---- Recorder -------------------------------------------------------------------------------------------------
 *
 * Each member has a ring of 64-byte events, always on, and one line with its current op and counts of its waits and its
 * memory. A program's loop takes one timestamp per op: it closes one event and opens the next. Any member can read any
 * recorder at any time, also after its owner died; an event is valid if its `seq` is the expected number.
 *
 *   Recorder (head, now-line) | Event[nevents] | SpanName[MAX_SPANS]       per member
 *   ...                       | Event[DRAIN_EVENTS]                         per member, at the end of the board
 *
 * While a Drain runs, `draining` is set and events go to the larger ring, so that a drain that runs every few
 * milliseconds loses none. The memory of that ring is sparse before. Event number n is in one ring or the other; its
 * `seq` says whether it is there, so switching needs no agreement with the writers.
 */
#ifndef RCG_LAYOUT_H
#define RCG_LAYOUT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define ABI_VERSION 8 /* of the layout below; members compare it when they start */

#define BOARD_MAGIC 0x31676372u /* "rcg1" */
#define ARENA_MAGIC 0x61676372u
#define FRAME_MAGIC 0x66676372u

#define MAX_MEMBERS 64 /* one claim bit each in the word of a block */
#define MAX_BLOCKS 65536u
#define PAGE 4096u
#define LARGEST_PAGE 65536u /* some aarch64 kernels: what is mapped begins at a multiple of it */
#define LINE 64u
#define GRANULE 4096u /* blocks count their bytes in these */
#define MIN_BLOCK (16u * 1024u)
#define INLINE_BUFFER 4096u        /* buffers up to this size travel in the body of the frame */
#define UNLOCKED_COPY (64u * 1024) /* the host's lock is released for copies above this size */
#define EXACT_FROM (1u << 20)      /* blocks above this size are committed to the page, not whole */
#define TRAY_BYTES (64u * 1024)    /* of the pieces that are pulled from a stash */
#define ACCOUNTS 1024u             /* so many executions back the ledger knows; a power of two */
#define KEEP_FREE (64ull << 20)    /* free memory that stays committed in any case, so that it stays warm */
#define NO_MEMBER UINT32_MAX
#define NO_BLOCK UINT32_MAX
#define STASHED 0x80005afeu /* in place of a block: it lies in the writer's stash; no block, nor like NO_BLOCK */
#define NO_EXECUTION UINT64_MAX
#define NO_BYTES UINT64_MAX
#define SPAN_BASE 0x80000000u
#define MAX_SPANS 256u
#define DRAIN_EVENTS 65536u

typedef _Atomic uint32_t atomic_u32;
typedef _Atomic uint64_t atomic_u64;

#define load_relaxed(word) atomic_load_explicit(word, memory_order_relaxed)
#define load_acquire(word) atomic_load_explicit(word, memory_order_acquire)
#define store_relaxed(word, value) atomic_store_explicit(word, value, memory_order_relaxed)
#define store_release(word, value) atomic_store_explicit(word, value, memory_order_release)
#define add_relaxed(word, n) atomic_fetch_add_explicit(word, n, memory_order_relaxed)
#define sub_relaxed(word, n) atomic_fetch_sub_explicit(word, n, memory_order_relaxed)

/* ---- board
 *
 * "Constant": format_board() writes it before the descriptor is sent out, and it never changes. */

enum { POISON_CLOSED = 1, POISON_BROKEN = 2 };

typedef struct {
    uint32_t magic, abi; /* constant, as all words up to drain_offset */
    uint32_t nmembers, nrings;
    uint64_t size_bytes;
    uint64_t recorder_offset, recorder_stride;
    uint32_t nevents, claim_bits;
    uint64_t cap_bytes;
    uint64_t drain_offset; /* Event[nmembers][DRAIN_EVENTS], to the end of the board */
    /* 0, or POISON_*. Written by the first process that detects the end; read by every wait and by every op. */
    _Alignas(LINE) atomic_u32 poison;
    /* Member that died, or NO_MEMBER. Written before `poison` by the same member; read after it. */
    atomic_u32 culprit;
    /* How many drains run. Written by those who start and end one; read by every writer of events. */
    atomic_u32 draining;
    /* Whether the larger rings of events have memory. Written once by the claimer; read by readers of events. */
    atomic_u32 drained;
    /* Bytes committed by all arenas of the graph. Increased by owners, decreased by any member that gives memory back;
     * owners compare it with the cap. */
    _Alignas(LINE) atomic_u64 used_bytes;
    uint64_t ledger_offset, tray_offset; /* constant: Ledger; Tray[nmembers] */
    uint64_t pad1[5];
    /* then uint64_t ring_offset[nrings] (constant), Doorbell[nmembers], the ledger, trays, recorders, rings, drains */
} BoardHeader;
_Static_assert(sizeof(BoardHeader) == 192, "BoardHeader");

typedef struct {
    /* The word that a member sleeps on. Increased by each waker; read by the member before it sleeps. */
    _Alignas(LINE) atomic_u32 word;
    /* Whether event loops are about to sleep on the bell. Set by the member; taken back by the one that rings it. */
    atomic_u32 listens;
    uint32_t pad[14];
} Doorbell;
_Static_assert(sizeof(Doorbell) == LINE, "Doorbell");

/* ---- ring */

typedef struct {
    /* Frames taken. Written by this reader; read by the writer, which waits for room, and by its stash. */
    _Alignas(LINE) atomic_u64 seq;
    /* Threads of this reader that sleep. Written by the reader; read by the writer after it has published. */
    atomic_u32 waiting;
    uint32_t member; /* constant */
    uint64_t pad[6];
} ReaderLine;
_Static_assert(sizeof(ReaderLine) == LINE, "ReaderLine");

typedef struct {
    uint32_t index, nslots, slot_bytes, nreaders, writer, pad0[11]; /* constant */
    /* Frames published. Written by the writer after the slot is full; read by the readers before they look at it. */
    _Alignas(LINE) atomic_u64 seq;
    /* Processor of the last publisher, plus one. Written by the writer; read by readers that spin. A hint. */
    atomic_u32 cpu;
    uint32_t pad1;
    /* Frames before this one may name copies in the stash, which take time to get. Written by the writer before
     * `seq`; read by readers after it. */
    atomic_u64 stashed;
    uint64_t pad2[5];
    /* Threads of the writer that sleep. Written by the writer; read by a reader after it has moved on. */
    _Alignas(LINE) atomic_u32 room_wanted;
    uint32_t pad3[15];
    ReaderLine reader[]; /* nreaders, then the slots */
} Ring;
_Static_assert(sizeof(Ring) == 3 * LINE, "Ring");

/* The head of a slot. Slots are written by the ring's writer between "all readers have left it" and `seq`, and read by
 * the readers from `seq` until they move on. */
typedef struct {
    uint32_t magic, kind; /* kind: not 0; what it means is between writer and readers */
    uint64_t execution;
    uint64_t body_bytes, data_bytes; /* body: descriptors + data + small buffers */
    uint32_t nbuffers, body_block;   /* NO_BLOCK: the body follows in the slot */
    uint64_t payload_bytes;          /* everything, for statistics */
    uint64_t check;                  /* of all other words and the table of descriptors */
    uint64_t body_stash;             /* with body_block STASHED: which of the stash */
} Frame;
_Static_assert(sizeof(Frame) == LINE, "Frame");

enum { DESC_WRITABLE = 1 }; /* the object over it is written to: fresh block, never shared */

typedef struct {
    uint32_t arena, block; /* NO_BLOCK: `offset` counts from the start of the body; STASHED: it is the number there */
    uint32_t flags, pad;
    uint64_t offset, bytes;
} Desc;
_Static_assert(sizeof(Desc) == 32, "Desc");

/* ---- arena */

typedef struct {
    /* A field of claim_bits per member. 0 is exchanged for claims by the owner, or by a member that gives the memory
     * back; holders add claims of others and subtract their own; the owner clears those of the dead. */
    atomic_u64 claims;
    /* The other words are written while the block is claimed without a reader: by the owner, and `committed` also by a
     * member that gives the memory back. Read by all readers of the block, and by the owner. */
    atomic_u64 offset;              /* in the data */
    atomic_u32 capacity, committed; /* in granules: addresses, and how many of them have memory */
    atomic_u64 execution;           /* whose it is, for the ledger */
} Block;
_Static_assert(sizeof(Block) == 32, "Block");

typedef struct {
    uint32_t magic, owner, claim_bits, pad0; /* constant, like the next */
    uint64_t reserve_bytes, pad1[5];
    /* Blocks whose entries are whole. Written by the owner; read by all. */
    _Alignas(LINE) atomic_u32 nblocks;
    /* How often a block became free. Increased by the last release; read by the owner before it looks for one. */
    _Alignas(LINE) atomic_u64 frees;
    /* How often memory was given back to the system. Increased by any member, before the block that had it is free. So
     * a reader that holds a block sees each change to its pages, which it may have locked in memory for a device. */
    atomic_u64 punches;
    uint64_t pad2[6];
    Block block[]; /* MAX_BLOCKS */
} ArenaHeader;
_Static_assert(sizeof(ArenaHeader) == 3 * LINE, "ArenaHeader");

#define ARENA_DATA                                                                                                     \
    ((sizeof(ArenaHeader) + (uint64_t)MAX_BLOCKS * sizeof(Block) + LARGEST_PAGE - 1) & ~(uint64_t)(LARGEST_PAGE - 1))

static uint64_t block_offset(const Block *b) { return load_relaxed(&b->offset); }

static uint64_t block_capacity(const Block *b) { return (uint64_t)load_relaxed(&b->capacity) * GRANULE; }

static uint64_t block_committed(const Block *b) { return (uint64_t)load_relaxed(&b->committed) * GRANULE; }

/* Bits of each member in the word of a block. */
static uint32_t claim_bits_for(uint32_t members) {
    return members <= 8 ? 8 : members <= 16 ? 4 : members <= 32 ? 2 : 1;
}

/* ---- ledger: all its words are counters, increased by owners and decreased by the last release of a block */

/* What one execution has in blocks: now, and at most so far. */
typedef struct {
    atomic_u64 execution; /* plus one: whose it is. Written by driver or gate; read by owners and last holders */
    atomic_u64 live_bytes, peak_bytes; /* read by the driver */
    uint64_t pad;
} Account;

typedef struct {
    _Alignas(LINE) atomic_u64 claimed_bytes; /* of all blocks that are held or on their way */
    /* What an execution needs at its peak, as the driver has learned. Written by the driver; read by readers. */
    atomic_u64 need_bytes;
    atomic_u64 stashes, stashed_bytes; /* how often there was no memory; how much lies in stashes now */
    uint64_t pad[4];
    Account account[ACCOUNTS];
} Ledger;
_Static_assert(sizeof(Ledger) == LINE + ACCOUNTS * 32, "Ledger");

/* ---- tray: through which one member's stash is read */

typedef struct {
    /* The reader that uses the tray, plus one. Exchanged for 0 by that reader; read by others that want it. */
    _Alignas(LINE) atomic_u32 user;
    /* Odd: the writer's turn. Made odd by the user, even by the thread that serves the stash. */
    atomic_u32 turn;
    atomic_u32 is_served;       /* whether there ever was a stash; written by its member, read by readers */
    atomic_u64 largest;         /* bytes of the largest copy that it ever had; likewise */
    uint64_t id, offset, bytes; /* written by whose turn it is; bytes NO_BYTES: there is no such thing */
    _Alignas(LINE) uint8_t data[TRAY_BYTES]; /* likewise */
} Tray;
_Static_assert(sizeof(Tray) == LINE + TRAY_BYTES, "Tray");

/* ---- recorder: written by its member, under that process's lock; read by any member at any time */

enum { NOW_IDLE = 0, NOW_RUNNING = 1, NOW_WAITING = 2 };

typedef struct {
    _Alignas(LINE) atomic_u64 head; /* events written so far */
    atomic_u32 pid;
    atomic_u32 nspans; /* names of spans so far */
    uint64_t pad0[6];
    _Alignas(LINE) atomic_u64 since_ns; /* the now-line */
    atomic_u64 execution;
    atomic_u32 op, state, ring, pad1;
    atomic_u64 waits, waited_ns; /* of all its threads, kept also when nothing is recorded */
    atomic_u64 waiting_since_ns; /* of the present wait, which is not in waited_ns yet, else 0 */
    atomic_u64 committed_bytes;  /* of this member's arena; decreased by any member that gives memory back */
} Recorder;                      /* then Event[nevents], SpanName[MAX_SPANS] */
_Static_assert(sizeof(Recorder) == 2 * LINE, "Recorder");

/* What one op of one execution did; the layout is that of rcg.trace.model.EVENT. */
typedef struct {
    uint64_t start_ns, end_ns, waited_ns, coded_ns;
    uint64_t execution, bytes;
    uint32_t op;   /* from SPAN_BASE on a user's span */
    uint32_t peer; /* the member that was waited for, or NO_MEMBER */
} Record;
_Static_assert(sizeof(Record) == 56, "Record");

#define RECORD_WORDS (sizeof(Record) / sizeof(uint64_t))

typedef struct {
    _Alignas(LINE) atomic_u64 seq;   /* number of the event, counted from 1; 0 while the words are written */
    atomic_u64 record[RECORD_WORDS]; /* a Record; read while it may be written, hence atomic */
} Event;
_Static_assert(sizeof(Event) == LINE, "Event");

typedef struct {
    char text[LINE]; /* UTF-8, ended by a zero; written before `nspans` counts it */
} SpanName;

/* ---- sums
 *
 * The sum that a frame carries of its own header and its table of descriptors: what is damaged on its way is found out,
 * but for one time in 2^64. Words go in by pairs (wyhash's way), three of them at once. */

static inline uint64_t fold(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t pair(uint32_t low, uint32_t high) { return low | (uint64_t)high << 32; }

static inline uint64_t check_words(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) {
    return fold(a ^ 0x9e3779b97f4a7c15u, b ^ 0xbf58476d1ce4e5b9u) ^
           fold(c ^ 0x94d049bb133111ebu, d ^ 0xd6e8feb86659fd93u) ^
           fold(e ^ 0xa0761d6478bd642fu, f ^ 0xe7037ed1a0b428dbu);
}

static inline uint64_t check_header(const Frame *f) {
    return check_words(pair(f->magic, f->kind), f->execution, f->body_bytes, f->data_bytes,
                       pair(f->nbuffers, f->body_block),
                       f->payload_bytes ^ (f->body_stash << 32 | f->body_stash >> 32));
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

#endif
