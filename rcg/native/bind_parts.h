// SPDX-License-Identifier: Apache-2.0
/* Frames of several parts: values that one process made at the same point for the same readers.
 *
 *   KIND_PARTS    data: a PartHead for each part; buffers: for each part its data, and then its buffers
 *   KIND_TUPLE    data: a pickle of the tuple of all parts, which are of types whose unpickling runs no other code
 *   KIND_FAILURE  one failure in place of all parts
 *
 * A part becomes a Frame of its own, so it is decoded, kept and dropped alone. */
#ifndef RCG_BIND_PARTS_H
#define RCG_BIND_PARTS_H

#include "bind_frame.h"

/* Unpickles the parts of a KIND_TUPLE; NULL with an exception. */
static PyObject *tuple_of_parts(EndObject *o, const Message *msg) {
    PyObject *values = PyObject_CallFunctionObjArgs(o->decode, msg->data, NULL);
    if (!values || (PyTuple_Check(values) && PyTuple_Size(values) == (Py_ssize_t)o->nparts)) return values;
    Py_DECREF(values);
    damaged(&o->core, "it is no tuple of its parts");
    raise_of_end(o, DAMAGED);
    return NULL;
}

/* Makes the message of part `i`, whose own begins at `*at` of the buffers: 0, or -1 with an exception. */
static int part_message(const Message *msg, uint32_t i, Py_ssize_t *at, Message *part) {
    PartHead head;
    memcpy(&head, PyBytes_AsString(msg->data) + i * sizeof head, sizeof head);
    Py_ssize_t first = *at + 1, end = first + head.nbuffers;
    *part = (Message){head.kind, Py_NewRef(PyList_GetItem(msg->buffers, *at)), NULL};
    *at = end;
    if (head.nbuffers && !(part->buffers = PyList_GetSlice(msg->buffers, first, end))) return -1;
    return 0;
}

/* A list with a Frame for each part of a message; NULL with an exception. */
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
    PyErr_SetString(PyExc_TypeError, "frames are collected in a dict, or in a tuple of one for each part");
    return -1;
}

/* Enters a frame for each part into its dict, or none: 0, or -1 with an exception. */
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
