// SPDX-License-Identifier: Apache-2.0
/* The executions of a driver: Member.submit, which publishes the inputs of one in one step or not at all; and Ticket,
 * what a ref on a result stands on. */
#ifndef RCG_BIND_SUBMIT_H
#define RCG_BIND_SUBMIT_H

#include "bind_writer.h"

#include <structmember.h>

/* One entry of submit: (writer, kind, data, buffers, writable), the last two optional. */
static int sending_from(MemberObject *o, Sending *all, Py_ssize_t i, PyObject *entry) {
    PyObject *args[4];
    Py_ssize_t n = PyTuple_Check(entry) ? PyTuple_Size(entry) - 1 : 0;
    PyObject *writer = n >= 2 && n <= 4 ? PyTuple_GetItem(entry, 0) : NULL;
    if (!writer || !PyObject_TypeCheck(writer, o->state->writer_type) || ((EndObject *)writer)->member != o)
        return refuse(PyExc_TypeError, "submit takes frames of (writer of this member, kind, data, buffers, writable)");
    sending_begin(&all[i], (EndObject *)writer);
    for (Py_ssize_t j = 0; j < i; j++)
        if (all[j].end->core.ring == all[i].end->core.ring) {
            PyErr_Format(PyExc_ValueError, "ring %u is listed twice", all[i].end->core.index);
            return -1;
        }
    for (Py_ssize_t j = 0; j < n; j++) args[j] = PyTuple_GetItem(entry, j + 1);
    return sending_parse(&all[i], args, n);
}

/* Gives an attribute of a ref, or of each in a list, this value: as many as it could. */
static Py_ssize_t set_each(PyObject *refs, PyObject *name, PyObject *value, Py_ssize_t count) {
    Py_ssize_t i = 0;
    if (!PyList_Check(refs)) return count && !PyObject_SetAttr(refs, name, value);
    while (i < count && !PyObject_SetAttr(PyList_GetItem(refs, i), name, value)) i++;
    return i;
}

/* Enters an execution into the books: `left` remembers which outputs are wanted, its refs become its own. All or
 * nothing. */
static int enter_execution(State *state, PyObject *key, PyObject *left, PyObject *wanted, PyObject *refs) {
    Py_ssize_t count = PyList_Check(refs) ? PyList_Size(refs) : 1, done;
    PyObject *pending = PyLong_FromLong(REF_PENDING), *unborn = PyLong_FromLong(REF_NEW);
    int failed = -1;
    if (pending && unborn && set_each(refs, state->execution_name, key, count) == count &&
        !PyDict_SetItem(left, key, wanted)) {
        if ((done = set_each(refs, state->state_name, pending, count)) == count) failed = 0;
        else {
            PyObject *type, *error, *traceback;
            PyErr_Fetch(&type, &error, &traceback);
            set_each(refs, state->state_name, unborn, done);
            PyDict_DelItem(left, key);
            PyErr_Restore(type, error, traceback);
        }
    }
    Py_XDECREF(pending);
    Py_XDECREF(unborn);
    return failed;
}

/* The last step of submit: the index of an execution that is in the books and published, or None at the limit. */
static PyObject *publish_all(MemberObject *o, Sending *all, Py_ssize_t n, uint64_t limit, PyObject *left,
                             PyObject *wanted, PyObject *refs) {
    uint64_t execution = all->end->core.seq, seen;
    uint32_t late;
    if (execution >= limit) Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < n; i++) {
        End *e = &all[i].end->core;
        if (e->busy || e->seq != execution)
            return PyErr_Format(PyExc_RuntimeError,
                                e->busy ? "this end of the ring is in use by another thread"
                                        : "ring %u is not at the execution of the others",
                                e->index);
        Outcome outcome = has_room(e, &late, &seen);
        if (outcome) {
            raise_of_end(all[i].end, outcome == NO_ROOM ? TIMED_OUT : outcome);
            return NULL;
        }
    }
    PyObject *key = PyLong_FromUnsignedLongLong(execution);
    if (!key) return NULL;
    for (Py_ssize_t i = 0; i < n; i++) place(&all[i].core);
    if (enter_execution(o->state, key, left, wanted, refs)) {
        Py_DECREF(key);
        return NULL;
    }
    ledger_begin(o->core.ledger->ledger, execution);
    for (Py_ssize_t i = 0; i < n; i++) outgoing_assign(&all[i].core);
    for (Py_ssize_t i = 0; i < n; i++) publish(&all[i].end->core);
    for (Py_ssize_t i = 0; i < n; i++) sending_load(&all[i]);
    return key;
}

