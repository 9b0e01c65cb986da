// SPDX-License-Identifier: Apache-2.0
/* Arrived values as Python objects: buffers over blocks (Lease), copies, and copies pulled from a stash. */
#ifndef RCG_BIND_MESSAGE_H
#define RCG_BIND_MESSAGE_H

#include "bind_end.h"

/* ---- leases */

static void lease_dealloc(PyObject *self) {
    lease_end(&((LeaseObject *)self)->core);
    free_object(self);
}

static int lease_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    const Lease *l = &((LeaseObject *)self)->core;
    return PyBuffer_FillInfo(view, self, l->data, (Py_ssize_t)l->bytes, !l->writable, flags);
}

/* block() -> (arena, address, bytes, punches): whose arena it is in, the memory of its block as it is mapped to be
 * moved, and how often the arena has given memory back, see ArenaHeader; None if it is not mapped for that */
static PyObject *lease_block(PyObject *self, PyObject *unused) {
    (void)unused;
    const Lease *l = &((LeaseObject *)self)->core;
    const Arena *a = l->arena;
    const Block *b = &a->header->block[l->block];
    if (!l->moves) Py_RETURN_NONE;
    uint64_t offset = block_offset(b), bytes = block_committed(b);
    if (offset > a->reserve || bytes > a->reserve - offset) offset = bytes = 0; /* damaged: it says nothing */
    return Py_BuildValue("IKKK", a->owner, (unsigned long long)(uintptr_t)(a->movable + offset),
                         (unsigned long long)bytes,
                         (unsigned long long)atomic_load_explicit(&a->header->punches, memory_order_relaxed));
}

static PyMethodDef lease_methods[] = {
    {"block", lease_block, METH_NOARGS, "block() -> (arena, address, bytes, punches) of its block, or None."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot lease_slots[] = {
    {Py_tp_dealloc, lease_dealloc}, {Py_bf_getbuffer, lease_getbuffer}, {Py_tp_methods, lease_methods}, {0, NULL}};
static PyType_Spec lease_spec = {"rcg._native.Lease", sizeof(LeaseObject), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, lease_slots};

static PyObject *lease_of(EndObject *o, Claim *claim, uint8_t *map, uint64_t offset, uint64_t bytes) {
    LeaseObject *l = allocate_object(o->member->state->lease_type);
    if (l) lease_begin(&l->core, claim, map, offset, bytes);
    return (PyObject *)l;
}

/* ---- copies */

static PyObject *heap_room(uint64_t bytes, bool writable) {
    return writable ? PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)bytes)
                    : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
}

static uint8_t *heap_bytes(PyObject *o) {
    return (uint8_t *)(PyBytes_Check(o) ? PyBytes_AsString(o) : PyByteArray_AsString(o));
}

static PyObject *heap_copy(const uint8_t *from, uint64_t bytes, bool writable) {
    PyObject *o = heap_room(bytes, writable);
    if (o) copy_bytes(&python_host, heap_bytes(o), from, bytes);
    return o;
}

