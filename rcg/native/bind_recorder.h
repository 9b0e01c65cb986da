// SPDX-License-Identifier: Apache-2.0
/* The recorder as Python sees it: what Member records and reads, and Drain, which takes all members' events as they
 * come on a thread of Python's that waits without its lock. */
#ifndef RCG_BIND_RECORDER_H
#define RCG_BIND_RECORDER_H

#include "bind.h"

/* ---- Member: recording */

static PyObject *member_mark(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 2) return PyErr_Format(PyExc_TypeError, "mark(op, execution)");
    uint32_t op = (uint32_t)PyLong_AsUnsignedLong(args[0]);
    uint64_t execution = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred() || check_usable(member_of(self))) return NULL;
    mark(member_of(self), op, execution);
    Py_RETURN_NONE;
}

static PyObject *member_now(PyObject *self, PyObject *args) {
    const Member *m = member_of(self);
    unsigned index;
    if (!PyArg_ParseTuple(args, "I", &index) || check_member(m, index)) return NULL;
    const Recorder *r = recorder_of(m, index);
    return Py_BuildValue("(IIkkIIk)", atomic_load(&r->pid), atomic_load(&r->op), atomic_load(&r->execution),
                         atomic_load(&r->since_ns), atomic_load(&r->state), atomic_load(&r->ring),
                         atomic_load(&r->head));
}

static PyObject *member_counters(PyObject *self, PyObject *args) {
    const Member *m = member_of(self);
    unsigned index;
    if (!PyArg_ParseTuple(args, "I", &index) || check_member(m, index)) return NULL;
    const Recorder *r = recorder_of(m, index);
    return Py_BuildValue("(kkk)", atomic_load(&r->waits), atomic_load(&r->waited_ns), atomic_load(&r->committed_bytes));
}

/* waiting_since(member) -> ns, or 0 if it does not sleep; what it waits since then is not in its counters yet */
static PyObject *member_waiting_since(PyObject *self, PyObject *args) {
    Member *m = member_of(self);
    unsigned index;
    if (!PyArg_ParseTuple(args, "I", &index) || check_member(m, index)) return NULL;
    return PyLong_FromUnsignedLongLong(atomic_load(&recorder_of(m, index)->waiting_since_ns));
}

static PyObject *member_events(PyObject *self, PyObject *args) {
    Member *m = member_of(self);
    unsigned index;
    unsigned long long start;
    if (!PyArg_ParseTuple(args, "IK", &index, &start) || check_member(m, index)) return NULL;
    uint64_t head = load_acquire(&recorder_of(m, index)->head);
    uint64_t n = oldest_event(m, start, head), lost = n - start, count = 0;
    Record *records = n < head ? PyMem_Malloc((size_t)(head - n) * sizeof(Record)) : NULL;
    if (n < head && !records) return PyErr_NoMemory();
    for (; n < head; n++)
        if (read_event(m, index, n, &records[count])) count++;
        else lost++; /* overwritten, or being written, while we looked */
    PyObject *found = PyBytes_FromStringAndSize((const char *)records, (Py_ssize_t)(count * sizeof(Record)));
    PyMem_Free(records);
    return found ? Py_BuildValue("(kkN)", n, lost, found) : NULL;
}

static PyObject *member_record(PyObject *self, PyObject *args) {
    Member *m = member_of(self);
    unsigned op;
    unsigned long long execution, start, end, coded = 0;
    if (!PyArg_ParseTuple(args, "IKKK|K", &op, &execution, &start, &end, &coded) || check_usable(member_of(self)))
        return NULL;
    if (m->recording) write_event(m, &(Record){start, end, 0, coded, execution, 0, op, NO_MEMBER});
    Py_RETURN_NONE;
}

static PyObject *member_waited(PyObject *self, PyObject *arg) {
    uint64_t ns = PyLong_AsUnsignedLongLong(arg);
    if ((ns == UINT64_MAX && PyErr_Occurred()) || check_usable(member_of(self))) return NULL;
    member_of(self)->open.waited_ns += ns;
    Py_RETURN_NONE;
}

static PyObject *member_transferring(PyObject *self, UNUSED PyObject *unused) {
    if (check_usable(member_of(self))) return NULL;
    transfer_begin(member_of(self));
    Py_RETURN_NONE;
}

static PyObject *member_transferred(PyObject *self, PyObject *args) {
    unsigned long long bytes;
    int is_decoded_next;
    if (!PyArg_ParseTuple(args, "Kp", &bytes, &is_decoded_next) || check_usable(member_of(self))) return NULL;
    transfer_end(member_of(self), bytes, is_decoded_next);
    Py_RETURN_NONE;
}