/* submit(frames, limit, left, wanted, refs, started_ns=0, stash=False) -> index of the execution, or None
 *
 * Publishes the inputs of one execution, each on a ring of its own, or none of them; None where the rings are at
 * `limit` already. With `stash`, what there is no memory for goes to the stash.
 *
 * In two steps. First all frames are prepared: users' code may run, other threads too, and nothing is held. Then the
 * execution gets its number, `left[number] = wanted`, its refs get their `execution` and `state`, and the frames are
 * published. Between these nothing else runs: the lock of Python is held, no signal handler is asked for, garbage is
 * not collected (Python 3.11 does that, and so runs any __del__, wherever a container is made), and nothing waits. So
 * whatever runs between two instructions of Python's, or in another thread, finds an execution that does not exist or
 * one that is whole, and no lock is needed against it. */
static PyObject *member_submit(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    MemberObject *o = (MemberObject *)self;
    Member *m = &o->core;
    if (nargs < 5 || nargs > 7 || !PyTuple_Check(args[0]) || !PyTuple_Size(args[0]) || !PyDict_Check(args[2]))
        return PyErr_Format(
            PyExc_TypeError,
            "submit(((writer, kind, data, buffers, writable), ...), limit, left, wanted, refs, started_ns=0, "
            "stash=False)");
    uint64_t limit = PyLong_AsUnsignedLongLong(args[1]);
    int stashes = nargs > 6 ? PyObject_IsTrue(args[6]) : 0;
    uint64_t started = nargs > 5 && !PyErr_Occurred() ? PyLong_AsUnsignedLongLong(args[5]) : 0;
    if (PyErr_Occurred() || check_usable(&o->core)) return NULL;
    uint64_t opened = m->recording ? stamp(&m->clock) : 0, coded = 0;
    if (opened && started && started < opened) { /* encoding, which ended now, is part of the first frame's */
        coded = opened - started;
        opened = started;
    }
    Py_ssize_t n = PyTuple_Size(args[0]), parsed = 0, prepared = 0;
    Sending few[2], *all = n > 2 ? PyMem_Malloc((size_t)n * sizeof *all) : few;
    if (!all) return PyErr_NoMemory();
    PyObject *execution = NULL;
    bool is_published = false;
    for (; parsed < n; parsed++)
        if (sending_from(o, all, parsed, PyTuple_GetItem(args[0], parsed))) break;
        else all[parsed].core.stashes |= stashes > 0;
    if (parsed == n && all->end->core.seq >= limit) execution = Py_NewRef(Py_None); /* nothing is copied in vain */
    else if (parsed == n) {
        for (; prepared < n && !sending_prepare(&all[prepared]); prepared++)
            if (opened && prepared + 1 < n) all[prepared].ended_ns = stamp(&m->clock);
        if (prepared == n) {
            WITHOUT_COLLECTING(execution = publish_all(o, all, n, limit, args[2], args[3], args[4]));
        }
        is_published = execution && execution != Py_None;
        while (prepared && !is_published) outgoing_undo(&all[--prepared].core);
        uint64_t number = is_published ? all->end->core.seq - 1 : 0; /* before others publish more */
        for (Py_ssize_t i = 0; i < n && is_published; i++) sending_ship(&all[i]);
        if (is_published && opened) {
            all[n - 1].ended_ns = stamp(&m->clock); /* the last frame's end is that of publishing */
            for (Py_ssize_t i = 0; i < n; i++) {
                Sending *s = &all[i];
                uint32_t op = s->end->core.op;
                write_event(m, &(Record){opened, s->ended_ns, 0, coded, number, s->core.payload, op, NO_MEMBER});
                opened = s->ended_ns;
                coded = 0;
            }
            now_doing(m, all[n - 1].end->core.op, number, opened, NOW_IDLE);
        }
    }
    for (Py_ssize_t i = 0; i < parsed; i++) {
        if (is_published) sending_seal(&all[i]);
        sending_end(&all[i]);
    }
    if (all != few) PyMem_Free(all);
    return execution;
}

