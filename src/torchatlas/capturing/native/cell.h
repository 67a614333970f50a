// The running module call of a thread -> the Python type Cell, which stands for the list of the recorder in Python:
// cell[0] is the call, cell[1] the user's line or None. Made by Cell(core).

namespace {

PyObject* cell_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* core;
  if (!PyArg_ParseTuple(args, "O", &core)) return nullptr;
  auto* self = reinterpret_cast<Cell*>(type->tp_alloc(type, 0));
  self->core = Py_NewRef(core), self->call = -1, self->line = Py_NewRef(Py_None), self->code = nullptr;
  return reinterpret_cast<PyObject*>(self);
}

int cell_traverse(PyObject* object, visitproc visit, void* arg) {  // a recorder holds its cell, and the core the recorder
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(reinterpret_cast<Cell*>(object)->core);
  return 0;
}

void cell_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  auto* self = reinterpret_cast<Cell*>(object);
  PyTypeObject* type = Py_TYPE(object);
  Py_XDECREF(self->line);
  Py_XDECREF(self->core);
  type->tp_free(object);
  Py_DECREF(type);
}

Py_ssize_t cell_length(PyObject*) { return 2; }

PyObject* cell_item(PyObject* object, Py_ssize_t index) {
  auto* self = reinterpret_cast<Cell*>(object);
  if (index == 0) return PyLong_FromLongLong(self->call);
  if (index == 1) return Py_NewRef(self->line);
  return PyErr_SetString(PyExc_IndexError, "a cell has two items"), nullptr;
}

int cell_set(PyObject* object, Py_ssize_t index, PyObject* value) {
  auto* self = reinterpret_cast<Cell*>(object);
  if (!value) return PyErr_SetString(PyExc_TypeError, "a cell keeps its items"), -1;
  if (index == 0) {
    int64_t call = PyLong_AsLongLong(value);
    if (call == -1 && PyErr_Occurred()) return -1;
    self->call = call;
    return 0;
  }
  PyCodeObject* code = nullptr;
  int instruction = 0;
  if (value != Py_None && !PyArg_ParseTuple(value, "O!i", &PyCode_Type, &code, &instruction)) return -1;
  if (code) of(self->core).keep_code(code);
  Ref old(std::exchange(self->line, Py_NewRef(value)));
  self->code = code, self->instruction = instruction;
  return 0;
}

PyObject* cell_get_subscript(PyObject* object, PyObject* key) { return cell_item(object, PyLong_AsSsize_t(key)); }

int cell_set_subscript(PyObject* object, PyObject* key, PyObject* value) {  // cell[0] = ..., cell[:] = call, line
  if (!PySlice_Check(key)) return cell_set(object, PyLong_AsSsize_t(key), value);
  Ref both(value ? PySequence_Tuple(value) : nullptr);
  if (!both || PyTuple_GET_SIZE(both.object) != 2) return PyErr_SetString(PyExc_ValueError, "a cell has two items"), -1;
  if (cell_set(object, 0, PyTuple_GET_ITEM(both.object, 0)) < 0) return -1;
  return cell_set(object, 1, PyTuple_GET_ITEM(both.object, 1));
}

PyType_Slot cell_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(cell_new)}, {Py_tp_dealloc, reinterpret_cast<void*>(cell_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(cell_traverse)},
    {Py_sq_length, reinterpret_cast<void*>(cell_length)}, {Py_sq_item, reinterpret_cast<void*>(cell_item)},
    {Py_mp_length, reinterpret_cast<void*>(cell_length)}, {Py_mp_subscript, reinterpret_cast<void*>(cell_get_subscript)},
    {Py_mp_ass_subscript, reinterpret_cast<void*>(cell_set_subscript)}, {0, nullptr}};
PyType_Spec cell_spec = {"_recorder.Cell", sizeof(Cell), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, cell_slots};

}  // namespace