static PyObject *member_span(PyObject *self, PyObject *name) {
    if (check_usable(member_of(self))) return NULL;
    PyObject *bytes = PyUnicode_AsEncodedString(name, "utf-8", "replace");
    if (!bytes) return NULL;
    uint32_t op = span_number(member_of(self), PyBytes_AsString(bytes));
    Py_DECREF(bytes);
    return PyLong_FromUnsignedLong(op);
}

static PyObject *member_spans(PyObject *self, PyObject *args) {
    Member *m = member_of(self);
    unsigned index;
    if (!PyArg_ParseTuple(args, "I", &index) || check_member(m, index)) return NULL;
    uint32_t n = load_acquire(&recorder_of(m, index)->nspans);
    const SpanName *names = span_names(m, index);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < n && i < MAX_SPANS; i++) {
        size_t length = strnlen(names[i].text, sizeof names[i].text);
        PyObject *name = PyUnicode_DecodeUTF8(names[i].text, (Py_ssize_t)length, "replace");
        if (!name || PyList_Append(list, name)) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

/* ---- Drain */

typedef struct {
    PyObject_HEAD
    MemberObject *member;
    Drain core;
} DrainObject;

/* Drain(member, board_fd, most): from now on events go to the larger rings; each member may fill its part of `most` */
static PyObject *drain_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *member;
    int fd;
    unsigned long long most;
    State *state = state_without_keywords(type, kwargs, "Drain(member, board_fd, most)");
    if (!state || !PyArg_ParseTuple(args, "O!iK:Drain", state->member_type, &member, &fd, &most) ||
        check_usable(member_of(member)))
        return NULL;
    DrainObject *o = allocate_object(type);
    if (!o) return NULL;
    o->member = (MemberObject *)Py_NewRef(member);
    if (drain_open(&o->core, &o->member->core, fd, most)) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_CLEAR(o);
    }
    return (PyObject *)o;
}

static PyObject *drain_run(PyObject *self, PyObject *period) {
    uint64_t ns = PyLong_AsUnsignedLongLong(period);
    if (ns == UINT64_MAX && PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    drain_follow(&((DrainObject *)self)->core, ns);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *drain_stop(PyObject *self, UNUSED PyObject *unused) {
    drain_halt(&((DrainObject *)self)->core);
    Py_RETURN_NONE;
}

/* What a member's track contains, as (lost, records as bytes), and where it `goes` is not there any more. */
static PyObject *track_of(PyObject *self, PyObject *arg, bool goes) {
    Drain *t = &((DrainObject *)self)->core;
    unsigned long index = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred() || check_member(t->member, index)) return NULL;
    Track *k = &t->tracks[index];
    pthread_mutex_lock(&t->lock);
    uint64_t lost = k->lost;
    PyObject *found = PyBytes_FromStringAndSize((const char *)k->records, (Py_ssize_t)(k->count * sizeof(Record)));
    if (found && goes) {
        k->given += k->count;
        k->count = 0;
        k->lost = 0;
    }
    pthread_mutex_unlock(&t->lock);
    return found ? Py_BuildValue("(kN)", lost, found) : NULL;
}

static PyObject *drain_take(PyObject *self, PyObject *arg) { return track_of(self, arg, false); }
static PyObject *drain_take_new(PyObject *self, PyObject *arg) { return track_of(self, arg, true); }

static void drain_dealloc(PyObject *self) {
    DrainObject *o = (DrainObject *)self;
    drain_close(&o->core);
    Py_XDECREF((PyObject *)o->member);
    free_object(self);
}

static PyMethodDef drain_methods[] = {
    {"run", drain_run, METH_O,
     "run(period_ns): take events until stop(); returns when all that came before it are taken."},
    {"stop", drain_stop, METH_NOARGS, "stop(): end run(); any thread, any number of times."},
    {"take", drain_take, METH_O,
     "take(member) -> (lost, records as bytes), once run() has returned; the same each time."},
    {"take_new", drain_take_new, METH_O,
     "take_new(member) -> (lost, records as bytes) since the last call, at any time; take() leaves them out."},
    {NULL, NULL, 0, NULL}};

static PyObject *drain_get_taken(PyObject *self, UNUSED void *closure) {
    return PyLong_FromUnsignedLongLong(atomic_load(&((DrainObject *)self)->core.taken));
}

static PyGetSetDef drain_getset[] = {{"taken", drain_get_taken, NULL, "How many records it has so far.", NULL},
                                     {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot drain_slots[] = {{Py_tp_new, drain_new},
                                    {Py_tp_getset, drain_getset},
                                    {Py_tp_dealloc, drain_dealloc},
                                    {Py_tp_methods, drain_methods},
                                    {0, NULL}};
static PyType_Spec drain_spec = {"rcg._native.Drain", sizeof(DrainObject), 0, Py_TPFLAGS_DEFAULT, drain_slots};

#endif
