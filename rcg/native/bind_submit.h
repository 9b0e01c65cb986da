// SPDX-License-Identifier: Apache-2.0
/* Member.submit: the inputs of one execution, published in one step or not at all. */
#ifndef RCG_BIND_SUBMIT_H
#define RCG_BIND_SUBMIT_H

#include "bind_writer.h"

/* One entry of submit: (writer, kind, data, buffers, writable), the last two optional. */
static int sending_from(MemberObject *o, Sending *all, Py_ssize_t i, PyObject *entry) {
    PyObject *args[4];
    Py_ssize_t n = PyTuple_Check(entry) ? PyTuple_Size(entry) - 1 : 0;
    PyObject *writer = n >= 2 && n <= 4 ? PyTuple_GetItem(entry, 0) : NULL;
    if (!writer || !PyObject_TypeCheck(writer, o->state->writer_type) || ((EndObject *)writer)->member != o) {
        PyErr_SetString(PyExc_TypeError,
                        "submit takes frames of (writer of this member, kind, data, buffers, writable)");
        return -1;
    }
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

/* Enters an execution into the books: `left` remembers which of its outputs are wanted, and the refs become its own.
 * 0, or -1 with an exception and all as it was. */
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

/* The last step of submit: numbers an execution, enters it into the books and publishes its frames, or does nothing.
 * The index, None where the limit is reached, or NULL with an exception. */
static PyObject *publish_all(MemberObject *o, Sending *all, Py_ssize_t n, uint64_t limit, PyObject *left,
                             PyObject *wanted, PyObject *refs) {
    uint64_t execution = all->end->core.seq, seen;
    uint32_t late;
    if (execution >= limit) Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < n; i++) {
        End *e = &all[i].end->core;
        if (e->busy || e->seq != execution) {
            PyErr_Format(PyExc_RuntimeError,
                         e->busy ? "this end of the ring is in use by another thread"
                                 : "ring %u is not at the execution of the others",
                         e->index);
            return NULL;
        }
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
    if (nargs < 5 || nargs > 7 || !PyTuple_Check(args[0]) || !PyTuple_Size(args[0]) || !PyDict_Check(args[2])) {
        PyErr_SetString(
            PyExc_TypeError,
            "submit(((writer, kind, data, buffers, writable), ...), limit, left, wanted, refs, started_ns=0, "
            "stash=False)");
        return NULL;
    }
    uint64_t limit = PyLong_AsUnsignedLongLong(args[1]);
    int stashes = nargs > 6 ? PyObject_IsTrue(args[6]) : 0;
    uint64_t started = nargs > 5 && !PyErr_Occurred() ? PyLong_AsUnsignedLongLong(args[5]) : 0;
    if (PyErr_Occurred() || check_usable(o)) return NULL;
    uint64_t opened = m->recording ? stamp(&m->clock) : 0, coded = 0;
    if (opened && started && started < opened) { /* encoding, which ended now, is part of the first frame's */
        coded = opened - started;
        opened = started;
    }
    Py_ssize_t n = PyTuple_Size(args[0]), parsed = 0, prepared = 0;
    Sending few[2], *all = n > 2 ? PyMem_Malloc((size_t)n * sizeof *all) : few;
    if (!all) return PyErr_NoMemory();
    PyObject *execution = NULL;
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
        bool is_published = execution && execution != Py_None;
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
    bool is_done = execution && execution != Py_None;
    for (Py_ssize_t i = 0; i < parsed; i++) {
        if (is_done) sending_seal(&all[i]);
        sending_end(&all[i]);
    }
    if (all != few) PyMem_Free(all);
    return execution;
}

#endif
