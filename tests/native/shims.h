// SPDX-License-Identifier: Apache-2.0
/* What the stress test puts between the core and Linux; before the core is included.
 *
 * The thread sanitizer knows memory by its address, and members map the same file more than once. Under it, all of them
 * get one mapping of each part of a file, readable and writable, or it would see neither their races nor what keeps
 * them from racing. Processes are beyond it: it is run on threads only.
 *
 * Sockets take and give less than they could, at times nothing, and connections are cut after so many bytes. */
#ifndef RCG_TEST_SHIMS_H
#define RCG_TEST_SHIMS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifdef __SANITIZE_THREAD__
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
#else
static void unmap_all(void) {}
#endif

/* ---- sockets */

/* A connection that is cut by one of its ends, when so many bytes have passed there. */
static struct {
    int fd; /* -1 for none */
    _Atomic int64_t left;
} cut = {.fd = -1};

static _Thread_local uint64_t whims;

static uint64_t whim(uint64_t below) {
    whims += !whims ? (uint64_t)(uintptr_t)&whims : 0;
    whims = whims * 6364136223846793005u + 1442695040888963407u;
    return (whims >> 33) % below;
}

/* How many of so many bytes go this time; -1 with errno. */
static ssize_t go_now(int fd, size_t bytes) {
    switch (whim(16)) {
    case 0: errno = EAGAIN; return -1;
    case 1: errno = EINTR; return -1;
    case 2:
    case 3: bytes = 1 + whim(bytes); break;
    case 4: bytes = bytes < 1000 ? bytes : 1 + whim(1000); break;
    case 5: nanosleep(&(struct timespec){0, 20000}, NULL); break;
    default: break;
    }
    if (fd == cut.fd && atomic_load(&cut.left) < (int64_t)bytes) {
        bytes = (size_t)atomic_load(&cut.left);
        if (!bytes) shutdown(fd, SHUT_RDWR);
    }
    return (ssize_t)bytes;
}

static void went(int fd, ssize_t bytes) {
    if (fd == cut.fd && bytes > 0) atomic_fetch_sub(&cut.left, bytes);
}

static ssize_t send_some(int fd, const struct msghdr *message, int flags) {
    size_t all = 0, at = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++) all += message->msg_iov[i].iov_len;
    ssize_t n = all ? go_now(fd, all) : 0;
    if (n < 0) return -1;
    struct iovec pieces[1024];
    struct msghdr some = *message;
    some.msg_iov = pieces;
    some.msg_iovlen = 0;
    while (at < (size_t)n) {
        struct iovec *piece = &pieces[some.msg_iovlen];
        *piece = message->msg_iov[some.msg_iovlen++];
        if (piece->iov_len > (size_t)n - at) piece->iov_len = (size_t)n - at;
        at += piece->iov_len;
    }
    n = sendmsg(fd, n ? &some : message, flags);
    if (n < 0 && errno == EBADF) abort(); /* it might have been another file by now */
    went(fd, n);
    return n;
}

static ssize_t receive_some(int fd, void *to, size_t bytes, int flags) {
    ssize_t n = go_now(fd, bytes);
    if (n <= 0) return n;
    n = recv(fd, to, (size_t)n, flags);
    went(fd, n);
    return n;
}

#define sendmsg send_some
#define recv receive_some

#endif
