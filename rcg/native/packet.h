// SPDX-License-Identifier: Apache-2.0
/* A frame on its way between nodes: the bytes on the connection, and the checks of what arrives.
 *
 *   Head (64 B) | sizes: uint64_t[nbuffers] | data | small buffers | large buffers
 *
 * `data` and the small buffers (up to INLINE_BUFFER bytes) lie together in the sender's slot or block, so they are one
 * piece of memory at both ends. A size has its lowest bit set where the reader will write to the buffer. Numbers are in
 * the byte order of the machines, which the start of a graph compares. A connection carries frames of any number of
 * channels, those of each in the order of executions: the head has the number of both, and a gap or a repeat ends the
 * connection with an error that names the channel. */
#ifndef RCG_PACKET_H
#define RCG_PACKET_H

#include "send.h"

#define PACKET_MAGIC 0x70676372u
#define MOST_BUFFERS (1u << 24) /* of one frame; their table is 128 MiB then */

typedef struct {
    uint32_t magic, channel; /* channel: its number in the plan, the same on all nodes */
    uint32_t kind, nbuffers;
    uint64_t execution;
    uint64_t data_bytes, small_bytes; /* small_bytes: of all small buffers together */
    uint64_t payload_bytes;           /* data and all buffers */
    uint64_t check;                   /* of all other words */
    uint32_t is_apart, pad;           /* is_apart: its buffers are of several values, see Outgoing */
} Head;
_Static_assert(sizeof(Head) == LINE, "Head");

static uint64_t check_head(const Head *h) {
    return fold(pair(h->magic, h->channel) ^ 0x9e3779b97f4a7c15u, h->execution ^ 0xbf58476d1ce4e5b9u) ^
           fold(h->data_bytes ^ 0x94d049bb133111ebu, h->small_bytes ^ 0xd6e8feb86659fd93u) ^
           fold(pair(h->kind, h->nbuffers) ^ 0xa0761d6478bd642fu,
                h->payload_bytes ^ 0xe7037ed1a0b428dbu ^ (uint64_t)h->is_apart << 63);
}

static uint64_t packed_size(const Desc *d) { return d->bytes << 1 | (d->flags & DESC_WRITABLE); }
static uint64_t size_bytes(uint64_t packed) { return packed >> 1; }
static bool size_is_written(uint64_t packed) { return packed & 1; }
static bool size_is_small(uint64_t packed) { return size_bytes(packed) <= INLINE_BUFFER; }

/* Whether a head is one of ours and adds up. */
static bool head_fits(const Head *h) {
    return h->magic == PACKET_MAGIC && h->check == check_head(h) && h->kind && h->nbuffers <= MOST_BUFFERS &&
           h->is_apart <= 1 && !h->pad && h->data_bytes <= h->payload_bytes &&
           h->small_bytes <= h->payload_bytes - h->data_bytes &&
           h->small_bytes <= (uint64_t)h->nbuffers * INLINE_BUFFER;
}

/* Whether the sizes are those that the head counts. */
static bool sizes_fit(const Head *h, const uint64_t *sizes) {
    uint64_t small = 0, left = h->payload_bytes - h->data_bytes;
    for (uint32_t i = 0; i < h->nbuffers; i++) {
        uint64_t bytes = size_bytes(sizes[i]);
        if (bytes > left) return false;
        left -= bytes;
        if (size_is_small(sizes[i])) small += bytes;
    }
    return !left && small == h->small_bytes;
}

#endif
