// SPDX-License-Identifier: Apache-2.0
/* Drain: all members' events as they come, taken by a thread of Python's that waits without its lock. */
#ifndef RCG_BIND_DRAIN_H
#define RCG_BIND_DRAIN_H

#include "bind.h"

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
    State *state = state_of(type);
    if (!state) return NULL;
    if (kwargs && PyDict_Size(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Drain(member, board_fd, most) takes no keywords");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OiK", &member, &fd, &most)) return NULL;
    if (!PyObject_TypeCheck(member, state->member_type)) {
        PyErr_SetString(PyExc_TypeError, "Drain(member, board_fd, most)");
        return NULL;
    }
    if (check_usable((MemberObject *)member)) return NULL;
    DrainObject *o = allocate_object(type);
    if (!o) return NULL;
    Py_INCREF(member);
    o->member = (MemberObject *)member;
    if (drain_open(&o->core, &o->member->core, fd, most)) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_CLEAR(o);
    }
    return (PyObject *)o;
}

/* run(period_ns): take events until stop(); returns when all that came before it are taken */
static PyObject *drain_run(PyObject *self, PyObject *period) {
    uint64_t ns = PyLong_AsUnsignedLongLong(period);
    if (ns == UINT64_MAX && PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    drain_follow(&((DrainObject *)self)->core, ns);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* stop(): end run(); any thread, any number of times */
static PyObject *drain_stop(PyObject *self, PyObject *unused) {
    (void)unused;
    drain_halt(&((DrainObject *)self)->core);
    Py_RETURN_NONE;
}

/* take(member) -> (lost, records as bytes), once run() has returned; the same each time */
static PyObject *drain_take(PyObject *self, PyObject *arg) {
    Drain *t = &((DrainObject *)self)->core;
    unsigned long index = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred()) return NULL;
    if (index >= t->member->nmembers) return PyErr_Format(PyExc_IndexError, "no member %lu", index);
    Track *k = &t->tracks[index];
    PyObject *found = PyBytes_FromStringAndSize((const char *)k->records, (Py_ssize_t)(k->count * sizeof(Record)));
    if (!found) return NULL;
    return Py_BuildValue("(KN)", (unsigned long long)k->lost, found);
}

/* take_new(member) -> (lost, records as bytes) since the last call, at any time; take() does not return them again */
static PyObject *drain_take_new(PyObject *self, PyObject *arg) {
    Drain *t = &((DrainObject *)self)->core;
    unsigned long index = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred()) return NULL;
    if (index >= t->member->nmembers) return PyErr_Format(PyExc_IndexError, "no member %lu", index);
    Track *k = &t->tracks[index];
    pthread_mutex_lock(&t->lock);
    uint64_t lost = k->lost;
    PyObject *found = PyBytes_FromStringAndSize((const char *)k->records, (Py_ssize_t)(k->count * sizeof(Record)));
    if (found) {
        k->given += k->count;
        k->count = 0;
        k->lost = 0;
    }
    pthread_mutex_unlock(&t->lock);
    return found ? Py_BuildValue("(KN)", (unsigned long long)lost, found) : NULL;
}

static void drain_dealloc(PyObject *self) {
    DrainObject *o = (DrainObject *)self;
    drain_close(&o->core);
    Py_XDECREF((PyObject *)o->member);
    free_object(self);
}

static PyMethodDef drain_methods[] = {
    {"run", drain_run, METH_O, "run(period_ns): take events until stop()."},
    {"stop", drain_stop, METH_NOARGS, "stop(): end run(); any thread."},
    {"take", drain_take, METH_O, "take(member) -> (lost, records as bytes)."},
    {"take_new", drain_take_new, METH_O, "take_new(member) -> (lost, records as bytes) since the last call."},
    {NULL, NULL, 0, NULL}};
static PyObject *drain_get_taken(PyObject *self, void *closure) {
    (void)closure;
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
