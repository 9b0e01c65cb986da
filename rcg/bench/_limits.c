// SPDX-License-Identifier: Apache-2.0
/* The module rcg.bench._limits: what a machine leaves no way around, with as little of Python around it as there is
 * around the native core. A bare futex between two processes, and memcpy. Only the bench uses it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096u

typedef _Atomic uint32_t atomic_u32;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static long futex(atomic_u32 *word, int op, uint32_t value, const struct timespec *timeout) {
    return syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

/* memcpy(destination, source): the limit for moving bytes, without the GIL */
static PyObject *limits_memcpy(PyObject *module, PyObject *args) {
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
static PyObject *limits_ping_pong(PyObject *module, PyObject *args) {
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

static PyMethodDef limits_methods[] = {
    {"memcpy", limits_memcpy, METH_VARARGS, "memcpy(destination, source) -> bytes copied"},
    {"ping_pong", limits_ping_pong, METH_VARARGS, "ping_pong(fd, role, rounds) -> round-trip times in ns, as bytes"},
    {NULL, NULL, 0, NULL}};

static PyModuleDef_Slot limits_slots[] = {{0, NULL}};
static struct PyModuleDef limits_def = {.m_base = PyModuleDef_HEAD_INIT,
                                        .m_name = "rcg.bench._limits",
                                        .m_doc = "A bare futex between two processes, and memcpy.",
                                        .m_methods = limits_methods,
                                        .m_slots = limits_slots};

PyMODINIT_FUNC PyInit__limits(void) { return PyModuleDef_Init(&limits_def); }
