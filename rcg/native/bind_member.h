// SPDX-License-Identifier: Apache-2.0
/* Member: one process of one graph, with its ends of rings, as a Python object. */
#ifndef RCG_BIND_MEMBER_H
#define RCG_BIND_MEMBER_H

#include "bind_reader.h"
#include "bind_recorder.h"
#include "bind_submit.h"

/* ---- joining */

static void member_dealloc(PyObject *self) {
    MemberObject *o = (MemberObject *)self;
    member_close(&o->core);
    Py_XDECREF(o->errors.poisoned);
    Py_XDECREF(o->errors.timed_out);
    Py_XDECREF(o->errors.no_memory);
    Py_XDECREF(o->errors.corrupt);
    free_object(self);
}

static int policy_of(const char *name) {
    static const char *const names[] = {"auto", "futex", "yield", "spin"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, names[i])) return i;
    PyErr_Format(PyExc_ValueError, "unknown wait policy '%s': use auto, futex, yield or spin", name);
    return -1;
}

static int raise_of_join(MemberObject *o, Joined joined, uint32_t which) {
    switch (joined) {
    case JOINED: return 0;
    case JOIN_NO_HEAP: PyErr_NoMemory(); break;
    case JOIN_NO_BOARD:
        PyErr_SetString(o->errors.corrupt, "the descriptor is not a board of this version of rcg");
        break;
    case JOIN_ARENA_COUNT:
        PyErr_SetString(PyExc_ValueError, "arena_fds must be a list with one descriptor (or -1) per member");
        break;
    case JOIN_WRONG_ARENA:
        PyErr_Format(o->errors.corrupt, "the segment handed over for member %u is not its arena", which);
        break;
    case JOIN_NO_ARENA: PyErr_SetString(PyExc_ValueError, "a member needs its own arena"); break;
    default: PyErr_SetFromErrno(PyExc_OSError);
    }
    return -1;
}

/* Takes the exceptions that a caller gave, (poisoned, timed_out, no_memory, corrupt), or the module's own: 0, or -1. */
static int errors_from(MemberObject *o, PyObject *given) {
    Errors e = o->state->errors;
    if (given && given != Py_None) {
        if (!PyTuple_Check(given)) return refuse(PyExc_TypeError, "errors is a tuple of four classes");
        if (!PyArg_ParseTuple(given, "OOOO", &e.poisoned, &e.timed_out, &e.no_memory, &e.corrupt)) return -1;
    }
    PyObject *all[] = {e.poisoned, e.timed_out, e.no_memory, e.corrupt};
    for (int i = 0; i < 4; i++)
        if (!PyExceptionClass_Check(all[i]))
            return refuse(PyExc_TypeError, "errors is a tuple of four classes of exceptions");
    for (int i = 0; i < 4; i++) Py_INCREF(all[i]);
    o->errors = e;
    return 0;
}

/* Member(board_fd, arena_fds, index, wait="auto", record=True, looping=False, reach=-1, errors=None, bell_fd=-1); the
 * descriptors stay the caller's. `reach`: see Role. */
static int member_join(PyObject *self, PyObject *args, PyObject *kwargs) {
    MemberObject *o = (MemberObject *)self;
    static char *names[] = {"board_fd", "arena_fds", "index",  "wait",    "record",
                            "looping",  "reach",     "errors", "bell_fd", NULL};
    unsigned long long reach = ~0ull;
    int fd, record = 1, looping = 0, bell = -1, policy, arenas[MAX_MEMBERS];
    unsigned index;
    PyObject *fds, *errors = NULL;
    const char *wait = "auto";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iOI|sppKOi", names, &fd, &fds, &index, &wait, &record, &looping,
                                     &reach, &errors, &bell))
        return -1;
    if (!(o->state = state_of(Py_TYPE(self))) || errors_from(o, errors)) return -1;
    if ((policy = policy_of(wait)) < 0) return -1;
    Py_ssize_t n = PyList_Check(fds) ? PyList_Size(fds) : 0;
    if (n > MAX_MEMBERS) n = 0; /* as many as no board has */
    for (Py_ssize_t i = 0; i < n; i++) {
        long arena = PyLong_AsLong(PyList_GetItem(fds, i));
        if (arena == -1 && PyErr_Occurred()) return -1;
        arenas[i] = arena >= 0 && arena <= INT_MAX ? (int)arena : -1;
    }
    uint32_t which = 0;
    Role role = {index, policy, record, looping, bell, reach};
    return raise_of_join(o, member_open(&o->core, &python_host, fd, arenas, (uint32_t)n, &role, &which), which);
}

