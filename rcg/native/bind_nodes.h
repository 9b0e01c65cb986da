// SPDX-License-Identifier: Apache-2.0
/* Connections to other nodes as Python objects: Links, by which a member sends, and Gate, which publishes on this node
 * what arrives. The threads of both need no lock of Python's to pass frames. */
#ifndef RCG_BIND_NODES_H
#define RCG_BIND_NODES_H

#include "bind.h"

/* ---- Links */

typedef struct {
    PyObject_HEAD
    MemberObject *member;
    PyObject *failed; /* (link, errno) */
    Links core;
} LinksObject;

/* Calls a function of Python's from a thread that is none of Python's; what it raises is written out. */
static PyObject *call_from_outside(PyObject *call, PyObject *args) {
    PyObject *result = args ? PyObject_CallObject(call, args) : NULL;
    if (!result) PyErr_WriteUnraisable(call);
    Py_XDECREF(args);
    return result;
}

static void links_failed(void *owner, uint32_t link, int error) {
    PyGILState_STATE state = PyGILState_Ensure();
    Py_XDECREF(call_from_outside(((LinksObject *)owner)->failed, Py_BuildValue("(Ii)", link, error)));
    PyGILState_Release(state);
}

/* Links(member, fds, failed): links over connected sockets, which must stay open as long as this lives;
 * failed(link, errno) is called once for each link that fails, from a thread of its own */
static PyObject *links_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *member, *fds, *failed;
    State *state = state_without_keywords(type, kwargs, "Links(member, fds, failed)");
    int found[MOST_LINKS];
    if (!state || !PyArg_ParseTuple(args, "O!O!O", state->member_type, &member, &PyList_Type, &fds, &failed) ||
        check_usable(member_of(member)))
        return NULL;
    Py_ssize_t n = PyList_Size(fds);
    if (n < 1 || n > MOST_LINKS) return PyErr_Format(PyExc_ValueError, "a member has 1 to %d links", MOST_LINKS);
    for (Py_ssize_t i = 0; i < n; i++) {
        long fd = PyLong_AsLong(PyList_GetItem(fds, i));
        if (fd == -1 && PyErr_Occurred()) return NULL;
        found[i] = (int)fd;
    }
    LinksObject *o = allocate_object(type);
    if (!o) return NULL;
    o->member = (MemberObject *)Py_NewRef(member);
    o->failed = Py_NewRef(failed);
    if (links_open(&o->core, &o->member->core, found, (uint32_t)n, links_failed, o)) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_CLEAR(o);
    }
    return (PyObject *)o;
}

static PyObject *links_stop_sending(PyObject *self, UNUSED PyObject *unused) {
    LinksObject *o = (LinksObject *)self;
    bool has_ended;
    Py_BEGIN_ALLOW_THREADS
    has_ended = links_stop(&o->core);
    Py_END_ALLOW_THREADS
    if (has_ended) { /* what is called mostly knows this object, and the collector does not see such cycles */
        Py_CLEAR(o->failed);
    }
    return PyBool_FromLong(has_ended);
}

static PyObject *links_statistics(PyObject *self, UNUSED PyObject *unused) {
    Links *all = &((LinksObject *)self)->core;
    PyObject *found = PyList_New(all->nlinks);
    for (uint32_t i = 0; found && i < all->nlinks; i++) {
        Link *l = &all->links[i];
        unsigned waiting = 0;
        pthread_mutex_lock(&l->lock);
        for (const Parcel *p = l->first; p; p = p->next) waiting++;
        pthread_mutex_unlock(&l->lock);
        PyObject *item = Py_BuildValue("(kIi)", atomic_load(&l->sent_bytes), waiting, l->failed);
        if (!item || PyList_SetItem(found, i, item)) Py_CLEAR(found);
    }
    return found;
}

static void links_dealloc(PyObject *self) {
    LinksObject *o = (LinksObject *)self;
    if (o->member) {
        Py_BEGIN_ALLOW_THREADS
        links_stop(&o->core);
        Py_END_ALLOW_THREADS
        links_close(&o->core);
    }
    Py_XDECREF(o->failed);
    Py_XDECREF((PyObject *)o->member);
    free_object(self);
}

static PyMethodDef links_methods[] = {
    {"stop", links_stop_sending, METH_NOARGS, "stop() -> whether it ran: send nothing more; any number of times."},
    {"statistics", links_statistics, METH_NOARGS, "statistics() -> [(sent bytes, waiting frames, errno)], by link."},
    {NULL, NULL, 0, NULL}};
static PyType_Slot links_slots[] = {
    {Py_tp_new, links_new}, {Py_tp_dealloc, links_dealloc}, {Py_tp_methods, links_methods}, {0, NULL}};
static PyType_Spec links_spec = {"rcg._native.Links", sizeof(LinksObject), 0, Py_TPFLAGS_DEFAULT, links_slots};

/* ---- Gate */

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
    PyObject *args = Py_BuildValue("(IIIikk)", loss->sender, loss->channel, (unsigned)loss->why, loss->error,
                                   loss->expected, loss->found);
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
    PyObject *args = Py_BuildValue("(Ikkkki)", head->channel, head->execution, wanted, atomic_load(&board->used_bytes),
                                   board->cap_bytes, reason);
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

/* One entry of a gate's passages, (channel, ring, op, is_awaited). */
static int passage_from(GateObject *o, Passage *p, PyObject *item) {
    unsigned channel, ring, op;
    int is_awaited;
    Shape shape;
    if (!PyTuple_Check(item)) return refuse(PyExc_TypeError, "a passage is (channel, ring, op, is_awaited)");
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
    State *state = state_without_keywords(type, kwargs, "Gate(member, passages, lost, refused)");
    if (!state ||
        !PyArg_ParseTuple(args, "O!O!OO", state->member_type, &member, &PyList_Type, &passages, &lost, &refused) ||
        check_usable(member_of(member)))
        return NULL;
    GateObject *o = allocate_object(type);
    if (!o) return NULL;
    o->member = (MemberObject *)Py_NewRef(member);
    o->lost = Py_NewRef(lost);
    o->refused = Py_NewRef(refused);
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

/* add(fd, sender, passages): listen to a connection, the gate's from now on; `passages`: numbers of those it may use */
static PyObject *gate_add_connection(PyObject *self, PyObject *args) {
    GateObject *o = (GateObject *)self;
    int fd;
    unsigned sender;
    PyObject *list;
    if (!PyArg_ParseTuple(args, "iIO!", &fd, &sender, &PyList_Type, &list) || check_usable(&o->member->core))
        return NULL;
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

static PyObject *gate_stop_passing(PyObject *self, UNUSED PyObject *unused) {
    GateObject *o = (GateObject *)self;
    bool has_ended;
    Py_BEGIN_ALLOW_THREADS
    has_ended = gate_stop(&o->core);
    Py_END_ALLOW_THREADS
    if (has_ended) { /* what is called mostly knows this object, and the collector does not see such cycles */
        Py_CLEAR(o->lost);
        Py_CLEAR(o->refused);
    }
    return PyBool_FromLong(has_ended);
}

static PyObject *gate_statistics(PyObject *self, UNUSED PyObject *unused) {
    Gate *g = &((GateObject *)self)->core;
    return Py_BuildValue("(kk)", atomic_load(&g->frames), atomic_load(&g->bytes));
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