/* ---- Ticket: it lets go of its result when it dies, in one step
 *
 * No signal handler of Python's runs in here, so Ctrl-C cannot keep a result that nobody can ask for any more. */

typedef struct {
    PyObject_HEAD
    PyObject *source, *buffer, *channel_index, *value; /* of the ref in Python */
    PyObject *execution;                               /* int */
    PyObject *left, *frames, *dropped, *number; /* source.left; buffer.frames, .dropped, .number; left may be NULL */
    long state;
} TicketObject;

/* Takes the bit of an output that was fetched, or whose ref was dropped, out of `left` = {execution: bits of outputs
 * that are wanted}; once is as good as twice. */
static int release_output(PyObject *left, PyObject *execution, PyObject *output) {
    PyObject *wanted = PyDict_GetItemWithError(left, execution);
    if (!wanted) return PyErr_Occurred() ? -1 : 0;
    Py_INCREF(wanted);
    PyObject *one = PyLong_FromLong(1);
    PyObject *bit = one ? PyNumber_Lshift(one, output) : NULL;
    PyObject *others = bit ? PyNumber_Invert(bit) : NULL;
    PyObject *rest = others ? PyNumber_And(wanted, others) : NULL;
    int any = rest ? PyObject_IsTrue(rest) : -1;
    int failed = any < 0 || (any ? PyDict_SetItem(left, execution, rest) : PyDict_DelItem(left, execution));
    Py_XDECREF(rest);
    Py_XDECREF(others);
    Py_XDECREF(bit);
    Py_XDECREF(one);
    Py_DECREF(wanted);
    return failed ? -1 : 0;
}

static void ticket_dealloc(PyObject *self);

/* The state of the module, for a class that derives from Ticket and has no module of its own. */
static State *state_of_ticket(PyTypeObject *type) {
    while (type && (destructor)PyType_GetSlot(type, Py_tp_dealloc) != ticket_dealloc)
        type = PyType_GetSlot(type, Py_tp_base);
    return type ? state_of(type) : NULL;
}

static PyObject *ticket_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *source, *buffer, *execution = NULL, *channel_index = Py_None;
    if (kwargs && PyDict_Size(kwargs)) return PyErr_Format(PyExc_TypeError, "a ref takes no keyword arguments");
    if (!PyArg_UnpackTuple(args, "ref", 2, 4, &source, &buffer, &execution, &channel_index)) return NULL;
    TicketObject *t = allocate_object(type);
    if (!t) return NULL;
    t->state = REF_NEW;
    t->source = Py_NewRef(source);
    t->buffer = Py_NewRef(buffer);
    t->channel_index = Py_NewRef(channel_index);
    t->value = Py_NewRef(Py_None);
    t->execution = execution ? Py_NewRef(execution) : PyLong_FromLong(REF_NEW);
    State *state = t->execution ? state_of_ticket(type) : NULL;
    if (state && (t->frames = PyObject_GetAttr(buffer, state->frames_name)) &&
        (t->dropped = PyObject_GetAttr(buffer, state->dropped_name)) &&
        (t->number = PyObject_GetAttr(buffer, state->number_name)) &&
        (t->left = PyObject_GetAttr(source, state->left_name))) {
        if (PyDict_Check(t->left) && PyDict_Check(t->frames) && PyLong_Check(t->number)) return (PyObject *)t;
        PyErr_SetString(PyExc_TypeError, "a ref needs the dicts `left` and `frames` and the number of its output");
    }
    Py_DECREF((PyObject *)t);
    return NULL;
}

