// SPDX-License-Identifier: Apache-2.0
/* Ticket: what a ref stands on. It lets go of its result when it dies, in one step: no signal handler of Python's runs
 * in here, so Ctrl-C cannot keep a result that nobody can ask for any more. */
#ifndef RCG_BIND_TICKET_H
#define RCG_BIND_TICKET_H

#include "bind.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *source, *buffer, *channel_index, *value; /* of the ref in Python */
    PyObject *execution;                               /* int */
    PyObject *left, *frames, *dropped, *number; /* source.left; buffer.frames, .dropped, .number; left may be NULL */
    long state;
} TicketObject;

/* Notes in `left`, which maps an execution to the bits of its outputs that are still wanted, that an output was fetched
 * or its ref dropped; once is as good as twice. 0, or -1 with an exception. */
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

/* Ticket(source, buffer, execution=-1, channel_index=None) */
static PyObject *ticket_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *source, *buffer, *execution = NULL, *channel_index = Py_None;
    if (kwargs && PyDict_Size(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "a ref takes no keyword arguments");
        return NULL;
    }
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

static int ticket_traverse(PyObject *self, visitproc visit, void *arg) {
    TicketObject *t = (TicketObject *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(t->source);
    Py_VISIT(t->buffer);
    Py_VISIT(t->channel_index);
    Py_VISIT(t->value);
    Py_VISIT(t->execution);
    Py_VISIT(t->left);
    Py_VISIT(t->frames);
    Py_VISIT(t->dropped);
    Py_VISIT(t->number);
    return 0;
}

static int ticket_clear(PyObject *self) {
    TicketObject *t = (TicketObject *)self;
    Py_CLEAR(t->source);
    Py_CLEAR(t->buffer);
    Py_CLEAR(t->channel_index);
    Py_CLEAR(t->value);
    Py_CLEAR(t->execution);
    Py_CLEAR(t->left);
    Py_CLEAR(t->frames);
    Py_CLEAR(t->dropped);
    Py_CLEAR(t->number);
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

/* disarm(): dropping this ref lets go of nothing, because another one stands for the result */
static PyObject *ticket_disarm(PyObject *self, PyObject *unused) {
    (void)unused;
    Py_CLEAR(((TicketObject *)self)->left);
    Py_RETURN_NONE;
}

static PyMethodDef ticket_methods[] = {
    {"disarm", ticket_disarm, METH_NOARGS, "disarm(): dropping this ref lets go of nothing."}, {NULL, NULL, 0, NULL}};
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

#endif
