// What we need of CPython: the GIL, objects that are owned, and a thread -> its frames, their code and instructions.
// Nothing here knows of torch.

namespace {

// An op may end because Python code in it has raised, a hook say: that exception has to be there afterwards.
struct Gil {
  PyGILState_STATE state = PyGILState_Ensure();
  PyObject *type, *value, *trace;
  Gil() { PyErr_Fetch(&type, &value, &trace); }
  ~Gil() {
    PyErr_Restore(type, value, trace);
    PyGILState_Release(state);
  }
};

// A Python object that is owned. To be made and destroyed with the GIL.
struct Ref {
  PyObject* object;
  explicit Ref(PyObject* owned = nullptr) : object(owned) {}
  Ref(Ref&& other) noexcept : object(std::exchange(other.object, nullptr)) {}
  Ref(const Ref&) = delete;
  Ref& operator=(Ref&& other) noexcept { std::swap(object, other.object); return *this; }
  ~Ref() { Py_XDECREF(object); }
  operator PyObject*() const { return object; }
  PyObject* release() { return std::exchange(object, nullptr); }
};

PyObject* none() { Py_RETURN_NONE; }

// Of code: frames.code_kind (0: the user's; beyond kEnds there is no line of the user's), and a checkpoint's own function.
constexpr int kSkip = 1, kRecomputes = 2, kEnds = 4;

// A thread that runs an op has left its Python frames as they are, so it may read them without the GIL. The layout of a
// frame is CPython's own business and differs between versions: it is read here only, and `line_here` lets a test
// compare it with sys._getframe().

#if PY_VERSION_HEX >= 0x030D0000
_PyInterpreterFrame* frame_of(PyThreadState* thread) { return thread->current_frame; }
PyCodeObject* code_of(_PyInterpreterFrame* f) { return _PyFrame_GetCode(f); }
#else
_PyInterpreterFrame* frame_of(PyThreadState* thread) { return thread->cframe->current_frame; }
PyCodeObject* code_of(_PyInterpreterFrame* f) { return f->f_code; }
#endif

_PyInterpreterFrame* top_frame() {
  PyThreadState* thread = PyGILState_GetThisThreadState();
  return thread ? frame_of(thread) : nullptr;
}

int instruction_of(_PyInterpreterFrame* f) { return _PyInterpreterFrame_LASTI(f) * static_cast<int>(sizeof(_Py_CODEUNIT)); }

}  // namespace
