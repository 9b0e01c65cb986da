// SPDX-License-Identifier: Apache-2.0
/* Gate: the frames of other nodes, published on this one by a thread that needs no lock of Python's. */
#ifndef RCG_BIND_GATE_H
#define RCG_BIND_GATE_H

#include "bind_member.h"

/* The member of a gate is used by the gate's thread, which has no lock to let go of. */
static void *quiet_leave(void) { return NULL; }
static void quiet_enter(void *state) { (void)state; }
static bool quiet_goes_on(void) { return true; }
static const Host quiet_host = {quiet_leave, quiet_enter, quiet_goes_on};

typedef struct {
    PyObject_HEAD
    MemberObject *member;
    PyObject *lost;    /* (sender, channel, why, errno, expected, found) */
    PyObject *refused; /* (channel, execution, wanted, used, cap, errno) -> bytes of a failure */
    Gate core;
} GateObject;

static void gate_lost(void *owner, const Loss *loss) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *args = Py_BuildValue("(IIIiKK)", loss->sender, loss->channel, (unsigned)loss->why, loss->error,
                                   (unsigned long long)loss->expected, (unsigned long long)loss->found);
    Py_XDECREF(call_from_outside(((GateObject *)owner)->lost, args));
    PyGILState_Release(state);
}

static uint8_t *gate_refused(void *owner, const Head *head, uint64_t wanted, int reason, uint64_t *bytes) {
    GateObject *o = owner;
    const BoardHeader *board = o->core.member->board;
    uint8_t *text = NULL;
    char *data;
    Py_ssize_t size;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *args = Py_BuildValue("(IKKKKi)", head->channel, (unsigned long long)head->execution,
                                   (unsigned long long)wanted, (unsigned long long)atomic_load(&board->used_bytes),
                                   (unsigned long long)board->cap_bytes, reason);
    PyObject *found = call_from_outside(o->refused, args);
    if (found && !PyBytes_AsStringAndSize(found, &data, &size) && (text = malloc((size_t)size + 1))) {
        memcpy(text, data, (size_t)size);
        *bytes = (uint64_t)size;
    }
    if (PyErr_Occurred()) PyErr_WriteUnraisable(o->refused);
    Py_XDECREF(found);
    PyGILState_Release(state);
    return text;
}

/* One entry of a gate's passages, (channel, ring, op, is_awaited): 0, or -1 with an exception. */
static int passage_from(GateObject *o, Passage *p, PyObject *item) {
    unsigned channel, ring, op;
    int is_awaited;
    Shape shape;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a passage is (channel, ring, op, is_awaited)");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "IIIp", &channel, &ring, &op, &is_awaited) || shape_of(o->member, ring, &shape))
        return -1;
    if (!writer_open(&p->end, &o->member->core, &shape, ring, op)) {
        PyErr_Format(PyExc_ValueError, "member %u does not write ring %u", o->member->core.index, ring);
        return -1;
    }
    p->channel = channel;
    p->is_awaited = is_awaited;
    return 0;
}

/* Gate(member, passages, lost, refused): publishes what arrives for each of [(channel, ring, op, is_awaited)]. The
 * member is the gate's own from now on. lost(sender, channel, why, errno, expected, found) tells that a connection has
 * ended, and refused(channel, execution, wanted, used, cap, errno) returns the bytes of a failure where there is no
 * memory for a frame; both are called from the gate's thread */
