// SPDX-License-Identifier: Apache-2.0
/* Writer: Python's objects as spans of bytes, and frames of them written; and Loan, a block to write them in. */
#ifndef RCG_BIND_WRITER_H
#define RCG_BIND_WRITER_H

#include "bind_nodes.h"

/* ---- Loan: a block of the own arena, on which arrays are made; read-only once it was sent, like what leads to it */

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
static PyType_Spec loan_spec = {"rcg._native.Loan", sizeof(LoanObject), 0, MADE_HERE, loan_slots};

/* The attribute of an object, or NULL without an exception. */
static PyObject *attribute_of(PyObject *o, PyObject *name) {
    PyObject *found = PyObject_GetAttr(o, name);
    if (!found) PyErr_Clear();
    return found;
}

#define DEEPEST_VIEW 64 /* an array's `base` is nearly always what owns the memory, or one step before it */

/* A buffer that lies in a loan was published: makes its array, and all that this is a view of, read-only. Objects are
 * asked as arrays (`flags.writeable`, `base`) and memoryviews (`obj`) answer; at another, as a tensor, the way ends. */
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

/* ---- Writer */

/* Which buffers of a frame will be written to: bit i of `bits`, or byte i of `each` where there are more than 64. */
typedef struct {
    uint64_t bits;
    const char *each;
    Py_ssize_t count;
} Writable;

static bool is_writable(const Writable *w, uint32_t i) {
    return w->each ? i < w->count && w->each[i] : i < 64 && (w->bits >> i) & 1;
}

/* A frame on its way out, and the Python objects that it is made of. What these refer to must live as long. */
typedef struct {
    Outgoing core;
    EndObject *end;
    PyObject *buffers; /* list or NULL */
    Writable writable;
    Py_buffer data_view; /* of data that is not bytes */
    uint32_t nviews;
    Py_buffer *views, few_views[FEW]; /* of the buffers */
    Span *spans, few_spans[FEW];
    uint64_t ended_ns; /* when it was prepared, for the recorder */
    uint64_t ours;     /* once it is published: the links by which this thread has to send */
} Sending;

static void sending_begin(Sending *s, EndObject *end) {
    outgoing_begin(&s->core, &end->core, 0);
    s->end = end;
    s->buffers = NULL;
    s->writable = (Writable){0};
    s->data_view.obj = NULL;
    s->nviews = 0;
    s->views = s->few_views;
    s->spans = s->few_spans;
    s->ended_ns = 0;
    s->ours = 0;
}

/* Right after publishing, while nothing else runs. */
static void sending_load(Sending *s) {
    if (s->end->links) s->ours = links_load(&s->core, &s->end->route);
}

/* Lets other threads run. */
static void sending_ship(Sending *s) {
    if (s->ours) links_send(s->end->route.links, s->ours, s->core.payload);
}

/* From (kind, data, buffers=None, writable=0). */
static int sending_parse(Sending *s, PyObject *const *args, Py_ssize_t nargs) {
    s->core.kind = (uint32_t)PyLong_AsUnsignedLong(args[0]);
    if (PyErr_Occurred()) return -1;
    s->core.apart = s->core.kind == KIND_PARTS;
    s->buffers = nargs > 2 && args[2] != Py_None ? args[2] : NULL;
    if (s->buffers && !PyList_Check(s->buffers)) return refuse(PyExc_TypeError, "buffers must be a list or None");
    if (nargs > 3 && PyBytes_Check(args[3])) {
        if (PyBytes_AsStringAndSize(args[3], (char **)&s->writable.each, &s->writable.count)) return -1;
    } else if (nargs > 3) {
        s->writable.bits = PyLong_AsUnsignedLongLong(args[3]);
        if (PyErr_Occurred()) return -1;
    }
    char *data;
    Py_ssize_t bytes;
    if (PyBytes_Check(args[1])) {
        if (PyBytes_AsStringAndSize(args[1], &data, &bytes)) return -1;
    } else {
        if (PyObject_GetBuffer(args[1], &s->data_view, PyBUF_SIMPLE)) return -1;
        data = s->data_view.buf;
        bytes = s->data_view.len;
    }
    s->core.data = (Span){data, (uint64_t)bytes, false};
    return 0;
}

/* Gets the buffers and prepares the frame, or leaves nothing behind. Users' code and other threads may run. */
static int sending_prepare(Sending *s) {
    uint32_t n = s->buffers ? (uint32_t)PyList_Size(s->buffers) : 0;
    if (n > FEW) {
        s->views = PyMem_Calloc(n, sizeof *s->views);
        s->spans = PyMem_Calloc(n, sizeof *s->spans);
        if (!s->views || !s->spans) {
            PyErr_NoMemory();
            return -1;
        }
    }
    for (; s->nviews < n; s->nviews++) {
        uint32_t i = s->nviews;
        PyObject *item = PyList_GetItem(s->buffers, i);
        if (!item) return -1;
        Py_INCREF(item); /* getting its buffer may run code that changes the list */
        int refused = PyObject_GetBuffer(item, &s->views[i], PyBUF_ANY_CONTIGUOUS);
        Py_DECREF(item);
        if (refused) return -1;
        s->spans[i] = (Span){s->views[i].buf, (uint64_t)s->views[i].len, is_writable(&s->writable, i)};
    }
    s->core.spans = s->spans;
    s->core.nspans = n;
    Outcome outcome = prepare(&s->core);
    if (outcome == NO_SHARED) {
        raise_no_memory(s->end->member, s->core.refused_bytes, s->core.refused);
        return -1;
    }
    return outcome ? raise_of_end(s->end, outcome) : 0;
}

