// SPDX-License-Identifier: Apache-2.0
/* Arrived frames as Python objects: their buffers, which are leases, copies, or pulled from a stash; the message that
 * these make; and Frame, one that was taken and not decoded yet.
 *
 * A frame may have several parts, values that one process made at the same point for the same readers:
 *
 *   KIND_PARTS    data: a PartHead for each part; buffers: for each part its data, and then its buffers
 *   KIND_TUPLE    data: a pickle of the tuple of all parts, which are of types whose unpickling runs no other code
 *   KIND_FAILURE  one failure in place of all parts
 *
 * A part becomes a Frame of its own, so it is decoded, kept and dropped alone. */
#ifndef RCG_BIND_FRAME_H
#define RCG_BIND_FRAME_H

#include "bind.h"

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
static PyObject *lease_block(PyObject *self, UNUSED PyObject *unused) {
    const Lease *l = &((LeaseObject *)self)->core;
    const Arena *a = l->arena;
    const Block *b = &a->header->block[l->block];
    if (!l->moves) Py_RETURN_NONE;
    uint64_t offset = block_offset(b), bytes = block_committed(b);
    if (offset > a->reserve || bytes > a->reserve - offset) offset = bytes = 0; /* damaged: it says nothing */
    return Py_BuildValue("Ikkk", a->owner, (uintptr_t)(a->movable + offset), bytes, load_relaxed(&a->header->punches));
}

