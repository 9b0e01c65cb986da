// SPDX-License-Identifier: Apache-2.0
/* The core's use of Linux and of its host: clock, futex, file memory, forks; and the outcomes of functions.
 *
 * A *host* is the program that the core is part of. It may have a lock that the core releases while it waits or
 * copies much, and signal handlers that have to run during a long wait. The core is entered with that lock
 * held, by one thread at a time, unless a function says otherwise. */
#ifndef RCG_PLATFORM_H
#define RCG_PLATFORM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "layout.h"

#define COLD __attribute__((cold)) /* of what goes wrong: laid out away from the way of a frame */

/* How a function of the core ends. */
typedef enum {
    DONE = 0,
    TIMED_OUT,
    POISONED,
    SIGNALS,      /* signal handlers should run before it goes on */
    INTERRUPTED,  /* they ran, and one of them said to stop */
    NO_ROOM,      /* a reader has not left the slot yet */
    IN_USE,       /* another thread is inside */
    FORKED,       /* this process was forked from the one that joined */
    NO_HEAP,      /* malloc failed */
    NO_SHARED,    /* there is no shared memory: Outgoing says how much was wanted, and why */
    SYSTEM,       /* errno says why */
    DAMAGED,      /* End.fault says what */
    OUT_OF_ORDER, /* another execution than the next; End.found says which */
    NOT_STASHED,  /* the stash has no such copy */
} Outcome;

typedef struct {
    void *(*leave)(void);       /* lets go of the host's lock */
    void (*enter)(void *state); /* takes it again; gets what leave() returned */
    bool (*go_on)(void);        /* runs signal handlers; whether the wait goes on */
} Host;

/* Bytes of the caller's that become a part of a frame. */
typedef struct {
    const void *data;
    uint64_t bytes;
    bool is_written; /* its reader will write to it */
} Span;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* How long ago that was, which the recorder's clock may have ahead by some tens of nanoseconds. */
static uint64_t since_ns(uint64_t start) {
    uint64_t t = now_ns();
    return t > start ? t - start : 0;
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

/* Makes an eventfd readable; any thread. */
static void ring_bell(int bell) {
    ssize_t n = write(bell, &(uint64_t){1}, sizeof(uint64_t));
    (void)n; /* it is readable already, if it is full */
}

static bool is_power_of_two(uint32_t n) { return n && !(n & (n - 1)); }

static void nap(long ns) { nanosleep(&(struct timespec){0, ns}, NULL); }

static bool is_main_thread(void) { return syscall(SYS_gettid) == getpid(); }

/* fallocate that signals do not end; 0, or -1 with errno. */
static int claim_file(int fd, int mode, uint64_t offset, uint64_t bytes) {
    int r;
    do r = fallocate(fd, mode, (off_t)offset, (off_t)bytes);
    while (r && errno == EINTR);
    return r;
}

/* A part of a file, mapped shared; NULL with errno. */
static void *map_file(int fd, uint64_t offset, uint64_t bytes, bool writable) {
    void *p =
        mmap(NULL, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, (off_t)offset);
    return p == MAP_FAILED ? NULL : p;
}

/* An array with room for item number `index`: the same, or a larger copy that ends in zeros. NULL if malloc failed. */
static void *grown(void *array, uint32_t *room, uint32_t index, size_t bytes) {
    if (index < *room) return array;
    uint32_t more = *room ? *room : 16;
    while (more <= index) more *= 2;
    uint8_t *p = realloc(array, more * bytes);
    if (!p) return NULL;
    memset(p + *room * bytes, 0, (more - *room) * bytes);
    *room = more;
    return p;
}

/* Starts a thread that gets no signals, which are for the host's threads: 0, or -1 with errno. */
static int start_thread(pthread_t *thread, void *(*run)(void *), void *arg) {
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    int trouble = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = trouble;
    return trouble ? -1 : 0;
}

/* Wakes the thread that polls this eventfd. */
static void wake_poller(int fd) {
    uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof one);
    (void)n; /* it is full, so the thread is awake */
}

/* A forked child shares our claims but does not own them: objects remember the generation they were made in. */
static atomic_u32 fork_generation;
static void after_fork_in_child(void) { atomic_fetch_add(&fork_generation, 1); }

/* Copies; what is much, without the host's lock. */
static void copy_bytes(const Host *host, uint8_t *to, const void *from, uint64_t bytes) {
    if (bytes > UNLOCKED_COPY) {
        void *state = host->leave();
        memcpy(to, from, bytes);
        host->enter(state);
    } else memcpy(to, from, bytes);
}

#endif
