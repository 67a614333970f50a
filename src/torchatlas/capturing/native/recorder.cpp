// The recorder in C++: what torch's dispatcher runs -> the rows of row_schema.py, without a word of Python per op.
//
// torch calls `enter` and `leave` around every call of an operator (at::RecordFunction), also around those that a kernel
// makes for itself. An op is recorded where a dispatch mode of Python would have seen it, and only there:
//   transparent   composite operators, and calls that autocast, a dispatch mode or a wrapper subclass takes over: what they
//                 call is looked at, they themselves leave no row
//   hidden        what the kernel of a recorded op calls; but not what its autograd kernel calls before it
// Rows are kept as numbers (Row, tokens) and become Python objects when somebody asks for them (`drain`).
//
// The GIL is not held while ops run. It is taken only for what is rare: a code object or an operator that is met for the
// first time, a tensor that is no view of a storage or of a class of its own, the first write to memory from outside (`guard`), the ops that a
// listener wants to hear of (`told`), and all ops if values are kept. Never while `mutex` is held: who holds the GIL may
// wait for it.
//
// This is one translation unit in several files, each of one subject, to be read in the order in which they are included
// below: each uses those before it, and the libraries. Here is the Python module.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/SequenceNumber.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#define Py_BUILD_CORE
#include <internal/pycore_frame.h>
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe.h>
#endif
#undef Py_BUILD_CORE

PyObject* THPVariable_Wrap(const at::TensorBase& tensor);  // of torch/csrc/autograd/python_variable.h, which is slow to read

#include "interpreter.h"
#include "operators.h"
#include "rows.h"
#include "recorder.h"
#include "allocator_listener.h"
#include "storages.h"
#include "tensors.h"
#include "tokens.h"
#include "calls.h"
#include "asking.h"
#include "python_rows.h"
#include "threads.h"
#include "core.h"
#include "cell.h"

namespace {

PyObject* look_away(PyObject*, PyObject* count) {  // all recorders of this thread; 0 ends it
  looking_away = static_cast<int>(PyLong_AsLong(count));
  return none();
}

PyObject* is_looking_away(PyObject*, PyObject*) { return PyLong_FromLong(looking_away); }

PyObject* has_room(PyObject*, PyObject*) {  // for one more recording
  for (auto& slot : slots) {
    if (!slot.load()) Py_RETURN_TRUE;
  }
  Py_RETURN_FALSE;
}

PyObject* clock_ns(PyObject*, PyObject*) { return PyLong_FromLongLong(now()); }

PyObject* line_here(PyObject*, PyObject*) {  // (code, instruction) of the calling frame, as `enter` would read it
  auto* f = top_frame();
  while (f && _PyFrame_IsIncomplete(f)) f = f->previous;
  if (!f) return none();
  return Py_BuildValue("(Oi)", reinterpret_cast<PyObject*>(code_of(f)), instruction_of(f));
}

PyObject* callers_of(PyObject*, PyObject* number) {  // names and overloads of the operators, outermost first
  std::vector<const Operator*> found;
  {
    Callers& of = callers();
    std::lock_guard<std::mutex> lock(of.mutex);
    for (int32_t at = static_cast<int32_t>(PyLong_AsLong(number)); at > 0; at = of.all.at(at).first) {
      found.push_back(of.all.at(at).second);
    }
  }
  std::reverse(found.begin(), found.end());
  return list_of(found, [](const Operator* op) { return Py_BuildValue("(ss)", op->name.c_str(), op->overload.c_str()); });
}

PyMethodDef functions[] = {
    {"look_away", look_away, METH_O, nullptr}, {"looking_away", is_looking_away, METH_NOARGS, nullptr},
    {"after_fork", after_fork, METH_NOARGS, nullptr}, {"step_aside", step_aside, METH_NOARGS, nullptr}, {"step_back", step_back, METH_NOARGS, nullptr},
    {"has_room", has_room, METH_NOARGS, nullptr}, {"callers_of", callers_of, METH_O, nullptr}, {"clock_ns", clock_ns, METH_NOARGS, nullptr}, {"line_here", line_here, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

int fill(PyObject* module) {
  Ref core(PyType_FromSpec(&core_spec)), cell(PyType_FromSpec(&cell_spec));
  if (!core || !cell || PyModule_AddObjectRef(module, "Core", core) < 0) return -1;
  if (PyModule_AddObjectRef(module, "Cell", cell) < 0) return -1;
  return PyModule_AddStringConstant(module, "key", TORCHATLAS_KEY);
}

PyModuleDef_Slot module_slots[] = {{Py_mod_exec, reinterpret_cast<void*>(fill)}, {0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_recorder", nullptr, 0, functions, module_slots};

}  // namespace

PyMODINIT_FUNC PyInit__recorder() { return PyModuleDef_Init(&definition); }