static PyObject *member_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *self = allocate_object(type);
    if (self && member_join(self, args, kwargs)) Py_CLEAR(self);
    return self;
}

/* ---- ends of rings */

static PyObject *member_reader(PyObject *self, PyObject *args) {
    MemberObject *o = (MemberObject *)self;
    unsigned index, op, nparts = 1;
    int moves = 0;
    PyObject *loads, *failure;
    Shape shape;
    if (!PyArg_ParseTuple(args, "IIOO|Ip", &index, &op, &loads, &failure, &nparts, &moves) || check_usable(&o->core) ||
        shape_of(o, index, &shape))
        return NULL;
    if (!nparts) return PyErr_Format(PyExc_ValueError, "a frame has one part or more");
    EndObject *end = end_new(o, o->state->reader_type);
    if (!end) return NULL;
    if (!reader_open(&end->core, &o->core, &shape, index, op, nparts > 1 ? KIND_TUPLE : KIND_FAILURE)) {
        Py_DECREF((PyObject *)end);
        return PyErr_Format(PyExc_ValueError, "member %u does not read ring %u", o->core.index, index);
    }
    end->nparts = nparts;
    end->core.moves = moves;
    end->decode = Py_NewRef(loads);
    end->failure = Py_NewRef(failure);
    return (PyObject *)end;
}

static PyObject *member_writer(PyObject *self, PyObject *args) {
    MemberObject *o = (MemberObject *)self;
    unsigned index, op;
    int goes_on = 0;
    Shape shape;
    if (!PyArg_ParseTuple(args, "II|p", &index, &op, &goes_on) || check_usable(&o->core) || shape_of(o, index, &shape))
        return NULL;
    EndObject *end = end_new(o, o->state->writer_type);
    if (!end) return NULL;
    if (!writer_open(&end->core, &o->core, &shape, index, op)) {
        Py_DECREF((PyObject *)end);
        return PyErr_Format(PyExc_ValueError, "member %u does not write ring %u", o->core.index, index);
    }
    end->core.goes_on = goes_on;
    return (PyObject *)end;
}

static PyObject *member_ring(PyObject *self, PyObject *args) {
    unsigned index;
    if (!PyArg_ParseTuple(args, "I", &index)) return NULL;
    Shape shape;
    if (shape_of((MemberObject *)self, index, &shape)) return NULL;
    PyObject *list = PyList_New(shape.nreaders);
    for (uint32_t i = 0; list && i < shape.nreaders; i++) {
        PyObject *o = PyLong_FromUnsignedLongLong(atomic_load(&shape.ring->reader[i].seq));
        if (!o || PyList_SetItem(list, i, o)) Py_CLEAR(list);
    }
    return list ? Py_BuildValue("(kN)", atomic_load(&shape.ring->seq), list) : NULL;
}

/* ---- waiting */

/* Makes the watch for one entry of wait_any; returns its end. */
static End *watch_from(MemberObject *o, PyObject *item, Watch *w) {
    unsigned long long before = 0;
    bool is_pair = PyTuple_Check(item);
    if (is_pair && !PyArg_ParseTuple(item, "OK", &item, &before)) return NULL;
    if (!PyObject_TypeCheck(item, o->state->reader_type) || ((EndObject *)item)->member != o) {
        PyErr_SetString(PyExc_TypeError, "wait_any takes readers of this member");
        return NULL;
    }
    End *e = &((EndObject *)item)->core;
    *w = frame_watch(e);
    if (is_pair) w->seen = before;
    return e;
}

