// SPDX-License-Identifier: Apache-2.0
/* The module rcg._native: the core and its bindings as one translation unit, so that the compiler sees the whole of a
 * call. The core (core.h) knows no Python; the bindings (bind_*.h) turn objects into spans of bytes, outcomes into
 * exceptions and what arrives into objects. `serialization.py` turns values into (pickle bytes, buffers) and back,
 * `channels/shm.py` names the errors.
 *
 * Nothing that makes a container or lets other threads run stands between two stores that belong together: in Python
 * 3.11 any container that is made may start a collection of garbage, and so any __del__. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "bind_member.h"

/* ---- module functions */

/* One entry of format_board's rings. */
static int ring_from(RingSpec *spec, PyObject *item, Py_ssize_t i, unsigned nmembers) {
    unsigned writer, nslots, slot_bytes;
    PyObject *readers;
    if (!PyTuple_Check(item)) return refuse(PyExc_TypeError, "a ring is (writer, (reader, ...), slots, slot_bytes)");
    if (!PyArg_ParseTuple(item, "IO!II", &writer, &PyTuple_Type, &readers, &nslots, &slot_bytes)) return -1;
    Py_ssize_t n = PyTuple_Size(readers);
    *spec = (RingSpec){writer, nslots, slot_bytes, n <= MAX_MEMBERS ? (uint32_t)n : 0, {0}};
    for (Py_ssize_t j = 0; j < (Py_ssize_t)spec->nreaders; j++) {
        unsigned long member = PyLong_AsUnsignedLong(PyTuple_GetItem(readers, j));
        if (PyErr_Occurred()) return -1;
        if (member >= nmembers) {
            PyErr_Format(PyExc_ValueError, "ring %zd: no member %lu", i, member);
            return -1;
        }
        spec->readers[j] = (uint32_t)member;
    }
    return 0;
}

static int raise_of_rings(RingRefusal refusal) {
    switch (refusal.fault) {
    case RINGS_GOOD: return 0;
    case RING_SHAPE:
        PyErr_Format(PyExc_ValueError,
                     "ring %u: needs a member as writer, 1 to %d readers, a power of two of slots and slots of a "
                     "multiple of %u bytes",
                     refusal.ring, MAX_MEMBERS, LINE);
        break;
    case RING_NO_MEMBER: PyErr_Format(PyExc_ValueError, "ring %u: no member %u", refusal.ring, refusal.member); break;
    case RING_READER_TWICE:
        PyErr_Format(PyExc_ValueError, "ring %u: member %u is listed twice", refusal.ring, refusal.member);
        break;
    }
    return -1;
}

/* format_board(fd, members, rings, events, cap_bytes) -> size; rings = [(writer, (reader, ...), slots, slot_bytes)] */
static PyObject *native_format_board(UNUSED PyObject *module, PyObject *args) {
    int fd;
    unsigned nmembers, nevents;
    unsigned long long cap;
    PyObject *rings;
    if (!PyArg_ParseTuple(args, "iIOIK", &fd, &nmembers, &rings, &nevents, &cap)) return NULL;
    if (!is_board(nmembers, nevents) || !PyList_Check(rings))
        return PyErr_Format(PyExc_ValueError, "a board has 1 to %d members and room for a power of two of events",
                            MAX_MEMBERS);
    Py_ssize_t n = PyList_Size(rings);
    RingSpec *specs = PyMem_Calloc((size_t)n + 1, sizeof *specs);
    if (!specs) return PyErr_NoMemory();
    int failed = 0;
    for (Py_ssize_t i = 0; i < n && !failed; i++) failed = ring_from(&specs[i], PyList_GetItem(rings, i), i, nmembers);
    if (!failed) failed = raise_of_rings(check_rings(specs, (uint32_t)n, nmembers));
    uint64_t size = failed ? 0 : format_board(fd, nmembers, specs, (uint32_t)n, nevents, cap);
    if (!failed && !size) PyErr_SetFromErrno(PyExc_OSError);
    PyMem_Free(specs);
    return size ? PyLong_FromUnsignedLongLong(size) : NULL;
}

