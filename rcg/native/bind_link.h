// SPDX-License-Identifier: Apache-2.0
/* Links: a member's connections to the gates of other nodes, as a Python object. */
#ifndef RCG_BIND_LINK_H
#define RCG_BIND_LINK_H

#include "bind_end.h"

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
    State *state = state_of(type);
    int found[MOST_LINKS];
    if (!state) return NULL;
    if (kwargs && PyDict_Size(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Links(member, fds, failed) takes no keywords");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O!O", state->member_type, &member, &PyList_Type, &fds, &failed) ||
        check_usable((MemberObject *)member))
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
    Py_INCREF(member);
    o->member = (MemberObject *)member;
    Py_INCREF(failed);
    o->failed = failed;
    if (links_open(&o->core, &o->member->core, found, (uint32_t)n, links_failed, o)) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_CLEAR(o);
    }
    return (PyObject *)o;
}

/* stop() -> whether this call ended the thread: send nothing more; any number of times */
static PyObject *links_stop_sending(PyObject *self, PyObject *unused) {
    LinksObject *o = (LinksObject *)self;
    bool has_ended;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    has_ended = links_stop(&o->core);
    Py_END_ALLOW_THREADS
    if (has_ended) { /* what is called mostly knows this object, and the collector does not see such cycles */
        Py_CLEAR(o->failed);
    }
    return PyBool_FromLong(has_ended);
}

/* statistics() -> [(bytes that were sent, frames that wait, errno)], by link */
static PyObject *links_statistics(PyObject *self, PyObject *unused) {
    (void)unused;
    Links *all = &((LinksObject *)self)->core;
    PyObject *found = PyList_New(all->nlinks);
    for (uint32_t i = 0; found && i < all->nlinks; i++) {
        Link *l = &all->links[i];
        unsigned waiting = 0;
        pthread_mutex_lock(&l->lock);
        for (const Parcel *p = l->first; p; p = p->next) waiting++;
        pthread_mutex_unlock(&l->lock);
        PyObject *item = Py_BuildValue("(KIi)", (unsigned long long)atomic_load(&l->sent_bytes), waiting, l->failed);
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

#endif