/* wait_any(readers, timeout_ns, interrupts): wait until one of the readers has a frame, or for an interrupt. A
 * reader may be given as (reader, seq): then until frame `seq` was published, even if it was taken */
static PyObject *member_wait_any(PyObject *self, PyObject *args) {
    MemberObject *o = (MemberObject *)self;
    Member *m = &o->core;
    PyObject *readers, *timeout = NULL, *interrupts = NULL;
    if (!PyArg_ParseTuple(args, "O!|OO", &PyList_Type, &readers, &timeout, &interrupts) || check_usable(&o->core))
        return NULL;
    uint64_t deadline, waited = 0, seen = 0;
    if (deadline_from(timeout, &deadline)) return NULL;
    bool listens = interrupts && interrupts != Py_None;
    if (listens && (seen = PyLong_AsUnsignedLongLong(interrupts)) == UINT64_MAX && PyErr_Occurred()) return NULL;
    Py_ssize_t n = PyList_Size(readers);
    if (n + listens < 1) return PyErr_Format(PyExc_ValueError, "wait_any needs something to wait for");
    Watch *w = PyMem_Calloc((size_t)n + listens, sizeof *w);
    if (!w) return PyErr_NoMemory();
    End *only = NULL;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!(only = watch_from(o, PyList_GetItem(readers, i), &w[i]))) {
            PyMem_Free(w);
            return NULL;
        }
    if (m->recording) /* which ring, if it is one */
        store_relaxed(&m->recorder->ring, n == 1 ? only->index : UINT32_MAX);
    if (listens) w[n] = (Watch){&m->interrupts, seen, &m->interruptible, NULL};
    Learned learned = m->learned; /* a copy, because others may wait here too */
    uint64_t start = m->recording ? stamp(&m->clock) : 0;
    if (start && n == 1 && !listens && !m->looping) now_doing(m, only->op, only->seq, start, NOW_IDLE);
    Outcome outcome = wait_for(m, w, (uint32_t)(n + listens), &learned, deadline, start, &waited);
    m->learned = learned;
    PyMem_Free(w);
    if (only) record_wait(only, start, waited);
    if (raise_of_member(o, outcome)) return NULL;
    return PyLong_FromUnsignedLongLong(atomic_load(&m->interrupts));
}

/* await_frames(reader, by): so many more, or fewer, waits of event loops for frames of a reader */
static PyObject *member_await_frames(PyObject *self, PyObject *args) {
    MemberObject *o = (MemberObject *)self;
    PyObject *reader;
    Watch w;
    int by;
    if (!PyArg_ParseTuple(args, "Oi", &reader, &by) || check_usable(&o->core) || !watch_from(o, reader, &w))
        return NULL;
    atomic_fetch_add(w.waiting, (uint32_t)by);
    Py_RETURN_NONE;
}

/* listen(): event loops are about to look for frames, and then to sleep on the bell */
static PyObject *member_listen(PyObject *self, UNUSED PyObject *unused) {
    MemberObject *o = (MemberObject *)self;
    if (check_usable(&o->core)) return NULL;
    atomic_store(&o->core.doorbells[o->core.index].listens, 1);
    Py_RETURN_NONE;
}

static PyObject *member_interrupt(PyObject *self, UNUSED PyObject *unused) {
    MemberObject *o = (MemberObject *)self;
    if (check_usable(&o->core)) return NULL;
    interrupt_waits(&o->core);
    Py_RETURN_NONE;
}

static PyObject *member_poison(PyObject *self, PyObject *args) {
    MemberObject *o = (MemberObject *)self;
    unsigned code;
    int culprit = -1;
    if (!PyArg_ParseTuple(args, "I|i", &code, &culprit) || check_usable(&o->core)) return NULL;
    return PyBool_FromLong(poison_board(&o->core, code, culprit < 0 ? NO_MEMBER : (uint32_t)culprit));
}

