// SPDX-License-Identifier: Apache-2.0
/* A stress test of the native core alone: no Python, every sanitizer. `make native-check` builds and runs it.
 *
 *   stress threads|processes ROUNDS EXECUTIONS [SEED]            members of one node (alone.h)
 *   stress crossing-threads|crossing-processes ROUNDS ...        members of three nodes (crossing.h)
 *
 * Members, each a thread or a forked process, pass frames around. Every byte that arrives is compared with what its
 * channel and number say; buffers are held for a while and compared once more before they go. After each round no block
 * may be claimed any more, and the memory must add up.
 *
 * Shapes, waits and ends follow from the seed; how the members interleave does not. */
#include "alone.h"
#include "crossing.h"

#define TIME_LIMIT_S 240 /* against hanging */

int main(int argc, char **argv) {
    static const char *const modes[] = {"threads", "processes", "crossing-threads", "crossing-processes"};
    uint32_t mode = 0;
    while (argc >= 4 && mode < 4 && strcmp(argv[1], modes[mode])) mode++;
    if (argc < 4 || mode == 4) {
        fprintf(stderr, "usage: %s [crossing-]threads|processes ROUNDS EXECUTIONS [SEED]\n", argv[0]);
        return 2;
    }
    bool has_threads = mode % 2 == 0, crosses = mode >= 2;
    uint32_t rounds = (uint32_t)strtoul(argv[2], NULL, 10);
    executions = strtoull(argv[3], NULL, 10);
    if (argc > 4) seed = strtoull(argv[4], NULL, 10);
    meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_atfork(NULL, NULL, after_fork_in_child);
    alarm(TIME_LIMIT_S);
    uint64_t start = now_ns();
    for (round_number = 0; round_number < rounds; round_number++) {
        if (crosses) play_crossing(has_threads);
        else play_alone(has_threads);
    }
    uint64_t copies = atomic_load(&meeting->copies), forwards = atomic_load(&meeting->forwards);
    uint64_t loans = atomic_load(&meeting->loans), refusals = atomic_load(&meeting->refusals);
    uint64_t cuts = atomic_load(&meeting->cuts);
    printf("stress: %s: %u rounds of %lu executions in %.1f s, seed %lu: %lu buffers copied, %lu forwarded, %lu "
           "stashed, %lu loans, %lu frames refused, %lu connections torn\n",
           argv[1], rounds, executions, (double)(now_ns() - start) / 1e9, seed, copies, forwards, meeting->stashes,
           loans, refusals, cuts);
    fflush(stdout);
    if (!copies || !forwards || !meeting->stashes || !loans || (crosses && (!refusals || !cuts)))
        fail("something was never tried");
    return 0;
}