static PyObject *gate_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *member, *passages, *lost, *refused;
    State *state = state_of(type);
    if (!state) return NULL;
    if (kwargs && PyDict_Size(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Gate(member, passages, lost, refused) takes no keywords");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O!OO", state->member_type, &member, &PyList_Type, &passages, &lost, &refused) ||
        check_usable((MemberObject *)member))
        return NULL;
    GateObject *o = allocate_object(type);
    if (!o) return NULL;
    Py_INCREF(member);
    o->member = (MemberObject *)member;
    Py_INCREF(lost);
    o->lost = lost;
    Py_INCREF(refused);
    o->refused = refused;
    Gate *g = &o->core;
    g->member = &o->member->core;
    g->failure_kind = KIND_FAILURE;
    g->last_kind = KIND_TUPLE;
    g->lost = gate_lost;
    g->refused = gate_refused;
    g->owner = o;
    Py_ssize_t n = PyList_Size(passages);
    if (!(g->passages = calloc((size_t)n + 1, sizeof *g->passages))) PyErr_NoMemory();
    for (; g->passages && (Py_ssize_t)g->npassages < n; g->npassages++)
        if (passage_from(o, &g->passages[g->npassages], PyList_GetItem(passages, g->npassages))) break;
    if ((Py_ssize_t)g->npassages < n || !g->passages) {
        free(g->passages);
        Py_CLEAR(o->member); /* nothing was opened */
        Py_DECREF((PyObject *)o);
        return NULL;
    }
    g->member->host = &quiet_host;
    if (gate_open(g)) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_CLEAR(o);
    }
    return (PyObject *)o;
}

/* add(fd, sender, passages): listen to a connection, which the gate closes in the end; `passages`: the numbers of those
 * that it may use */
static PyObject *gate_add_connection(PyObject *self, PyObject *args) {
    GateObject *o = (GateObject *)self;
    int fd;
    unsigned sender;
    PyObject *list;
    if (!PyArg_ParseTuple(args, "iIO!", &fd, &sender, &PyList_Type, &list) || check_usable(o->member)) return NULL;
    Py_ssize_t n = PyList_Size(list);
    uint32_t *allowed = PyMem_Malloc((size_t)n * sizeof *allowed + 1);
    if (!allowed) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++) {
        unsigned long number = PyLong_AsUnsignedLong(PyList_GetItem(list, i));
        if (!PyErr_Occurred() && number >= o->core.npassages) PyErr_Format(PyExc_IndexError, "no passage %lu", number);
        allowed[i] = (uint32_t)number;
    }
    if (!PyErr_Occurred() && gate_add(&o->core, fd, sender, allowed, (uint32_t)n)) PyErr_SetFromErrno(PyExc_OSError);
    PyMem_Free(allowed);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* stop() -> whether this call ended the thread: publish nothing more; any number of times */
static PyObject *gate_stop_passing(PyObject *self, PyObject *unused) {
    GateObject *o = (GateObject *)self;
    bool has_ended;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    has_ended = gate_stop(&o->core);
    Py_END_ALLOW_THREADS
    if (has_ended) { /* what is called mostly knows this object, and the collector does not see such cycles */
        Py_CLEAR(o->lost);
        Py_CLEAR(o->refused);
    }
    return PyBool_FromLong(has_ended);
}

/* statistics() -> (frames, bytes) that passed */
static PyObject *gate_statistics(PyObject *self, PyObject *unused) {
    (void)unused;
    Gate *g = &((GateObject *)self)->core;
    return Py_BuildValue("(KK)", (unsigned long long)atomic_load(&g->frames),
                         (unsigned long long)atomic_load(&g->bytes));
}

static void gate_dealloc(PyObject *self) {
    GateObject *o = (GateObject *)self;
    if (o->member) {
        Py_BEGIN_ALLOW_THREADS
        gate_stop(&o->core);
        Py_END_ALLOW_THREADS
        gate_close(&o->core);
    }
    Py_XDECREF(o->lost);
    Py_XDECREF(o->refused);
    Py_XDECREF((PyObject *)o->member);
    free_object(self);
}

static PyMethodDef gate_methods[] = {
    {"add", gate_add_connection, METH_VARARGS, "add(fd, sender, passages): listen to a connection."},
    {"stop", gate_stop_passing, METH_NOARGS, "stop() -> whether it ran: publish nothing more; any number of times."},
    {"statistics", gate_statistics, METH_NOARGS, "statistics() -> (frames, bytes) that passed."},
    {NULL, NULL, 0, NULL}};
static PyType_Slot gate_slots[] = {
    {Py_tp_new, gate_new}, {Py_tp_dealloc, gate_dealloc}, {Py_tp_methods, gate_methods}, {0, NULL}};
static PyType_Spec gate_spec = {"rcg._native.Gate", sizeof(GateObject), 0, Py_TPFLAGS_DEFAULT, gate_slots};

#endif