#define EACH_HELD(X) X(source) X(buffer) X(channel_index) X(value) X(execution) X(left) X(frames) X(dropped) X(number)
#define VISIT_HELD(field) Py_VISIT(t->field);
#define CLEAR_HELD(field) Py_CLEAR(t->field);

static int ticket_traverse(PyObject *self, visitproc visit, void *arg) {
    TicketObject *t = (TicketObject *)self;
    Py_VISIT(Py_TYPE(self));
    EACH_HELD(VISIT_HELD)
    return 0;
}

static int ticket_clear(PyObject *self) {
    TicketObject *t = (TicketObject *)self;
    EACH_HELD(CLEAR_HELD)
    return 0;
}

/* The ref is gone: nobody wants its output any more, and its frame is let go of when it has come. */
static void ticket_finalize(PyObject *self) {
    TicketObject *t = (TicketObject *)self;
    if (!t->left || !t->frames || !t->dropped || !t->number || !t->execution || t->state == REF_NEW) return;
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    if (release_output(t->left, t->execution, t->number)) PyErr_WriteUnraisable(self);
    int is_kept = t->state == REF_PENDING ? 1 : PyDict_Contains(t->frames, t->execution);
    if (is_kept > 0) {
        PyObject *done = PyObject_CallMethod(t->dropped, "append", "O", t->execution);
        if (!done) PyErr_WriteUnraisable(self);
        Py_XDECREF(done);
    } else if (is_kept < 0) PyErr_WriteUnraisable(self);
    PyErr_Restore(type, error, traceback);
}

static void ticket_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    ticket_clear(self);
    free_object(self);
}

static PyObject *ticket_disarm(PyObject *self, UNUSED PyObject *unused) {
    Py_CLEAR(((TicketObject *)self)->left);
    Py_RETURN_NONE;
}

static PyMethodDef ticket_methods[] = {
    {"disarm", ticket_disarm, METH_NOARGS,
     "disarm(): dropping this ref lets go of nothing, because another one stands for the result."},
    {NULL, NULL, 0, NULL}};
static PyMemberDef ticket_members[] = {
    {"_source", T_OBJECT_EX, offsetof(TicketObject, source), READONLY, "The graph, or a handle on it."},
    {"buffer", T_OBJECT_EX, offsetof(TicketObject, buffer), READONLY, "The output, where its result arrives."},
    {"channel_index", T_OBJECT_EX, offsetof(TicketObject, channel_index), READONLY, "Its place in a list of refs."},
    {"execution", T_OBJECT_EX, offsetof(TicketObject, execution), 0, "The execution, once it is submitted."},
    {"state", T_LONG, offsetof(TicketObject, state), 0, "How far the result has come."},
    {"value", T_OBJECT_EX, offsetof(TicketObject, value), 0, "The result, once it was fetched."},
    {NULL, 0, 0, 0, NULL}};
static PyType_Slot ticket_slots[] = {{Py_tp_doc, "What a ref stands on: it lets go of its result when it dies."},
                                     {Py_tp_new, ticket_new},
                                     {Py_tp_traverse, ticket_traverse},
                                     {Py_tp_clear, ticket_clear},
                                     {Py_tp_finalize, ticket_finalize},
                                     {Py_tp_dealloc, ticket_dealloc},
                                     {Py_tp_methods, ticket_methods},
                                     {Py_tp_members, ticket_members},
                                     {0, NULL}};
static PyType_Spec ticket_spec = {"rcg._native.Ticket", sizeof(TicketObject), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, ticket_slots};

/* release(left, execution, output): release_output(), in one step, in which nothing else runs: refs go away anywhere */
static PyObject *native_release(UNUSED PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 3 || !PyDict_Check(args[0]) || !PyLong_Check(args[1]) || !PyLong_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "release(left, execution, output)");
    if (release_output(args[0], args[1], args[2])) return NULL;
    Py_RETURN_NONE;
}

#endif
