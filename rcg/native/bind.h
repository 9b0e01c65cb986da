// SPDX-License-Identifier: Apache-2.0
/* Shared by all bindings: the objects, the module's state, the host's hooks, and outcomes as exceptions.
 *
 * A function of a binding that fails returns -1, or NULL, with an exception; the other ints are 0. */
#ifndef RCG_BIND_H
#define RCG_BIND_H

#include "core.h"

/* Poisoned(code, culprit), TimedOut(), NoMemory(wanted, used, cap, errno), Corrupt(text) */
typedef struct {
    PyObject *poisoned, *timed_out, *no_memory, *corrupt;
} Errors;

/* The types of the module, and the attributes and keywords that it asks for. */
#define EACH_TYPE(X) X(lease) X(loan) X(frame) X(reader) X(writer) X(member) X(drain) X(ticket) X(links) X(gate)
#define EACH_NAME(X)                                                                                                   \
    X(buffers) X(execution) X(state) X(frames) X(dropped) X(number) X(left) X(flags) X(writeable) X(base) X(obj)
#define TYPE_FIELD(name) PyTypeObject *name##_type;
#define NAME_FIELD(name) PyObject *name##_name;

typedef struct {
    EACH_TYPE(TYPE_FIELD)
    EACH_NAME(NAME_FIELD)
    Errors errors;
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

#define UNUSED __attribute__((unused))
/* Of types whose objects only this module makes. */
#define MADE_HERE (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION)
#define FASTCALL(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL

_Static_assert(sizeof(uint64_t) == sizeof(unsigned long), "Py_BuildValue: k, PyErr_Format: %lu");

/* ---- objects */

static void *allocate_object(PyTypeObject *type) {
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return alloc(type, 0);
}

static Member *member_of(PyObject *self) { return &((MemberObject *)self)->core; }

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

/* The same, for a constructor that takes no keywords. */
static State *state_without_keywords(PyTypeObject *type, PyObject *kwargs, const char *signature) {
    if (!kwargs || !PyDict_Size(kwargs)) return state_of(type);
    PyErr_Format(PyExc_TypeError, "%s takes no keywords", signature);
    return NULL;
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

COLD static int refuse(PyObject *type, const char *text) {
    PyErr_SetString(type, text);
    return -1;
}

/* Raises an error with these arguments, which are consumed. */
COLD static void raise_with(PyObject *type, PyObject *args) {
    if (args) PyErr_SetObject(type, args);
    Py_XDECREF(args);
}

/* (code, culprit or -1) */
static PyObject *poison_of(const BoardHeader *board) {
    uint32_t culprit = atomic_load(&board->culprit);
    return Py_BuildValue("(Ii)", atomic_load(&board->poison), culprit == NO_MEMBER ? -1 : (int)culprit);
}

COLD static void raise_forked(void) {
    PyErr_SetString(PyExc_RuntimeError,
                    "this process was forked from a member of the graph and is not one itself; use the graph in the "
                    "parent process");
}

static int check_usable(const Member *m) {
    if (member_is_ours(m)) return 0;
    raise_forked();
    return -1;
}

static int check_member(const Member *m, uint64_t index) {
    if (index < m->nmembers) return 0;
    PyErr_Format(PyExc_IndexError, "no member %lu", index);
    return -1;
}

/* How a wait, or anything else that can wait, ended. */
COLD static int raise_of_member(MemberObject *o, Outcome outcome) {
    switch (outcome) {
    case DONE: return 0;
    case TIMED_OUT: PyErr_SetNone(o->errors.timed_out); break;
    case POISONED: raise_with(o->errors.poisoned, poison_of(o->core.board)); break;
    case INTERRUPTED: break; /* what a signal handler raised */
    case FORKED: raise_forked(); break;
    case NO_HEAP: PyErr_NoMemory(); break;
    default: PyErr_SetFromErrno(PyExc_OSError);
    }
    return -1;
}

/* What an end of a ring has returned. */
COLD static int raise_of_end(EndObject *o, Outcome outcome) {
    const End *e = &o->core;
    PyObject *corrupt = o->member->errors.corrupt;
    switch (outcome) {
    case IN_USE: return refuse(PyExc_RuntimeError, "this end of the ring is in use by another thread");
    case DAMAGED:
        WITHOUT_COLLECTING(PyErr_Format(corrupt, "ring %u, frame %lu: %s", e->index, e->seq, e->fault));
        return -1;
    case OUT_OF_ORDER:
        WITHOUT_COLLECTING(
            PyErr_Format(corrupt, "ring %u: expected execution %lu and found %lu", e->index, e->seq, e->found));
        return -1;
    default: return raise_of_member(o->member, outcome);
    }
}

COLD static void raise_no_memory(MemberObject *o, uint64_t bytes, int reason) {
    const BoardHeader *board = o->core.board;
    raise_with(o->errors.no_memory,
               Py_BuildValue("(kkki)", bytes, load_relaxed(&board->used_bytes), board->cap_bytes, reason));
}

/* timeout argument in ns: None or negative = never. `start` is a timestamp just taken, or 0. */
static int deadline_after(uint64_t start, PyObject *timeout, uint64_t *deadline) {
    *deadline = UINT64_MAX;
    if (!timeout || timeout == Py_None) return 0;
    long long ns = PyLong_AsLongLong(timeout);
    if (ns == -1 && PyErr_Occurred()) return -1;
    if (ns >= 0) *deadline = (start ? start : now_ns()) + (uint64_t)ns;
    return 0;
}

static int deadline_from(PyObject *timeout, uint64_t *deadline) { return deadline_after(0, timeout, deadline); }

/* ---- ends of rings */

static void pulled_clear(EndObject *o) {
    while (o->npulled) Py_DECREF(o->pulled[--o->npulled].object);
}

static void end_dealloc(PyObject *self) {
    EndObject *o = (EndObject *)self;
    pulled_clear(o);
    free(o->pulled);
    Py_XDECREF(o->decode);
    Py_XDECREF(o->failure);
    Py_XDECREF(o->links);
    Py_XDECREF((PyObject *)o->member);
    free_object(self);
}

/* An end that is not opened yet. */
static EndObject *end_new(MemberObject *member, PyTypeObject *type) {
    EndObject *o = allocate_object(type);
    if (!o) return NULL;
    o->member = (MemberObject *)Py_NewRef((PyObject *)member);
    return o;
}

static PyObject *end_get_seq(PyObject *self, UNUSED void *closure) {
    return PyLong_FromUnsignedLongLong(((EndObject *)self)->core.seq);
}

static PyGetSetDef end_getset[] = {{"seq", end_get_seq, NULL, "Index of the next frame.", NULL},
                                   {NULL, NULL, NULL, NULL, NULL}};

static int shape_of(MemberObject *o, unsigned index, Shape *shape) {
    if (index >= o->core.nrings)
        PyErr_Format(PyExc_IndexError, "the board has %u rings and no ring %u", o->core.nrings, index);
    else if (ring_shape(&o->core, index, shape))
        PyErr_Format(o->errors.corrupt, "ring %u: its description is damaged", index);
    else return 0;
    return -1;
}

#endif
