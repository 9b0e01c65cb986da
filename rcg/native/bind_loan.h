// SPDX-License-Identifier: Apache-2.0
/* Loan: a block of the own arena as a Python object, on which arrays are made. Once it was sent, no new writable array
 * can be made on it, and those that lead to it from what was sent are read-only. */
#ifndef RCG_BIND_LOAN_H
#define RCG_BIND_LOAN_H

#include "bind.h"

typedef struct {
    PyObject_HEAD
    Lease core;
    bool is_sent;
} LoanObject;

static void loan_dealloc(PyObject *self) {
    loan_end(&((LoanObject *)self)->core);
    free_object(self);
}

static int loan_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    const LoanObject *l = (LoanObject *)self;
    return PyBuffer_FillInfo(view, self, l->core.data, (Py_ssize_t)l->core.bytes, l->is_sent, flags);
}

static PyType_Slot loan_slots[] = {{Py_tp_dealloc, loan_dealloc}, {Py_bf_getbuffer, loan_getbuffer}, {0, NULL}};
static PyType_Spec loan_spec = {"rcg._native.Loan", sizeof(LoanObject), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, loan_slots};

/* loan(bytes, is_private=False) -> Loan, or None if there is no shared memory for it now, or this process is a fork of
 * the member */
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

/* The attribute of an object, or NULL without an exception. */
static PyObject *attribute_of(PyObject *o, PyObject *name) {
    PyObject *found = PyObject_GetAttr(o, name);
    if (!found) PyErr_Clear();
    return found;
}

#define DEEPEST_VIEW 64 /* an array's `base` is nearly always what owns the memory, or one step before it */

/* A buffer that lies in a loan was published: has the array that it is of, and all that this is a view of, be
 * read-only. Objects are asked as NumPy's arrays (`flags.writeable`, `base`) and memoryviews (`obj`) answer; where the
 * way ends, as at a tensor, nothing happens. */
COLD static void seal(State *state, PyObject *o) {
    Py_XINCREF(o);
    for (int depth = 0; o && depth < DEEPEST_VIEW; depth++) {
        if (PyObject_TypeCheck(o, state->loan_type)) {
            ((LoanObject *)o)->is_sent = true;
            break;
        }
        PyObject *flags = attribute_of(o, state->flags_name);
        if (flags && PyObject_SetAttr(flags, state->writeable_name, Py_False)) PyErr_Clear();
        Py_XDECREF(flags);
        PyObject *next = attribute_of(o, state->base_name);
        if (!next) next = attribute_of(o, state->obj_name);
        Py_DECREF(o);
        o = next;
    }
    Py_XDECREF(o);
}

#endif