static PyObject *native_format_arena(UNUSED PyObject *module, PyObject *args) {
    int fd;
    unsigned owner, nmembers;
    unsigned long long reserve;
    if (!PyArg_ParseTuple(args, "iIIK", &fd, &owner, &nmembers, &reserve)) return NULL;
    if (!is_arena(owner, nmembers, reserve))
        return PyErr_Format(PyExc_ValueError,
                            "an arena needs an owner among 1 to 64 members and whole pages to reserve");
    if (format_arena(fd, owner, nmembers, reserve)) return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"release", FASTCALL(native_release),
     "release(left, execution, output): an output was fetched or dropped; once is as good as twice."},
    {"format_board", native_format_board, METH_VARARGS, "format_board(fd, members, rings, events, cap_bytes) -> size"},
    {"format_arena", native_format_arena, METH_VARARGS, "format_arena(fd, owner, members, reserve_bytes)"},
    {NULL, NULL, 0, NULL}};

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type) {
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type ? PyModule_AddType(module, *type) : -1;
}

static int add_error(PyObject *module, const char *name, const char *doc, PyObject **error) {
    char full[64];
    PyOS_snprintf(full, sizeof full, "rcg._native.%s", name);
    *error = PyErr_NewExceptionWithDoc(full, doc, NULL, NULL);
    return *error ? PyModule_AddObjectRef(module, name, *error) : -1;
}

#define ADD_NAME(name)                                                                                                 \
    if (!(s->name##_name = PyUnicode_InternFromString(#name))) return -1;
#define ADD_TYPE(name)                                                                                                 \
    if (add_type(module, &name##_spec, &s->name##_type)) return -1;
#define CONSTANT(name) {#name, name}

static int module_exec(PyObject *module) {
    static bool watching_forks; /* of the process, not of the interpreter */
    State *s = PyModule_GetState(module);
    if (!watching_forks) {
        if (pthread_atfork(NULL, NULL, after_fork_in_child)) return refuse(PyExc_RuntimeError, "pthread_atfork failed");
        watching_forks = true;
    }
    EACH_NAME(ADD_NAME)
    EACH_TYPE(ADD_TYPE)
    if (add_error(module, "Poisoned", "Poisoned(code, culprit): the graph was closed or broke.", &s->errors.poisoned) ||
        add_error(module, "TimedOut", "The deadline passed.", &s->errors.timed_out) ||
        add_error(module, "NoMemory", "NoMemory(wanted, used, cap, errno)", &s->errors.no_memory) ||
        add_error(module, "Corrupt", "A frame or a segment is damaged.", &s->errors.corrupt))
        return -1;
    static const struct {
        const char *name;
        long value;
    } constants[] = {
        CONSTANT(ABI_VERSION),  CONSTANT(KIND_PICKLE),   CONSTANT(KIND_BYTES),          CONSTANT(KIND_FAILURE),
        CONSTANT(KIND_PARTS),   CONSTANT(KIND_TUPLE),    CONSTANT(POISON_CLOSED),       CONSTANT(POISON_BROKEN),
        CONSTANT(MAX_MEMBERS),  CONSTANT(INLINE_BUFFER), CONSTANT(MAX_SPANS),           CONSTANT(DRAIN_EVENTS),
        CONSTANT(SPAN_BASE),    CONSTANT(NOW_IDLE),      CONSTANT(NOW_RUNNING),         CONSTANT(NOW_WAITING),
        CONSTANT(MIN_BLOCK),    CONSTANT(LOST_CLOSED),   CONSTANT(LOST_SYSTEM),         CONSTANT(LOST_FRAME),
        CONSTANT(LOST_CHANNEL), CONSTANT(LOST_ORDER),    CONSTANT(LOST_MEMORY),         CONSTANT(MOST_LINKS),
        CONSTANT(REF_NEW),      CONSTANT(REF_PENDING),   {"FRAME_BYTES", sizeof(Frame)}};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value)) return -1;
    return 0;
}

#define CLEAR_NAME(name) Py_CLEAR(s->name##_name);
#define CLEAR_TYPE(name) Py_CLEAR(s->name##_type);

static void module_free(void *module) {
    State *s = PyModule_GetState(module);
    if (!s) return;
    EACH_NAME(CLEAR_NAME)
    EACH_TYPE(CLEAR_TYPE)
    Py_CLEAR(s->errors.poisoned);
    Py_CLEAR(s->errors.timed_out);
    Py_CLEAR(s->errors.no_memory);
    Py_CLEAR(s->errors.corrupt);
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};
static struct PyModuleDef module_def = {.m_base = PyModuleDef_HEAD_INIT,
                                        .m_name = "rcg._native",
                                        .m_doc = "Rings, blocks, doorbells and the flight recorder in shared memory.",
                                        .m_size = sizeof(State),
                                        .m_methods = module_methods,
                                        .m_slots = module_slots,
                                        .m_free = module_free};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module_def); }
