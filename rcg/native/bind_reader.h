// SPDX-License-Identifier: Apache-2.0
/* Reader: frames taken off a ring, decoded at once, later, or by the thread that needs them. */
#ifndef RCG_BIND_READER_H
#define RCG_BIND_READER_H

#include "bind_frame.h"

/* Waits for the next frame and takes it off the ring; one thread at a time. */
static int receive(EndObject *o, uint64_t deadline, Message *msg) {
    End *e = &o->core;
    Reading times;
    Incoming in;
    Outcome outcome = read_begin(e, deadline, &times);
    if (outcome) return raise_of_end(o, outcome);
    o->pull_until = deadline;
    int failed;
    while ((failed = message_read(o, msg, &in)) && o->has_signals) {
        o->has_signals = false;
        e->busy = false; /* a handler may read here, too */
        uint64_t seq = e->seq;
        if (PyErr_CheckSignals()) return -1;
        if ((outcome = end_enter(e))) return raise_of_end(o, outcome);
        if (e->seq != seq) { /* and has taken this frame */
            PyErr_SetString(PyExc_RuntimeError, "a signal handler has read the frame that was being read");
            break;
        }
    }
    if (!failed) message_take(o, &in, &times);
    e->busy = false;
    return failed;
}

/* read(timeout_ns=-1) -> value; of several parts: their tuple, a list of Frames, or the failure in place of all */
static PyObject *reader_read(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    EndObject *o = (EndObject *)self;
    Member *m = &o->member->core;
    uint64_t deadline = UINT64_MAX;
    Message msg;
    if (nargs && deadline_from(args[0], &deadline)) return NULL;
    if (receive(o, deadline, &msg)) return NULL;
    if (m->looping && m->recording && (msg.kind == KIND_PICKLE || o->nparts > 1)) m->coding_since_ns = stamp(&m->clock);
    if (o->nparts > 1 && msg.kind != KIND_FAILURE) {
        PyObject *parts = msg.kind == KIND_TUPLE ? tuple_of_parts(o, &msg) : frames_of(o, &msg, o->core.seq - 1);
        message_clear(&msg);
        return parts;
    }
    return decode(&msg, o->decode, o->failure, o->member->state);
}

/* take(timeout_ns=-1) -> Frame, not decoded; of a ring with several parts: a list of them */
static PyObject *reader_take(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    EndObject *o = (EndObject *)self;
    uint64_t deadline = UINT64_MAX;
    if (nargs && deadline_from(args[0], &deadline)) return NULL;
    Message msg;
    if (o->nparts > 1) {
        if (receive(o, deadline, &msg)) return NULL;
        PyObject *frames = frames_of(o, &msg, o->core.seq - 1);
        message_clear(&msg);
        return frames;
    }
    FrameObject *f = frame_new(o); /* before there is a frame that could be lost */
    if (!f) return NULL;
    if (receive(o, deadline, &msg)) {
        Py_DECREF((PyObject *)f);
        return NULL;
    }
    f->msg = msg;
    f->execution = o->core.seq - 1;
    return (PyObject *)f;
}

/* collect_one() for a frame of several parts. */
static int collect_parts(EndObject *o, PyObject *dicts, const Reading *times) {
    PyObject *key = PyLong_FromUnsignedLongLong(o->core.seq), *frames = NULL;
    Message msg;
    Incoming in;
    int failed = -1;
    o->core.busy = true;
    if (key && !message_read(o, &msg, &in)) {
        WITHOUT_COLLECTING(frames = frames_of(o, &msg, o->core.seq));
        if (frames && !enter_parts(dicts, key, frames)) {
            message_take(o, &in, times);
            failed = 0;
        } else settle(&in, false);
        message_clear(&msg);
    } else if (key && o->has_signals) {
        o->has_signals = false;
        failed = 1;
    }
    o->core.busy = false;
    Py_XDECREF(frames);
    Py_XDECREF(key);
    return failed;
}

/* Takes the frame that lies on the ring into the dict, or the dicts of its parts, or leaves it where it is: 0, -1, or 1
 * if signal handlers have to run before it goes on. */
static int collect_one(EndObject *o, PyObject *frames, const Reading *times) {
    if (o->nparts > 1) return collect_parts(o, frames, times);
    PyObject *key = PyLong_FromUnsignedLongLong(o->core.seq);
    FrameObject *f = key ? frame_new(o) : NULL;
    Incoming in;
    int failed = -1;
    if (f) {
        o->core.busy = true;
        if (!message_read(o, &f->msg, &in)) {
            if ((failed = PyDict_SetItem(frames, key, (PyObject *)f))) settle(&in, false);
            else message_take(o, &in, times);
        } else if (o->has_signals) {
            o->has_signals = false;
            failed = 1;
        }
        o->core.busy = false;
    }
    Py_XDECREF((PyObject *)f);
    Py_XDECREF(key);
    return failed;
}

