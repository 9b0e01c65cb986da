// SPDX-License-Identifier: Apache-2.0
/* Shared by all bindings: the objects, the module's state, the host's hooks, and outcomes as exceptions. */
#ifndef RCG_BIND_H
#define RCG_BIND_H

#include "core.h"

/* What is raised for an outcome: Poisoned(code, culprit), TimedOut(), NoMemory(wanted, used, cap, errno),
 * Corrupt(text). */
typedef struct {
    PyObject *poisoned, *timed_out, *no_memory, *corrupt;
} Errors;

typedef struct {
    PyTypeObject *member_type, *reader_type, *writer_type, *lease_type, *loan_type, *frame_type, *drain_type,
        *ticket_type, *links_type, *gate_type;
    Errors errors;
    PyObject *buffers_name, *execution_name, *state_name; /* "buffers", "execution", "state" */
    PyObject *frames_name, *dropped_name, *number_name, *left_name;
    PyObject *flags_name, *writeable_name, *base_name, *obj_name;
} State;

/* The kinds of frames. The core passes them on as numbers. */
enum { KIND_PICKLE = 1, KIND_BYTES = 2, KIND_FAILURE = 3, KIND_PARTS = 4, KIND_TUPLE = 5 };

/* One part of a frame of KIND_PARTS. */
typedef struct {
    uint32_t kind, nbuffers; /* KIND_PICKLE, KIND_BYTES or KIND_FAILURE */
} PartHead;

/* The `state` of a ref before its execution was submitted and from then on; what comes after is Python's. */
enum { REF_NEW = -1, REF_PENDING = 0 };

typedef struct {
    PyObject_HEAD
    State *state;
    Errors errors; /* owned; the maker of the member may pass its own */
    Member core;
} MemberObject;

/* A buffer over a block. */
typedef struct {
    PyObject_HEAD
    Lease core;
} LeaseObject;

/* A copy that is pulled from a stash: kept until its frame is taken, so that an interrupted read can continue. */
typedef struct {
    uint64_t id, have; /* have: bytes so far */
    PyObject *object;
} Pulled;

typedef struct {
    PyObject_HEAD
    MemberObject *member;
    End core;
    PyObject *decode, *failure; /* Reader: (data[, buffers=]) -> value, (data) -> failed value */
    uint32_t nparts;            /* Reader: values in a frame */
    uint64_t pull_until;        /* Reader: how long what lies in a stash may be waited for */
    Pulled *pulled;             /* Reader: what came from a stash for the next frame so far */
    uint32_t npulled, pulled_room;
    bool has_signals; /* Reader: pulling stopped for signal handlers to run, and goes on after that */
    PyObject *links;  /* Writer: by which frames go to other nodes, or NULL */
    Route route;
} EndObject;

/* ---- objects */

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

/* ---- the host of the core: Python, its lock and its signal handlers */

static void *host_leave(void) { return PyEval_SaveThread(); }
static void host_enter(void *state) { PyEval_RestoreThread(state); }
static bool host_goes_on(void) { return !PyErr_CheckSignals(); }

static const Host python_host = {host_leave, host_enter, host_goes_on};

/* In Python 3.11 any container that is made may start a collection of garbage, and so any __del__. Where one must not
 * run, because it may come back to what is half done, this goes around the making; with the lock of Python held. */
#define WITHOUT_COLLECTING(statement)                                                                                  \
    do {                                                                                                               \
        int collects_ = PyGC_Disable();                                                                                \
        statement;                                                                                                     \
        if (collects_) PyGC_Enable();                                                                                  \
    } while (0)

/* ---- outcomes as exceptions */

COLD static PyObject *raise_poison(MemberObject *o) {
    const BoardHeader *board = o->core.board;
    uint32_t culprit = atomic_load(&board->culprit);
    PyObject *args = Py_BuildValue("(Ii)", atomic_load(&board->poison), culprit == NO_MEMBER ? -1 : (int)culprit);
    if (args) {
        PyErr_SetObject(o->errors.poisoned, args);
        Py_DECREF(args);
    }
    return NULL;
}

COLD static void raise_forked(void) {
    PyErr_SetString(PyExc_RuntimeError,
                    "this process was forked from a member of the graph and is not one itself; use the graph in the "
                    "parent process");
}

/* 0, or -1 with an exception. */
static int check_usable(MemberObject *o) {
    if (member_is_ours(&o->core)) return 0;
    raise_forked();
    return -1;
}

/* How a wait, or anything else that can wait, ended: 0, or -1 with an exception. */
COLD static int raise_of_member(MemberObject *o, Outcome outcome) {
    switch (outcome) {
    case DONE: return 0;
    case TIMED_OUT: PyErr_SetNone(o->errors.timed_out); break;
    case POISONED: raise_poison(o); break;
    case INTERRUPTED: break; /* what a signal handler raised */
    case FORKED: raise_forked(); break;
    case NO_HEAP: PyErr_NoMemory(); break;
    default: PyErr_SetFromErrno(PyExc_OSError);
    }
    return -1;
}

/* What an end of a ring has returned: 0, or -1 with an exception. */
COLD static int raise_of_end(EndObject *o, Outcome outcome) {
    const End *e = &o->core;
    PyObject *corrupt = o->member->errors.corrupt;
    switch (outcome) {
    case IN_USE: PyErr_SetString(PyExc_RuntimeError, "this end of the ring is in use by another thread"); return -1;
    case DAMAGED:
        WITHOUT_COLLECTING(
            PyErr_Format(corrupt, "ring %u, frame %llu: %s", e->index, (unsigned long long)e->seq, e->fault));
        return -1;
    case OUT_OF_ORDER:
        WITHOUT_COLLECTING(PyErr_Format(corrupt, "ring %u: expected execution %llu and found %llu", e->index,
                                        (unsigned long long)e->seq, (unsigned long long)e->found));
        return -1;
    default: return raise_of_member(o->member, outcome);
    }
}

COLD static PyObject *raise_no_memory(MemberObject *o, uint64_t bytes, int reason) {
    const BoardHeader *board = o->core.board;
    PyObject *args = Py_BuildValue("(KKKi)", (unsigned long long)bytes,
                                   (unsigned long long)atomic_load_explicit(&board->used_bytes, memory_order_relaxed),
                                   (unsigned long long)board->cap_bytes, reason);
    if (args) {
        PyErr_SetObject(o->errors.no_memory, args);
        Py_DECREF(args);
    }
    return NULL;
}

/* timeout argument in ns: None or negative = never */
static int deadline_from(PyObject *timeout, uint64_t *deadline) {
    *deadline = UINT64_MAX;
    if (!timeout || timeout == Py_None) return 0;
    long long ns = PyLong_AsLongLong(timeout);
    if (ns == -1 && PyErr_Occurred()) return -1;
    if (ns >= 0) *deadline = now_ns() + (uint64_t)ns;
    return 0;
}

#endif
