// SPDX-License-Identifier: Apache-2.0
/* What Writer and Reader have in common as Python objects. */
#ifndef RCG_BIND_END_H
#define RCG_BIND_END_H

#include "bind.h"

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
    Py_INCREF((PyObject *)member);
    o->member = member;
    return o;
}

static PyObject *end_get_seq(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(((EndObject *)self)->core.seq);
}

static PyGetSetDef end_getset[] = {{"seq", end_get_seq, NULL, "Index of the next frame.", NULL},
                                   {NULL, NULL, NULL, NULL, NULL}};

#endif