static PyObject *member_get_poison(PyObject *self, UNUSED void *closure) { return poison_of(member_of(self)->board); }

/* ---- memory */

static PyObject *member_trim(PyObject *self, PyObject *args) {
    Member *m = member_of(self);
    unsigned long long keep = 0;
    if (!PyArg_ParseTuple(args, "|K", &keep) || check_usable(m)) return NULL;
    return PyLong_FromUnsignedLongLong(arena_trim(m->arenas[m->index], m->board, keep));
}

/* loan(bytes, is_private=False) -> Loan, or None: there is no shared memory for it now, or this process is a fork */
static PyObject *member_loan(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    MemberObject *o = (MemberObject *)self;
    if (!nargs) return PyErr_Format(PyExc_TypeError, "loan(bytes, is_private=False)");
    uint64_t bytes = PyLong_AsUnsignedLongLong(args[0]);
    int is_private = nargs > 1 ? PyObject_IsTrue(args[1]) : 0;
    if (is_private < 0 || (bytes == UINT64_MAX && PyErr_Occurred())) return NULL;
    LoanObject *l = allocate_object(o->state->loan_type);
    if (!l || loan_begin(&l->core, &o->core, bytes, is_private)) return (PyObject *)l;
    Py_DECREF((PyObject *)l);
    Py_RETURN_NONE;
}

static PyObject *member_forget(PyObject *self, PyObject *args) {
    MemberObject *o = (MemberObject *)self;
    unsigned dead;
    if (!PyArg_ParseTuple(args, "I", &dead) || check_usable(&o->core)) return NULL;
    if (dead >= o->core.nmembers || dead == o->core.index)
        return PyErr_Format(PyExc_ValueError, "member %u cannot be forgotten", dead);
    return PyLong_FromUnsignedLongLong(forget_claims(&o->core, dead));
}

static PyObject *member_survey(PyObject *self, PyObject *args) {
    unsigned long long seen, complete, submitted;
    if (!PyArg_ParseTuple(args, "KKK", &seen, &complete, &submitted)) return NULL;
    Survey s = ledger_survey(member_of(self)->ledger->ledger, seen, complete, submitted);
    return Py_BuildValue("(kkkk)", s.claimed, s.peak, s.live, s.most);
}

static PyObject *member_expect(PyObject *self, PyObject *arg) {
    uint64_t bytes = PyLong_AsUnsignedLongLong(arg);
    if (bytes == UINT64_MAX && PyErr_Occurred()) return NULL;
    store_relaxed(&member_of(self)->ledger->ledger->need_bytes, bytes);
    Py_RETURN_NONE;
}

static PyObject *member_statistics(PyObject *self, UNUSED PyObject *unused) {
    Member *m = member_of(self);
    Arena *a = m->arenas[m->index];
    Census c = arena_census(a);
    const Ledger *l = m->ledger->ledger;
    return Py_BuildValue("{sksksksksksksksksksIsIsksk}", "used_bytes", atomic_load(&m->board->used_bytes), "cap_bytes",
                         m->board->cap_bytes, "committed_bytes", atomic_load(a->committed), "claimed_bytes",
                         c.claimed_bytes, "copies", a->copies, "forwards", a->forwards, "spins", atomic_load(&m->spins),
                         "sleeps", atomic_load(&m->sleeps), "wakes", atomic_load(&m->wakes), "blocks", c.blocks,
                         "blocks_claimed", c.claimed, "stashes", atomic_load(&l->stashes), "stashed_bytes",
                         atomic_load(&l->stashed_bytes));
}