/* collect(frames, execution, timeout_ns=-1): take frames into the dict {execution: Frame} until that of `execution` is
 * taken, by whomever: any number of threads may be inside, and each sees every arrival. Nothing can come between
 * taking a frame and having it in the dict, Ctrl-C neither. */
static PyObject *reader_collect(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    EndObject *o = (EndObject *)self;
    End *e = &o->core;
    Member *m = e->member;
    if (nargs < 2) return PyErr_Format(PyExc_TypeError, "collect(frames, execution, timeout_ns=-1)");
    if (check_collected(o, args[0])) return NULL;
    Reading times = {m->recording ? stamp(&m->clock) : 0, 0};
    uint64_t execution = PyLong_AsUnsignedLongLong(args[1]), deadline = UINT64_MAX;
    if ((execution == UINT64_MAX && PyErr_Occurred()) ||
        (nargs > 2 && deadline_after(times.start, args[2], &deadline)) || check_usable(&o->member->core))
        return NULL;
    while (e->seq <= execution) {
        if (e->busy) { /* another thread is copying a frame out of its slot */
            if (now_ns() >= deadline) {
                PyErr_SetNone(o->member->errors.timed_out);
                return NULL;
            }
            Py_BEGIN_ALLOW_THREADS
            nap(20000);
            Py_END_ALLOW_THREADS
            if (PyErr_CheckSignals()) return NULL;
        } else if (!has_frame(e)) {
            Watch w = frame_watch(e);
            Learned learned = e->learned; /* a copy, because others may wait here too */
            if (m->recording) {
                now_doing(m, e->op, e->seq, times.start, NOW_IDLE);
                store_relaxed(&m->recorder->ring, e->index);
            }
            Outcome outcome = wait_for(m, &w, 1, &learned, deadline, times.waited ? 0 : times.start, &times.waited);
            e->learned = learned;
            if (outcome) {
                record_wait(e, times.start, times.waited);
                raise_of_end(o, outcome);
                return NULL;
            }
        } else {
            o->pull_until = deadline;
            int failed = collect_one(o, args[0], &times);
            if (failed < 0 || (failed && PyErr_CheckSignals())) return NULL;
            if (failed) continue;
            times.waited = 0;
            if (m->recording && e->seq <= execution) times.start = stamp(&m->clock);
        }
    }
    Py_RETURN_NONE;
}

/* collect_pending(frames): take what lies on the ring into the dict, without waiting; what another thread is taking at
 * this moment it brings itself */
static PyObject *reader_collect_pending(PyObject *self, PyObject *frames) {
    EndObject *o = (EndObject *)self;
    End *e = &o->core;
    Member *m = e->member;
    if (check_collected(o, frames) || check_usable(&o->member->core)) return NULL;
    uint64_t until = now_ns() + SIGNAL_SLICE;
    while (!e->busy && has_frame(e)) {
        o->pull_until = until;
        Reading times = {m->recording ? stamp(&m->clock) : 0, 0};
        int failed = collect_one(o, frames, &times);
        if (failed > 0 && PyErr_CheckSignals()) return NULL;
        if (failed < 0) {
            if (!PyErr_ExceptionMatches(o->member->errors.timed_out)) return NULL;
            PyErr_Clear(); /* its writer does not answer now: the frame stays where it is */
            break;
        }
    }
    Py_RETURN_NONE;
}

static PyObject *reader_pending(PyObject *self, UNUSED PyObject *unused) {
    const End *e = &((EndObject *)self)->core;
    uint64_t published = atomic_load(&e->ring->seq);
    if (load_relaxed(&e->ring->stashed) > e->seq) return PyLong_FromLong(0);
    return PyLong_FromUnsignedLongLong(published - e->seq);
}

static PyMethodDef reader_methods[] = {
    {"read", FASTCALL(reader_read), "read(timeout_ns=-1): wait for the next frame and return its value."},
    {"take", FASTCALL(reader_take), "take(timeout_ns=-1): wait for the next frame and return it undecoded."},
    {"collect", FASTCALL(reader_collect),
     "collect(frames, execution, timeout_ns=-1): take frames into the dict up to that of an execution."},
    {"collect_pending", reader_collect_pending, METH_O,
     "collect_pending(frames): take what lies on the ring into the dict, without waiting."},
    {"pending", reader_pending, METH_NOARGS,
     "How many frames could be read without waiting; none as long as one comes from a stash."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot reader_slots[] = {
    {Py_tp_dealloc, end_dealloc}, {Py_tp_methods, reader_methods}, {Py_tp_getset, end_getset}, {0, NULL}};
static PyType_Spec reader_spec = {"rcg._native.Reader", sizeof(EndObject), 0, MADE_HERE, reader_slots};

#endif