static PyMethodDef lease_methods[] = {
    {"block", lease_block, METH_NOARGS, "block() -> (arena, address, bytes, punches) of its block, or None."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot lease_slots[] = {
    {Py_tp_dealloc, lease_dealloc}, {Py_bf_getbuffer, lease_getbuffer}, {Py_tp_methods, lease_methods}, {0, NULL}};
static PyType_Spec lease_spec = {"rcg._native.Lease", sizeof(LeaseObject), 0, MADE_HERE, lease_slots};

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

/* Any object with a buffer as bytes. */
static PyObject *bytes_from(PyObject *o) {
    if (PyBytes_Check(o)) return Py_NewRef(o);
    Py_buffer view;
    if (PyObject_GetBuffer(o, &view, PyBUF_SIMPLE)) return NULL;
    PyObject *copy = heap_copy(view.buf, (uint64_t)view.len, false);
    PyBuffer_Release(&view);
    return copy;
}

/* ---- pulling from a stash */

/* What was pulled so far of a copy for the next frame. */
static Pulled *pulled_of(EndObject *o, uint64_t id, uint64_t bytes, bool writable) {
    for (uint32_t i = 0; i < o->npulled; i++)
        if (o->pulled[i].id == id) return &o->pulled[i];
    Pulled *p = grown(o->pulled, &o->pulled_room, o->npulled, sizeof *p);
    if (!p) {
        PyErr_NoMemory();
        return NULL;
    }
    o->pulled = p;
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

/* Makes the message of a frame whose body is here. */
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

/* Reads the current slot into a message, to be taken or settled. A failure leaves the frame as it was, to try again. */
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

/* ---- Frame */

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
    f->decode = Py_NewRef(o->decode);
    f->failure = Py_NewRef(o->failure);
    f->execution = o->core.seq;
    f->op = o->core.op;
    if (m->recording && !m->looping) {
        f->member = (MemberObject *)Py_NewRef((PyObject *)o->member);
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
 * is wanted at once. Decoding may run any code, which may need that other thread, or be what interrupted it: so several
 * may decode, and all get what the first one made. An attempt that raises can be repeated. */
static PyObject *frame_decode(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    FrameObject *f = (FrameObject *)self;
    if (f->value) return Py_NewRef(f->value);
    unsigned long thread = PyThread_get_thread_ident();
    bool is_second = f->depth && f->decoder != thread;
    if (is_second && !(nargs && args[0] == Py_True)) return Py_NewRef(self);
    if (!is_second && f->depth >= DEEPEST_DECODING)
        return PyErr_Format(PyExc_RuntimeError, "unpickling this result asks for the result itself");
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
        return Py_NewRef(f->value);
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

static PyObject *frame_get_is_failure(PyObject *self, UNUSED void *closure) {
    return PyBool_FromLong(((FrameObject *)self)->msg.kind == KIND_FAILURE);
}

static PyMethodDef frame_methods[] = {
    {"decode", FASTCALL(frame_decode),
     "decode(at_once=False): the value; the frame itself while another thread decodes it."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef frame_getset[] = {
    {"is_failure", frame_get_is_failure, NULL, "Whether it stands for a value that is not there.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot frame_slots[] = {
    {Py_tp_dealloc, frame_dealloc}, {Py_tp_methods, frame_methods}, {Py_tp_getset, frame_getset}, {0, NULL}};
static PyType_Spec frame_spec = {"rcg._native.Frame", sizeof(FrameObject), 0, MADE_HERE, frame_slots};

/* ---- parts */

/* Unpickles the parts of a KIND_TUPLE. */
static PyObject *tuple_of_parts(EndObject *o, const Message *msg) {
    PyObject *values = PyObject_CallFunctionObjArgs(o->decode, msg->data, NULL);
    if (!values || (PyTuple_Check(values) && PyTuple_Size(values) == (Py_ssize_t)o->nparts)) return values;
    Py_DECREF(values);
    damaged(&o->core, "it is no tuple of its parts");
    raise_of_end(o, DAMAGED);
    return NULL;
}

/* Makes the message of part `i`, whose own begins at `*at` of the buffers. */
static int part_message(const Message *msg, uint32_t i, Py_ssize_t *at, Message *part) {
    PartHead head;
    memcpy(&head, PyBytes_AsString(msg->data) + i * sizeof head, sizeof head);
    Py_ssize_t first = *at + 1, end = first + head.nbuffers;
    *part = (Message){head.kind, Py_NewRef(PyList_GetItem(msg->buffers, *at)), NULL};
    *at = end;
    if (head.nbuffers && !(part->buffers = PyList_GetSlice(msg->buffers, first, end))) return -1;
    return 0;
}

/* A list with a Frame for each part of a message. */
static PyObject *frames_of(EndObject *o, const Message *msg, uint64_t execution) {
    PyObject *frames = PyList_New(o->nparts), *values = NULL;
    if (frames && msg->kind == KIND_TUPLE && !(values = tuple_of_parts(o, msg))) Py_CLEAR(frames);
    Py_ssize_t at = 0;
    for (uint32_t i = 0; frames && i < o->nparts; i++) {
        FrameObject *f = frame_new(o);
        int failed = !f;
        if (f) {
            f->execution = execution;
            if (values) {
                f->msg.kind = KIND_PICKLE;
                f->value = Py_NewRef(PyTuple_GetItem(values, i));
            } else if (msg->kind == KIND_FAILURE) f->msg = (Message){msg->kind, Py_NewRef(msg->data), NULL};
            else failed = part_message(msg, i, &at, &f->msg);
        }
        if (!f || PyList_SetItem(frames, i, (PyObject *)f) || failed) Py_CLEAR(frames);
    }
    Py_XDECREF(values);
    return frames;
}

/* Whether an argument is what frames are collected in: a dict, or a tuple of one for each part. */
static int check_collected(const EndObject *o, PyObject *frames) {
    bool is_right =
        o->nparts == 1 ? PyDict_Check(frames) : PyTuple_Check(frames) && PyTuple_Size(frames) == (Py_ssize_t)o->nparts;
    for (uint32_t i = 0; is_right && o->nparts > 1 && i < o->nparts; i++)
        is_right = PyDict_Check(PyTuple_GetItem(frames, i));
    if (is_right) return 0;
    return refuse(PyExc_TypeError, "frames are collected in a dict, or in a tuple of one for each part");
}

/* Enters a frame for each part into its dict, or none. */
static int enter_parts(PyObject *dicts, PyObject *key, PyObject *frames) {
    Py_ssize_t n = PyTuple_Size(dicts), i = 0;
    while (i < n && !PyDict_SetItem(PyTuple_GetItem(dicts, i), key, PyList_GetItem(frames, i))) i++;
    if (i == n) return 0;
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    while (i--) PyDict_DelItem(PyTuple_GetItem(dicts, i), key);
    PyErr_Restore(type, error, traceback);
    return -1;
}

#endif