static PyMethodDef member_methods[] = {
    {"reader", member_reader, METH_VARARGS,
     "reader(ring, op, decode, failure, parts=1, moves=False): this member's reading end; `moves`: what decode "
     "makes of writable buffers is a copy elsewhere."},
    {"writer", member_writer, METH_VARARGS, "writer(ring, op, goes_on=False): this member's writing end."},
    {"mark", FASTCALL(member_mark),
     "mark(op, execution): one timestamp closes the open op of this loop and opens this one."},
    {"submit", FASTCALL(member_submit),
     "submit(frames, limit, left, wanted, refs, started_ns=0, stash=False): publish the inputs of an execution, or "
     "none."},
    {"wait_any", member_wait_any, METH_VARARGS,
     "wait_any(readers, timeout_ns=-1, interrupts=None): wait until one has a frame."},
    {"await_frames", member_await_frames, METH_VARARGS,
     "await_frames(reader, by): so many more waits of event loops for frames of a reader."},
    {"listen", member_listen, METH_NOARGS, "listen(): have the bell rung by what such waits wait for, once."},
    {"interrupt", member_interrupt, METH_NOARGS,
     "interrupt(): end this process's own wait_any calls that listen; any thread."},
    {"poison", member_poison, METH_VARARGS,
     "poison(code, culprit=-1): end every wait of every member; the first one stands: True."},
    {"now", member_now, METH_VARARGS, "now(member) -> (pid, op, execution, since_ns, state, ring, events)."},
    {"counters", member_counters, METH_VARARGS,
     "counters(member) -> (waits, waited_ns, committed_bytes); a wait is counted when it ends."},
    {"waiting_since", member_waiting_since, METH_VARARGS, "waiting_since(member) -> ns, or 0 if it does not sleep."},
    {"events", member_events, METH_VARARGS, "events(member, start) -> (next, lost, records as bytes)."},
    {"record", member_record, METH_VARARGS,
     "record(op, execution, start_ns, end_ns, coded_ns=0): write an event; any thread."},
    {"waited", member_waited, METH_O,
     "waited(ns): the open op of this loop waited so long for something outside of the graph."},
    {"transferring", member_transferring, METH_NOARGS,
     "transferring(): what was decoded so far is decoded; the open op of this loop moves tensors now."},
    {"transferred", member_transferred, METH_VARARGS,
     "transferred(bytes, is_decoded_next): the open op has moved them, and decodes them or ends."},
    {"span", member_span, METH_O, "span(name) -> the op of spans of this name."},
    {"spans", member_spans, METH_VARARGS, "spans(member) -> names of its spans."},
    {"ring", member_ring, METH_VARARGS, "ring(index) -> (published, [consumed by reader, ...])."},
    {"survey", member_survey, METH_VARARGS,
     "survey(seen, complete, submitted) -> (claimed, peak, live, most), in bytes."},
    {"expect", member_expect, METH_O, "expect(bytes): what an execution needs at its peak; readers leave room for it."},
    {"loan", FASTCALL(member_loan),
     "loan(bytes, is_private=False): a block of this member's own as a writable buffer, or None."},
    {"trim", member_trim, METH_VARARGS,
     "trim(keep_bytes=0) -> bytes given back to the system; for the thread that writes."},
    {"forget", member_forget, METH_VARARGS,
     "forget(member) -> blocks whose claims were cleared, because the member is dead."},
    {"statistics", member_statistics, METH_NOARGS, "Counters of this member as a dict."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef member_getset[] = {{"poisoned", member_get_poison, NULL, "(code, culprit or -1)", NULL},
                                      {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot member_slots[] = {
    {Py_tp_doc, "One process of one graph: its doorbell, its arena, its ends of rings."},
    {Py_tp_new, member_new},
    {Py_tp_dealloc, member_dealloc},
    {Py_tp_methods, member_methods},
    {Py_tp_getset, member_getset},
    {0, NULL}};
static PyType_Spec member_spec = {"rcg._native.Member", sizeof(MemberObject), 0, Py_TPFLAGS_DEFAULT, member_slots};

#endif
