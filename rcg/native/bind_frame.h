// SPDX-License-Identifier: Apache-2.0
/* Frame: one that was taken and not decoded yet. It owns what it needs, so it may wait for its reader anywhere. */
#ifndef RCG_BIND_FRAME_H
#define RCG_BIND_FRAME_H

#include "bind_message.h"

typedef struct {
    PyObject_HEAD
    State *state;
    Message msg;
    PyObject *decode, *failure;
    PyObject *value;      /* once decoded */
    MemberObject *member; /* the member that records the decoding, or NULL */
    uint64_t execution;
    uint32_t op, depth; /* how often the thread `decoder` is decoding it now */
    unsigned long decoder;
} FrameObject;

#define DEEPEST_DECODING 16 /* a signal handler, or what decoding itself drops, may ask for what is being decoded */

static FrameObject *frame_new(EndObject *o) {
    const Member *m = &o->member->core;
    FrameObject *f = allocate_object(o->member->state->frame_type);
    if (!f) return NULL;
    f->state = o->member->state;
    Py_INCREF(o->decode);
    f->decode = o->decode;
    Py_INCREF(o->failure);
    f->failure = o->failure;
    f->execution = o->core.seq;
    f->op = o->core.op;
    if (m->recording && !m->looping) {
        Py_INCREF((PyObject *)o->member);
        f->member = o->member;
    }
    return f;
}

static void frame_dealloc(PyObject *self) {
    FrameObject *f = (FrameObject *)self;
    message_clear(&f->msg);
    Py_XDECREF(f->decode);
    Py_XDECREF(f->failure);
    Py_XDECREF(f->value);
    Py_XDECREF((PyObject *)f->member);
    free_object(self);
}

/* decode(at_once=False) -> the value, the same each time; the frame itself while another thread decodes it, unless it
 * is wanted at once. Decoding may run any code, which may need that other thread to go on, or be what interrupted it:
 * so several may decode, and all get what the first one made. What decoding raises leaves the frame as it was, so an
 * interrupted attempt can be repeated. */
static PyObject *frame_decode(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    FrameObject *f = (FrameObject *)self;
    if (!f->value) {
        unsigned long thread = PyThread_get_thread_ident();
        bool is_second = f->depth && f->decoder != thread;
        if (is_second && !(nargs && args[0] == Py_True)) {
            Py_INCREF(self);
            return self;
        }
        if (!is_second && f->depth >= DEEPEST_DECODING) {
            PyErr_SetString(PyExc_RuntimeError, "unpickling this result asks for the result itself");
            return NULL;
        }
        Message msg = f->msg; /* a copy with references of its own: decoding may run any code */
        Py_XINCREF(msg.data);
        Py_XINCREF(msg.buffers);
        bool is_timed = f->member && msg.kind == KIND_PICKLE;
        uint64_t start = is_timed ? stamp(&f->member->core.clock) : 0;
        if (!is_second && !f->depth++) f->decoder = thread;
        PyObject *value = decode(&msg, f->decode, f->failure, f->state);
        if (!is_second) f->depth--;
        if (!value) return NULL;
        if (f->value) {
            Py_DECREF(value); /* another one was quicker */
            Py_INCREF(f->value);
            return f->value;
        }
        f->value = value;
        Py_INCREF(value); /* letting go of the rest may run any code, too */
        MemberObject *m = f->member;
        f->member = NULL;
        if (is_timed && member_is_ours(&m->core)) { /* a forked child records nothing */
            uint64_t end = stamp(&m->core.clock);
            write_event(&m->core, &(Record){start, end, 0, end - start, f->execution, 0, f->op, NO_MEMBER});
        }
        message_clear(&f->msg);
        Py_XDECREF((PyObject *)m);
        return value;
    }
    Py_INCREF(f->value);
    return f->value;
}

static PyObject *frame_get_is_failure(PyObject *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(((FrameObject *)self)->msg.kind == KIND_FAILURE);
}

static PyMethodDef frame_methods[] = {
    {"decode", (PyCFunction)(void (*)(void))frame_decode, METH_FASTCALL,
     "decode(at_once=False): the value; the frame itself while another thread decodes it."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef frame_getset[] = {
    {"is_failure", frame_get_is_failure, NULL, "Whether it stands for a value that is not there.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot frame_slots[] = {
    {Py_tp_dealloc, frame_dealloc}, {Py_tp_methods, frame_methods}, {Py_tp_getset, frame_getset}, {0, NULL}};
static PyType_Spec frame_spec = {"rcg._native.Frame", sizeof(FrameObject), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, frame_slots};

#endif