/* May run users' code, as getting and releasing buffers does. */
static void sending_end(Sending *s) {
    if (s->data_view.obj) PyBuffer_Release(&s->data_view);
    for (uint32_t i = 0; i < s->nviews; i++) PyBuffer_Release(&s->views[i]);
    if (s->views != s->few_views) PyMem_Free(s->views);
    if (s->spans != s->few_spans) PyMem_Free(s->spans);
    outgoing_end(&s->core);
}

/* The frame was published: what lies in loans is read-only from now on. */
static void sending_seal(Sending *s) {
    for (uint32_t i = 0; i < s->nviews && s->core.nlent; i++)
        if (loan_named(s->core.end->member, &s->core.table[i])) seal(s->end->member->state, s->views[i].obj);
}

/* Writes one frame, waiting for room first, while nothing is held; fails with nothing written. */
static int send_frame(Sending *s, uint64_t deadline) {
    EndObject *o = s->end;
    Writing writing;
    Outcome outcome = write_begin(&o->core, deadline, &writing);
    if (outcome) return raise_of_end(o, outcome);
    int failed = sending_prepare(s);
    if (!failed) {
        write_publish(&s->core, &writing);
        sending_load(s);
        sending_ship(s);
    }
    write_end(&o->core);
    if (!failed) sending_seal(s);
    return failed;
}

static PyObject *writer_open_next(PyObject *self, UNUSED PyObject *unused) {
    EndObject *o = (EndObject *)self;
    if (check_usable(&o->member->core)) return NULL;
    write_open(&o->core);
    Py_RETURN_NONE;
}

static PyObject *writer_shut(PyObject *self, UNUSED PyObject *unused) {
    ((EndObject *)self)->core.opened_ns = 0;
    Py_RETURN_NONE;
}

/* write(kind, data, buffers=None, writable=0, timeout_ns=-1); `writable`: bit i, or byte i of bytes, for buffer i */
static PyObject *writer_write(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs < 2) return PyErr_Format(PyExc_TypeError, "write(kind, data, buffers=None, writable=0, timeout_ns=-1)");
    Sending s;
    sending_begin(&s, (EndObject *)self);
    uint64_t deadline = UINT64_MAX;
    int failed =
        (nargs > 4 && deadline_from(args[4], &deadline)) || sending_parse(&s, args, nargs) || send_frame(&s, deadline);
    sending_end(&s);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static PyObject *writer_wait_taken(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    EndObject *o = (EndObject *)self;
    Member *m = &o->member->core;
    uint64_t deadline = UINT64_MAX, waited = 0;
    uint32_t peer = NO_MEMBER;
    if ((nargs && deadline_from(args[0], &deadline)) || check_usable(&o->member->core)) return NULL;
    Outcome outcome = wait_until_taken(&o->core, deadline, &waited, &peer);
    if (m->looping) {
        m->open.waited_ns += waited;
        if (peer != NO_MEMBER) m->open.peer = peer;
    }
    if (outcome) {
        raise_of_end(o, outcome);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* send_by(links, channel, nodes): from now on each frame goes by these links as well, bit i of `nodes` for link i,
 * under the channel's number in the plan; the member must be a reader of its own ring */
static PyObject *writer_send_by(PyObject *self, PyObject *args) {
    EndObject *o = (EndObject *)self;
    PyObject *links;
    unsigned channel;
    unsigned long long nodes;
    if (!PyArg_ParseTuple(args, "O!IK", o->member->state->links_type, &links, &channel, &nodes) ||
        check_usable(&o->member->core))
        return NULL;
    Links *all = &((LinksObject *)links)->core;
    uint32_t line = 0;
    while (line < o->core.nreaders && o->core.readers[line] != o->core.member->index) line++;
    if (all->member != o->core.member || line == o->core.nreaders || !nodes ||
        (all->nlinks < 64 && nodes >> all->nlinks))
        return PyErr_Format(PyExc_ValueError, "send_by takes links of this member, which must read its own ring");
    Py_INCREF(links);
    Py_XDECREF(o->links);
    o->links = links;
    o->route = (Route){all, nodes, channel, line};
    Py_RETURN_NONE;
}

static PyMethodDef writer_methods[] = {
    {"send_by", writer_send_by, METH_VARARGS, "send_by(links, channel, nodes): frames go to other nodes as well."},
    {"wait_taken", FASTCALL(writer_wait_taken),
     "wait_taken(timeout_ns=-1): wait until every reader has taken all frames that were written."},
    {"shut", writer_shut, METH_NOARGS, "shut(): what was opened is not written; any number of times."},
    {"open", writer_open_next, METH_NOARGS,
     "open(): the next write begins now, with encoding its value; for the recorder."},
    {"write", FASTCALL(writer_write),
     "write(kind, data, buffers=None, writable=0, timeout_ns=-1): publish the next frame."},
    {NULL, NULL, 0, NULL}};
static PyType_Slot writer_slots[] = {
    {Py_tp_dealloc, end_dealloc}, {Py_tp_methods, writer_methods}, {Py_tp_getset, end_getset}, {0, NULL}};
static PyType_Spec writer_spec = {"rcg._native.Writer", sizeof(EndObject), 0, MADE_HERE, writer_slots};

#endif
