// SPDX-License-Identifier: Apache-2.0
/* Nudges leave a thread the processors that it had, also when its control group gets more: random moves against a
 * model of what the kernel keeps, the mask that a thread asked for and the processors of its group. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cpu_set_t group, asked; /* asked: all, while the thread named none */

static int model_get(int thread, size_t size, cpu_set_t *found) {
    (void)thread, (void)size;
    CPU_AND(found, &group, &asked);
    return 0;
}

static int model_set(int thread, size_t size, const cpu_set_t *wanted) {
    cpu_set_t left;
    (void)thread, (void)size;
    CPU_AND(&left, &group, wanted);
    if (!CPU_COUNT(&left)) return -1;
    asked = *wanted;
    return 0;
}

#define sched_getaffinity model_get
#define sched_setaffinity model_set
#include "../../rcg/native/core.h"

static cpu_set_t first(int count) {
    cpu_set_t found;
    CPU_ZERO(&found);
    for (int i = 0; i < count; i++) CPU_SET(i, &found);
    return found;
}

int main(void) {
    srand(7);
    for (int round = 0; round < 10000; round++) {
        int has = 1 + rand() % 8, named = rand() % 2 ? 0 : 1 + rand() % 8;
        group = first(has);
        memset(&asked, 0xff, sizeof asked);
        if (named) asked = first(named);
        for (int i = rand() % 5; i >= 0; i--) nudge((uint32_t)(rand() % 8), rand() % 2);
        int grown = has + rand() % 4, most = named && named < has ? named : grown;
        group = first(grown);
        cpu_set_t now, right = first(most);
        model_get(0, sizeof now, &now);
        /* Who named all that there were is as one that named none. */
        bool is_right = CPU_EQUAL(&now, &right);
        cpu_set_t kept = first(named && named < grown ? named : grown);
        if (!is_right && !(named >= has && CPU_EQUAL(&now, &kept))) {
            fprintf(stderr, "round %d: of %d processors, %d named, then %d: %d\n", round, has, named, grown,
                    CPU_COUNT(&now));
            return 1;
        }
    }
    puts("affinity: 10000 rounds");
    return 0;
}