static PyObject *copy_out(Arena *a, uint64_t at, uint64_t bytes, bool writable) {
    PyObject *o = heap_room(bytes, writable);
    if (!o || !arena_copy_out(a, &python_host, heap_bytes(o), at, bytes)) return o;
    Py_DECREF(o);
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* Any object with a buffer as bytes; NULL with an exception. */
static PyObject *bytes_from(PyObject *o) {
    if (PyBytes_Check(o)) return Py_NewRef(o);
    Py_buffer view;
    if (PyObject_GetBuffer(o, &view, PyBUF_SIMPLE)) return NULL;
    PyObject *copy = heap_copy(view.buf, (uint64_t)view.len, false);
    PyBuffer_Release(&view);
    return copy;
}

/* ---- pulling from a stash */

/* What was pulled so far of a copy for the next frame; NULL with an exception. */
static Pulled *pulled_of(EndObject *o, uint64_t id, uint64_t bytes, bool writable) {
    for (uint32_t i = 0; i < o->npulled; i++)
        if (o->pulled[i].id == id) return &o->pulled[i];
    if (o->npulled == o->pulled_room) {
        uint32_t room = o->pulled_room ? 2 * o->pulled_room : 4;
        Pulled *p = realloc(o->pulled, room * sizeof *p);
        if (!p) {
            PyErr_NoMemory();
            return NULL;
        }
        o->pulled = p;
        o->pulled_room = room;
    }
    PyObject *object = heap_room(bytes, writable);
    if (!object) return NULL;
    o->pulled[o->npulled] = (Pulled){id, 0, object};
    return &o->pulled[o->npulled++];
}

/* Pulls what lies in the stash of the ring's writer: the object, or NULL with an exception, or without one where signal
 * handlers have to run first (`has_signals`). What came stays for the next attempt; nothing is taken. */
static PyObject *pull_object(EndObject *o, uint64_t id, uint64_t bytes, bool writable) {
    Pulled *p = pulled_of(o, id, bytes, writable);
    if (!p) return NULL;
    Outcome outcome = pull(&o->core, id, heap_bytes(p->object), bytes, &p->have, o->pull_until);
    if (outcome == DONE) return Py_NewRef(p->object);
    if (outcome == SIGNALS) o->has_signals = true;
    else raise_of_end(o, outcome);
    return NULL;
}

/* ---- messages */

typedef struct {
    uint32_t kind;
    PyObject *data;    /* bytes, or a lease over a large body */
    PyObject *buffers; /* list or NULL */
} Message;

static void message_clear(Message *msg) {
    Py_CLEAR(msg->data);
    Py_CLEAR(msg->buffers);
}

/* One buffer of the frame as an object with the buffer protocol. */
static PyObject *object_of(EndObject *o, const Incoming *in, const Part *p) {
    switch (p->where) {
    case IN_BODY: return heap_copy(in->body + p->at, p->bytes, p->writable);
    case IN_STASH: return pull_object(o, p->at, p->bytes, p->writable);
    default:
        return p->map ? lease_of(o, p->claim, p->map, p->at, p->bytes)
                      : copy_out(p->claim->arena, p->at, p->bytes, p->writable);
    }
}

/* Whether the heads of a frame's parts are right. */
static bool parts_fit(const EndObject *o, const Frame *f, PyObject *data) {
    PartHead head;
    uint64_t nbuffers = 0;
    if (f->data_bytes != o->nparts * sizeof head) return false;
    for (uint32_t i = 0; i < o->nparts; i++) {
        memcpy(&head, PyBytes_AsString(data) + i * sizeof head, sizeof head);
        if (!head.kind || head.kind > KIND_FAILURE) return false;
        nbuffers += 1ull + head.nbuffers;
    }
    return nbuffers == f->nbuffers;
}

/* Makes the message of a frame whose body is here: 0, or -1 with an exception. */
static int message_fill(EndObject *o, Incoming *in, Message *msg) {
    End *e = &o->core;
    const Frame *f = &in->head;
    Outcome outcome = incoming_open(e, in);
    if (!outcome && o->nparts > 1 && f->kind < KIND_FAILURE) outcome = damaged(e, "it has no parts");
    if (outcome) return raise_of_end(o, outcome);
    if (f->nbuffers) {
        WITHOUT_COLLECTING(msg->buffers = PyList_New(f->nbuffers));
        if (!msg->buffers) return -1;
    }
    for (uint32_t i = 0; i < f->nbuffers; i++) {
        Part part;
        if ((outcome = incoming_part(e, in, i, &part))) return raise_of_end(o, outcome);
        PyObject *buffer = object_of(o, in, &part);
        if (!buffer || PyList_SetItem(msg->buffers, i, buffer)) return -1;
    }
    if (is_in_block(in) && f->kind == KIND_PICKLE && f->data_bytes > INLINE_BUFFER)
        msg->data = lease_of(o, &in->claims[0], in->claims[0].arena->readable, incoming_data_offset(in), f->data_bytes);
    else msg->data = heap_copy(incoming_data(in), f->data_bytes, false);
    if (!msg->data) return -1;
    if (f->kind != KIND_PARTS || parts_fit(o, f, msg->data)) return 0;
    return raise_of_end(o, damaged(e, "its parts are damaged"));
}

/* Reads the current slot into a message, to be taken or settled: 0, or -1 with an exception and the frame as it was, so
 * that a caller without memory may try again. */
static int message_read(EndObject *o, Message *msg, Incoming *in) {
    PyObject *pulled = NULL;
    Outcome outcome = incoming_begin(&o->core, in);
    *msg = (Message){in->head.kind, NULL, NULL};
    int failed = outcome ? raise_of_end(o, outcome) : 0;
    if (!failed && !in->body) {
        pulled = pull_object(o, in->head.body_stash & UINT32_MAX, in->head.body_bytes, false);
        if (pulled) in->body = heap_bytes(pulled);
        else failed = -1;
    }
    if (!failed) failed = message_fill(o, in, msg);
    Py_XDECREF(pulled);
    if (failed) {
        settle(in, false);
        message_clear(msg);
    }
    return failed;
}

/* Moves on to the next frame; the message is the caller's. */
static void message_take(EndObject *o, Incoming *in, const Reading *times) {
    read_take(&o->core, in, times);
    pulled_clear(o);
}

/* Consumes the message. */
static PyObject *decode(Message *msg, PyObject *loads, PyObject *failure, State *state) {
    PyObject *value = NULL;
    switch (msg->kind) {
    case KIND_BYTES: value = bytes_from(msg->data); break;
    case KIND_PICKLE:
        if (!msg->buffers) value = PyObject_CallFunctionObjArgs(loads, msg->data, NULL);
        else {
            PyObject *args = PyTuple_New(1), *kwargs = PyDict_New();
            if (args && kwargs && !PyDict_SetItem(kwargs, state->buffers_name, msg->buffers)) {
                Py_INCREF(msg->data);
                if (!PyTuple_SetItem(args, 0, msg->data)) value = PyObject_Call(loads, args, kwargs);
            }
            Py_XDECREF(args);
            Py_XDECREF(kwargs);
        }
        break;
    default: {
        PyObject *data = bytes_from(msg->data);
        if (data) value = PyObject_CallFunctionObjArgs(failure, data, NULL);
        Py_XDECREF(data);
    }
    }
    message_clear(msg);
    return value;
}

#endif
